"""Reductions: queries that yield when a window closes, or slide."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from looptap.streams.columns.evaluation import ColumnSource
from looptap.streams.expressions import format_error
from looptap.streams.flags import ERROR, PARTIAL
from looptap.streams.harmless.results import to_copy
from looptap.streams.operators.pipeline import Mapped, Output, Pipeline
from looptap.streams.operators.slots import BatchItems, SlidingSlot, Slot, batch_items
from looptap.streams.operators.windows import Count, Group, Seconds, Sliding, Window

INTERRUPTED = "Ctrl-C fell into the evaluation of this window: it has no value."


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
        self.looks_back = max((slot.size for slot in inner), default=0)
        # The kind of window, unpacked because it is needed at each event.
        self._count = window.size if isinstance(window, Count) else math.inf
        self._seconds = window.size if isinstance(window, Seconds) else 0.0
        self._slides = window.size if isinstance(window, Sliding) else 0
        # Steps that Ctrl-C may interrupt: the window's time is over, its output is in `_ready`, and outputs are
        # pending there until `push` or `flush` returns them.
        self._time_over = self._closing = False
        self._ready: tuple[Output, ...] = ()
        self.taken = 0  # events of all windows that came by `push_many`
        self._events_at_last_gap = 0  # events of a sliding window when it last missed some

    @property
    def forgetful(self) -> bool:
        """True if its outputs depend on the open window alone, which does not slide."""
        timed = self._seconds or self._slides or self.inner
        return super().forgetful and not timed and all(isinstance(slot, Slot) and slot.restarts for slot in self.slots)

    def continue_from(self, other: Pipeline) -> None:
        """Continue the open window of ``other``, `forgetful` and of the same code."""
        assert isinstance(other, Reducing)
        super().continue_from(other)
        for mine, its in zip(self.slots, other.slots, strict=True):
            assert isinstance(mine, Slot)
            assert isinstance(its, Slot)
            mine.continue_from(its)

    def push(self, item: Any, number: int = 0, now: float = 0.0) -> Sequence[Output]:
        """Push the event into every part; return the outputs of windows that this ends.

        Errors become outputs.
        """
        if self.every != 1 and number % self.every:
            return ()
        if self._seconds:
            self._end_if_over(now)
        self.events += 1
        if self.failure is None:
            try:
                self.proven(self._push, item)
            except Exception as error:
                self._fail(error)
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

    def _push(self, item: Any) -> None:
        if self.lacking:
            self.lacking -= 1
            self.partial = self.partial or self.lacking > 0
        for inner in self.inner:
            inner.push(item)
        for slot in self.slots:
            slot.push(item)

    def in_columns(self, events: ColumnSource) -> list[BatchItems] | None:
        """Return the items of each part for `push_many`; None: push one by one."""
        return None if self.inner else batch_items(self.slots, events)

    def reach(self, times: Sequence[float], start: int, stop: int) -> int:
        """Return the place up to which `push_many` may go: at most one window ends there.

        A window of a number of events ends behind the last of these events, one of seconds before the first.
        """
        if not self._seconds:
            return stop if self._count == math.inf else min(stop, start + int(self._count) - self.events)
        begun, size = times[start] if self._start is None else self._start, self._seconds
        if times[start] - begun >= size:
            begun += math.floor((times[start] - begun) / size) * size
        return next((place for place in range(start + 1, stop) if times[place] - begun >= size), stop)

    def push_many(self, parts: Sequence[BatchItems], times: Sequence[float], start: int, stop: int) -> Sequence[Output]:
        """Do what `push` does, for events up to ``stop``, which `reach` has limited."""
        if self._seconds:
            self._end_if_over(times[start])
        self.events += stop - start
        self.taken += stop - start
        if self.failure is None:
            try:
                for slot, part in zip(self.slots, parts, strict=True):
                    assert isinstance(slot, Slot)
                    slot.extend(part.between(start, stop))
            except Exception as error:
                self._fail(error)
            except BaseException:
                self.failure = INTERRUPTED
                raise
        if self.events >= self._count:
            self._end(times[stop - 1])
        return self._take_ready() if self._ready else ()

    @property
    def ending(self) -> bool:
        """True if Ctrl-C has come while a window ended."""
        return self._time_over or self._closing or bool(self._ready)

    def _fail(self, error: Exception) -> None:
        """Lose this window; the next one starts clean."""
        self.failure = format_error(error, self.text)
        if self.on_failure is not None:
            self.on_failure(error)

    def flush(self, now: float = 0.0) -> Sequence[Output]:
        """Yield the window unless empty or sliding, and begin the next."""
        self._end(now)
        return self._take_ready()

    def _end_if_over(self, now: float) -> None:
        """End a window of seconds that is over."""
        self._time_over = self._elapsed(now, self._seconds)
        if self._time_over:
            self._end(now)
            self._time_over = False

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

    def begin(self, partial: bool, late: bool | None = None) -> None:
        """Flag the open window as partial if it lacks events, and those of `recent(n)`."""
        super().begin(partial, late)
        self._events_at_last_gap = self.events

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
                return flags, self.proven(self._finished) if self.checked else self.finish()
            except Exception as error:
                self.failure = format_error(error, self.text)
            except BaseException:
                self.failure = INTERRUPTED
                raise
        return flags | ERROR, self.failure

    def _finished(self) -> Any:
        return to_copy(self.finish())

    def _sliding(self, now: float) -> Sequence[Output]:
        if self.partial and self.events - self._events_at_last_gap >= self._slides:
            self.partial = False
        failed = self.failure is not None  # by this event, whose items may be half in
        output = () if self.throttle and not self._due(now) else (self._value(),)
        if failed:
            self._reset()
        self.failure = None  # of the value alone: stdev of one item, and of two there is one
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
