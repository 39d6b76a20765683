"""Polls live streams: new values, missing values, and when to end."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from looptap.client.rank_numbers import numbered
from looptap.client.ranks.rank_stream import RankStream
from looptap.client.streams.live import LiveStream
from looptap.streams.stream.stream import Record, Stream
from looptap.streams.waiting import poll_until

POLL_INTERVAL_SECONDS = 0.02
"""Seconds between two checks for new items."""
_RATE_WINDOW_SECONDS = 2.0  # seconds over which the rate of values is measured
_MAX_MAGNITUDE = 1e300  # larger numbers are clipped to this


class TailItem(NamedTuple):
    """A new item, the number missing before it (or None), and the run it begins."""

    record: Record
    missing: int | None
    run: str = ""


class Tail:
    """The end of one stream; over with the stream or after ``count`` values."""

    def __init__(self, stream: Stream, count: int | None, index: int = 0) -> None:
        self.stream, self.count, self.index = stream, count, index
        self.values = 0
        self.over = False
        """True if there will be no further items."""
        self._number = stream.begins - 1 if isinstance(stream, LiveStream) else 0
        self._warned = False

    def look(self) -> Iterator[TailItem]:
        """Yield the items since the last call."""
        ended = self.stream.state != "live"  # read before the records, so that the last ones are seen
        for record in self.stream.records_after(self._number):
            if self.complete:
                break
            missing = record.number - self._number - 1
            yield TailItem(record, None if self._unknown(record.number) else missing, self._seam(record.number))
            self._number = record.number
            self.values += record.error is None
        self.over = ended or self.complete

    def failure(self) -> str:
        """Return, once, the first traceback of a query failing at single events, or ""."""
        mapped = isinstance(self.stream, LiveStream) and self.stream.mapped  # a window's error is an item
        if self._warned or not self.stream.traceback or not mapped:
            return ""
        self._warned = True
        return self.stream.traceback

    def place(self, record: Record) -> str:
        """Return the rank of a value, or the ranks it lacks; "" for a single rank."""
        stream = self.stream
        if not isinstance(stream, RankStream):
            return ""
        if stream.combined is None:
            return f"rank {record.rank}"
        lacks = self.lacking(record)
        return f"without {numbered(lacks)}" if lacks else ""

    def lacking(self, record: Record) -> tuple[int, ...]:
        """Return the ranks that are missing in a combined value."""
        if not record.partial or not isinstance(self.stream, RankStream):
            return ()
        return next((one.ranks for one in reversed(self.stream.absent) if one.number == record.number), ())

    @property
    def complete(self) -> bool:
        """True if all requested values have arrived."""
        return self.count is not None and self.values >= self.count

    @property
    def lacks(self) -> bool:
        """True if fewer values have arrived than were requested, or none."""
        return self.values < (self.count or 1)

    def _unknown(self, number: int) -> bool:
        return any(self._number <= gap.after < number and gap.missing is None for gap in self.stream.gaps)

    def _seam(self, number: int) -> str:
        return next((seam.new for seam in self.stream.seams[::-1] if self._number <= seam.after < number), "")


class Rate:
    """Values per second, over the last two seconds."""

    def __init__(self) -> None:
        self._counts = deque([(time.monotonic(), 0)])

    def count(self, values: int) -> None:
        """Note how many values there are by now."""
        now = time.monotonic()
        self._counts.append((now, values))
        while now - self._counts[0][0] > _RATE_WINDOW_SECONDS:
            self._counts.popleft()

    def __float__(self) -> float:
        (start, before), (end, now) = self._counts[0], self._counts[-1]
        return (now - before) / (end - start) if end > start else 0.0


def numbers_in(value: Any) -> list[float]:
    """Return the number that a curve shows of a value: itself, or the last of a row.

    >>> numbers_in((3, 0.5)), numbers_in("a")
    ([0.5], [])
    """
    parts = value if isinstance(value, tuple) else (value,)
    numbers = [part for part in parts if isinstance(part, int | float) and not isinstance(part, bool)]
    return [_clipped(number) for number in numbers[-1:]]


def _clipped(number: float) -> float:
    """Return a number of which differences are finite, or infinity."""
    return number if abs(number) == math.inf else float(max(min(number, _MAX_MAGNITUDE), -_MAX_MAGNITUDE))


class Display(Protocol):
    """Where new items are shown: on a terminal, as lines or as JSON."""

    def show(self, tail: Tail, news: Sequence[TailItem]) -> None:
        """Show the new items of one stream."""

    def turn(self) -> None:
        """Flush the output; called after each round over all streams."""


def show_news(tails: Sequence[Tail], display: Display, timeout: float | None) -> bool:
    """Show new items until all streams are over; return False after ``timeout``."""

    def over() -> bool:
        for tail in tails:
            if not tail.over:
                display.show(tail, list(tail.look()))
        display.turn()
        return all(tail.over for tail in tails)

    return poll_until(over, POLL_INTERVAL_SECONDS, timeout)
