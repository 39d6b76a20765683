"""What the budget keeps from one query: events, or a time of suspension."""

from __future__ import annotations

import math
from collections.abc import Callable
from time import monotonic
from typing import Protocol

from looptap.agent.loop.overhead_budget import LIMITED_SECONDS, LONGEST_RETRY_SECONDS, RETRY_SECONDS, Account, percent
from looptap.streams.operators.pipeline import Pipeline


class Passing(Protocol):
    """What counts the events that are kept from all mapped queries at once."""

    passed_at: float
    """The time of about the newest of them."""

    def passed(self, every: int) -> int:
        """Return how many of them are multiples of ``every``."""


class QueryLimit:
    """How the budget limits one query, and what is shown of that.

    The training thread changes it; any thread reads `withheld` and `describe`.
    """

    def __init__(self, account: Account, pipeline: Pipeline, notify: Callable[[], None]) -> None:
        self.account, self._pipeline, self._notify = account, pipeline, notify
        self.suspended = self.limited = False
        """True of a reducing query that waits for its turn; of a mapped one while events are kept from it."""
        self.pause_seconds = self.retry_at = 0.0
        """Seconds of the newest suspension, and when it ends."""
        self.kept_alone = 0
        """Events that were kept from this query alone: see `AttachedQuery.withhold`."""
        self._kept_at = 0.0  # the newest of these
        self._passed: tuple[int, Passing | None] = 0, None  # kept from all: by earlier plans, and by this one
        self._charged = 0  # the event of the newest evaluation that was paid
        self._resumed, self._why = 0.0, ""  # when the newest suspension ended, and the reason for it

    def may_run(self, now: float, pays: bool) -> bool:
        """Return True if it may be evaluated; ``pays``: the purse is not empty."""
        return now >= self.retry_at if self.suspended else self.account.may_run(now, pays)

    # ------------------------------------------------------------ events that are kept from it

    def note_kept(self, now: float) -> None:
        """Note the time of an event that was kept from it."""
        self._kept_at = now
        if not (self.limited or self.suspended):
            self.limited = True
            self._notify()

    def count_passed(self, plan: Passing) -> None:
        """Let ``plan`` count the events that are kept from all queries at once."""
        self._passed = self.withheld - self.kept_alone, plan

    @property
    def withheld(self) -> int:
        """The number of events that the budget has kept from it."""
        before, plan = self._passed
        return self.kept_alone + before + (0 if plan is None else plan.passed(self._pipeline.every))

    def _kept_lately(self, now: float) -> bool:
        """Return True if the budget has kept an event from it not long ago."""
        plan = self._passed[1]
        newest = max(self._kept_at, -math.inf if plan is None else plan.passed_at)
        return now - newest <= LIMITED_SECONDS

    def lift(self) -> None:
        """Keep no event from it any more: it is evaluated after its events."""
        if self.limited:
            self.limited = False
            self._notify()

    # ------------------------------------------------------------ what it costs

    def charge(self, cost: float, step: float, number: int, now: float) -> bool:
        """Charge an evaluation, in a loop of ``step`` seconds; False: detach the query."""
        events, self._charged, known = number - self._charged, number, self.account.cost
        paid = self.account.charge(cost, step, events, now)
        if self.limited and not (known and self._kept_lately(now)):
            self.limited = self._kept_lately(now)  # else it says from now on what it costs
            self._notify()
        return paid

    def suspend(self, now: float) -> None:
        """Suspend a reducing query, longer if the last suspension has just ended."""
        again = self.pause_seconds and now - self._resumed < self.pause_seconds
        self.pause_seconds = min(2 * self.pause_seconds, LONGEST_RETRY_SECONDS) if again else RETRY_SECONDS
        self.retry_at = now + self.pause_seconds
        self.suspended, self._why = True, self.account.reason
        self.account.suspend()
        self._notify()

    def try_again(self, now: float) -> None:
        """Resume a suspended query, whose time is over."""
        self._resumed = now
        self._resume()

    def _resume(self) -> None:
        self._pipeline.begin(partial=True)
        self.suspended = False
        self._notify()

    def set_grant(self, share: float | None) -> None:
        """Grant ``share`` of the loop's time to this query; None: the common budget."""
        self.account.set_grant(share)
        if self.suspended:
            self._resume()
        self._notify()

    # ------------------------------------------------------------ I/O thread

    def continue_from(self, other: QueryLimit) -> None:
        """Continue what ``other`` has counted, and its suspension."""
        self.kept_alone = other.withheld
        self.suspended, self.retry_at, self.limited = other.suspended, other.retry_at, other.limited
        self.pause_seconds, self._resumed = other.pause_seconds, other._resumed

    def describe(self) -> str:
        """Describe how the budget limits this query; empty if it does not."""
        account, allowed = self.account, percent(self.account.allowed)
        if self.suspended:
            left = max(0.0, self.retry_at - monotonic())
            return (
                f"suspended: it takes more than {allowed} of the loop's time: {self._why}; it is tried again in "
                f"{left:.0f} s; budget= or stream.grant() gives it a larger share"
            )
        if not self.limited:
            return ""
        whose = "" if account.grant is not None else ", which all queries together may take"
        if not account.cost:
            return f"waits for its turn, to stay within {allowed}{whose}"
        every = _ordinal(max(2, round(account.spacing)))
        return f"evaluated at every {every} event, to stay within {allowed}{whose}: {account.reason}"


def _ordinal(n: int) -> str:
    return f"{n:,}" + ("th" if n % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th"))
