"""`RankStream`: the values of several ranks in event order, or combined."""

from __future__ import annotations

import threading
import time
import weakref
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from looptap.client.rank_numbers import numbered
from looptap.client.ranks.window_assembler import AssembledWindow, RankContribution, WindowAssembler
from looptap.client.session.run_handle import RunHandle
from looptap.client.streams.live import LiveFeed, LiveStream
from looptap.protocol import messages as m
from looptap.protocol.replies import SubscriptionInfo
from looptap.streams.errors import QueryError
from looptap.streams.expressions import format_error
from looptap.streams.flags import ERROR, PARTIAL
from looptap.streams.stream.buffer import Batch, RunSeam
from looptap.streams.stream.feed import ENDED, FAILED, LIVE
from looptap.streams.stream.stream import Cost

DEFAULT_LATE_TIMEOUT_SECONDS = 2.0
"""Seconds that a value waits for the ranks that have not reached it, unless ``patience=`` says otherwise."""
_MAX_INBOX_VALUES, _MAX_INBOX_BYTES = 200_000, 268_435_456  # values, and their bytes, that wait for the thread
_RANK_CHECK_INTERVAL_SECONDS = 1.0  # seconds between two checks of the ranks
_MAX_ABSENCES = 1000

Combined = Callable[[AssembledWindow], Any]
"""A function that combines the parts of the ranks; None without combine."""


class Absent(NamedTuple):
    """A note that value ``number``, of event or window ``event``, lacks ``ranks``."""

    number: int
    event: int
    ranks: tuple[int, ...]


class RankStream(LiveStream):
    """The values of one query on several ranks, in the order of their events.

    `Run.stream` with ``ranks=`` makes it. Without ``combine`` each value has its ``rank``, else there is one for all
    ranks at each event or window, from the first on that all of them have. A value waits for the ranks that have not
    reached its event, ``patience`` seconds at most: then it is flagged partial, and `absent` names the ranks that it
    lacks; what they send later is counted in `late`. `waiting` names the ranks that are waited for now, `states` how
    each rank is. A rank that ends or is lost for good does not stop the others; the stream ends with the last. Times
    are on the clock of the lowest rank.
    """

    def __init__(
        self, run: RunHandle, attach: m.Attach, ranks: Sequence[int], *, text: str, buffer: int, buffer_bytes: int,
        patience: float,
    ) -> None:  # fmt: skip
        super().__init__(run, attach, name=attach.name, text=text, buffer=buffer, buffer_bytes=buffer_bytes)
        self.ranks = self.asked = tuple(ranks)
        """``ranks`` is who answers; by a relay that is one for several of those that are ``asked``."""
        self.parts: dict[int, RankPart] = {}
        """The stream of each rank; it keeps no values."""
        self.gone: dict[int, str] = {}
        """The reason for each rank that has ended or could not be reached."""
        self.combined: Combined | None = None
        self.gathering = Gathering(WindowAssembler(ranks, patience, together=bool(attach.align)), weakref.ref(self))
        """The thread that merges the values of the ranks."""
        self._absent: deque[Absent] = deque(maxlen=_MAX_ABSENCES)
        self._next = 1
        self._newest_time = 0.0, 0.0  # of the newest value: its time and its clock
        self.own_notes: list[str] = []
        """Notes on this stream, besides those of the ranks."""
        release = weakref.finalize(self, self.gathering.stop)
        release.atexit = False

    # ------------------------------------------------------------ what is known

    @property
    def waiting(self) -> dict[int, float]:
        """The ranks that the oldest value waits for, and for how many seconds it has."""
        return self.gathering.awaited()

    @property
    def states(self) -> dict[int, str]:
        """The state of each rank: live, lost (its link is down), or why it has ended."""
        states = {rank: f"{part.run.state}" for rank, part in self.parts.items()}
        return dict(sorted({**states, **self.gone}.items()))

    @property
    def absent(self) -> list[Absent]:
        """The newest 1,000 notes on values that lack ranks."""
        return list(self._absent)

    @property
    def late(self) -> dict[int, int]:
        """The number of each rank's values that came after their event was given up."""
        return {rank: count for rank, count in self.gathering.assembly.late.items() if count}

    @property
    def dropped(self) -> int:
        """The number of values of the ranks that never arrived."""
        return sum(part.dropped for part in self.parts.values()) + sum(self.gathering.dropped.values())

    @property
    def error_count(self) -> int:
        """The number of times the query failed, on all ranks."""
        return max(self.feed.errors, sum(part.error_count for part in self.parts.values()))

    def explain(self) -> str:
        """Explain what each rank streams or collects, and when the query yields."""
        return next((part.explain() for part in self.parts.values()), "")

    def grant(self, budget: float | None, timeout: float = 5.0) -> None:
        """Grant the query a fraction of each rank's time: see `LiveStream.grant`."""
        for part in self.parts.values():
            part.grant(budget, timeout)

    def close_window(self, timeout: float = 5.0) -> None:
        """Raise QueryError: a window of several ranks ends on all of them."""
        raise QueryError("the windows of a stream over several ranks end where they end on all of them.", self.text)

    def detach(self) -> None:
        """Detach the query from all ranks, without waiting for their last values."""
        for part in self.parts.values():
            if part.state == LIVE:
                part.detach()

    def close(self, timeout: float = 2.0) -> None:
        """Detach the query and wait up to ``timeout`` seconds for its last values."""
        deadline = time.monotonic() + timeout
        self.detach()
        for part in self.parts.values():
            part.close(max(0.0, deadline - time.monotonic()))
        self.gathering.stop_waiting()
        self.feed.wait_for_end(max(0.0, deadline - time.monotonic()))
        self.feed.finish(ENDED, "closed")
        self.gathering.stop()

    def __repr__(self) -> str:
        facts = [numbered(self.asked)]
        if waiting := self.waiting:
            facts.append(f"waits for {numbered(waiting)} for {max(waiting.values()):.1f} s")
        if self._absent:
            facts.append(f"the newest incomplete value, number {self._absent[-1].number:,}, lacks "
                         f"{numbered(self._absent[-1].ranks)}")  # fmt: skip
        if late := sum(self.late.values()):
            facts.append(f"{late:,} came too late")
        facts += [f"rank {rank} {why}"[:80] for rank, why in list(self.gone.items())[:3]]
        return f"{super().__repr__()[:-1]}; {'; '.join(facts)}>"

    def _outlook(self) -> str:
        waiting = self.waiting
        return (f" It waits for {numbered(waiting)}." if waiting else "") + super()._outlook()

    # ------------------------------------------------------------ on the thread of the gathering

    def _deliver(self, wholes: Sequence[AssembledWindow], late: Sequence[tuple[int, int, RankContribution]]) -> None:
        """Append complete windows; without combine, late values too."""
        events, times, flags, ranks = array("q"), array("d"), bytearray(), array("q")
        values: list[Any] = []
        clock = self._newest_time[1]

        def add(rank: int, event: int, part: RankContribution, value: Any, flag: int) -> None:
            nonlocal clock
            if not values and clock == 0.0:
                clock = part.clock
            events.append(event)
            times.append(part.time + part.clock - clock)
            ranks.append(rank)
            values.append(value)
            flags.append(flag)

        if self.combined is None:
            for rank, _, part in late:
                add(rank, part.event, part, part.value, part.flag)
            for whole in wholes:
                for rank, part in whole.parts.items():
                    add(rank, part.event, part, part.value, part.flag)
        else:
            for whole in wholes:
                newest = max(whole.parts.values(), key=lambda part: part.time + part.clock)
                value, flag = self._one(whole)
                if whole.missing:
                    flag |= PARTIAL
                    number = self._next + len(values)
                    self._absent.append(Absent(number, whole.number, whole.missing))
                add(self.ranks[0], max(p.event for p in whole.parts.values()), newest, value, flag)
        if not values:
            return
        self._newest_time = times[-1], clock
        flagged = bytes(flags) if any(flags) else b""
        one = len(set(ranks)) == 1
        windows = None if self.combined is None else array("q", [whole.number for whole in wholes])
        self.publish(Batch(
            self._next, events, times, values, clock, flagged, ranks[0], ranks=None if one else ranks, windows=windows
        ))  # fmt: skip
        self._next += len(values)

    def _ended(self, ranks: Sequence[int]) -> None:
        for rank in ranks:
            if rank not in self.gone:
                self.gone[rank] = f"{self.parts[rank].state}: {self.parts[rank].reason}"

    def _moved(self, seams: Sequence[tuple[int, RunSeam]]) -> None:
        for rank, seam in seams:
            if rank == self.ranks[0]:
                self.feed.add_seam(seam.old, seam.new, after=self._next - 1)

    def _one(self, whole: AssembledWindow) -> tuple[Any, int]:
        flag = 0
        for rank, part in whole.parts.items():
            if part.flag & ERROR:
                return f"rank {rank}: {part.value}", ERROR
            flag |= part.flag & PARTIAL
        assert self.combined is not None
        try:
            return self.combined(whole), flag
        except Exception as error:
            return format_error(error, self.text), flag | ERROR

    def refresh(self) -> None:
        """Copy the costs, counts and notes of the ranks."""
        self.skipped = sum(part.skipped for part in self.parts.values())
        self.withheld = sum(part.withheld for part in self.parts.values())
        self.filtered = sum(part.filtered for part in self.parts.values())
        costs = [part.cost for part in self.parts.values()]
        self.cost = max(costs, default=Cost())
        self.feed.traceback = self.traceback or next((p.traceback for p in self.parts.values() if p.traceback), "")
        said: dict[str, list[int]] = {}
        for rank, part in self.parts.items():
            for note in list(part.notes):
                said.setdefault(note, []).append(rank)
        everybody = len(self.parts)
        found = {note: note if len(by) == everybody else f"{numbered(by)}: {note}" for note, by in said.items()}
        self.notes[:] = [*self.own_notes, *found.values()]
        limits = {note for part in self.parts.values() for note in part.limits}
        self.thinned = self.thinned or any(part.thinned for part in self.parts.values())
        self.limits[:] = [text for note, text in found.items() if note in limits]

    def _finish(self) -> None:
        """End the stream: no rank will send anything more."""
        self.refresh()
        failed = {rank: part for rank, part in self.parts.items() if part.state == FAILED}
        reasons = list(dict.fromkeys(part.reason for part in self.parts.values()))
        if len(reasons) > 1:
            reasons = [f"rank {rank}: {part.reason}" for rank, part in (failed or self.parts).items()]
        self.feed.finish(FAILED if failed else ENDED, "; ".join(reasons[:3]))


class RankFeed(LiveFeed):
    """The feed of one rank for the merging thread; ``names`` are those of rows."""

    names: tuple[str, ...] = ()
    rank: int
    gathering: Gathering

    def set_fields(self, fields: Sequence[str] | None) -> None:
        """Keep the names: rows get them where the ranks are merged."""
        self.names = tuple(fields or ())

    def publish(self, batch: Batch) -> None:
        """Append a batch, and pass new values to the merging thread."""
        fresh = batch if batch.first > self.newest else batch.part(self.newest + 1 - batch.first)
        super().publish(batch)
        if fresh.values:
            self.gathering.post(self.rank, fresh)

    def finish(self, state: str, reason: str = "", last: int = 0) -> None:
        """End the stream, also for the merging thread."""
        super().finish(state, reason, last)
        self.gathering.post(self.rank, None)


class RankPart(LiveStream):
    """The stream of one rank, which passes its values to the merging thread."""

    feed: RankFeed
    feed_type = RankFeed
    functions: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the elements of rows."""
        return self.feed.names

    def attached(self, info: SubscriptionInfo) -> None:
        """Handle the reply to the attach, with the functions that the merge needs."""
        super().attached(info)
        self.functions = info.functions

    def reattach(self, request: int, moved: tuple[str, str] | None) -> m.Attach:
        """Return the request that reattaches the query; post a move to another run."""
        again = super().reattach(request, moved)
        if moved is not None:
            self.feed.gathering.post(self.feed.rank, RunSeam(0, *moved))
        return again


class Gathering:
    """The merging thread of a stream, which does not keep it alive and ends with it."""

    def __init__(self, assembly: WindowAssembler, stream: weakref.ref[RankStream]) -> None:
        self.assembly, self._stream = assembly, stream
        self.dropped = dict.fromkeys(assembly.ranks, 0)
        self._changed = threading.Condition()
        self._inbox: deque[tuple[int, Batch | RunSeam | None]] = deque()
        self._inbox_values = self._inbox_bytes = 0
        self._stopped = self._running = False
        self._awaited: tuple[dict[int, float], float] = {}, 0.0

    def start(self) -> None:
        """Start the thread."""
        self._running = True
        threading.Thread(target=self._run, name="looptap-ranks", daemon=True).start()

    def post(self, rank: int, what: Batch | RunSeam | None) -> None:
        """Pass on a rank's values, move to another run, or end. Any thread."""
        with self._changed:
            if type(what) is Batch:
                if self._inbox_values >= _MAX_INBOX_VALUES or self._inbox_bytes >= _MAX_INBOX_BYTES:
                    self.dropped[rank] += len(what.values)
                    return
                self._inbox_values += len(what.values)
                self._inbox_bytes += what.nbytes
            self._inbox.append((rank, what))
            self._changed.notify()

    def stop(self) -> None:
        """End the thread. Any thread, any number of times."""
        with self._changed:
            self._stopped = True
            self._changed.notify()

    def stop_waiting(self) -> None:
        """Stop waiting for late ranks."""
        with self._changed:
            self.assembly.patience = 0.0
            self._changed.notify()

    def awaited(self) -> dict[int, float]:
        """Return the awaited ranks, and for how many seconds each."""
        waiting, since = self._awaited
        more = time.monotonic() - since
        return {rank: seconds + more for rank, seconds in waiting.items()}

    def _run(self) -> None:
        looked = 0.0
        while True:
            with self._changed:
                deadline = self.assembly.deadline()
                now = time.monotonic()
                wait = (
                    _RANK_CHECK_INTERVAL_SECONDS
                    if deadline is None
                    else min(_RANK_CHECK_INTERVAL_SECONDS, max(0.0, deadline - now))
                )
                if not self._inbox and not self._stopped and wait:
                    self._changed.wait(wait)
                if self._stopped:
                    return
                inbox, self._inbox = self._inbox, deque()
                self._inbox_values = self._inbox_bytes = 0
            now = time.monotonic()
            late, seams = [], []
            for rank, what in inbox:
                if what is None:
                    self.assembly.over(rank)
                elif type(what) is RunSeam:
                    self.assembly.moved(rank)
                    seams.append((rank, what))
                else:
                    assert type(what) is Batch
                    late += [(rank, *one) for one in self.assembly.take(rank, what, now)]
            wholes = list(self.assembly.ready(now))
            self._awaited = self.assembly.awaited(now), now
            stream = self._stream()
            if stream is None:
                return
            try:
                stream._ended([rank for rank, what in inbox if what is None])
                stream._moved(seams)
                stream._deliver(wholes, late)
                if now - looked > _RANK_CHECK_INTERVAL_SECONDS:
                    looked = now
                    stream.refresh()
                if not self.assembly.live and self.assembly.deadline() is None:
                    stream._finish()
                    return
            except Exception as error:
                stream.feed.finish(FAILED, format_error(error))
                return
            del stream
