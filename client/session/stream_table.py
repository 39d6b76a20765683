"""The streams of a session by number, of which the table keeps none alive."""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections import deque
from collections.abc import Iterator
from typing import Any, Protocol

from looptap.protocol import messages as m
from looptap.streams.stream.stream import Cost


class StreamSink(Protocol):
    """A stream as its session sees it. Methods are called on the transport's thread, but for `await_history`."""

    text: str
    cost: Cost
    opening: bool
    standing: str | None

    @property
    def attach(self) -> m.Attach:
        """The request that attaches the query."""

    def attached(self, reply: Any) -> None:
        """Take in the reply to the attach."""

    def await_history(self, timeout: float) -> None:
        """Wait, no longer than ``timeout`` seconds, for what the history held at the attach."""

    def receive(self, message: m.Values) -> None:
        """Take in values. Raises MessageError."""

    def receive_status(self, status: m.Status) -> None:
        """Take in what the agent says of the query."""

    def reattach(self, request: int, moved: tuple[str, str] | None) -> m.Attach:
        """Return the request that attaches the query once more, perhaps after it ``moved`` from one run to another."""

    def reattached(self, reply: Any) -> None:
        """Take in the reply to the second attach."""

    def take_back(self) -> bool:
        """Make a query that was handed over to the job this client's own again; False if it never was."""

    def end(self, state: str, reason: str, *, cut: bool = False) -> None:
        """End the stream; ``cut`` if the agent never said how far the query had come."""


class StreamTable:
    """Numbers streams and finds them again, as long as they are in use elsewhere. Takes no lock."""

    def __init__(self) -> None:
        self._streams: dict[int, weakref.ref[StreamSink]] = {}
        self._dropped: deque[int] = deque()
        self._numbers = itertools.count(1)

    def number(self) -> int:
        """Return a number for a new stream."""
        return next(self._numbers)

    def add(self, stream: StreamSink) -> None:
        """Find the stream from now on."""
        self._streams[stream.attach.stream] = weakref.ref(stream)

    def get(self, number: int) -> StreamSink | None:
        """Return the stream with this number; None if it was dropped."""
        reference = self._streams.get(number)
        return None if reference is None else reference()

    def forget(self, number: int) -> None:
        """Forget a stream that has ended."""
        self._streams.pop(number, None)

    def drop(self, number: int) -> None:
        """Note that the stream was dropped; a finalizer calls this, whatever locks its thread holds."""
        if self._streams.pop(number, None) is not None:
            self._dropped.append(number)

    def dropped(self) -> Iterator[int]:
        """Yield each dropped stream once: its query is to be detached."""
        with contextlib.suppress(IndexError):  # several threads may ask at once
            while True:
                yield self._dropped.popleft()

    def living(self) -> list[tuple[int, StreamSink]]:
        """Return the streams that are in use, with their numbers."""
        found = ((number, reference()) for number, reference in list(self._streams.items()))
        return [(number, stream) for number, stream in found if stream is not None]
