"""Compiled queries: push stages that run to completion at each event.

`Pipeline.push(item)` is the paper's postable iterator: an event goes in; none, one or several outputs come out.
`Pipeline.flush()` is its flag B, the end of a window. Nothing is suspended between two calls, so no torch mode can
leak into the loop, and any thread may push.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from looptap.streams.expressions import format_error
from looptap.streams.flags import ERROR, PARTIAL
from looptap.streams.operators.slots import Feed, Items, SlidingSlot, Slot
from looptap.streams.operators.trust import Sight
from looptap.streams.operators.windows import Count, Group, Seconds, Sliding, Window

INTERRUPTED = "Ctrl-C fell into the evaluation of this window: it has no value."

Output = tuple[int, Any]


class BareNames(NamedTuple):
    """A query that only names observables: its values are these, as they are."""

    names: tuple[str, ...]
    single: bool
    """True for one value, False for a row."""


class Latest:
    """The newest value of an observable of another event type."""

    def __init__(self, event: str, name: str) -> None:
        self.event, self.name, self.value = event, name, None
        self.problem = ""
        """The error if the event lacks it."""

    def get(self) -> Any:
        """Return the newest value, None before the first."""
        return self.value


class Pipeline:
    """Base of mapped and reducing pipelines: ``every`` and ``throttle``.

    Outputs flagged ERROR carry the text of a traceback. ``skipped`` counts the values that ``throttle`` dropped.
    """

    mapped: bool

    def __init__(self, text: str, window: Window, every: int, throttle: float) -> None:
        self.text, self.window, self.every, self.throttle = text, window, every, throttle
        self.fields: tuple[str, ...] | None = None
        self.notes: list[str] = []
        self.explanation: list[str] = []
        self.sight: Sight | None = None
        """The paths that it reads of an event, if it is harmless where these are plain."""
        self.reads: frozenset[str] = frozenset()
        self.mentions: frozenset[str] = frozenset()  # names and texts in code not known to be harmless
        self.hands_over = False  # whether it passes an event to other code, which may read all of it
        self.function: Callable[..., Any] | None = None  # the Python function that was compiled
        self.language: frozenset[str] = frozenset()  # names of the language that it uses and an observable may hide
        self.numbers: frozenset[str] | None = None  # all names that it reads, if it is arithmetic
        self.bare: BareNames | None = None
        self.latest: list[Latest] = []
        self.expects: frozenset[str] = frozenset()  # observables that it probably reads of collected events
        self.failure: str | None = None  # error of the open window, yielded in place of its value
        self.on_failure: Callable[[], None] | None = None
        self.skipped = 0
        self.events = 0  # of the open window
        self.partial = False
        self._next = -math.inf
        self._start: float | None = None

    @property
    def trusted(self) -> bool:
        """True if the query is harmless where the values that it reads are plain."""
        return self.sight is not None

    def explain(self) -> str:
        """Describe which parts of the query stream or are collected, and when it yields."""
        return "\n".join([*self.explanation, *self.notes])

    def push(self, item: Any, number: int = 0, now: float = 0.0) -> Sequence[Output]:
        """Return the outputs of this event. A mapped query raises its own errors."""
        raise AssertionError("a pipeline is Mapped or Reducing")

    def flush(self, now: float = 0.0) -> Sequence[Output]:
        """End the window (flag B) and return the outputs."""
        raise AssertionError("a pipeline is Mapped or Reducing")

    def begin(self, partial: bool) -> None:
        """Flag the open window as partial if it began before the query."""
        self.partial = partial

    def yields(self, now: float) -> bool:
        """Return True if an event at this time may yield a value."""
        return now >= self._next or self._next == now + self.throttle

    def recover(self, now: float) -> Sequence[Output]:
        """Restore the state after Ctrl-C in `push` or `flush`; return their outputs."""
        raise AssertionError("a pipeline is Mapped or Reducing")

    def _due(self, now: float) -> bool:
        """Return True if ``throttle`` permits a value now."""
        if now < self._next:
            self.skipped += 1
            return False
        self._next = now + self.throttle
        return True

    def _elapsed(self, now: float, size: float) -> bool:
        """Return True if a window of ``size`` seconds has ended; keep them aligned."""
        if self._start is None:
            self._start = now
        passed = now - self._start
        if passed < size:
            return False
        self._start += math.floor(passed / size) * size
        return True


class Mapped(Pipeline):
    """A query that yields at each event: expression, function, generator, fold."""

    mapped = True

    def __init__(
        self,
        text: str,
        window: Window,
        every: int,
        throttle: float,
        sequence: Items,
        slots: Sequence[SlidingSlot],
        rebind: Callable[[Any], Items | None],
    ) -> None:
        super().__init__(text, window, every, throttle)
        self.sequence, self.slots = sequence, slots
        self._rebind: Callable[[Any], Items | None] | None = rebind
        self.restarts = bool(sequence.resets)
        self._plain = sequence.one and not slots and not self.restarts and not throttle

    def feed(self) -> Feed | None:
        """Return the function that `push` calls if that is all it does, else None.

        Also None before the first event. Callers check ``every`` themselves.
        """
        return self.sequence.feed if self._plain and self._rebind is None else None

    def push(self, item: Any, number: int = 0, now: float = 0.0) -> Sequence[Output]:
        """Evaluate the query at this event. Raises what its expression raises."""
        if self._rebind is not None:
            self.sequence = self._rebind(item) or self.sequence
            self._rebind = None
        if self.every != 1 and number % self.every:
            return ()
        if self.restarts:
            self._restart(now)
        for slot in self.slots:
            slot.push(item)
        if self.throttle and not self._due(now):
            return ()
        return [(0, value) for value in self.sequence.items(item)]

    def recover(self, now: float) -> Sequence[Output]:
        """Restore the state after Ctrl-C in `push` or `flush`; return their outputs."""
        for slot in self.slots:  # one may have processed half of the event
            slot.reset()
        return ()

    def flush(self, now: float = 0.0) -> Sequence[Output]:
        """Restart running folds; a mapped query yields nothing at a close."""
        self.events = 0
        for reset in self.sequence.resets:
            reset()
        return ()

    def _restart(self, now: float) -> None:
        window = self.window
        over = isinstance(window, Seconds) and self._elapsed(now, window.size)
        if over or (isinstance(window, Count) and self.events == window.size):
            self.flush(now)
        self.events += 1


class Reducing(Pipeline):
    """A query that yields when its window closes or, if sliding, at every event."""

    mapped = False

    def __init__(
        self,
        text: str,
        window: Window,
        every: int,
        throttle: float,
        slots: Sequence[Slot | SlidingSlot],
        inner: Sequence[SlidingSlot],
        finish: Callable[[], Any],
    ) -> None:
        super().__init__(text, window, every, throttle)
        self.slots, self.inner, self.finish = slots, inner, finish
        # The kind of window, unpacked because it is needed at each event.
        self._count = window.size if isinstance(window, Count) else math.inf
        self._seconds = window.size if isinstance(window, Seconds) else 0.0
        self._slides = window.size if isinstance(window, Sliding) else 0
        # Steps that Ctrl-C may interrupt: the window's time is over, its output is in `_ready`, and outputs are
        # pending there until `push` or `flush` returns them.
        self._time_over = self._closing = False
        self._ready: tuple[Output, ...] = ()
        self._events_at_last_gap = 0  # events of a sliding window when it last missed some

    def push(self, item: Any, number: int = 0, now: float = 0.0) -> Sequence[Output]:
        """Push the event into every part; return the outputs of windows that this ends.

        Errors become outputs.
        """
        if self.every != 1 and number % self.every:
            return ()
        if self._seconds:
            self._time_over = self._elapsed(now, self._seconds)
            if self._time_over:
                self._end(now)
                self._time_over = False
        self.events += 1
        if self.failure is None:
            try:
                if self.inner:
                    for inner in self.inner:
                        inner.push(item)
                for slot in self.slots:
                    slot.push(item)
            except Exception as error:  # this window is lost; the next one starts clean
                self.failure = format_error(error, self.text)
                if self.on_failure is not None:
                    self.on_failure()
            except BaseException:  # Ctrl-C, which may have come between two steps of a reducer
                self.failure = INTERRUPTED
                for inner in self.inner:
                    inner.reset()
                raise
        if self._slides:
            return self._sliding(now)
        if self.events >= self._count:
            self._end(now)
        return self._take_ready() if self._ready else ()

    def flush(self, now: float = 0.0) -> Sequence[Output]:
        """Yield the window unless empty or sliding, and begin the next."""
        self._end(now)
        return self._take_ready()

    def _end(self, now: float) -> None:
        """Move the window's value to `_ready` and begin the next; can be resumed."""
        if not self._closing:
            if not self.events or self._slides:
                return
            output = self._value()
            due = not self.throttle or self._due(now)
            # No call until the return, so no Ctrl-C can come between these steps.
            self._closing = True
            if due:
                self._ready += (output,)
        self._reset()

    def _take_ready(self) -> Sequence[Output]:
        outputs, self._ready = self._ready, ()
        return outputs

    def end_windows_elsewhere(self) -> None:
        """Leave it to a subclass to end windows by count or seconds."""
        self._count, self._seconds = math.inf, 0.0

    def yields(self, now: float) -> bool:
        """Return True if an event at this time may yield a value."""
        return self._slides > 0 and super().yields(now)

    def recover(self, now: float) -> Sequence[Output]:
        """Restore the state after Ctrl-C in `push` or `flush`; return their outputs."""
        missed = True
        if self._slides:
            if self.failure is not None:
                self._reset()
        elif self._time_over or self._closing or self.events >= self._count:
            missed, self._time_over = self._time_over, False
            self._end(now)
        if missed:
            self.begin(partial=True)
        return self._take_ready()

    def begin(self, partial: bool) -> None:
        """Flag the open window as partial if it lacks events."""
        self.partial, self._events_at_last_gap = partial, self.events

    def merge(self, later: Reducing) -> None:
        """Merge the open window of another rank or of a later part of the window.

        Raises TypeError if a part of the query cannot be merged.
        """
        for mine, other in zip(self.slots, later.slots, strict=True):
            if not isinstance(mine, Slot) or not isinstance(other, Slot) or not mine.reducer.mergeable:
                raise TypeError(f"{self.text!r} has a part that cannot be merged.")
            mine.reducer.merge(other.reducer)
        self.events += later.events
        self.partial = self.partial or later.partial
        self.failure = self.failure or later.failure

    def _value(self) -> Output:
        flags = PARTIAL if self.partial else 0
        if self.failure is None:
            try:
                return flags, self.finish()
            except Exception as error:
                self.failure = format_error(error, self.text)
            except BaseException:
                self.failure = INTERRUPTED
                raise
        return flags | ERROR, self.failure

    def _sliding(self, now: float) -> Sequence[Output]:
        if self.partial and self.events - self._events_at_last_gap >= self._slides:
            self.partial = False
        output = () if self.throttle and not self._due(now) else (self._value(),)
        if self.failure is not None:
            self._reset()
        return output

    def _reset(self) -> None:
        for slot in self.slots:
            slot.reset()
        self.events, self.partial, self.failure, self._closing = 0, False, None, False


def needs_group(pipeline: Pipeline) -> bool:
    """Return True if the end of the host's group matters to this query."""
    return isinstance(pipeline.window, Group) and (isinstance(pipeline, Reducing) or _restarts(pipeline))


def _restarts(pipeline: Pipeline) -> bool:
    return isinstance(pipeline, Mapped) and pipeline.restarts
