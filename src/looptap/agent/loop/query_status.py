"""The status of an attached query: state, errors, cost and limits."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from time import monotonic, thread_time
from typing import Any, Protocol, TypeAlias

from looptap.agent.handoff.value_ring import ValueRing
from looptap.agent.loop.hooks.query_hooks import QueryHooks
from looptap.agent.loop.overhead_budget import LIMITED_SECONDS, LONGEST_RETRY_SECONDS, RETRY_SECONDS, Account, percent
from looptap.streams.columns.evaluation import ColumnForm
from looptap.streams.errors import LooptapError, QueryError, UnknownObservable
from looptap.streams.events import Event
from looptap.streams.expressions import format_error
from looptap.streams.operators.pipeline import Latest, Pipeline
from looptap.streams.text import last_line

MAX_ERRORS_IN_A_ROW = 100
"""Errors in a row after which a query is detached."""
EVENTS_BEFORE_WAITING = 3
"""Events without a name after which its query is said to wait for it: at the second, many are there."""
EVENTS_BEFORE_DOUBT = 20
"""Events without a name after which it is said where it has a value."""

GiveWay: TypeAlias = Callable[[], None]
"""A function that lets another thread have its turn, called now and then."""


def stay() -> None:
    """Give no other thread a turn."""


class Dependent(Protocol):
    """What a query needs to know of a query derived from it."""

    sink: ValueRing
    reached: int

    @property
    def awaited(self) -> bool:
        """True if something needs its values soon."""

    def may_wait(self) -> bool:
        """Return True if the other query may be evaluated after its events."""

    def end_group(self, number: int, now: float, group: int) -> None:
        """Note that the group of the event ``number`` has ended; twice does no harm."""

    def catch_up(self, later: bool, give_way: GiveWay = stay) -> None:
        """Evaluate the query at new values."""


class Passing(Protocol):
    """What counts the events that are kept from all mapped queries at once."""

    passed_at: float
    """The time of about the newest of them."""

    def passed(self, every: int) -> int:
        """Return how many of them are multiples of ``every``."""


class QueryStatus:
    """The part of an `AttachedQuery` that clients see."""

    def __init__(self, pipeline: Pipeline, sink: ValueRing, account: Account, places: Sequence[Latest]) -> None:
        self.pipeline, self.sink, self.account = pipeline, sink, account
        pipeline.on_failure = self._window_failed
        self.latest_slots = places
        """Its copies of observables of other event types."""
        self.derived: tuple[Dependent, ...] = ()
        """The queries over its values, which run right after it; replaced as a whole."""
        self.state, self.reason = "live", ""
        self.detached = False
        """True once no further event reaches it."""
        self.unseen = self.recorded = False
        """True while nothing looks at its values where they are sent to, and while they are written to a file."""
        self.hooks: QueryHooks | None = None
        """Its hooks on modules: it is not evaluated before they are in."""
        self.errors = self.events = 0
        self.seconds = self.started = 0.0
        """Seconds that the query has cost, and the time of its first event."""
        self.traceback = ""
        self.warning = ""
        """A warning on what the query does to the loop."""
        self.missing_names = ""
        """Names that the query probably reads and that its first event did not have."""
        self.changes = 1
        """The number of changes of its state, first error or limit, which are sent to readers."""
        self.suspended = self.limited = False
        """True of a reducing query that waits for its turn; of a mapped one while events are kept from it."""
        self.waits = False
        """True if its code may run after its events, on either thread."""
        self.deferred = False
        """True while it is evaluated after its events, on copies of their numbers."""
        self.every = pipeline.every
        self._withheld, self._withheld_at = 0, 0.0  # events that the budget has kept from it alone, and the newest
        self._passed: tuple[int, Passing | None] = 0, None  # kept from all: by earlier plans, and by this one
        self._charged = 0  # the event of the newest evaluation that was paid
        self._empty = 0  # events that gave no value: filtered out, or throttled
        self.pause_seconds = self.retry_at = 0.0  # of the newest suspension, and when it ends
        self._resumed, self._why = 0.0, ""  # when it ended, and the reason for it
        self.overdue = 0.0
        """Seconds that its present evaluation has been running, if that is long."""
        self.awaits: frozenset[str] = frozenset()
        """The readings of the machine that it mentions: it is not evaluated before they are there."""
        self.seen = 0
        """The number of the last event that was evaluated, or counted as lost."""
        self.closed = 0
        """The number of the last group whose end closed its window."""
        self.observed: frozenset[str] = frozenset()
        """The names that it probably reads of an event."""
        self.varies = False
        """True if it reads names that some events do not have: it passes over those."""
        self._passed_over = False
        self._in_a_row = 0
        self._feed: Callable[[Any], Any] | None = None  # the short way, where the query is a function of one event
        self._form: ColumnForm | None = None  # the same for many events

    @property
    def awaited(self) -> bool:
        """True if something needs its values soon, or those of a query over them."""
        seen = self.recorded or not (self.unseen or self.sink.unobserved)
        return seen or bool(self.derived and any([query.awaited for query in self.derived]))

    def may_wait(self) -> bool:
        """Return True if it may be evaluated after its events, with those derived."""
        cheap = self.waits and self.account.is_cheap_later and self.state == "live"
        return cheap and all([query.may_wait() for query in self.derived])

    def evaluate_derived(self, later: bool = False, give_way: GiveWay = stay) -> None:
        """Evaluate the queries over its values; ``later``: it was itself."""
        for query in self.derived:
            query.catch_up(later, give_way)

    def end_derived_group(self, number: int, now: float, group: int) -> None:
        """Tell the queries over its values that a group has ended."""
        for query in self.derived:
            query.end_group(number, now, group)

    def redirect(self, sink: ValueRing, shift: int) -> None:
        """Put values into ``sink`` from now on, whose numbers are ``shift`` higher.

        Nothing may be evaluated meanwhile.
        """
        sink.inboxes, self.sink.inboxes, self.sink = self.sink.inboxes, (), sink
        for query in self.derived:
            query.reached += shift * bool(query.reached)

    def take_later(self, evaluate: Callable[[GiveWay], None], events: int, give_way: GiveWay) -> None:
        """Evaluate ``events`` after they happened, and charge what that costs.

        That is the time on the CPU: what is evaluated here is arithmetic, which waits for nothing.
        """
        began = thread_time()
        evaluate(give_way)
        cost = thread_time() - began
        self.seconds += cost
        self.account.charge_later(cost, events)

    def _suspend(self, now: float) -> None:
        """Suspend a reducing query, longer if the last suspension has just ended."""
        again = self.pause_seconds and now - self._resumed < self.pause_seconds
        self.pause_seconds = min(2 * self.pause_seconds, LONGEST_RETRY_SECONDS) if again else RETRY_SECONDS
        self.retry_at = now + self.pause_seconds
        self.suspended, self._why = True, self.account.reason
        self.account.suspend()
        self._notify()

    def _try_again(self, now: float) -> None:
        """Resume a suspended query."""
        self._resumed = now
        self._resume()

    def _resume(self) -> None:
        self.pipeline.begin(partial=True)
        self.suspended = False
        self._notify()

    def set_grant(self, share: float | None) -> None:
        """Grant ``share`` of the loop's time to this query; None: the common budget."""
        self.account.set_grant(share)
        if self.suspended:
            self._resume()
        self._notify()

    def defer(self, later: bool) -> None:
        """Evaluate it after its events from now on, which the budget does not limit."""
        self.deferred = later
        if later and self.limited:
            self.limited = False
            self._notify()

    def withhold(self, number: int, now: float) -> None:
        """Count an event that the budget keeps from this query."""
        self.pipeline.begin(partial=True)
        self.seen, self._withheld_at = number, now
        self._withheld += 1
        if not self.limited:
            self.limited = True
            self._notify()

    @property
    def withheld(self) -> int:
        """The number of events that the budget has kept from it."""
        before, plan = self._passed
        return self._withheld + before + (0 if plan is None else plan.passed(self.every))

    def count_passed(self, plan: Passing) -> None:
        """Let ``plan`` count the events that are kept from all queries at once."""
        self._passed = self.withheld - self._withheld, plan

    def _kept_lately(self, now: float) -> bool:
        """Return True if the budget has kept an event from it not long ago."""
        plan = self._passed[1]
        newest = max(self._withheld_at, -math.inf if plan is None else plan.passed_at)
        return now - newest <= LIMITED_SECONDS

    @property
    def filtered(self) -> int:
        """The number of evaluations at which a mapped query yielded no value."""
        empty = self._empty  # looked at first: the training thread raises it last
        return max(0, empty - self.pipeline.skipped)

    def continue_from(self, other: QueryStatus) -> None:
        """Continue the counters and the open window of ``other``, of the same code.

        I/O thread, while nothing is evaluated.
        """
        self.seen, self.closed, self.events, self.errors = other.seen, other.closed, other.events, other.errors
        self.seconds, self.started, self.traceback = other.seconds, other.started, other.traceback
        self.warning, self.missing_names, self._withheld = other.warning, other.missing_names, other.withheld
        self._empty, self._in_a_row = other._empty, other._in_a_row
        self.suspended, self.retry_at, self.limited = other.suspended, other.retry_at, other.limited
        self.pause_seconds, self._resumed = other.pause_seconds, other._resumed
        self.pipeline.continue_from(other.pipeline)

    def warnings(self) -> list[str]:
        """Return the notes for readers of the stream."""
        problems = [f"latest({place.event!r}): {place.problem}" for place in self.latest_slots if place.problem]
        overdue = f"one evaluation has taken {self.overdue:.0f} s so far, and the loop waits for it"
        failure = last_line(self.explained(self.pipeline.failure or ""))
        failed = f"the open window has failed and will yield an error: {failure}" if failure else ""
        known = overdue * bool(self.overdue), self.limitation(), self.warning, self.missing_names, failed, *problems
        return [text for text in known if text]

    def limitation(self) -> str:
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

    def _too_early(self, event: Event) -> bool:
        """Return True before its first readings, and count the event as filtered."""
        self.varies = self.varies or not self.observed.isdisjoint(event.__looptap_varying__())
        coming = self.observed & event.__looptap_coming__()
        unknown = [reason for name, reason in event.__looptap_unknown__().items() if name in self.observed]
        early = bool(coming or unknown) or (bool(self.awaits) and not self.awaits <= event.__looptap_names__())
        if self.hooks is not None and not early:
            try:
                early = not self.hooks.ready(event)
            except QueryError as error:
                self.fail(str(error))
                return True
        self._empty += early
        if unknown:
            self._pass_over(unknown[0])
        if coming and not self.events and self._empty in (EVENTS_BEFORE_WAITING, EVENTS_BEFORE_DOUBT):
            self._say_awaited(event, sorted(coming))
        return early

    def _say_awaited(self, event: Event, names: list[str]) -> None:
        """Say which names have no value; after many events also where they have one."""
        there = [path for name in names if (path := event.__looptap_elsewhere__(name))]
        hint = f"; there is {', '.join(there)}" if there else ""
        self.missing_names = f"it waits for {', '.join(names)}, which has no value so far{hint}"
        homes = [(name, home) for name in names if (home := event.__looptap_home__(name))]
        if self._empty == EVENTS_BEFORE_DOUBT and homes:
            name, home = homes[0]
            function = "the script" if home == "<module>" else f"{home}()"
            here = home.rpartition(".")[2]
            ask = "" if home == "<module>" else f" On Python 3.12 and newer ask there: --on '{here}()'."
            self.missing_names = (
                f"{name} has had no value at any of {EVENTS_BEFORE_DOUBT} {event._source.name!r} events: it is a "
                f"variable of {function}, and may never have one there.{ask}{hint}"
            )
        self._notify()

    def _pass_over(self, reason: str) -> None:
        """Leave out an event without a value, and say why at the first one."""
        self.varies, self._feed = True, None
        if not self._passed_over or not self.missing_names:
            self._passed_over, self.missing_names = True, reason
            self._notify()

    def fail(self, reason: str) -> None:
        """Stop for good; the I/O thread detaches the query."""
        self.state, self.reason, self._feed, self._form = "failed", reason, None, None
        self._notify()

    def _notify(self) -> None:
        self.changes += 1
        self.sink.notify()

    def _window_failed(self, error: Exception) -> None:
        """Report at once a window that will yield an error: its end may be far."""
        if not self.traceback:
            self.traceback = self.explained(self.pipeline.failure or "")
        if isinstance(error, LooptapError) and error.hopeless:
            self._failed(error)
        else:
            self._notify()

    def _failed(self, error: BaseException) -> None:
        if isinstance(error, SystemExit):
            self.fail(f"it raised SystemExit({error.code!r})")
        elif isinstance(error, UnknownObservable):
            self._empty += 1
            self._pass_over(str(error))
        elif isinstance(error, LooptapError):
            self.record_error(str(error), in_a_row=not error.passing)
            if error.hopeless:
                self.fail(str(error))
        else:
            self.record_error(format_error(error, self.pipeline.text))

    def explained(self, error: str) -> str:
        """Return the text of an error, with what is known about its cause."""
        return error

    def record_error(self, text: str, *, in_a_row: bool = True) -> None:
        """Count an error; report the first, and end the query at a hundred in a row."""
        text = self.explained(text)
        self.errors += 1
        self._in_a_row += in_a_row
        if self.errors == 1:
            self.traceback = text
            self._notify()
        if self._in_a_row >= MAX_ERRORS_IN_A_ROW:
            first = last_line(self.traceback) or text
            self.fail(f"{MAX_ERRORS_IN_A_ROW} errors in a row, the first: {first}")


def _ordinal(n: int) -> str:
    return f"{n:,}" + ("th" if n % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th"))
