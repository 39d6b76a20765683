"""The flight recorder: holds the last events, and sends them on a condition.

The training thread makes snapshots; the condition is evaluated on them elsewhere, so that it never makes the loop wait
for a device. It fires when it *becomes* true: a loss that stays NaN is one incident, not one per event.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from looptap.streams.columns.evaluation import ColumnSource
from looptap.streams.errors import QueryError
from looptap.streams.events import EventSnapshot
from looptap.streams.operators.pipeline import Mapped, Pipeline

Record = TypeVar("Record")


class FlightRecorder(Generic[Record]):
    """A buffer of ``before`` records, released when ``condition`` becomes true.

    It holds up to ``max_bytes``. ``condition`` is a mapped pipeline over snapshots of events; ``after`` more records
    follow each firing.
    """

    def __init__(self, condition: Pipeline, before: int, after: int, max_bytes: int = 64_000_000) -> None:
        for name, n in (("before", before), ("after", after)):
            if isinstance(n, bool) or not isinstance(n, int) or not 0 <= n <= 100_000:
                raise QueryError(f"{name}={n!r} must be a number of events from 0 to 100,000.")
        if not condition.mapped:
            raise QueryError(
                f"when={condition.text!r} reduces a window; a condition is evaluated at each event. "
                "Use recent(n) inside it: when='loss > 3 * mean(e.loss for e in recent(100))'."
            )
        self.condition, self.after, self.max_bytes = condition, after, max_bytes
        self._before = before
        self.held: deque[tuple[Record, int]] = deque()
        self._bytes = 0
        self._left = 0
        self._was_true = False

    def push(
        self, record: Record, size: int, kept: Mapping[str, Any], number: int, now: float
    ) -> list[tuple[bool, Record]]:
        """Return the records to release now, each with True if it fired the recorder.

        ``kept`` are the snapshots that the condition reads. Raises what the condition raises; the record is held.
        """
        try:
            outputs = self.condition.push(EventSnapshot(kept), number, now)
            true = bool(outputs and outputs[-1][1])
        except BaseException:
            self._hold(record, size)
            raise
        fired, self._was_true = true and not self._was_true, true
        if fired:
            released = [(False, r) for r, _ in self.held] + [(True, record)]
            self.held.clear()
            self._bytes, self._left = 0, self.after
            return released
        if self._left:
            self._left -= 1
            return [(False, record)]
        self._hold(record, size)
        return []

    def pass_by(self, events: ColumnSource, last: Callable[[int], Sequence[Record]], size: int) -> bool:
        """Do what `push` does at many events; False if one may meet the condition.

        Then nothing has changed. ``last`` returns the last records of so many, of ``size`` bytes each.
        """
        condition = self.condition
        form = condition.column_form() if isinstance(condition, Mapped) and condition.every == 1 else None
        if form is None or self._was_true or self._left or not condition.look_ahead(events):
            return False
        found = form.evaluate(events)
        if found is None or found.kept is not None or not found.single:
            return False
        (column,) = found.columns
        if not isinstance(column, np.ndarray) or column.any():
            return False
        condition.advance()
        for record in last(min(self._before, len(events))):
            self._hold(record, size)
        return True

    def _hold(self, record: Record, size: int) -> None:
        self.held.append((record, size))
        self._bytes += size
        while len(self.held) > self._before or self._bytes > self.max_bytes:
            self._bytes -= self.held.popleft()[1]
