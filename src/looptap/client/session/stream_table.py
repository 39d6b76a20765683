"""The streams of a session by number, held by weak references."""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections import deque
from collections.abc import Iterator
from typing import Any, Protocol

from looptap.protocol import messages as m
from looptap.streams.stream.state_and_cost import Cost


class StreamSink(Protocol):
    """A stream as its session sees it. Transport thread, except `await_history`."""

    text: str
    cost: Cost
    opening: bool
    declared: str | None

    @property
    def patience(self) -> float:
        """The seconds for which its values may gather at the agent."""

    @property
    def attach(self) -> m.Attach:
        """The request that attaches the query."""

    def attached(self, reply: Any) -> None:
        """Handle the reply to the attach."""

    def await_history(self, timeout: float) -> None:
        """Wait up to ``timeout`` seconds for the history at the attach."""

    def receive(self, message: m.Values) -> None:
        """Handle values. Raises MessageError."""

    def receive_status(self, status: m.Status) -> None:
        """Handle the status of the query."""

    def reattach(self, request: int, moved: tuple[str, str] | None) -> m.Attach:
        """Return the request that reattaches the query, perhaps after it ``moved``."""

    def reattached(self, reply: Any) -> None:
        """Handle the reply to the second attach."""

    def take_back(self) -> bool:
        """Make a declared stream this client's own query again; False if it never was."""

    def end(self, state: str, reason: str, *, cut: bool = False) -> None:
        """End the stream; ``cut`` if the agent never reported the query's last number."""


class StreamTable:
    """Streams by number, as long as they are in use elsewhere. Takes no lock."""

    def __init__(self) -> None:
        self._streams: dict[int, weakref.ref[StreamSink]] = {}
        self._dropped: deque[int] = deque()
        self._numbers = itertools.count(1)

    def number(self) -> int:
        """Return a number for a new stream."""
        return next(self._numbers)

    def add(self, stream: StreamSink) -> None:
        """Register the stream."""
        self._streams[stream.attach.stream] = weakref.ref(stream)

    def get(self, number: int) -> StreamSink | None:
        """Return the stream with this number; None if it was dropped."""
        reference = self._streams.get(number)
        return None if reference is None else reference()

    def forget(self, number: int) -> None:
        """Forget a stream that has ended."""
        self._streams.pop(number, None)

    def drop(self, number: int) -> None:
        """Mark the stream as dropped; a finalizer calls this, on any thread."""
        if self._streams.pop(number, None) is not None:
            self._dropped.append(number)

    def dropped(self) -> Iterator[int]:
        """Yield each dropped stream once, to detach its query."""
        with contextlib.suppress(IndexError):  # several threads may ask at once
            while True:
                yield self._dropped.popleft()

    def living(self) -> list[tuple[int, StreamSink]]:
        """Return the streams that are in use, with their numbers."""
        found = ((number, reference()) for number, reference in list(self._streams.items()))
        return [(number, stream) for number, stream in found if stream is not None]
