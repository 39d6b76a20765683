"""Queries over the values of another query, in the job.

A derived query is evaluated right after the query whose values it reads, its source, and on the same thread: nothing
waits, and nothing is lost between the two. The source's sink appends each value to the query's inbox, whether or not a
client has room for it. Values that wait for a device stay there until a later event. A query that calls unknown code
runs on the training thread alone: its source is then not evaluated later (`may_wait`).

Guarantees: each value of the source is evaluated once and in order, and groups end between the values between which
they ended. Assumes that a query's sources form a chain, which ends at a query over events or a log.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any, TypeAlias

from looptap.agent.handoff.value_batch import FlaggedValue, Item
from looptap.agent.handoff.value_ring import Inbox, ValueRing
from looptap.agent.loop.at_event import evaluate_at_event
from looptap.agent.loop.attached_query import AttachedQuery, GiveWay, stay
from looptap.agent.loop.deferred_evaluation import OVERFLOW_EVENTS
from looptap.agent.loop.in_columns import EVENTS_AT_A_TIME
from looptap.agent.loop.overhead_budget import Account
from looptap.streams.flags import ERROR
from looptap.streams.operators.pipeline import Pipeline
from looptap.streams.operators.windows import Group
from looptap.streams.proving.plain_reads import refuse_in_modes
from looptap.streams.values.device_transfer import Pending
from looptap.streams.values.rows import explain_missing_field, rows
from looptap.streams.values.snapshots import snapshot

MAX_CHAINED_COUNT = 4
"""Queries that may read one another's values in a chain, besides the one over events."""

_GroupEnd: TypeAlias = tuple[int, float, int]
"""The number of the group's last event, the time, the group's number."""


class DerivedQuery(AttachedQuery):
    """A query over the values of ``source``, each ``nth`` of them.

    ``of`` is the name of the source in messages, and ``exposed`` what the host has exposed.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        sink: ValueRing,
        source: AttachedQuery,
        *,
        of: str,
        nth: int,
        name: str,
        max_bytes: int,
        account: Account,
        exposed: dict[str, Any],
    ) -> None:
        super().__init__(pipeline, sink, on=source.on, name=name, max_bytes=max_bytes, account=account)
        self.waits = pipeline.trusted
        self.of_events = False
        self.awaits = frozenset()
        self.source, self.of = source, of
        self.depth: int = getattr(source, "depth", 0) + 1
        """The number of queries between it and the events."""
        self.inbox = Inbox(sink)
        self.held = False
        """True while the I/O thread evaluates the history of its source; its inbox waits."""
        self.reached = 0
        """The number of the newest value that it has seen; 0 before the first."""
        self.follows_groups = self.grouped and bool(source.on) and not _yields_groups(source)
        """True if its window ends with the groups of the events."""
        self._nth = nth
        self._ends: deque[_GroupEnd] = deque()
        self._last_group = 0
        self._cut = False  # the open group had values before the first that it sees
        self.late = False
        """True if its client had values of the source before those that it numbers."""
        self._number = 0  # of the value that is evaluated
        self._last_time = 0.0
        self._kind: type[Any] = object
        self._rows: Callable[[Sequence[Any]], Sequence[Any]] | None = None

    # ------------------------------------------------------------ I/O thread, or where the host declares streams

    def begin(self, *, mid_group: bool) -> None:
        """Read the values of the source from now on."""
        self._cut = mid_group
        self.source.derived = (*self.source.derived, self)
        output = self.source.sink
        output.inboxes = (*output.inboxes, self.inbox)

    def leave(self) -> None:
        """Read no further value."""
        source, output = self.source, self.source.sink
        source.derived = tuple(query for query in source.derived if query is not self)
        output.inboxes = tuple(inbox for inbox in output.inboxes if inbox is not self.inbox)

    def redirect(self, sink: ValueRing, shift: int) -> None:
        """Put values into ``sink`` from now on; no value of the loop comes meanwhile."""
        super().redirect(sink, shift)
        self.inbox.sink = sink

    def describe_groups(self) -> str:
        """Return a note if no event ends its window; empty if one does."""
        if not isinstance(self.pipeline.window, Group) or self.pipeline.mapped or self.follows_groups:
            return ""
        why = "are logged" if not self.source.on else "are a group each"
        return (
            f"the values of {self.of!r} {why}: a window over them closes at the end of the run; use window=10 for "
            "earlier values"
        )

    def replay(self, items: Sequence[Item]) -> None:
        """Evaluate the query at values of the history, while it is held."""
        self.deferred = True
        for number, event, now, value, _ in items:
            self._take(number, event, now, value)
            self.reached = number

    # ------------------------------------------------------------ where the source is evaluated

    def end_group(self, number: int, now: float, group: int) -> None:
        """Note that the group of the event ``number`` has ended; twice does no harm."""
        if group != self._last_group:
            self._last_group = group
            self._ends.append((number, now, group))

    def catch_up(self, later: bool, give_way: GiveWay = stay) -> None:
        """Evaluate the query at new values. Raises nothing but KeyboardInterrupt.

        ``later``: after their events, on either thread. Calls ``give_way`` between values, now and then.
        """
        items, ends = self.inbox.items, self._ends
        if self.held:
            if len(items) > OVERFLOW_EVENTS and self.state == "live":
                self.fail(f"the history of {self.of!r} takes longer than the values that follow it")
            return
        if not (items or ends) or (later and not self.pipeline.trusted):
            return
        self.deferred = later
        if later:
            self.evaluate_later(self._empty_inbox, len(items) or 1, give_way)
        else:
            self._empty_inbox(give_way)
        self.evaluate_derived(later, give_way)

    def _empty_inbox(self, give_way: GiveWay) -> None:
        items, ends = self.inbox.items, self._ends
        due = self.reached + EVENTS_AT_A_TIME
        while items or ends:
            if self.reached >= due:
                due = self.reached + EVENTS_AT_A_TIME
                give_way()
            if ends and (not items or items[0][1] > ends[0][0]):
                self._end_group(*ends[0])
                ends.popleft()
                continue
            number, event, now, value, _ = items[0]
            if type(value) is Pending and not value.arrived():  # its device is computing: at a later event
                break
            self.seen = 0
            try:
                self._take(number, event, now, value)
            except KeyboardInterrupt:
                if self.seen:  # the evaluation has begun, and has counted what it lost
                    self.reached = number
                    items.popleft()
                raise
            self.reached = number  # in one step with the next, which ends before Ctrl-C is delivered
            items.popleft()

    def _end_group(self, number: int, now: float, group: int) -> None:
        if self.follows_groups:
            self.close_group(number, now, group)
        self._cut = False
        self.end_derived_group(number, now, group)

    def _take(self, number: int, event: int, now: float, value: Any) -> None:
        """Evaluate the query at one value of the source, or count it as withheld."""
        if number <= self.reached:  # the history had it
            return
        if self.reached and number != self.reached + 1:
            self._miss(number - 1, now)
        if self.state != "live" or number % self._nth:
            return
        self.flags = 0
        if type(value) is FlaggedValue:
            value, self.flags = value.value, value.flags
            if self.flags & ERROR:
                self.pipeline.begin(partial=True)
                return
            self.feed = None  # the short way knows no flags
        if type(value) is Pending:
            value = value.resolve()
        step, self._last_time = (now - self._last_time if self._last_time else 0.0), now
        if not (self.deferred or self.limit.may_run(now, self.account.budget.pays(now))):
            self.withhold(event, now)
            return
        self._number = number
        self._evaluate_at(self._named(value), event, now, step)

    def _miss(self, upto: int, now: float) -> None:
        """Count the values up to this number as lost, as its source has lost them."""
        missed = upto // self._nth - self.reached // self._nth
        self.pipeline.begin(partial=True)
        if missed and self.pipeline.yields(now):
            self.sink.lose(missed)
        self.reached = upto

    def _evaluate_at(self, value: Any, event: int, now: float, step: float) -> None:
        started = monotonic()
        evaluate_at_event(self, value, event, now, 0 if self._cut else event)
        if not self.deferred:
            cost, account = monotonic() - started, self.account
            self.charge(cost, step, event, now)
            if account.grant is None:
                account.budget.pay(cost, cost * account.mapped)

    def _named(self, value: Any) -> Any:
        """Return a value as clients see it: a row with names, if it is one."""
        if type(value) is tuple:
            if self._rows is None and self.source.pipeline.fields:
                self._rows = rows(self.source.pipeline.fields)
            if self._rows is not None:
                (value,) = self._rows([value])
        if self.pipeline.unsafe:  # which may write to it, and it is on its way to clients
            value, _ = snapshot(value, self.max_bytes)
        self._kind = type(value)
        return value

    def checked(self, event: Any) -> Any:
        """Refuse what torch's modes would see; the values are copies, and plain."""
        if type(event) not in (int, float, str):
            refuse_in_modes(self.pipeline.text)
        return event

    def begins_late(self, number: int) -> bool:
        """Return True if there were values before this one, its first."""
        return self.late or self._number > self._nth

    # ------------------------------------------------------------ notes for its readers

    def explained(self, error: str) -> str:
        """Return an error, which says what to write if the value has no fields."""
        return explain_missing_field(error, self._kind)

    def warnings(self) -> list[str]:
        """Return the notes for readers of the stream, with what limits its source."""
        source = self.source.limit.describe()
        return [*super().warnings(), *([f"{self.of!r}, whose values it reads, is {source}"] if source else [])]


def restart(query: AttachedQuery, number: int, now: float, *, partial: bool) -> None:
    """Cut the open window after event ``number``: the numbers of events change."""
    if isinstance(query, DerivedQuery):
        query.catch_up(later=False)
    if query.events:
        query.flush_partial(number, now)
        query.pipeline.begin(partial or query.slides, late=True)
    for derived in query.derived:
        assert isinstance(derived, DerivedQuery)
        restart(derived, number, now, partial=partial)


def cut_off(query: AttachedQuery) -> None:
    """Flag the open window of a group that something else than the host ends."""
    grouped = query.grouped
    if isinstance(query, DerivedQuery):
        query.catch_up(later=False)
        grouped = query.follows_groups
    if grouped:
        query.pipeline.begin(partial=True)
    for derived in query.derived:
        assert isinstance(derived, DerivedQuery)
        cut_off(derived)


def _yields_groups(query: AttachedQuery) -> bool:
    """Return True if each value of the query is a whole group of events."""
    return not query.pipeline.mapped and isinstance(query.pipeline.window, Group)
