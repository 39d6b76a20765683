"""What queries may cost the loop: together 3 % of its time, unless the operator grants more (SAFETY S15).

A query under 20 µs an event is never limited. Of a dearer one the first evaluations are free; then, if it takes more
than its share of the step, a mapped query is evaluated less often and a reducing one, which may not skip events,
closes its window as partial and waits for a grant. Python cannot be interrupted: a budget works between evaluations.
"""

from __future__ import annotations

import math

CHEAP = 20e-6
"""Seconds an event that are never limited."""
GRACE = 3
"""Evaluations before the first decision."""
TOO_LONG = 1.0
"""Seconds of one evaluation that, twice, detach a query without a grant."""
_SMOOTH = 0.2


class Budget:
    """The share of the loop's time that all queries of a run and the I/O thread may take together.

    >>> Budget(0.03).fraction
    0.03
    """

    def __init__(self, fraction: float = 0.03) -> None:
        if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not fraction > 0:
            raise ValueError(f"budget={fraction!r}: a fraction of the loop's time such as 0.03; math.inf: no limit.")
        self.fraction = float(fraction)
        self.io = 0.0
        """The I/O thread's share of wall time, as of the last beat."""
        self.limited = 0
        """How many queries share what is left."""

    def share(self) -> float:
        """The fraction of the loop's time that one limited query may take; the I/O thread leaves at least a third."""
        left = max(self.fraction - self.io, self.fraction / 3)
        return left / max(self.limited, 1)


class Meter:
    """Decides from the cost of one query how often it may be evaluated.

    ``grant`` is a fraction of the loop's time of its own (`math.inf`: no limit), None for the common budget.
    """

    __slots__ = ("_budget", "_events", "_long", "_seconds", "_step", "every", "grant", "limited", "skip")

    def __init__(self, budget: Budget, grant: float | None = None) -> None:
        self._budget, self.grant = budget, grant
        self._step = self._seconds = 0.0
        self._events = self._long = 0
        self.every = 1
        self.skip = 0
        """Events to pass over before the next evaluation."""
        self.limited = False

    def charge(self, cost: float, step: float, seconds: float, events: int) -> bool:
        """Take note of a dear evaluation of ``cost`` seconds, in a loop of ``step`` seconds; False to detach the query.

        ``seconds`` and ``events`` are the query's totals. Sets `every`: 1 if the query is within its share, else the
        number of events per evaluation that brings it there.
        """
        mean = (seconds - self._seconds) / max(events - self._events, 1)  # since the last dear one
        self._seconds, self._events = seconds, events
        if self.grant is None and cost > TOO_LONG:
            self._long += 1
            if self._long >= 2:
                return False
        if step > 0:  # a validation between two events is not a long step
            self._step += _SMOOTH * (min(step, 4 * self._step) - self._step) if self._step else step
        if events <= GRACE or self._step <= 0:
            return True
        typical = min(cost, mean)  # one pause of the machine is not the query's fault
        self._mark(typical > CHEAP)
        self.every = max(1, math.ceil(typical / (self.allowed() * self._step))) if typical > CHEAP else 1
        self.skip = self.every - 1
        return True

    def allowed(self) -> float:
        """The fraction of the loop's time that the query may take."""
        return self._budget.share() if self.grant is None else self.grant

    def forget(self) -> None:
        """The query goes, or has been granted something: its part of the common budget is free again."""
        self._mark(False)
        self.every, self.skip, self._long = 1, 0, 0

    def _mark(self, dear: bool) -> None:
        dear = dear and self.grant is None
        if dear != self.limited:
            self.limited = dear
            self._budget.limited += 1 if dear else -1
