"""The overhead budget: queries may take 3% of the loop's time, or a grant.

How a query is limited:

1. Each evaluation is timed by the wall clock, since a query that sleeps or waits for a lock holds up the loop. Up to
   20 µs it is cheap, and nothing more happens. To wake the I/O thread is not part of it.
2. What it costs *typically* (`TypicalCost`) is the least of three expensive evaluations in a row if that is glaring,
   else the lower of its last two means, of half a second each. A pause of the machine makes neither large.
3. If that is more than its share of the loop's time it is a suspect: its evaluations are *watched*, and it is judged
   again, by these alone. Of a watched evaluation only what is the query's own doing counts: see thread_time.py. To ask
   the kernel for that costs 20 µs, so only suspects are watched.
4. If it is too much even so, the query is limited: a mapped query is evaluated at every n-th event only; a reducing
   one, which may not skip events, closes its window as partial and is suspended, and tried again later.

A query that has become cheap, or has a grant, is free again. Python cannot be interrupted: a budget works between
evaluations.

All mapped queries without a grant are paid from one purse, however cheap each of them is: the processor time that they
take of the training thread. It fills with the budget's share of the time that passes, and with 20 µs an event. While it
is empty, they are withheld; so all of them are evaluated at the same, fewer events. The first value of each is free.
"""

from __future__ import annotations

import math
from time import monotonic
from typing import NamedTuple

from looptap.agent.loop.thread_time import IoSchedule, OwnTime

CHEAP_SECONDS = 20e-6
"""Seconds an event that are never limited."""
GLARING_SECONDS = 200e-6
"""Seconds that, in three evaluations in a row, are no accident: to wait for the interpreter lock takes less."""
SKIP_SECONDS = 1e-6
"""Seconds that a limited query takes of an event at which it is not evaluated, with cold caches."""
MIN_EVALUATIONS = 3
"""Evaluations before the first decision."""
SPENDABLE_SHARE = 0.8
"""Share of the budget that is given out: costs rise before they are measured."""
MEAN_SECONDS = 0.5
"""Seconds of the loop over which a mean cost is taken."""
MIN_WATCH_MEANS = 6
"""Means for which a suspect is watched at least, so that what it did in one of them comes again."""
TOO_LONG_SECONDS = 1.0
"""Seconds of one evaluation that, twice, detach a query without a grant."""
SHORTAGE_SECONDS = 5.0
"""Seconds for which it is said that the purse was empty."""
MAX_DEBT_SECONDS = 10.0
"""Seconds of the loop that pay for what the purse may owe at most."""
BURST_SECONDS = 0.1
"""The most that the purse holds, and what it holds at first."""
RETRY_SECONDS, LONGEST_RETRY_SECONDS = 10.0, 640.0
"""Seconds after which a suspended query is tried again: twice as many after each time, up to the longest."""
MEASURE_NEXT = -1
"""A pace that means: watch the next evaluation."""
_SMOOTHING_FACTOR = 0.2
_LEAST_SECONDS = 1e-9  # not 0: the product with a budget without limit would be no number
_MIN_DEMAND_CHANGE = 0.05  # part by which a demand has to change for the shares to be computed again


class OverheadBudget:
    """The share of the loop's time for all queries of a run and the I/O thread.

    >>> OverheadBudget(0.03).fraction
    0.03
    """

    def __init__(self, fraction: float = 0.03) -> None:
        if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not fraction > 0:
            raise ValueError(f"budget={fraction!r}: a fraction of the loop's time such as 0.03; math.inf: no limit.")
        self.fraction = float(fraction)
        self.io_schedule = IoSchedule()
        self.demands: dict[CostMeter, float] = {}
        """The fraction of the loop's time that each expensive query would take."""
        self._io = 0.0
        self._share: float | None = None  # None: to be computed
        self._purse, self._filled, self._empty = BURST_SECONDS, -math.inf, -math.inf

    @property
    def io(self) -> float:
        """The I/O thread's share of wall time, as of the last heartbeat."""
        return self._io

    @io.setter
    def io(self, share: float) -> None:
        self._io, self._share = share, None

    def fill(self, now: float) -> bool:
        """Fill the purse up to ``now``, at an event; return False if it is empty."""
        earned = self.fraction * max(now - self._filled, _LEAST_SECONDS) + CHEAP_SECONDS
        self._purse, self._filled = min(self._purse + earned, BURST_SECONDS), now
        if self._purse >= 0:
            return True
        self._empty = monotonic()
        return False

    def shortage(self) -> str:
        """Say that the purse has been empty in the last seconds, else nothing."""
        if monotonic() - self._empty > SHORTAGE_SECONDS:
            return ""
        return f"not evaluated at each event: all queries together may take {percent(self.fraction)} of the loop's time"

    def pay(self, seconds: float) -> None:
        """Take the cost of an event from the purse."""
        if seconds > 0:
            self._purse = max(self._purse - seconds, -MAX_DEBT_SECONDS * self.fraction)

    def demand(self, meter: CostMeter, fraction: float) -> None:
        """Record the fraction that an expensive query would take."""
        before = self.demands.get(meter, 0.0)
        # A smaller change is passed over: else each query that is judged would cost a look at all others.
        if abs(fraction - before) > _MIN_DEMAND_CHANGE * before:
            self.demands[meter], self._share = fraction, None

    def release(self, meter: CostMeter) -> None:
        """Return a query's part to the others."""
        if self.demands.pop(meter, None) is not None:
            self._share = None

    def share(self) -> float:
        """Return the fraction of the loop's time that one query may take.

        The I/O thread leaves at least a third of the budget; what a query does not want, the others may have.
        """
        if self._share is None:
            self._share = self._fair_share()
        return self._share

    def _fair_share(self) -> float:
        left = SPENDABLE_SHARE * max(self.fraction - self._io, self.fraction / 3)
        wanted = sorted(list(self.demands.values()))
        for i, demand in enumerate(wanted):
            fair = left / (len(wanted) - i)
            if demand > fair:
                return fair
            left -= demand
        return max(left, wanted[-1]) if wanted else left


class TypicalCost:
    """The typical cost of a query's evaluation, by expensive ones and by totals."""

    __slots__ = ("_events", "_in_a_row", "_last", "_least", "_mean", "_mean_started", "_seconds")

    def __init__(self) -> None:
        self.reset()

    def reset(self, expensive: bool = False) -> None:
        """Forget all costs; judge a ``convicted`` query by its first mean alone."""
        self._mean: float | None
        self._least, self._in_a_row, self._last = math.inf, 0, 0
        self._seconds, self._events, self._mean_started = 0.0, 0, 0.0
        self._mean = math.inf if expensive else None  # the newest one

    def note(self, cost: float, seconds: float, events: int, now: float) -> float | None:
        """Record an expensive evaluation; return the typical cost, None if too early.

        It is the ``events``-th evaluation.
        """
        in_a_row = self._in_a_row if events == self._last + 1 else 0
        self._least = min(self._least, cost) if 0 < in_a_row < MIN_EVALUATIONS else cost
        self._last, self._in_a_row = events, in_a_row + 1
        if self._in_a_row >= MIN_EVALUATIONS and self._least > GLARING_SECONDS:
            return self._least
        if not self._mean_started:
            self._seconds, self._events, self._mean_started = seconds, events, now
        if now - self._mean_started < MEAN_SECONDS or events == self._events:
            return None
        before, self._mean = self._mean, (seconds - self._seconds) / (events - self._events)
        self._seconds, self._events, self._mean_started = seconds, events, now
        return None if before is None else min(before, self._mean)

    def span(self, now: float) -> float:
        """Return the seconds since the present mean was begun."""
        return now - self._mean_started if self._mean_started else 0.0


class Verdict(NamedTuple):
    """The reason why a query was limited: its cost, and the budget left."""

    cost: float
    """Typical seconds of an evaluation."""
    step: float
    """Seconds between two events that it asks for, without queries."""
    allowed: float
    """The fraction of the loop's time that it may take."""
    others: int
    """Other expensive queries."""
    demanded: float
    """The fraction of the loop's time that these would take."""
    io: float
    """The fraction that the I/O thread took."""

    def __str__(self) -> str:
        text = f"an evaluation took {_seconds(self.cost)} of a step of {_seconds(self.step)} ({percent(self.demand)})"
        also = []
        if self.others:
            which = "query" if self.others == 1 else "queries"
            also.append(f"{self.others:,} other expensive {which} of {percent(self.demanded)}")
        if self.io >= 0.001:
            also.append(f"the I/O thread with {percent(self.io)}")
        return f"{text}, besides {' and '.join(also)}" if also else text

    @property
    def demand(self) -> float:
        """The fraction of the loop's time that the query would take."""
        return self.cost / self.step


class CostMeter:
    """Decides from the cost of one query how often it may be evaluated.

    ``grant`` is a fraction of the loop's time of its own (`math.inf`: no limit), None for the common budget. Of the
    events the query itself asks for each ``pace``-th only.
    """

    __slots__ = (
        "_long", "_step", "_typical", "_until", "budget", "cheap", "every", "grant", "own", "pace", "skip", "verdict",
        "watched",
    )  # fmt: skip

    def __init__(self, budget: OverheadBudget, grant: float | None = None, pace: int = 1) -> None:
        self.budget, self.grant, self.pace, self.cheap = budget, grant, pace, CHEAP_SECONDS * pace
        self._typical = TypicalCost()
        self.own = OwnTime(budget.io_schedule)
        self._step = self._until = 0.0
        self._long = 0  # evaluations that were too long
        self.every = 1
        self.skip = 0
        """The number of selected events to skip before the next evaluation, or `MEASURE_NEXT`."""
        self.watched = False
        """True if costs exclude the time that others took."""
        self.verdict: Verdict | None = None
        """The reason for the last limit."""

    def charge(self, cost: float, step: float, seconds: float, events: int, now: float) -> bool:
        """Record an expensive evaluation in a loop of ``step`` seconds; False: detach.

        ``seconds`` and ``events`` are the query's totals at the time ``now``. Sets `every`: 1 if the query is within
        its share, else the number of events per evaluation that brings it there.
        """
        if self.grant is None and cost > TOO_LONG_SECONDS:
            self._long += 1
            if self._long >= 2 and self.watched:
                return False
        if step > 0:  # a validation between two events is not a long step
            step *= self.pace
            self._step += _SMOOTHING_FACTOR * (min(step, 4 * self._step) - self._step) if self._step else step
        span = self._typical.span(now)
        typical = self._typical.note(cost, seconds, events, now)
        if (events <= MIN_EVALUATIONS or cost > TOO_LONG_SECONDS) and not self.watched:
            self._watch(0.0)
        if typical is None or events <= MIN_EVALUATIONS or self._step <= 0:
            self.skip = self.every - 1 or (MEASURE_NEXT if self.watched else 0)  # as it was judged last
        elif typical <= self.cheap:
            self.note_cheap(now)
        elif typical > self._step * self.allowed() and not self.watched:
            self._watch(now + MIN_WATCH_MEANS * max(MEAN_SECONDS, span))
        else:
            self._limit(typical, now)
        return True

    def _limit(self, typical: float, now: float) -> None:
        """Limit the query to its share if it costs more, else keep watching it."""
        demand, allowed = typical / self._step, self.allowed()
        every = 1
        if demand > allowed:  # to pass over an event is part of what it costs
            every = math.ceil(demand / max(allowed - SKIP_SECONDS / self._step, allowed / 2))
        if self.grant is None:
            self.budget.demand(self, demand)
        self.every, self.watched = every, every > 1 or (self.watched and now < self._until)
        self.skip = every - 1 or (MEASURE_NEXT if self.watched else 0)
        if every > 1:
            others = [other for meter, other in list(self.budget.demands.items()) if meter is not self]
            self.verdict = Verdict(typical, self._step, self.allowed(), len(others), sum(others), self.budget.io)

    def note_cheap(self, now: float) -> None:
        """Record that a watched query is cheap; free it if it was watched long enough."""
        if self.limited or now >= self._until:
            self.forget()

    def try_again(self, now: float) -> None:
        """Watch a query that was suspended, and judge it quickly."""
        self.forget()
        self._watch(now + MIN_WATCH_MEANS * MEAN_SECONDS)
        self._typical.reset(expensive=True)

    def _watch(self, until: float) -> None:
        """Watch the evaluations from now on, and judge the query by these alone."""
        self.watched, self.skip, self._until = True, MEASURE_NEXT, until
        self._typical.reset()
        self.own.reset()

    def allowed(self) -> float:
        """Return the fraction of the loop's time that the query may take."""
        return self.budget.share() if self.grant is None else self.grant

    @property
    def limited(self) -> bool:
        """True if the query is evaluated less often than it asked for."""
        return self.every > 1

    def forget(self) -> None:
        """Free the query's part of the common budget: it is gone, cheap or granted."""
        self.budget.release(self)
        self.every, self.skip, self.watched = 1, 0, False


def percent(fraction: float) -> str:
    """Format a fraction as percent."""
    return f"{100 * fraction:.2g}%" if fraction < 0.995 else f"{100 * fraction:,.0f}%"


def _seconds(seconds: float) -> str:
    unit, scale = ("s", 1.0) if seconds >= 1 else ("ms", 1e3) if seconds >= 1e-3 else ("µs", 1e6)
    return f"{seconds * scale:.3g} {unit}"
