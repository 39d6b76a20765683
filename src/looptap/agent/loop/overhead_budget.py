"""The overhead budget: queries may take 3% of the loop's time, or a grant.

All queries without a grant are paid from one purse, which fills with the budget's share of the time that passes. Paid
is what looptap does on the training thread at an event, from looking up names to handing on values: see thread_time.py.
Before it is paid, it is split among the queries that were evaluated, so the costs that they report add up to it.

While the purse is empty, mapped queries are withheld: all of them at the same events. A query that takes little is not
held up by those that take much: a quarter of the budget is divided equally among the clients, and among the queries of
each, and a query that takes less than its share is evaluated at each event. Another quarter is for queries that begin:
the first evaluation takes milliseconds, since it proves the query harmless, so many that come at once begin one after
the other. Reducing queries may not skip events: if they take more than the budget, so that the purse owes a second of
the loop, the one that takes most closes its window as partial and is suspended, and tried again later. Until then a
quarter is for mapped queries. A query with a grant has a purse of its own.

Python cannot be interrupted: a budget works between evaluations.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable

CHEAP_SECONDS = 20e-6
"""Seconds an event that looptap may always take, in a loop without work too."""
COLD_CACHE_ALLOWANCE_SECONDS = 5e-4
"""Seconds that several events together may take longer: with cold caches, on a slow machine."""
DIVIDED_SHARE = MAPPED_SHARE = BEGINNERS_SHARE = 0.25
"""The shares of the budget that are divided among the queries, for all mapped ones, and for those that begin."""
BURST_SECONDS = 15e-3
"""The most that a purse holds, and what it holds at first."""
BEGINNERS_BURST_SECONDS = 1.0
"""Seconds of the loop that pay for what queries that come together may take at once."""
MAX_BEGIN_SECONDS = 1.0
"""The longest that one query lets the next one wait, whatever its first evaluation cost: a person waits for it."""
PATIENCE_SECONDS = 1.0
"""Seconds of the loop that pay for what the purse owes, before a reducing query is suspended."""
MAX_DEBT_SECONDS = 10.0
"""Seconds of the loop that pay for what a purse may owe at most."""
TOO_LONG_SECONDS = 1.0
"""Seconds of one evaluation that, twice, detach a query without a grant."""
RETRY_SECONDS, LONGEST_RETRY_SECONDS = 10.0, 640.0
"""Seconds after which a suspended query is tried again: twice as many after each time, up to the longest."""
MAX_REST_SECONDS = 0.1
"""The longest that an empty purse is not looked at: what the I/O thread takes changes, and grants come."""
LIMITED_SECONDS = 5.0
"""Seconds after its last withheld event in which a query counts as limited."""
_SMOOTHING_FACTOR, _LEAST_SECONDS = 0.2, 1e-9


class OverheadBudget:
    """The share of the loop's time for all queries of a run and the I/O thread.

    >>> OverheadBudget(0.03).fraction
    0.03
    """

    def __init__(self, fraction: float = 0.03) -> None:
        if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not fraction > 0:
            raise ValueError(f"budget={fraction!r}: a fraction of the loop's time such as 0.03; math.inf: no limit.")
        self.fraction = float(fraction)
        self.io = 0.0
        """The I/O thread's share of wall time, as of the last heartbeat."""
        self.accounts: tuple[Account, ...] = ()
        """What is paid from the purse; replaced as a whole."""
        self._purse, self._filled, self.paid = BURST_SECONDS, -math.inf, 0.0
        self.begin_at = -math.inf
        """The time of the loop at which a query may begin, even if the purse is empty."""
        self._mapped_at = -math.inf  # the same for mapped queries
        self.revision = 0
        """Rises when queries or grants come or go."""

    @property
    def rate(self) -> float:
        """The share of the loop's time for queries; the I/O thread leaves a third."""
        return max(self.fraction - self.io, self.fraction / 3)

    def fill(self, now: float, events: int = 1) -> bool:
        """Fill the purse after so many events; return True if it pays."""
        if math.isinf(self.fraction):
            return True
        earned = max(self.rate * (now - self._filled), CHEAP_SECONDS * events)
        self._purse, self._filled = min(self._purse + earned, BURST_SECONDS), now
        return self.pays(now)

    def pays(self, now: float) -> bool:
        """Return True if mapped queries may be evaluated."""
        return self._purse >= 0 or now >= self._mapped_at

    def until_filled(self, now: float) -> tuple[int, float]:
        """Return after how many events, or seconds, to look at an empty purse."""
        owed = -self._purse
        return int(owed / CHEAP_SECONDS) + 1, min(owed / self.rate, self._mapped_at - now, MAX_REST_SECONDS)

    def pay(self, seconds: float, mapped: float = 0.0) -> None:
        """Pay from the purse what an event has cost, ``mapped`` of it by mapped queries."""
        if mapped:
            self._mapped_at = max(self._mapped_at, self._filled) + mapped / (MAPPED_SHARE * self.fraction)
        self.paid += seconds
        self._purse = max(self._purse - seconds, -MAX_DEBT_SECONDS * self.rate)

    def holds(self, seconds: float) -> bool:
        """Return True if the purse can pay so much."""
        return self._purse >= seconds

    def has_to_wait(self, account: Account) -> bool:
        """Return True for the greatest of the reducing queries if they take too much."""
        if self._purse >= -PATIENCE_SECONDS * self.rate:
            return False
        demands = [one.demand for one in self.accounts if not one.mapped]
        return sum(demands) > self.rate and account.demand == max(demands)

    def forgive(self) -> None:
        """Cancel what the purse owes, since the query that owes it is suspended."""
        self._purse = max(self._purse, 0.0)

    def join(self, account: Account) -> None:
        """Pay for a query from now on, unless it has a grant."""
        self._divide(*self.accounts, *[account] * (account.grant is None))

    def leave(self, account: Account) -> None:
        """Pay no longer for a query."""
        self._divide(*[one for one in self.accounts if one is not account])

    def _divide(self, *accounts: Account) -> None:
        self.accounts = accounts
        queries = Counter(one.client for one in accounts)
        for one in accounts:
            one.share = DIVIDED_SHARE * self.fraction / len(queries) / queries[one.client]
        self.revision += 1


class Account:
    """What one query costs, and how much it may take.

    ``grant`` is a fraction of the loop's time of its own (`math.inf`: no limit), None for the common purse. A
    query that is ``mapped`` may skip events.
    """

    __slots__ = (
        "_long",
        "budget",
        "client",
        "cost",
        "cost_later",
        "free_at",
        "grant",
        "mapped",
        "share",
        "small",
        "spacing",
        "step",
    )

    def __init__(self, budget: OverheadBudget, grant: float | None = None, mapped: bool = True) -> None:
        self.budget, self.grant, self.mapped = budget, grant, mapped
        self.client: Hashable = None
        """Which of the clients among which the budget is divided asks the query."""
        self.share, self.small = DIVIDED_SHARE * budget.fraction, False
        """The fraction of the loop's time that the query may take without a grant, whatever the others do; True if it
        takes less at each event."""
        self.free_at = -math.inf
        """The time of the loop at which it has paid for its evaluations from that share, or from its grant."""
        self.cost = self.step = self.spacing = 0.0
        """Typical seconds of an evaluation, and of a step without queries; typical events from one to the next."""
        self.cost_later = 0.0
        """Typical CPU seconds of an event that is evaluated with others, after they happened."""
        self._long = 0

    def charge(self, cost: float, step: float, events: int, now: float) -> bool:
        """Record an evaluation, ``events`` after the one before; False: detach the query."""
        own = self.share if self.grant is None else self.grant
        if self.spacing:  # else it is the first, which is not typical
            self.cost, self.step = _smoothed(self.cost, cost), _smoothed(self.step, max(step, _LEAST_SECONDS))
            self.small, self.free_at = self.demand <= own, max(self.free_at, now) + cost / own
        self.spacing = _smoothed(self.spacing, min(events, 1 + 4 * self.spacing))
        self._long += cost > TOO_LONG_SECONDS
        return self._long < 2 or self.grant is not None

    def charge_later(self, cost: float, events: int) -> None:
        """Record an evaluation of ``events`` together, after they happened.

        One that takes long by chance changes little; after three in a row the query `is_cheap_later` no longer.
        """
        each = max(0.0, cost - COLD_CACHE_ALLOWANCE_SECONDS) / events
        self.cost_later = _smoothed(max(self.cost_later, CHEAP_SECONDS / 4), each)

    @property
    def is_cheap_later(self) -> bool:
        """True if an event that is evaluated later costs no more than is never limited."""
        return self.cost_later <= CHEAP_SECONDS

    def may_begin(self, now: float, spent: float = 0.0) -> bool:
        """Return True if the query may have its first event, ``spent`` seconds into it."""
        return self.grant is not None or self.budget.holds(spent) or now >= self.budget.begin_at

    def begin(self, cost: float, now: float) -> None:
        """Let the next query wait for as long as pays for the first event of this one."""
        if self.grant is None:
            since = max(self.budget.begin_at, now - BEGINNERS_BURST_SECONDS)
            self.budget.begin_at = since + min(cost / (BEGINNERS_SHARE * self.budget.fraction), MAX_BEGIN_SECONDS)

    def may_run(self, now: float, purse: bool) -> bool:
        """Return True if it may not skip events, or can pay; ``purse``: from the purse."""
        return not self.mapped or (purse and self.grant is None) or now >= self.runs_at(begun=True)

    def runs_at(self, begun: bool) -> float:
        """Return the time of the loop from which it may run while the purse is empty."""
        if self.grant is None and not begun:
            return self.budget.begin_at
        return self.free_at if self.small or self.grant is not None else math.inf

    @property
    def demand(self) -> float:
        """The fraction of the loop's time that it takes at each event."""
        return self.cost / self.step if self.step else 0.0

    def has_to_wait(self, now: float) -> bool:
        """Return True if it takes too much, and may not skip events."""
        if self.mapped:
            return False
        if self.grant is None:
            return self.budget.has_to_wait(self)
        return self.free_at > now + PATIENCE_SECONDS and not self.small

    def suspend(self) -> None:
        """Cancel the debts, since a query that may not skip events pays by waiting."""
        self.free_at, self.cost = -math.inf, 0.0
        if self.grant is None:
            self.budget.forgive()

    def set_grant(self, grant: float | None) -> None:
        """Pay for the query from a grant; None: from the purse of all."""
        self.budget.leave(self)
        self.grant, self.free_at = grant, -math.inf
        self.budget.join(self)

    @property
    def allowed(self) -> float:
        """The fraction of the loop's time that the query may take at most."""
        return self.budget.rate if self.grant is None else self.grant

    @property
    def reason(self) -> str:
        """The costs that limit the query, for messages."""
        text = f"an evaluation took {_seconds(self.cost)} of a step of {_seconds(self.step)} ({percent(self.demand)})"
        if self.grant is not None:
            return text
        others = len({*self.budget.accounts} - {self})
        return f"{text}; other queries: {others:,}; the I/O thread: {percent(self.budget.io)}"


def _smoothed(before: float, value: float) -> float:
    """Return a typical value, which one pause between two events changes little."""
    return before + _SMOOTHING_FACTOR * (min(value, 4 * before) - before) if before else value


def percent(fraction: float) -> str:
    """Format a fraction as percent."""
    return f"{100 * fraction:.2g}%" if fraction < 0.995 else f"{100 * fraction:,.0f}%"


def _seconds(seconds: float) -> str:
    unit, scale = ("s", 1.0) if seconds >= 1 else ("ms", 1e3) if seconds >= 1e-3 else ("µs", 1e6)
    return f"{seconds * scale:.3g} {unit}"
