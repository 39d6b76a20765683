"""A query attached to a running job's events: what it is, counts and yields."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import thread_time
from types import ModuleType
from typing import Any, Protocol, TypeAlias, cast

from looptap.agent.handoff.value_batch import MIN_VALUE_BYTES, FlaggedValue, Item
from looptap.agent.handoff.value_ring import ValueRing
from looptap.agent.loop.hooks.query_hooks import QueryHooks
from looptap.agent.loop.overhead_budget import Account
from looptap.agent.loop.query_limit import QueryLimit
from looptap.streams.errors import LooptapError, UnknownObservable
from looptap.streams.events import MACHINE, Event
from looptap.streams.expressions import format_error
from looptap.streams.flags import ERROR
from looptap.streams.language.rank_windows import WindowedValue
from looptap.streams.operators.flight_recorder import FlightRecorder
from looptap.streams.operators.pipeline import Latest, Output, Pipeline
from looptap.streams.operators.reducing import needs_group
from looptap.streams.operators.slots import Feed
from looptap.streams.operators.windows import Sliding
from looptap.streams.preserving.interrupts import complete
from looptap.streams.preserving.unsafe_evaluation import UnsafeEvaluation
from looptap.streams.proving.plain_reads import copyable, read_plainly
from looptap.streams.text import last_line
from looptap.streams.values.snapshots import snapshot

MAX_ERRORS_IN_A_ROW = 100
"""Errors in a row after which a query is detached."""

GiveWay: TypeAlias = Callable[[], None]
"""A function that lets another thread have its turn, called now and then."""


def stay() -> None:
    """Give no other thread a turn."""


class Dependent(Protocol):
    """What a query needs to know of a query derived from it."""

    sink: ValueRing
    reached: int

    @property
    def awaited(self) -> bool:
        """True if something needs its values soon."""

    def may_wait(self) -> bool:
        """Return True if the other query may be evaluated after its events."""

    def end_group(self, number: int, now: float, group: int) -> None:
        """Note that the group of the event ``number`` has ended; twice does no harm."""

    def catch_up(self, later: bool, give_way: GiveWay = stay) -> None:
        """Evaluate the query at new values."""


class AttachedQuery:
    """One query of one client on the events of one type.

    It has a pipeline, and a limit that the budget sets. `evaluate_at_event` evaluates it inside `emit`, and
    `evaluate_in_columns` later, at many events; which of the two, the plan of its events decides. The training thread
    evaluates it, and calls `flush`; the I/O thread reads the counters and empties the sink.

    Both may raise KeyboardInterrupt. Each first records which event, or which end of a group, it is at (`seen`,
    `closed`), and keeps the counts right: a value that is not put is counted as dropped, a window that lacks an event
    is flagged. So the interrupted caller knows what is left to do, and does nothing twice. Python delivers a signal
    where a function begins, jumps back or returns from one that is written in C, and nowhere else.
    """

    def __init__(
        self, pipeline: Pipeline, sink: ValueRing, *, on: str, name: str = "", max_bytes: int, account: Account,
        recorder: FlightRecorder[Item] | None = None, places: Sequence[Latest] = (),
    ) -> None:  # fmt: skip
        self.pipeline, self.sink, self.on, self.name = pipeline, sink, on, name or pipeline.text
        self.max_bytes, self.recorder = max_bytes, recorder
        self.latest_slots = places
        """Its copies of observables of other event types."""
        self.derived: tuple[Dependent, ...] = ()
        """The queries over its values, which run right after it; replaced as a whole."""
        pipeline.on_failure = self._window_failed
        self.every, self.grouped = pipeline.every, needs_group(pipeline)
        self.slides = isinstance(pipeline.window, Sliding) and not pipeline.mapped
        self.of_events = True
        """True if it reads events, which may lack a name, and not values."""
        pipelines = (pipeline,) if recorder is None else (pipeline, recorder.condition)
        self.language = frozenset[str]().union(*[one.language for one in pipelines])
        """The names of the language that it uses."""
        numbers = [one.numbers for one in pipelines if one.numbers is not None]
        self.numbers = frozenset[str]().union(*numbers) if len(numbers) == len(pipelines) else None
        """The observables that it reads if it is arithmetic, else None."""
        self.observed = frozenset[str]().union(*[one.observed for one in pipelines])
        """The names that it probably reads of an event."""
        self.awaits = MACHINE & frozenset[str]().union(*[one.mentions for one in pipelines])
        """The readings of the machine that it mentions: it is not evaluated before they are there."""
        self.hooks: QueryHooks | None = None
        """Its hooks on modules: it is not evaluated before they are in."""
        self.varies = self._passed_over = False
        """`varies` is True if it reads names that some events do not have: it passes over those."""
        self.inputs = tuple(sorted(recorder.condition.numbers or ())) if recorder is not None else ()
        """What the flight recorder's condition reads; in a block of columns the last ones are theirs."""
        self.yields_rows = False
        """True if the other columns of such a block are rows."""
        self.feed: Feed | None = None
        """The short way to a value, where the query is a function of one event; None before the first."""
        self.shortens = not (pipeline.unsafe or recorder)
        self.waits = self.numbers is not None
        """True if its code may run after its events, on either thread."""
        self.deferred = False
        """True while it does, on copies of the numbers of its events."""

        self.account, self.limit = account, QueryLimit(account, pipeline, self.notify)

        self.state, self.reason = "live", ""
        self.detached = False
        """True once no further event reaches it."""
        self.unseen = self.recorded = False
        """True while nothing looks at its values where they are sent to, and while they are written to a file."""
        self.changes = 1
        """The number of changes of its state, first error or limit, which are sent to readers."""
        self.errors = self.errors_in_a_row = self.events = self.empty = 0
        """`empty`: events that gave no value, as they were filtered out, or throttled."""
        self.seconds = self.started = 0.0
        """Seconds that the query has cost, and the time of its first event."""
        self.traceback = self.warning = self.missing_names = ""
        """Its first error; a warning on what it does to the loop; names it probably reads and events did not have."""
        self.overdue = 0.0
        """Seconds that its present evaluation has been running, if that is long."""

        self.seen = self.closed = 0
        """The number of the last event that was evaluated, or counted as lost; the same of groups that closed."""
        self.outputs: Sequence[Output] | None = None
        """What an evaluation has yielded, until all is done that belongs to it."""
        self.flags = 0
        """Flags of all values of the event that is evaluated."""
        self.flush_requested = False

    def checked(self, event: Any) -> Any:
        """Make the values of arithmetic plain; other code checks itself."""
        pipeline = self.pipeline
        if self.deferred or pipeline.numbers is None:
            return event
        return cast(Event, read_plainly(event, pipeline.numbers, pipeline.text, pipeline.bare is not None))

    def begins_late(self, number: int) -> bool:
        """Return True if there were events before this one, its first."""
        return number > self.every

    def evaluate_later(self, evaluate: Callable[[GiveWay], None], events: int, give_way: GiveWay) -> None:
        """Evaluate ``events`` after they happened, and charge what that costs.

        That is the time on the CPU: what is evaluated here is arithmetic, which waits for nothing.
        """
        began = thread_time()
        evaluate(give_way)
        cost = thread_time() - began
        self.seconds += cost
        self.account.charge_later(cost, events)

    def may_wait(self) -> bool:
        """Return True if it may be evaluated after its events, with those derived."""
        cheap = self.waits and self.account.is_cheap_later and self.state == "live"
        return cheap and all([query.may_wait() for query in self.derived])

    def defer(self, later: bool) -> None:
        """Evaluate it after its events from now on, which the budget does not limit."""
        self.deferred = later
        if later:
            self.limit.lift()

    def evaluate_derived(self, later: bool = False, give_way: GiveWay = stay) -> None:
        """Evaluate the queries over its values; ``later``: it was itself."""
        for query in self.derived:
            query.catch_up(later, give_way)

    def end_derived_group(self, number: int, now: float, group: int) -> None:
        """Tell the queries over its values that a group has ended."""
        for query in self.derived:
            query.end_group(number, now, group)

    @property
    def copies(self) -> bool:
        """True if its values are copies of an event's numbers, and no query reads them."""
        return self.pipeline.bare is not None and self.recorder is None and not self.derived

    @property
    def awaited(self) -> bool:
        """True if something needs its values soon, or those of a query over them."""
        seen = self.recorded or not (self.unseen or self.sink.unobserved)
        return seen or bool(self.derived and any([query.awaited for query in self.derived]))

    def unsafely(self, number: int, do: Callable[[], None], event: Event | None = None) -> None:
        """Run the query as it is, put torch's modes back, and report changes once."""
        running = UnsafeEvaluation(event.__looptap_shown__() if isinstance(event, Event) else ())
        try:
            running.begin()
            do()
        finally:
            complete(running.end)
            if not self.warning and (warning := running.changed(number)):
                self.warning = warning
                self.notify()

    # ------------------------------------------------------------ events without an evaluation

    def withhold(self, number: int, now: float) -> None:
        """Count an event that the budget keeps from this query."""
        limit = self.limit
        self.pipeline.begin(partial=True)
        self.seen = number  # without a call until it is counted: an interrupt finds both, or neither
        limit.kept_alone += 1
        limit.note_kept(now)

    @property
    def filtered(self) -> int:
        """The number of evaluations at which a mapped query yielded no value."""
        empty = self.empty  # looked at first: the training thread raises it last
        return max(0, empty - self.pipeline.skipped)

    def pass_over(self, reason: str) -> None:
        """Leave out an event without a value, and say why at the first one."""
        self.varies, self.feed = True, None
        if not self._passed_over or not self.missing_names:
            self._passed_over, self.missing_names = True, reason
            self.notify()

    def miss(self, number: int, now: float) -> None:
        """Count an event that the query missed because of Ctrl-C."""
        if self.state != "live":
            return
        self.seen = number
        if self.limit.suspended:
            self.limit.kept_alone += 1
            return
        self.pipeline.begin(partial=True)
        if self.pipeline.yields(now):
            self.sink.lose()

    def recover(self, put: int, event: Event | None, number: int, now: float) -> None:
        """Correct the counts after Ctrl-C in an evaluation, which had put ``put`` values."""
        outputs, self.outputs = self.outputs, None
        if outputs is not None:
            self.put(outputs[put:], event, number, now)
            return
        if not put and self.pipeline.yields(now):
            self.sink.lose()
        self.put(self.pipeline.recover(now), event, number, now)  # which may end a window

    # ------------------------------------------------------------ ends of windows

    def flush(self, number: int, now: float, group: int = 0) -> None:
        """End the window, since the host's group number ``group`` has ended.

        The values of a log have no events, whose ``number`` is 0.
        """
        self.pipeline.name_window(group)
        # From here to the `try` there is no call: an end of a group that is recorded is also acted on.
        number, sink = number or self.seen, self.sink
        self.closed = group or self.closed
        self.flush_requested = False
        before = sink.number
        try:
            self._close(number, now)
            self.outputs = None
        except KeyboardInterrupt:
            outputs, self.outputs = self.outputs, None
            if outputs is None:
                self._close(number, now)  # what is left of it; an evaluation is not tried again
                self.outputs = None
            else:
                self.put(outputs[sink.number - before :], None, number, now)
            raise
        except BaseException as error:
            self.outputs = None
            self.note_failure(error)

    def _close(self, number: int, now: float) -> None:
        if self.pipeline.unsafe and not self.pipeline.mapped:  # training thread only
            self.unsafely(number, lambda: self._put_closed(number, now))
        else:
            self._put_closed(number, now)

    def _put_closed(self, number: int, now: float) -> None:
        self.outputs = outputs = self.pipeline.flush(now)
        self.put(outputs, None, number, now)

    def flush_at_next_event(self) -> None:
        """End the window at the next event. Any thread."""
        self.flush_requested = True

    def flush_partial(self, number: int, now: float) -> None:
        """End the window, flagged as partial: something else than its end cuts it off.

        One that slides has no end.
        """
        if self.pipeline.events and not self.slides:
            self.pipeline.begin(partial=True)
        self.flush(number, now)

    def end_window(self, number: int, now: float) -> None:
        """End the open window: as lost, if its code belongs in the loop. I/O thread."""
        if self.pipeline.trusted:
            self.flush_partial(number, now)
        else:
            self.sink.lose()

    def close_group(self, number: int, now: float, group: int) -> None:
        """End the window that follows the host's groups, if it has one; once for each."""
        if self.grouped and self.events and self.closed < group:
            self.flush(number, now, group)

    def put(self, outputs: Sequence[Output], event: Event | None, number: int, now: float) -> None:
        """Put copies of what the pipeline has yielded into the sink."""
        for flags, value in outputs:
            flags, window, placed = flags | self.flags, 0, type(value) is WindowedValue
            if placed:
                value, window = value.value, value.window
            if not flags & ERROR:
                try:
                    value, size = snapshot(value, self.max_bytes)
                    self.errors_in_a_row = 0
                except LooptapError as error:
                    if self.pipeline.mapped:
                        raise
                    value, flags = str(error), flags | ERROR
            if flags & ERROR:
                value = self.explained(value)
                self.sink.put(number, now, FlaggedValue(value, flags, None, window), MIN_VALUE_BYTES + len(value))
                self.record_error(value)  # which may end the query, with this as its last item
                continue
            if self.recorder is not None and event is not None:
                kept, more = self._inputs(self.recorder, event)
                size += more
                value = FlaggedValue(value, flags, kept, nbytes=size)
            elif flags or placed:
                value = FlaggedValue(value, flags, None, window)
            self.sink.put(number, now, value, size)

    def _inputs(self, recorder: FlightRecorder[Item], event: Event) -> tuple[dict[str, Any], int]:
        """Return snapshots of the inputs of the flight recorder's condition."""
        kept: dict[str, Any] = {}
        total = 0
        present = event.__looptap_names__()
        for name in recorder.condition.reads:
            if name in present:
                value = getattr(event, name)
                if not self.pipeline.unsafe:
                    value = copyable(value, self.pipeline.text)
                kept[name], size = (value, 0) if type(value) is ModuleType else snapshot(value, self.max_bytes)
                total += size
        return kept, total

    def redirect(self, sink: ValueRing, shift: int) -> None:
        """Put values into ``sink`` from now on, whose numbers are ``shift`` higher.

        Nothing may be evaluated meanwhile.
        """
        sink.inboxes, self.sink.inboxes, self.sink = self.sink.inboxes, (), sink
        for query in self.derived:
            query.reached += shift * bool(query.reached)

    def continue_from(self, other: AttachedQuery) -> None:
        """Continue the counters and the open window of ``other``, of the same code.

        I/O thread, while nothing is evaluated.
        """
        self.seen, self.closed, self.events, self.errors = other.seen, other.closed, other.events, other.errors
        self.seconds, self.started, self.traceback = other.seconds, other.started, other.traceback
        self.warning, self.missing_names = other.warning, other.missing_names
        self.empty, self.errors_in_a_row = other.empty, other.errors_in_a_row
        self.limit.continue_from(other.limit)
        self.pipeline.continue_from(other.pipeline)

    # ------------------------------------------------------------ cost and errors

    def charge(self, cost: float, step: float, number: int, now: float) -> None:
        """Charge an evaluation to the query, in a loop of ``step`` seconds."""
        self.seconds += cost
        if not self.limit.charge(cost, step, number, now):
            self.fail(f"one evaluation took {cost:.1f} s, for the second time")
        elif self.account.has_to_wait(now):
            self.flush_partial(number, now)
            self.limit.suspend(now)

    def notify(self) -> None:
        """Tell the readers that something of its state has changed."""
        self.changes += 1
        self.sink.notify()

    def fail(self, reason: str) -> None:
        """Stop for good; the I/O thread detaches the query."""
        self.state, self.reason, self.feed = "failed", reason, None
        self.notify()

    def note_failure(self, error: BaseException) -> None:
        """Count an evaluation that has raised ``error``, or end the query."""
        if isinstance(error, SystemExit):
            self.fail(f"it raised SystemExit({error.code!r})")
        elif isinstance(error, UnknownObservable):
            self.empty += 1
            self.pass_over(str(error))
        elif isinstance(error, LooptapError):
            self.record_error(str(error), in_a_row=not error.passing)
            if error.hopeless:
                self.fail(str(error))
        else:
            self.record_error(format_error(error, self.pipeline.text))

    def record_error(self, text: str, *, in_a_row: bool = True) -> None:
        """Count an error; report the first, and end the query at a hundred in a row."""
        text = self.explained(text)
        self.errors += 1
        self.errors_in_a_row += in_a_row
        if self.errors == 1:
            self.traceback = text
            self.notify()
        if self.errors_in_a_row >= MAX_ERRORS_IN_A_ROW:
            first = last_line(self.traceback) or text
            self.fail(f"{MAX_ERRORS_IN_A_ROW} errors in a row, the first: {first}")

    def explained(self, error: str) -> str:
        """Return the text of an error, with what is known about its cause."""
        return error

    def _window_failed(self, error: Exception) -> None:
        """Report at once a window that will yield an error: its end may be far."""
        self.traceback = self.traceback or self.explained(self.pipeline.failure or "")
        if isinstance(error, LooptapError) and error.hopeless:
            self.note_failure(error)
        else:
            self.notify()

    def warnings(self) -> list[str]:
        """Return the notes for readers of the stream."""
        problems = [f"latest({place.event!r}): {place.problem}" for place in self.latest_slots if place.problem]
        overdue = f"one evaluation has taken {self.overdue:.0f} s so far, and the loop waits for it"
        failure = last_line(self.explained(self.pipeline.failure or ""))
        failed = f"the open window has failed and will yield an error: {failure}" if failure else ""
        known = overdue * bool(self.overdue), self.limit.describe(), self.warning, self.missing_names, failed, *problems
        return [text for text in known if text]
