"""`LiveStream`: the values of a query that is attached to a run."""

from __future__ import annotations

import functools
import logging
import re
import weakref
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType

import msgspec

from looptap.client.session.run_handle import RunHandle
from looptap.client.sinks.sent_stream import SentStream
from looptap.client.streams.received import received
from looptap.client.transport.timeouts import REPLY_SECONDS
from looptap.protocol import messages as m
from looptap.protocol.replies import MAX_VALUE_NUMBER, StreamInfo, SubscriptionInfo
from looptap.store.kept_scalars import HistorySpan, kept_batch, note_on
from looptap.streams.forwarding import facade
from looptap.streams.operators.windows import Group
from looptap.streams.panel_hint import PanelChart
from looptap.streams.stream.buffer import Batch, LimitedStretch
from looptap.streams.stream.feed import Feed, Subscriber
from looptap.streams.stream.state_and_cost import ENDED, FAILED, LIVE, Cost
from looptap.streams.stream.stream import Stream
from looptap.streams.text import cut_inside, last_line, public_line

_MAX_NOTE_CHARACTERS, _MAX_NOTES = 10_000, 100  # of what an agent says, this much is kept
_PANEL_BUDGET_SHARE = 0.01  # of the loop's time, for each chart of a panel
_MAX_STRETCHES = 20  # that a chart marks
_KEPT_ALIVE: set[Feed] = set()  # feeds with subscribers: a callback holds its stream, and lives as long as it is called
_THINNED = re.compile("evaluated at every|suspended")  # what an agent says of a query over its budget

log = logging.getLogger("looptap")


class LiveFeed(Feed):
    """The items of a live stream, with subscribers on "looptap-callbacks"."""

    def __init__(self, buffer: int, buffer_bytes: int, schedule: Callable[[Feed], None]) -> None:
        super().__init__(buffer, buffer_bytes)
        self._schedule = schedule

    def schedule(self) -> None:
        """Call the subscribers soon."""
        self._schedule(self)

    def subscribe(self, on_batch: Callable[[Batch], None], on_end: Callable[[], None], replay: bool) -> Subscriber:
        """Subscribe, and keep the stream alive while there is a subscriber."""
        _KEPT_ALIVE.add(self)
        return super().subscribe(on_batch, on_end, replay)

    def unsubscribe(self, subscriber: Subscriber) -> None:
        """Stop calling the subscriber."""
        super().unsubscribe(subscriber)
        if not self.subscribed:
            _KEPT_ALIVE.discard(self)


@facade
class LiveStream(SentStream, Stream):
    """The values of one query, until `close`, the end of the run, or being dropped.

    Callbacks run on the thread "looptap-callbacks"; a stream with callbacks lives until it is closed.

    If a lost link is restored within the agent's limit (4 s), the query has continued, and values lost on the way are a
    gap of exact size. After that limit the query is attached again. Values that it had yielded and that are lost are a
    gap of exact size. Values that it would have yielded since are another gap: of exact size if each event yields a
    value, else of unknown size (``missing`` is None). A run that ends without a goodbye, such as a killed one, also
    leaves a gap of unknown size. With ``follow=True``, the stream and its numbers continue with the next run of the
    name, and `seams` says where. With ``discreet`` its texts say no more than a viewer may know.
    """

    def __init__(
        self,
        run: RunHandle,
        attach: m.Attach,
        *,
        name: str,
        text: str,
        buffer: int,
        buffer_bytes: int,
        discreet: bool = False,
        feed_type: Callable[..., LiveFeed] = LiveFeed,
    ) -> None:
        feed = feed_type(buffer, buffer_bytes, run.session.callbacks.schedule)
        super().__init__(name, text=text, on=attach.on, feed=feed)
        feed.attention.hurry = functools.partial(run.session.values.hurry, attach.stream)
        self.run = run
        self.mapped = False
        """True if the query yields at events, not at the ends of windows."""
        self.opening = True
        """True until the agent has attached the query."""
        self.declared: str | None = None
        """The name of the declared stream that this one reads, None for a query of its own."""
        self.begins, self._upto = 1, 0
        """The number of the first value that it may have: what a history had given up before is not missing."""
        self.unit = ""
        """The unit of the values, if the host has named one."""
        self.skipped = 0
        """Values that ``throttle`` held back."""
        self.broken_off = False
        """True if the run ended without reporting the query's last number."""
        self.attach = attach
        """The request that attaches the query."""
        self.history: HistorySpan | None = None
        """The items at the beginning that come from the history of scalars, if some do."""
        self.functions: tuple[str, ...] = ()
        """The functions of the query that the agent names, for a merge over ranks."""
        self._wished = attach  # with the names that have a history
        self._own_query: m.Attach | None = None  # the query that was handed over to the job
        self._discreet = discreet
        self._explanation = ""
        self._panel_charts: tuple[PanelChart, ...] = ()
        self._panel: list[tuple[Stream, str]] = []
        self._reported_dropped = self._reported_errors = self._earlier_errors = 0
        self._newest_at_last_status = 0  # the number of the newest item when the agent last spoke of the budget
        self._earlier_counts = 0, 0  # events withheld and filtered before the query was attached again
        self._offset = 0  # what its numbers are above the agent's: a history, or earlier runs
        self._attached_again = self._closing = self._end_reported = self._warned = False
        weakref.finalize(self, run.session.streams.drop, attach.stream).atexit = False
        # its subscribers may be those of derived streams
        weakref.finalize(self, _KEPT_ALIVE.discard, feed).atexit = False

    @property
    def patience(self) -> float:
        """The seconds for which its values may gather at the agent."""
        return self.feed.patience

    @property
    def dropped(self) -> int:
        """The number of lost items, by their numbers and the agent's counts."""
        return max(self.feed.missing, self._reported_dropped)

    @property
    def error_count(self) -> int:
        """The number of times the query failed: windows with an error, and single events."""
        return max(self.feed.errors, self._earlier_errors + self._reported_errors)

    def explain(self) -> str:
        """Explain what the query streams or collects, and when it yields."""
        return self._explanation

    def close_window(self, timeout: float = REPLY_SECONDS) -> None:
        """Close the open window now, or at the next event.

        Its value is flagged partial, and the next window begins there. Raises NoAnswer after ``timeout`` seconds.

        Args:
            timeout: Seconds to wait for the answer.
        """
        self.run.session.ask(lambda request: m.CloseWindow(request, self.attach.stream), timeout)

    def grant(self, budget: float | None, timeout: float = REPLY_SECONDS) -> None:
        """Grant the query a fraction of the loop's time.

        Args:
            budget: A fraction such as 0.2; `math.inf` lifts the limit, None restores it.
            timeout: Seconds to wait for the answer.

        Raises QueryError, and NoAnswer after ``timeout`` seconds.
        """
        self.run.session.ask(lambda request: m.Grant(request, self.attach.stream, budget), timeout)

    def panel(self) -> Sequence[tuple[Stream, str]]:
        """Return the streams drawn in place of this one with their kinds of charts.

        There are such streams if the query is the name of an exposed object whose class declares a panel. They are
        attached at the first call. Raises LimitReached, and NoAnswer after 5 s.
        """
        if not self._panel and self.state == LIVE:
            ask = functools.partial(self.run.stream, budget=_PANEL_BUDGET_SHARE)
            self._panel = [
                (ask(one.query, on=self.on, throttle=one.seconds, name=one.title[:200]), one.chart)
                for one in self._panel_charts
            ]
        return self._panel

    def detach(self) -> None:
        """Detach the query, without waiting for its last values."""
        self._closing = True
        if self.state == LIVE:
            self.run.session.detach(self.attach.stream)

    def close(self, timeout: float = 2.0) -> None:
        """Detach the query and wait up to ``timeout`` seconds for its last values.

        Args:
            timeout: Seconds to wait.
        """
        self.detach()
        if self.run.state == LIVE:
            self.feed.wait_for_end(timeout)
        self.feed.finish(ENDED, "closed")
        self.run.session.streams.forget(self.attach.stream)

    def __enter__(self) -> LiveStream:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    # ------------------------------------------------------------ for its session, on the transport's thread

    def attached(self, info: SubscriptionInfo) -> None:
        """Handle the reply to the attach: how the agent understands the query."""
        self.opening, self.mapped, source = False, info.mapped, info.declared
        if self.attach.named and source is not None:
            self.declared, self.on = self.attach.code.text, source.on
            self.text, self.unit = source.query, source.unit
            self.begins = source.after + 1
            self.feed.begin_after(source.after)
            self._begin_with_history(info, source.after)
            self._upto = source.upto + self._offset
        else:
            self.attach = msgspec.structs.replace(self.attach, named=False, history=False)
            self._begin_with_history(info)
            self.on = info.on or self.on  # an event may have a second name
        self._explanation, self._panel_charts, self.functions = info.explain, info.panel, info.functions
        if info.fields is not None:
            self.feed.set_fields(info.fields)
        self._note(info.notes)

    def _begin_with_history(self, info: SubscriptionInfo, after: int = 0) -> None:
        """Put what is kept of the query's names first, numbered above ``after``."""
        kept = info.history
        if kept is None:
            return
        self.on = kept.on
        if self.declared is None:
            self.attach = msgspec.structs.replace(self.attach, on=kept.on, code=m.Code(kept.query))
        batch = kept_batch(kept, max(self.newest, after) + 1, self.run.info.rank)
        if not batch.values:
            return
        self.publish(batch)
        self._offset += len(batch.values)
        self.history = HistorySpan(batch.first, self.newest, kept.pace)
        self._note([note_on(batch, kept.pace)])

    def await_history(self, timeout: float) -> None:
        """Wait up to ``timeout`` seconds for the history at the attach."""
        self.feed.wait_for_number(self._upto, timeout)

    def read_declared(self, found: StreamInfo) -> None:
        """Continue as a reader of the declared stream that the query has become."""
        self._own_query, self.declared = self.attach, found.name
        self.attach = msgspec.structs.replace(self.attach, code=m.Code(found.name), named=True)

    def take_back(self) -> bool:
        """Make the query this client's own again; return False if it never was."""
        own, self._own_query = self._own_query, None
        if own is None:
            return False
        self.attach, self.declared, self._attached_again = own, None, True
        return True

    def receive(self, message: m.Values) -> None:
        """Handle a message of values. Raises MessageError if it is inconsistent."""
        batch = received(message, discreet=self._discreet)
        self.publish(batch._replace(first=batch.first + self._offset))

    def reattach(self, request: int, moved: tuple[str, str] | None) -> m.Attach:
        """Return the request that reattaches the query, perhaps after a move."""
        if moved is not None:
            self.take_back()
            self.history = None
        if self.declared is None:
            self._earlier_errors = self.error_count
            self._earlier_counts = self.withheld, self.filtered
            self._reported_dropped = self._reported_errors = 0
        if moved is None:
            self._attached_again = self.declared is None  # else the numbers tell
        else:
            self.feed.skip_to(0, unknown=not self._end_reported)
            self._attached_again = self._end_reported = False
            self.feed.add_seam(*moved)
            if self.declared is None and self._wished.history:
                code = self._wished.code
                self.attach = msgspec.structs.replace(self.attach, code=code, named=False, history=True)
            if self.declared is not None:  # the next run numbers its values from 1
                self._offset = self.newest
        above = min(max(0, self.newest - self._offset), MAX_VALUE_NUMBER)
        on = self.attach.on if self.declared is None else ""
        count = max(1, self.attach.count - self.arrived) if self.attach.count else 0
        return msgspec.structs.replace(self.attach, request=request, above=above, on=on, count=count)

    def end(self, state: str, reason: str, *, cut: bool = False) -> None:
        """End the stream; ``cut`` if the agent never reported the query's last number."""
        if cut and self.state == LIVE:
            self.broken_off = True
            self.feed.skip_to(0, unknown=True)
        self.feed.finish(state, reason)

    def reattached(self, info: SubscriptionInfo) -> None:
        """Handle the reply to a second attach, whose numbers count what was lost.

        So the missing values are known now, whether or not a further one comes.
        """
        if self._attached_again:
            point = info.point
            self.feed.skip_to(0 if point is None else point.base + self._offset, unknown=not (point and point.exact))
            self._attached_again = False
        self.attach = msgspec.structs.replace(self.attach, history=False)
        if self.declared is None or self.history is None:  # else it came with the first attach
            self._begin_with_history(info)

    def receive_status(self, status: m.Status) -> None:
        """Handle the status of the query."""
        self.cost = Cost(status.nanoseconds, status.share)
        self._reported_dropped, self.skipped = status.dropped, status.skipped
        self._reported_errors = status.errors
        before = self.withheld
        self.withheld, self.filtered = (
            self._earlier_counts[0] + status.withheld,
            self._earlier_counts[1] + status.filtered,
        )
        traceback = public_line(status.traceback) if self._discreet else status.traceback
        self.feed.traceback = self.traceback or traceback[:_MAX_NOTE_CHARACTERS]
        self._limit(status.notes)
        self._mark_stretch(self.withheld > before)
        if self.traceback and not self._warned:
            self._warned = True
            log.warning("looptap: %s: %s", self.title, cut_inside(last_line(self.traceback), 400))
        if status.reached:
            self.feed.skip_to(min(status.reached, MAX_VALUE_NUMBER) + self._offset, unknown=False)
        if status.state != LIVE:
            last = min(status.last, MAX_VALUE_NUMBER) + self._offset if status.last else 0
            if status.state == ENDED and self.run.session.follow and not self._closing:
                self.feed.skip_to(last, unknown=False)
                self._end_reported = True
                return
            self.feed.finish(ENDED if status.state == ENDED else FAILED, status.reason[:_MAX_NOTE_CHARACTERS], last)
            self.run.session.streams.forget(self.attach.stream)

    def _note(self, notes: Iterable[str]) -> None:
        for note in () if self._discreet else notes:
            if note[:_MAX_NOTE_CHARACTERS] not in self.notes and len(self.notes) < _MAX_NOTES:
                self.notes.append(note[:_MAX_NOTE_CHARACTERS])

    def _limit(self, notes: Iterable[str]) -> None:
        """Replace the notes on how the budget limits the query."""
        self.notes[:] = [note for note in self.notes if note not in self.limits]
        before = len(self.notes)
        self._note(notes)
        self.limits = self.notes[before:]
        self.thinned = self.thinned or any(map(_THINNED.match, self.limits))

    def _mark_stretch(self, withheld: bool) -> None:
        """Update the stretches of events in which the budget limits the query.

        ``withheld``: it did, since the last status. A pause that is shorter than the stretch before it does not end it:
        a query at its limit comes and goes.
        """
        newest, since, lasts = self.newest, self._newest_at_last_status + 1, any(map(_THINNED.match, self.limits))
        self._newest_at_last_status = newest
        *earlier, (first, last) = self.limited or (LimitedStretch(since, since - 1),)
        if withheld or lasts:
            if last is not None and since - last > max(1, last - first + 1):
                earlier, first = [*self.limited], since
            last = None if lasts else newest
        elif last is None:
            last = since - 1
        elif not self.limited:
            return
        self.limited = (*earlier, LimitedStretch(first, last))[-_MAX_STRETCHES:]

    @property
    def awaits_group(self) -> bool:
        """True if it has had no value, and yields one when a group ends."""
        return not (self.mapped or self.opening or self.arrived or self.declared or self.attach.window != Group())

    def _outlook(self) -> str:
        if self._discreet:
            return self._failures()
        group = " It waits for a group such as an epoch to end; window=100 ends one in 100 events." * self.awaits_group
        return self._failures() + self._limitations() + (self.run.session.outlook(self.on) if self.on else "") + group

    def _limitations(self) -> str:
        """Describe how the budget limits the query now; empty if it does not."""
        return "".join(f" {note[:1].upper()}{note[1:]}." for note in self.limits)
