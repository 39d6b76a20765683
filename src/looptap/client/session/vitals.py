"""The liveness of a job: the agent's newest heartbeat, and its age."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from looptap.protocol import messages as m
from looptap.protocol.errors import MessageError
from looptap.protocol.process.identity import Process
from looptap.streams.durations import duration

MAX_EVENT_TYPES = 10_000
"""Types of events that an agent may name."""
QUIET_SECONDS = 2.5
"""Seconds without a heartbeat, of which one comes each second, after which it is worth saying so."""
STILL_SECONDS = 5.0
"""Seconds without an event after which it is worth saying so."""
SILENT_TICKS = 5
"""Seconds without an answer after which a run whose link is up counts as silent. They are counted one by one, so that
a client that was stopped itself takes no agent for silent."""
_FIRST_SILENT_TICK_NUMBER = 2  # a frame has come each second before
_UNKNOWN = "the job's process may be stopped."
_MAX_NAME_CHARACTERS = 500  # characters of what an agent says it is inside of


class Vitals:
    """The newest heartbeat of one agent, with times as of now."""

    def __init__(self) -> None:
        self.events: dict[str, int] = {}
        self.paused = 0.0
        self.inside = ""
        """A query or command that has been running for long, with its client."""
        self._idle, self._ages = 0.0, dict[str, float]()
        self._last_frame = self.last_beat = time.monotonic()  # the last frame, the last beat
        self._silent_ticks = 0  # ticks since the last frame
        self._last_request = "", 0.0  # the query or command that was asked last, and when
        self.process: Process | None = None
        """The job's process, if it is known."""
        self._busy_before = 0.0  # its processor time when it fell silent

    @property
    def idle(self) -> float:
        """Seconds since the loop's last event, or since the agent began without one."""
        return self._idle + (time.monotonic() - self.last_beat)

    @property
    def silence(self) -> float:
        """Seconds since the last frame of the agent."""
        return time.monotonic() - self._last_frame

    @property
    def silent(self) -> bool:
        """True if the agent does not answer, although the link to it is up."""
        return self._silent_ticks >= SILENT_TICKS

    def ages(self) -> dict[str, float]:
        """Return the seconds since the last event of each type."""
        passed = time.monotonic() - self.last_beat
        return {name: self._ages.get(name, self._idle) + passed for name in self.events}

    def hear(self) -> None:
        """Record that a frame of the agent came."""
        self._last_frame, self._silent_ticks = time.monotonic(), 0

    def tick(self) -> bool:
        """Count a second; return True if the agent has just become silent."""
        self._silent_ticks += 1
        if self._silent_ticks == _FIRST_SILENT_TICK_NUMBER and self.process is not None:
            self._busy_before = (self.process.pulse() or ("", 0.0))[1]
        return self._silent_ticks == SILENT_TICKS

    def beat(self, beat: m.Beat) -> None:
        """Handle a heartbeat. Raises MessageError if it names too many event types."""
        if max(len(beat.events), len(beat.ages)) > MAX_EVENT_TYPES:
            raise MessageError(f"A heartbeat that names {len(beat.events)} types of events.")
        self.events, self._ages, self.inside = beat.events, beat.ages, beat.inside[:_MAX_NAME_CHARACTERS]
        self._idle, self.paused, self.last_beat = max(0.0, beat.idle), max(0.0, beat.paused), time.monotonic()

    def resumed(self) -> None:
        """Record that the loop continues, before a heartbeat says so."""
        self.paused = 0.0

    def asked(self, what: str) -> None:
        """Record a query or command that the job will run."""
        self._last_request = what, time.monotonic()

    def moving(self) -> str:
        """Describe how far the loop is."""
        return moving(self.events, self.ages(), self.idle)

    def quiet(self) -> str:
        """Return a sentence if there has been no heartbeat for a while; else nothing."""
        seconds = self.silence
        if seconds <= QUIET_SECONDS:
            return ""
        why = self._process_now() or "the job's process is stopped or gone, or the way to it is cut."
        return f"No sign of life for {seconds:.0f} s: {why}"

    def _process_now(self) -> str:
        return "" if self.process is None else self.process.activity(self._busy_before)

    def outlook(self, on: str) -> str:
        """Return reasons why a query on ``on`` yields no value; empty if unknown."""
        if self.paused:
            return " The loop is paused; run.resume() ends that."
        if self.inside:
            return f" The loop waits for {self.inside}."
        if not on:
            return ""
        if count := self.events.get(on, 0):
            idle, still = self.idle, ""
            if idle > STILL_SECONDS:
                still = " The agent answers, but the loop is not moving: run.stacks() shows where it is."
            return f" The run has raised {count:,} {on!r} events, its last event {idle:.0f} s ago.{still}"
        seen = ", ".join(map(repr, self.events)) or f"none in the {self.idle:.0f} s since it started"
        return f" The run has raised no {on!r} event yet; event types so far: {seen}."

    def no_answer(self, queries: Sequence[str]) -> str:
        """Describe why the agent may not answer over a link that is up.

        ``queries`` are those of this client, the most expensive first.
        """
        return (
            f"No answer for {self.silence:.0f} s, though the link is up: {self._process_now() or _UNKNOWN} One call in "
            f"it may keep the interpreter for itself, or a query that does not end. {self._suspects(list(queries))}"
        )

    def _suspects(self, queries: list[str]) -> str:
        asked, when = self._last_request
        if self.inside:
            return f"The last query known to be running is {self.inside}."
        if asked and when > self.last_beat - QUIET_SECONDS:  # since then no heartbeat has said that it returns
            queries.insert(0, asked)
        if not queries:
            return "This client has no query on it."
        first, *others = [repr(query[:60]) for query in dict.fromkeys(queries)][:4]
        more = f"; others are {', '.join(others)}" if others else ""
        return f"The last query known to be running is {first}{more}."


def moving(events: Mapping[str, int], ages: Mapping[str, float], idle: float) -> str:
    """Describe the number of events of each type, and the age of the last of each.

    >>> moving({"batch": 1200, "epoch": 3}, {"batch": 24.0, "epoch": 120.0}, 24.0)
    '1,200 batch events, the last 24 s ago; 3 epoch events, the last 2 min ago'
    >>> moving({}, {}, 24.0)
    'no event in the 24 s since it started'
    """
    seen = [
        f"{count:,} {name[:40]} event{'s' * (count != 1)}, the last {duration(ages.get(name, idle))} ago"
        for name, count in list(events.items())[:8]
        if count
    ]
    more = f"; and {len(events) - 8:,} more types" if len(events) > 8 else ""
    return "; ".join(seen) + more if seen else f"no event in the {duration(idle)} since it started"
