"""What queries may cost the loop: together 3 % of its time, unless the operator grants more (SAFETY S15).

A query under 20 µs an event is never limited. Of a dearer one the first evaluations are free; then, if it takes more
than its share of the step, a mapped query is evaluated less often and a reducing one, which may not skip events,
closes its window as partial and waits for a grant. Python cannot be interrupted: a budget works between evaluations.

Costs are wall time, since a query that sleeps or waits for a lock holds up the loop. But that somebody else had the
CPU, or the interpreter lock, is not its fault: before one is limited, its evaluations are watched, and of one that was
interrupted now and then only the time on the CPU counts. To ask the kernel for that costs 1.5 µs, so it is asked of
suspects alone.
"""

from __future__ import annotations

import math
import sys

if sys.platform == "linux":
    import resource

    _THREAD: int | None = resource.RUSAGE_THREAD
else:
    _THREAD = None

CHEAP = 20e-6
"""Seconds an event that are never limited."""
GLARING = 200e-6
"""Seconds that, in three evaluations in a row, are no accident: to wait for the interpreter lock takes less."""
GRACE = 3
"""Evaluations before the first decision."""
HEADROOM = 0.8
"""Of the budget, what is handed out: costs rise before they are measured."""
LONG = 0.5
"""Seconds of the loop over which the mean cost of a query is believed."""
TOO_LONG = 1.0
"""Seconds of one evaluation that, twice, detach a query without a grant."""
SWITCH = 5e-3
"""Seconds on the CPU in which others can take the interpreter lock from a thread once; more waits are its own."""
EXCUSED = 2
"""Waits beyond those that are excused before the others count."""
PATIENCE = 0.2
"""Seconds that no other thread keeps the lock: whoever waits longer does so itself."""
WATCHED = -1
"""In place of the events to pass over: the next evaluation is watched."""
_SMOOTH = 0.2


def used() -> tuple[float, int]:
    """Seconds that this thread was on a CPU, and how often it has waited of itself: it slept, or wanted a lock.

    Where the system does not tell (macOS, Windows) both are 0.
    """
    if _THREAD is None:
        return 0.0, 0
    usage = resource.getrusage(_THREAD)
    return usage.ru_utime + usage.ru_stime, usage.ru_nvcsw


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
        self.demands: dict[Meter, float] = {}
        """What each dear query would take, as a fraction of the loop's time."""

    def share(self) -> float:
        """The fraction of the loop's time that one query may take.

        The I/O thread leaves at least a third of the budget; what a query does not want, the others may have.
        """
        left = HEADROOM * max(self.fraction - self.io, self.fraction / 3)
        wanted = sorted(self.demands.values())
        for i, demand in enumerate(wanted):
            fair = left / (len(wanted) - i)
            if demand > fair:
                return fair
            left -= demand
        return max(left, wanted[-1]) if wanted else left


class Meter:
    """Decides from the cost of one query how often it may be evaluated.

    ``grant`` is a fraction of the loop's time of its own (`math.inf`: no limit), None for the common budget. Of the
    events the query itself asks for each ``pace``-th only.
    """

    __slots__ = (
        "_budget", "_cpu", "_events", "_last", "_lasting", "_long", "_seconds", "_since", "_step", "_until", "_waits",
        "cheap", "every", "grant", "pace", "skip", "watched",
    )  # fmt: skip

    def __init__(self, budget: Budget, grant: float | None = None, pace: int = 1) -> None:
        self._budget, self.grant, self.pace, self.cheap = budget, grant, pace, CHEAP * pace
        self._step = self._seconds = self._since = self._until = 0.0
        self._cpu, self._waits = 0.0, 0  # of the evaluations that were watched
        self._events = self._long = 0
        self._last = 0  # the evaluation that was charged last
        self._lasting = math.inf, 0  # the least cost of the dear evaluations in a row, and how many they are
        self.every = 1
        self.skip = 0
        """Of the events that the query asks for, those to pass over before the next evaluation; or `WATCHED`."""
        self.watched = False
        """Whether costs are without the time that others took."""

    def charge(self, cost: float, step: float, seconds: float, events: int, now: float) -> bool:
        """Take note of a dear evaluation of ``cost`` seconds, in a loop of ``step`` seconds; False to detach the query.

        ``seconds`` and ``events`` are the query's totals at the time ``now``. Sets `every`: 1 if the query is within
        its share, else the number of events per evaluation that brings it there.
        """
        if self.grant is None and cost > TOO_LONG:
            self._long += 1
            if self._long >= 2 and self.watched:
                return False
        if step > 0:  # a validation between two events is not a long step
            step *= self.pace
            self._step += _SMOOTH * (min(step, 4 * self._step) - self._step) if self._step else step
        span = now - self._since if self._since else 0.0
        typical = self._typical(cost, seconds, events, now)
        if (events <= GRACE or cost > TOO_LONG) and not self.watched:
            self._watch(0.0)
        if typical is None or events <= GRACE or self._step <= 0:
            self.skip = self.every - 1 or (WATCHED if self.watched else 0)  # as it was judged last
            return True
        if typical <= self.cheap:
            self.forget()
            return True
        demand = typical / self._step
        every = max(1, math.ceil(demand / self.allowed()))
        if every > 1 and not self.watched:
            self._watch(now + (EXCUSED + 4) * max(LONG, span))  # so long that what it did in that time comes again
            return True
        if self.grant is None:
            self._budget.demands[self] = demand
        self.every, self.skip, self.watched = every, every - 1, every > 1
        return True

    def own(self, wall: float, cpu: float, waits: int) -> float:
        """Of an evaluation that was watched and took ``wall`` seconds, those that are the query's own doing."""
        self._cpu += cpu
        self._waits += waits > 0
        excused = not waits or (wall - cpu < PATIENCE and self._waits <= EXCUSED + self._cpu / SWITCH)
        return cpu if excused and _THREAD is not None else wall

    def calm(self, now: float) -> None:
        """Take note of an evaluation that was watched, and cheap."""
        if self.limited or now >= self._until:
            self.forget()

    def _watch(self, until: float) -> None:
        """Watch the evaluations from now on, and judge by these alone."""
        self.watched, self.skip, self._until = True, WATCHED, until
        self._since, self._lasting = 0.0, (math.inf, 0)
        self._cpu, self._waits = 0.0, 0

    def _typical(self, cost: float, seconds: float, events: int, now: float) -> float | None:
        """The least of three or more dear evaluations in a row, or the mean of a long time; None if it is too early.

        A pause now and then, which is the machine's and not the query's, makes neither large.
        """
        least, count = self._lasting if events == self._last + 1 else (math.inf, 0)
        self._last, self._lasting = events, (min(least, cost) if count < GRACE else cost, count + 1)
        if count + 1 >= GRACE and self._lasting[0] > GLARING:
            return self._lasting[0]
        if not self._since:
            self._seconds, self._events, self._since = seconds, events, now
        if now - self._since < LONG or events == self._events:
            return None
        mean = (seconds - self._seconds) / (events - self._events)
        self._seconds, self._events, self._since = seconds, events, now
        return mean

    def allowed(self) -> float:
        """The fraction of the loop's time that the query may take."""
        return self._budget.share() if self.grant is None else self.grant

    @property
    def limited(self) -> bool:
        """Whether the query is evaluated less often than it asked for."""
        return self.every > 1

    def forget(self) -> None:
        """The query goes, is cheap again or has a grant: its part of the common budget is free."""
        self._budget.demands.pop(self, None)
        self.every, self.skip, self.watched = 1, 0, False
