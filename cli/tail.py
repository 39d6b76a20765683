"""Polls live streams: new values, missing values, and when to end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from looptap.client.rank_numbers import numbered
from looptap.client.ranks.rank_stream import RankStream
from looptap.client.streams.live import LiveStream
from looptap.streams.stream.stream import Record
from looptap.streams.waiting import poll_until

POLL_INTERVAL_SECONDS = 0.02
"""Seconds between two looks."""


class TailItem(NamedTuple):
    """A new item, how many are missing right before it (None: unknown), and the run that begins with it."""

    record: Record
    missing: int | None
    run: str = ""


class Tail:
    """The end of one stream as it grows; it ends with the stream or after ``count`` values."""

    def __init__(self, stream: LiveStream, count: int | None, index: int = 0) -> None:
        self.stream, self.count, self.index = stream, count, index
        self.values = 0
        self.over = False
        """True if nothing more will come."""
        self._number = stream.begins - 1
        self._warned = False

    def look(self) -> Iterator[TailItem]:
        """Yield the items since the last look."""
        ended = self.stream.state != "live"  # before the look: what came before the end is seen
        for record in self.stream.records_after(self._number):
            if self.complete:
                break
            missing = record.number - self._number - 1
            yield TailItem(record, None if self._unknown(record.number) else missing, self._seam(record.number))
            self._number = record.number
            self.values += record.error is None
        self.over = ended or self.complete

    def failure(self) -> str:
        """Return, once, the first traceback of a query that fails at single events; else an empty text."""
        if self._warned or not self.stream.traceback or not self.stream.mapped:  # a window's error is an item
            return ""
        self._warned = True
        return self.stream.traceback

    def place(self, record: Record) -> str:
        """Return the rank of a value, or the ranks that it lacks; empty for a single rank."""
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
        """True if all requested values came."""
        return self.count is not None and self.values >= self.count

    def _unknown(self, number: int) -> bool:
        return any(self._number <= gap.after < number and gap.missing is None for gap in self.stream.gaps)

    def _seam(self, number: int) -> str:
        return next((seam.new for seam in self.stream.seams[::-1] if self._number <= seam.after < number), "")


class Display(Protocol):
    """Shows new items."""

    def show(self, tail: Tail, news: Sequence[TailItem]) -> None:
        """Show what is new in one stream."""

    def turn(self) -> None:
        """Flush what was shown; called after each round over all streams."""


def show_news(tails: Sequence[Tail], display: Display, timeout: float | None) -> bool:
    """Show what comes until all streams are over; False if ``timeout`` seconds passed before."""

    def over() -> bool:
        for tail in tails:
            if not tail.over:
                display.show(tail, list(tail.look()))
        display.turn()
        return all(tail.over for tail in tails)

    return poll_until(over, POLL_INTERVAL_SECONDS, timeout)
