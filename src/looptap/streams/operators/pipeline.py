"""Compiled queries: push stages that run to completion at each event.

`Pipeline.push(item)` is the paper's postable iterator: an event goes in; none, one or several outputs come out.
`Pipeline.flush()` is its flag B, the end of a window. Nothing is suspended between two calls, so no torch mode can
leak into the loop, and any thread may push.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from looptap.streams.columns.evaluation import BareNames, ColumnForm, ColumnSource
from looptap.streams.flags import PARTIAL
from looptap.streams.harmless.checked_code import file_of
from looptap.streams.harmless.checked_evaluation import evaluated
from looptap.streams.harmless.refusal import Refusal, as_error
from looptap.streams.harmless.results import to_copy
from looptap.streams.operators.slots import Feed, Items, SlidingSlot
from looptap.streams.operators.windows import Count, Seconds, Window
from looptap.streams.proving.attributes import read
from looptap.streams.values.modules.module_read import ModuleRead
from looptap.streams.values.snapshots import snapshot

Output = tuple[int, Any]
T = TypeVar("T")


class Latest:
    """The newest value of an observable of another event type."""

    def __init__(self, event: str, name: str) -> None:
        self.event, self.name, self.value = event, name, None
        self.problem = ""
        """The error if the event lacks it."""

    def get(self) -> Any:
        """Return the newest value, None before the first."""
        return self.value

    def take(self, event: Any) -> None:
        """Copy the observable of this event; note the error if that fails."""
        try:
            self.value = evaluated(lambda: snapshot(to_copy(read(event, self.name)))[0])
            self.problem = ""
        except Exception as error:  # the query that asked shows None, its stream why
            self.value, self.problem = None, str(error)
        except Refusal as refusal:
            self.value, self.problem = None, str(as_error(refusal, f"latest({self.event!r}).{self.name}", file_of))


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
        self.checked = False
        """True if each operation of its code is checked before it runs."""
        self.trusted = False
        """True if all of its code is of the query language: then any thread may run it."""
        self.unsafe = False
        """True if an operator asked that it runs as it is, even if it may change the job."""
        self.reads: frozenset[str] = frozenset()
        self.mentions: frozenset[str] = frozenset()  # names and texts in its code
        self.observed: frozenset[str] = frozenset()  # names that it probably reads of an event
        self.language: frozenset[str] = frozenset()  # names of the language that it uses and an observable may hide
        self.numbers: frozenset[str] | None = None  # all names that it reads, if it is arithmetic
        self.bare: BareNames | None = None
        self.form: ColumnForm | None = None  # which gives the values of many events at once, if mapped
        self.latest: list[Latest] = []
        self.module_reads: tuple[ModuleRead, ...] = ()  # what hooks on modules give it
        self.expects: frozenset[str] = frozenset()  # observables that it probably reads of collected events
        self.failure: str | None = None  # error of the open window, yielded in place of its value
        self.on_failure: Callable[[Exception], None] | None = None
        self.skipped = 0
        self.events = 0  # of the open window
        self.partial = False
        self.looks_back = 0
        """How many events its `recent(n)` goes back at most."""
        self.lacking = 0
        """Events until that many have come since the last gap."""
        self._next = -math.inf
        self._start: float | None = None

    def proven(self, do: Callable[..., T], *given: Any) -> T:
        """Run a part of the query, checked if its code is. Raises RefusedQuery."""
        if not self.checked:
            return do(*given)
        try:
            return evaluated(do, *given)
        except Refusal as refusal:
            raise as_error(refusal, self.text, file_of) from None

    @property
    def forgetful(self) -> bool:
        """True if its outputs depend on the open window alone, or on one event."""
        return not (self.throttle or self.latest)

    def agrees(self, other: Pipeline) -> bool:
        """Return True if both will yield the same: their open windows are equal.

        The other one is `forgetful`, has the same code and has seen the same events since.
        """
        clean = not (self.partial or other.partial) and self.failure is other.failure is None
        return clean and self.events == other.events

    def continue_from(self, other: Pipeline) -> None:
        """Continue the open window of ``other``, `forgetful` and of the same code."""
        self.events, self.partial, self.failure = other.events, other.partial, other.failure

    def explain(self) -> str:
        """Describe which parts of the query stream or are collected, and when it yields."""
        return "\n".join([*self.explanation, *self.notes])

    def push(self, item: Any, number: int = 0, now: float = 0.0) -> Sequence[Output]:
        """Return the outputs of this event. A mapped query raises its own errors."""
        raise AssertionError("a pipeline is Mapped or Reducing")

    def feed(self) -> Feed | None:
        """Return the function that `push` calls if that is all it does, else None."""
        return None

    def column_form(self) -> ColumnForm | None:
        """Return the form that does what `push` does, for many events; else None."""
        return None

    def look_ahead(self, events: ColumnSource) -> bool:
        """Prepare for the values at many events at once; False if that is not possible."""
        return True

    def advance(self) -> None:
        """Go on behind the events of `look_ahead`."""

    def name_window(self, group: int) -> None:
        """Note the number of the host's group that ends; 0 if none has ended."""

    def flush(self, now: float = 0.0) -> Sequence[Output]:
        """End the window (flag B) and return the outputs."""
        raise AssertionError("a pipeline is Mapped or Reducing")

    def begin(self, partial: bool, late: bool | None = None) -> None:
        """Flag the open window as partial if it lacks events.

        ``late``: so do the last events of `recent(n)`; by default if the window does.
        """
        self.partial = partial
        self.lacking = self.looks_back if (partial if late is None else late) else 0

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
        self.looks_back = max((slot.size for slot in slots), default=0)
        self._rebind: Callable[[Any], Items | None] | None = rebind
        self.restarts = bool(sequence.resets)
        self._plain = not self.restarts and not throttle

    @property
    def forgetful(self) -> bool:
        """True if its outputs depend on one event."""
        return super().forgetful and not (self.slots or self.restarts)

    def feed(self) -> Feed | None:
        """Return the function that `push` calls if that is all it does, else None.

        Also None before the first event. Callers check ``every`` themselves.
        """
        bare = self._plain and not self.slots and self._rebind is None and not self.checked
        return self.sequence.feed if self.sequence.one and bare else None

    def column_form(self) -> ColumnForm | None:
        """Return the form that does what `push` does, for many events; else None.

        Also None before the first event. Callers check ``every`` themselves, and call `look_ahead` before it and
        `advance` after it.
        """
        slides = all(slot.columns is not None for slot in self.slots)
        return self.form if self._plain and slides and self._rebind is None else None

    def look_ahead(self, events: ColumnSource) -> bool:
        """Compute what sliding parts give at events; False if only one by one."""
        return not self.lacking and all(slot.look_ahead(events) for slot in self.slots)

    def advance(self) -> None:
        """Let sliding parts take the events of `look_ahead`."""
        for slot in self.slots:
            slot.advance()

    def push(self, item: Any, number: int = 0, now: float = 0.0) -> Sequence[Output]:
        """Evaluate the query at this event. Raises what its expression raises."""
        if self._rebind is not None:
            self.sequence = self._rebind(item) or self.sequence
            self._rebind = None
        if self.every != 1 and number % self.every:
            return ()
        if self.restarts:
            self._restart(now)
        return self.proven(self._push, item, now)

    def _push(self, item: Any, now: float) -> Sequence[Output]:
        self.lacking = max(0, self.lacking - 1)
        for slot in self.slots:
            slot.push(item)
        if self.throttle and not self._due(now):
            return ()
        flags = PARTIAL if self.lacking or self.partial else 0
        if not self.checked:
            return [(flags, value) for value in self.sequence.items(item)]
        return [(flags, to_copy(value)) for value in self.sequence.items(item)]

    def begin(self, partial: bool, late: bool | None = None) -> None:
        """Flag values until a fold restarts, and until `recent(n)` is full."""
        super().begin(partial, late)
        self.partial = partial and self.restarts

    def recover(self, now: float) -> Sequence[Output]:
        """Restore the state after Ctrl-C in `push` or `flush`; return their outputs."""
        for slot in self.slots:  # one may have processed half of the event
            slot.reset()
        self.begin(partial=True)
        return ()

    def flush(self, now: float = 0.0) -> Sequence[Output]:
        """Restart running folds; a mapped query yields nothing at a close."""
        self.events, self.partial = 0, False
        for reset in self.sequence.resets:
            reset()
        return ()

    def _restart(self, now: float) -> None:
        window = self.window
        over = isinstance(window, Seconds) and self._elapsed(now, window.size)
        if over or (isinstance(window, Count) and self.events == window.size):
            self.flush(now)
        self.events += 1
