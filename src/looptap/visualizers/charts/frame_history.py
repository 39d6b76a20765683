"""`FrameHistory`: the newest pictures of one stream, to look back at."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from typing import Any, NamedTuple

from looptap.streams.values.described import Image
from looptap.streams.values.sizing import size_of

MAX_FRAMES = 100
"""Frames of a stream that are kept."""
MAX_FRAME_BYTES = 64_000_000
"""The approximate limit for the frames of a stream; the newest is always kept."""
TRAIL_FRAMES = 8
"""Frames that are drawn behind the one of now, lighter."""


class ChartFrame(NamedTuple):
    """One picture, the event it comes from, and when."""

    value: Any
    event: int
    wall: float
    nbytes: int


class FrameHistory:
    """At most ``keep`` frames within ``nbytes``; `aim` selects the one shown.

    >>> frames = FrameHistory(2)
    >>> for number in range(3):
    ...     frames.append(number, event=number, wall=0.0)
    >>> len(frames), frames.given_up, frames.aim(None), list(frames.shown)
    (2, 1, 1, [1, 2])
    """

    def __init__(self, keep: int = MAX_FRAMES, nbytes: int = MAX_FRAME_BYTES) -> None:
        self.keep, self.nbytes = max(1, keep), nbytes
        self.given_up = 0
        """The number of dropped frames."""
        self._frames: deque[ChartFrame] = deque()
        self._held = 0
        self._index = 0

    def __len__(self) -> int:
        return len(self._frames)

    def append(self, value: Any, event: int, wall: float) -> None:
        """Add a frame; drop the oldest ones beyond the bounds."""
        frame = ChartFrame(value, event, wall, len(value.png) if isinstance(value, Image) else size_of(value))
        self._frames.append(frame)
        self._held += frame.nbytes
        while len(self._frames) > 1 and (len(self._frames) > self.keep or self._held > self.nbytes):
            self._held -= self._frames.popleft().nbytes
            self.given_up += 1
        self._index = len(self._frames) - 1

    def aim(self, number: int | None) -> int:
        """Show frame ``number`` since the first, or the newest; return its kept index."""
        last = len(self._frames) - 1
        self._index = last if number is None else min(max(0, number - self.given_up), last)
        return self._index

    def aim_at(self, leader: FrameHistory, *, newest: bool) -> None:
        """Show the frame of the moment that another stream shows."""
        if not self._frames:
            return
        wall = leader._frames[leader._index].wall
        walls = [frame.wall for frame in self._frames]
        if newest or walls[0] == walls[-1]:  # the clock cannot distinguish them
            back = 0 if newest else len(leader) - 1 - leader._index
            self._index = max(0, len(walls) - 1 - back)
        else:
            self._index = max(0, bisect_right(walls, wall) - 1)

    @property
    def shown(self) -> list[Any]:
        """Up to `TRAIL_FRAMES` earlier frames and, last, the one to draw."""
        start = max(0, self._index - TRAIL_FRAMES)
        return [self._frames[index].value for index in range(start, self._index + 1)] if self._frames else []

    @property
    def event(self) -> int:
        """The number of the event that the shown frame comes from; 0 if there is none."""
        return self._frames[self._index].event if self._frames else 0
