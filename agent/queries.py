"""A query that is attached to the events of a running job: evaluated on the training thread, guarded, measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from time import monotonic
from typing import Any, TypeAlias

from looptap.agent.budget import Meter, used
from looptap.agent.outbox import SMALLEST, Item, Marked, Sink
from looptap.agent.state_guard import StateGuard
from looptap.streams.errors import LooptapError
from looptap.streams.events import Event
from looptap.streams.pipelines import ERROR, Latest, Mapped, Output, Pipeline, needs_group
from looptap.streams.recorder import FlightRecorder
from looptap.streams.snapshots import NUMBERS, take
from looptap.streams.syntax import format_error
from looptap.streams.trust import Sight

Happened: TypeAlias = tuple[Event | None, int, float, int]
"""An event with its number, time and the number of the last one before its group; None ends the group of the number."""

TOO_MANY = 100
"""Errors in a row after which a query is detached."""


class AttachedQuery:
    """One query of one client on the events of one type.

    The training thread calls `post` and `close`; the I/O thread reads the counters and empties the outbox.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        outbox: Sink,
        *,
        on: str,
        name: str = "",
        max_bytes: int,
        recorder: FlightRecorder[Item] | None = None,
        meter: Meter,
        places: Sequence[Latest] = (),
    ) -> None:
        self.pipeline, self.outbox, self.on, self.name = pipeline, outbox, on, name or pipeline.text
        self.max_bytes, self.recorder = max_bytes, recorder
        self.state, self.reason = "live", ""
        self.errors = self.events = 0
        self.seconds = 0.0
        """What the query has cost the training thread."""
        self.traceback = ""
        self.warning = ""
        """A sentence on what the query does to the loop."""
        self.changes = 1
        """How often its state, its first error or its limit has changed: who reads it is to hear of that."""
        self.grouped, self.every = needs_group(pipeline), pipeline.every
        self.numbers, self.language = pipeline.numbers, pipeline.language
        """What it reads of an event if it is arithmetic, else None; the names of the language that it uses."""
        if recorder is not None:
            condition = recorder.condition
            self.language |= condition.language
            if self.numbers is not None:
                self.numbers = None if condition.numbers is None else self.numbers | condition.numbers
        self.later: bool | None = None
        """Whether it is evaluated after its events; None until it has seen one."""
        self.dear = 0  # how often in a row, a little later, it cost more than what is never limited
        self.started = 0.0
        self.meter = meter
        self.places = places
        """What it reads of events of other types."""
        self.suspended = False
        self.overdue = 0.0
        """Seconds that its present evaluation has taken, once they are many."""
        self._in_a_row = 0
        self._close_asked = False
        short = isinstance(pipeline, Mapped) and pipeline.trusted and recorder is None
        self._pipelines = (pipeline,) if recorder is None else (pipeline, recorder.condition)
        self._inputs_seen = None if recorder is None else Sight.of_whole(recorder.condition.reads)
        self._standing: Mapping[str, Any] = {}  # of the newest event
        self._mapped = pipeline if short and isinstance(pipeline, Mapped) else None
        self._feed: Callable[[Any], Any] | None = None  # the short way, where the query is a function of one event

    def post(self, event: Event, number: int, now: float, began: int) -> None:
        """Evaluate the query at this event. Raises nothing but KeyboardInterrupt.

        ``began`` is the number of the last event before the open group.
        """
        try:
            feed = self._feed
            if feed is not None and (self.later or self._harmless(event)):
                value, size = take(feed(event), self.max_bytes)
                self.outbox.put(number, now, value, size)
                self.events += 1
                self._in_a_row = 0
                return
            if self.suspended or self.state != "live":
                return
            if not self.events:
                self.started = now
                if self.grouped:
                    self.pipeline.begin(partial=number > began + 1)
            self.events += 1
            if self.later or self._harmless(event):
                self._evaluate(event, number, now)
            else:
                self._guarded(event, number, now)
            if self._close_asked:
                self._close_asked = False
                self.close(number, now)
            if self._mapped is not None:
                self._feed = self._mapped.feed()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self._failed(error)

    def _harmless(self, event: Event) -> bool:
        """Whether the query is known to leave the loop alone, with what it reads of this event."""
        for pipeline in self._pipelines:
            if pipeline.sight is None or not pipeline.sight.plain(event):
                return False
        return self._inputs_seen is None or self._inputs_seen.plain(event)

    def _evaluate(self, event: Event, number: int, now: float) -> None:
        outputs = self.pipeline.post(event, number, now)
        if outputs:
            self._put(outputs, event, number, now)
        elif self.pipeline.mapped:
            self._in_a_row = 0

    def _guarded(self, event: Event, number: int, now: float) -> None:
        """Evaluate what may do anything: what it changes of the loop is put back or, once, reported."""
        self._standing = event.__looptap_standing__()
        guard = StateGuard(self._pipelines, *event.__looptap_shown__())
        try:
            with guard:
                self._evaluate(event, number, now)
        finally:
            self._warn(guard, number)

    def _warn(self, guard: StateGuard, number: int) -> None:
        if not self.warning and (warning := guard.changed(number)):
            self.warning = warning
            self._tell()

    def take_in(self, batch: Sequence[Happened]) -> None:
        """Evaluate the query at several events, and end windows between them; a Ctrl-C is passed on at the end."""
        if self.every != 1:
            batch = [one for one in batch if one[0] is None or not one[1] % self.every]
        if self._feed is not None and self._in_bulk(self._feed, batch):
            return
        interrupt: KeyboardInterrupt | None = None
        begun = self.events > 0 and self.state == "live" and not (self.suspended or self._close_asked)
        post = self._reduce if begun and self.later and not self.pipeline.mapped else self.post
        rest = iter(batch)
        while True:
            try:
                for event, number, now, began in rest:
                    if event is not None:
                        post(event, number, now, began)
                    elif self.grouped and self.events:
                        self.close(number, now, began)
                break
            except KeyboardInterrupt as pressed:
                interrupt = pressed
            except BaseException as error:
                self._failed(error)
                post = self.post
        if interrupt is not None:
            raise interrupt

    def _reduce(self, event: Event, number: int, now: float, began: int) -> None:
        """`post` of a reduction that goes on as it did. Raises what it raises."""
        self.events += 1
        outputs = self.pipeline.post(event, number, now)
        if outputs:
            self._put(outputs, event, number, now)

    def _in_bulk(self, feed: Callable[[Any], Any], batch: Sequence[Happened]) -> bool:
        """Put the values of a plain function of the event, if all of them are numbers or rows of numbers."""
        happened = [one for one in batch if one[0] is not None]
        try:
            values = [feed(event) for event, _, _, _ in happened]
        except Exception:  # one by one, the others get through
            return False
        kinds = set(map(type, values))
        rows = kinds == {tuple} and NUMBERS.issuperset(map(type, chain.from_iterable(values)))
        if not (rows or kinds <= NUMBERS):
            return False
        sizes = [SMALLEST * (len(value) or 1) for value in values] if rows else [SMALLEST] * len(values)
        numbers, times = [number for _, number, _, _ in happened], [now for _, _, now, _ in happened]
        self.outbox.put_all(numbers, times, values, sizes)
        self.events += len(values)
        self._in_a_row = 0
        return True

    def log(self, value: Any, now: float) -> None:
        """Put a value that the host hands over; its event is the call. Raises nothing but KeyboardInterrupt."""
        if self.state != "live":
            return
        try:
            self.events += 1
            copy, size = take(value, self.max_bytes)
            self.outbox.put(self.events, now, copy, size)
            self._in_a_row = 0
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self._failed(error)

    def close(self, number: int, now: float, group: int = 0) -> None:
        """End the window: the host's group has ended, which was the ``group``-th."""
        try:
            if self.pipeline.trusted:  # what is left to reduce are copies
                self._put(self.pipeline.close(now), None, number, now)
                return
            guard = StateGuard(self._pipelines, self._standing)
            try:
                with guard:
                    self._put(self.pipeline.close(now), None, number, now)
            finally:
                self._warn(guard, number)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self._failed(error)

    def close_soon(self) -> None:
        """End the window at the next event (from any thread)."""
        self._close_asked = True

    def cut(self, number: int, now: float) -> None:
        """End the window because the query goes; it is flagged partial."""
        self.pipeline.begin(partial=True)
        self.close(number, now)

    def watched(self, event: Event, number: int, now: float, began: int, step: float, started: float) -> float:
        """`post` of a query that is under suspicion, at the cost that is its own doing. Returns when it ended."""
        cpu, waits = used()
        self.post(event, number, now, began)
        ended, (cpu_then, waits_then) = monotonic(), used()
        cost = self.meter.own(ended - started, cpu_then - cpu, waits_then - waits)
        self.seconds += cost
        if cost > self.meter.cheap:
            self.charge(cost, step, number, now)
        else:
            self.meter.calm(now)
        return monotonic()

    def charge(self, cost: float, step: float, number: int, now: float) -> None:
        """Take note of an evaluation that cost more than 20 µs, in a loop of ``step`` seconds."""
        meter, limited = self.meter, self.meter.limited
        if not meter.charge(cost, step, self.seconds, self.events, now):
            self.fail(f"one evaluation took {cost:.1f} s, for the second time")
        elif meter.limited and not self.pipeline.mapped:
            self.cut(number, now)
            self.suspended, meter.skip = True, 0
            self._tell()
        elif meter.limited != limited:
            self._tell()

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

    def _put(self, outputs: Sequence[Output], event: Event | None, number: int, now: float) -> None:
        put = self.outbox.put
        for flags, value in outputs:
            if flags & ERROR:
                self.note(value)
                put(number, now, Marked(value, flags), SMALLEST + len(value))
                continue
            try:
                copy, size = take(value, self.max_bytes)
            except LooptapError as error:
                if self.pipeline.mapped:
                    raise
                self.note(str(error))
                put(number, now, Marked(str(error), flags | ERROR), SMALLEST + len(str(error)))
                continue
            self._in_a_row = 0
            if self.recorder is None:
                put(number, now, Marked(copy, flags) if flags else copy, size)
            elif event is not None:
                kept, more = self._inputs(event)
                put(number, now, Marked(copy, flags, kept), size + more)

    def _inputs(self, event: Event) -> tuple[dict[str, Any], int]:
        """Snapshots of what the recorder's condition reads."""
        assert self.recorder is not None
        kept: dict[str, Any] = {}
        total = 0
        present = event.__looptap_names__()
        for name in self.recorder.condition.reads:
            if name in present:
                kept[name], size = take(getattr(event, name), self.max_bytes)
                total += size
        return kept, total

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
