"""A query attached to a running job's events, evaluated on the training thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, cast

from looptap.agent.handoff.value_batch import MIN_VALUE_BYTES, FlaggedValue, Item
from looptap.agent.handoff.value_ring import ValueRing
from looptap.agent.loop.batch_evaluation import BatchEvaluation
from looptap.agent.loop.overhead_budget import Account
from looptap.streams.errors import LooptapError
from looptap.streams.events import MACHINE, Event, missing_of
from looptap.streams.flags import ERROR
from looptap.streams.operators.flight_recorder import FlightRecorder
from looptap.streams.operators.pipeline import Latest, Mapped, Output, Pipeline
from looptap.streams.operators.reducing import needs_group
from looptap.streams.operators.windows import Sliding
from looptap.streams.preserving.interrupts import complete
from looptap.streams.preserving.unsafe_evaluation import UnsafeEvaluation
from looptap.streams.proving.plain_reads import copyable, read_plainly
from looptap.streams.values.snapshots import snapshot


class AttachedQuery(BatchEvaluation):
    """One query of one client on the events of one type.

    The training thread calls `evaluate` and `flush`; the I/O thread reads the counters and empties the sink.

    Both may raise KeyboardInterrupt. Each first records which event, or which end of a group, it is at (`seen`,
    `closed`), and keeps the counts right: a value that is not put is counted as dropped, a window that lacks an event
    is flagged. So the interrupted caller knows what is left to do, and does nothing twice. Python delivers a signal
    where a function begins, jumps back or returns from one that is written in C, and nowhere else.
    """

    def __init__(
        self, pipeline: Pipeline, sink: ValueRing, *, on: str, name: str = "", max_bytes: int,
        recorder: FlightRecorder[Item] | None = None, account: Account, places: Sequence[Latest] = (),
    ) -> None:  # fmt: skip
        super().__init__(pipeline, sink, account, places)
        self.on, self.name, self.max_bytes, self.recorder = on, name or pipeline.text, max_bytes, recorder
        self.grouped = needs_group(pipeline)
        self.slides = isinstance(pipeline.window, Sliding) and not pipeline.mapped
        self.numbers, self.language = pipeline.numbers, pipeline.language
        """The observables it reads if it is arithmetic, else None; the names of the language that it uses."""
        if recorder is not None:
            condition = recorder.condition
            self.inputs = tuple(sorted(condition.numbers or ()))
            self.language |= condition.language
            if self.numbers is not None:
                self.numbers = None if condition.numbers is None else self.numbers | condition.numbers
        self.waits = self.numbers is not None
        pipelines = (pipeline,) if recorder is None else (pipeline, recorder.condition)
        self.observed = frozenset[str]().union(*(p.observed for p in pipelines))
        self.awaits = MACHINE & frozenset().union(*(p.mentions for p in pipelines))
        self._mapped = pipeline if isinstance(pipeline, Mapped) and not pipeline.unsafe else None

    def evaluate(self, event: Event, number: int, now: float, began: int) -> None:
        """Evaluate the query at this event. Raises nothing but KeyboardInterrupt.

        ``began`` is the number of the last event before the open group.
        """
        self.seen = number
        sink = self.sink
        before, events = sink.number, self.events
        try:
            try:
                feed = self._feed
                if feed is not None:
                    if not self.deferred:
                        event = self._checked(event)
                    self.events += 1
                    value, size = snapshot(feed(event), self.max_bytes)
                    sink.put(number, now, value, size)
                    self._in_a_row = 0
                    return
                if self.state != "live":
                    return
                if self.suspended:
                    if now < self.retry_at:
                        self._withheld += 1  # without a call since `seen`: an interrupt finds both, or neither
                        return
                    self._try_again(now)
                waits = self.awaits or self.observed or self.hooks is not None
                if waits and (not self.events or self.varies or event.__looptap_unknown__()) and self._too_early(event):
                    return
                if not self.events:
                    self.started = now
                    if self.pipeline.expects or self.missing_names:
                        self.missing_names = missing_of(event, self.pipeline.expects)
                        self._notify()
                    late, withheld = self._begins_late(number), self.withheld > 0
                    cut = number > began + 1 if self.grouped else late and self.slides
                    self.pipeline.begin(withheld or cut, withheld or late)
                self.events += 1
                if self.pipeline.unsafe:
                    self._unsafely(number, lambda: self._evaluate(event, number, now), event)
                else:
                    self._evaluate(event if self.deferred else self._checked(event), number, now)
                self._outputs = None
                if self._flush_requested:
                    self.flush_partial(number, now)
                if self._mapped is not None:
                    self._feed = self._mapped.feed() if self.recorder is None and not self.varies else None
                    self._form = self._mapped.column_form()
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                self._outputs = None
                self._failed(error)
        except KeyboardInterrupt:
            if self.events == events and self.state == "live" and not self.suspended:
                self.events += 1  # it came before that
            self._interrupted(sink.number - before, event, number, now)
            raise

    def _begins_late(self, number: int) -> bool:
        """Return True if there were events before this one, its first."""
        return number > self.every

    def _checked(self, event: Event) -> Event:
        """Make the values of arithmetic plain."""
        if self.pipeline.numbers is None:
            return event  # other code checks itself
        bare = self.pipeline.bare is not None
        return cast(Event, read_plainly(event, self.pipeline.numbers, self.pipeline.text, bare))

    def _evaluate(self, event: Event, number: int, now: float) -> None:
        self._outputs = outputs = self.pipeline.push(event, number, now)
        if outputs:
            self._put(outputs, event, number, now)
        elif self.pipeline.mapped:
            self._empty += 1
            self._in_a_row = 0

    def _interrupted(self, put: int, event: Event | None, number: int, now: float) -> None:
        """Correct the counts after Ctrl-C in `evaluate`, which had put ``put`` values."""
        if self.suspended or self.state != "live":
            return
        outputs, self._outputs = self._outputs, None
        if outputs is not None:
            self._put(outputs[put:], event, number, now)
            return
        if not put and self.pipeline.yields(now):
            self.sink.lose()
        self._put(self.pipeline.recover(now), event, number, now)  # which may end a window

    def miss(self, number: int, now: float) -> None:
        """Count an event that the query missed because of Ctrl-C."""
        if self.state != "live":
            return
        self.seen = number
        if self.suspended:
            self._withheld += 1
            return
        self.pipeline.begin(partial=True)
        if self.pipeline.yields(now):
            self.sink.lose()

    def _unsafely(self, number: int, do: Callable[[], None], event: Event | None = None) -> None:
        """Run the query as it is, put torch's modes back, and report changes once."""
        running = UnsafeEvaluation(event.__looptap_shown__() if isinstance(event, Event) else ())
        try:
            running.begin()
            do()
        finally:
            complete(running.end)
            if not self.warning and (warning := running.changed(number)):
                self.warning = warning
                self._notify()

    def log(self, value: Any, now: float, call: int) -> None:
        """Append the value of the host's ``call``-th call.

        Raises nothing but KeyboardInterrupt.
        """
        self.seen = call
        if self.state != "live":
            return
        sink, before = self.sink, self.sink.number
        try:
            self.events += 1
            copy, size = snapshot(value, self.max_bytes)
            sink.put(self.events, now, copy, size)
            self._in_a_row = 0
        except KeyboardInterrupt:
            if sink.number == before:
                sink.lose()
            raise
        except BaseException as error:
            self._failed(error)

    def miss_log(self, call: int) -> None:
        """Count a value as lost because of Ctrl-C in `log`."""
        if self.seen != call and self.state == "live":
            self.seen = call
            self.events += 1
            self.sink.lose()

    def flush(self, number: int, now: float, group: int = 0) -> None:
        """End the window, since the host's group number ``group`` has ended."""
        self.closed = group or self.closed
        self._flush_requested = False
        sink = self.sink
        before = sink.number
        try:
            self._close(number, now)
            self._outputs = None
        except KeyboardInterrupt:
            outputs, self._outputs = self._outputs, None
            if outputs is None:
                self._close(number, now)  # what is left of it; an evaluation is not tried again
                self._outputs = None
            else:
                self._put(outputs[sink.number - before :], None, number, now)
            raise
        except BaseException as error:
            self._outputs = None
            self._failed(error)

    def lose_window(self, number: int, now: float) -> None:
        """Count the open window as lost. I/O thread.

        Ending it would run code that belongs on the training thread.
        """
        self.sink.lose()

    def _close(self, number: int, now: float) -> None:
        if self.pipeline.unsafe and not self.pipeline.mapped:  # training thread only
            self._unsafely(number, lambda: self._put_closed(number, now))
        else:
            self._put_closed(number, now)

    def _put_closed(self, number: int, now: float) -> None:
        self._outputs = outputs = self.pipeline.flush(now)
        self._put(outputs, None, number, now)

    def flush_at_next_event(self) -> None:
        """End the window at the next event. Any thread."""
        self._flush_requested = True

    def flush_partial(self, number: int, now: float) -> None:
        """End the window, flagged as partial: something else than its end cuts it off.

        One that slides has no end.
        """
        if self.pipeline.events and not self.slides:
            self.pipeline.begin(partial=True)
        self.flush(number, now)

    def charge(self, cost: float, step: float, number: int, now: float) -> None:
        """Charge an evaluation to the query, in a loop of ``step`` seconds."""
        self.seconds += cost
        events, self._charged, known = number - self._charged, number, self.account.cost
        if not self.account.charge(cost, step, events, now):
            self.fail(f"one evaluation took {cost:.1f} s, for the second time")
        elif self.account.has_to_wait(now):
            self.flush_partial(number, now)
            self._suspend(now)
        elif self.limited and not (known and self._kept_lately(now)):
            self.limited = self._kept_lately(now)  # else it says from now on what it costs
            self._notify()

    def _put(self, outputs: Sequence[Output], event: Event | None, number: int, now: float) -> None:
        put = self.sink.put
        for flags, value in outputs:
            if flags & ERROR:
                put(number, now, FlaggedValue(value, flags), MIN_VALUE_BYTES + len(value))
                self.record_error(value)  # which may end the query, with this as its last item
                continue
            try:
                copy, size = snapshot(value, self.max_bytes)
            except LooptapError as error:
                if self.pipeline.mapped:
                    raise
                put(number, now, FlaggedValue(str(error), flags | ERROR), MIN_VALUE_BYTES + len(str(error)))
                self.record_error(str(error))
                continue
            self._in_a_row = 0
            if self.recorder is None:
                put(number, now, FlaggedValue(copy, flags) if flags else copy, size)
            elif event is not None:
                kept, more = self._inputs(event)
                put(number, now, FlaggedValue(copy, flags, kept, nbytes=size + more), size + more)

    def _inputs(self, event: Event) -> tuple[dict[str, Any], int]:
        """Return snapshots of the inputs of the flight recorder's condition."""
        assert self.recorder is not None
        kept: dict[str, Any] = {}
        total = 0
        present = event.__looptap_names__()
        for name in self.recorder.condition.reads:
            if name in present:
                value = getattr(event, name)
                if not self.pipeline.unsafe:
                    value = copyable(value, self.pipeline.text)
                kept[name], size = (value, 0) if type(value) is ModuleType else snapshot(value, self.max_bytes)
                total += size
        return kept, total
