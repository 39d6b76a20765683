"""What is known of an attached query: its state, its errors, its cost and what limits it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from looptap.agent.budget import Meter
from looptap.agent.outbox import Sink
from looptap.streams.errors import LooptapError
from looptap.streams.pipelines import Latest, Pipeline
from looptap.streams.syntax import format_error

TOO_MANY = 100
"""Errors in a row after which a query is detached."""


class QueryStatus:
    """The part of an `AttachedQuery` that clients are told of."""

    def __init__(self, pipeline: Pipeline, outbox: Sink, meter: Meter, places: Sequence[Latest]) -> None:
        self.pipeline, self.outbox, self.meter = pipeline, outbox, meter
        self.places = places
        """What it reads of events of other types."""
        self.state, self.reason = "live", ""
        self.errors = self.events = 0
        self.seconds = self.started = 0.0
        """What the query has cost the training thread, and the time of its first event."""
        self.traceback = ""
        self.warning = ""
        """A sentence on what the query does to the loop."""
        self.changes = 1
        """How often its state, its first error or its limit has changed: who reads it is to hear of that."""
        self.suspended = False
        self.overdue = 0.0
        """Seconds that its present evaluation has taken, once they are many."""
        self._in_a_row = 0
        self._feed: Callable[[Any], Any] | None = None  # the short way, where the query is a function of one event

    def granted(self, share: float | None) -> None:
        """The operator grants ``share`` of the loop's time to this query alone; None: back to the common budget."""
        self.meter.forget()
        self.meter.grant = share
        if self.suspended:
            self.pipeline.begin(partial=True)
            self.suspended = False
        self.changes += 1

    def remarks(self) -> list[str]:
        """What whoever reads the stream should know of it at present."""
        problems = [f"latest({place.event!r}): {place.problem}" for place in self.places if place.problem]
        overdue = f"one evaluation has taken {self.overdue:.0f} s so far, and the loop waits for it"
        return [text for text in (overdue * bool(self.overdue), self.limitation(), self.warning, *problems) if text]

    def limitation(self) -> str:
        """How the budget limits this query, in words; empty if it does not."""
        meter = self.meter
        share = f"{100 * meter.allowed():.2g} %"
        if self.suspended:
            return f"suspended: it takes more than {share} of the loop's time; budget= or stream.grant() gives it more"
        if meter.limited:
            return f"evaluated at every {_ordinal(meter.every * meter.pace)} event, to stay within {share}"
        return ""

    def fail(self, reason: str) -> None:
        """Stop for good; the I/O thread takes the query off its events."""
        self.state, self.reason, self._feed = "failed", reason, None
        self._tell()

    def _tell(self) -> None:
        self.changes += 1
        self.outbox.ring()

    def _failed(self, error: BaseException) -> None:
        if isinstance(error, SystemExit):
            self.fail(f"it raised SystemExit({error.code!r})")
        elif isinstance(error, LooptapError):
            self.note(str(error))
        else:
            self.note(format_error(error, self.pipeline.text))

    def note(self, text: str) -> None:
        """Count an error; the first is told, and one hundred in a row end the query."""
        self.errors += 1
        self._in_a_row += 1
        if self.errors == 1:
            self.traceback = text
            self._tell()
        if self._in_a_row >= TOO_MANY:
            first = self.traceback.strip().splitlines()[-1] if self.traceback else text
            self.fail(f"{TOO_MANY} errors in a row, the first: {first}")


def _ordinal(n: int) -> str:
    return f"{n:,}" + ("th" if n % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th"))
