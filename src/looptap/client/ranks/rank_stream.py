"""`RankStream`: the values of several ranks in event order, or combined."""

from __future__ import annotations

import time
import weakref
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, NamedTuple

from looptap.client.rank_numbers import numbered
from looptap.client.ranks.gathering import Gathering
from looptap.client.ranks.window_assembler import AssembledWindow, RankContribution, WindowAssembler
from looptap.client.session.run_handle import RunHandle
from looptap.client.streams.live import LiveStream
from looptap.client.transport.timeouts import REPLY_SECONDS
from looptap.protocol import messages as m
from looptap.streams.errors import QueryError
from looptap.streams.expressions import format_error
from looptap.streams.flags import ERROR, PARTIAL
from looptap.streams.stream.buffer import Batch, RunSeam
from looptap.streams.stream.state_and_cost import ENDED, FAILED, LIVE

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
        self,
        run: RunHandle,
        attach: m.Attach,
        ranks: Sequence[int],
        *,
        asked: Sequence[int],
        text: str,
        buffer: int,
        buffer_bytes: int,
        patience: float,
    ) -> None:
        super().__init__(run, attach, name=attach.name, text=text, buffer=buffer, buffer_bytes=buffer_bytes)
        self.ranks, self.asked = tuple(ranks), tuple(asked)
        """``ranks`` is who answers; by a relay that is one for several of those that are ``asked``."""
        self.parts: dict[int, LiveStream] = {}
        """The stream of each rank; it keeps no values."""
        self.gone: dict[int, str] = {}
        """The reason for each rank that has ended or could not be reached."""
        self.combined: Combined | None = None
        self.on_batch: Callable[[Batch], None] | None = None
        """Is called with each batch of merged values, if anything passes them on."""
        self.gathering = Gathering(WindowAssembler(ranks, patience, together=bool(attach.align)), weakref.ref(self))
        """The thread that merges the values of the ranks."""
        self._absent: deque[Absent] = deque(maxlen=_MAX_ABSENCES)
        self._next = 1
        self._clock = 0.0  # of the values: that of the first
        self.own_notes: list[str] = []
        """Notes on this stream, besides those of the ranks."""
        release = weakref.finalize(self, self.gathering.stop)
        release.atexit = False

    # ------------------------------------------------------------ what is known

    @property
    def lead(self) -> LiveStream:
        """The stream of the lowest rank that answers."""
        return next(iter(self.parts.values()))

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

    def grant(self, budget: float | None, timeout: float = REPLY_SECONDS) -> None:
        """Grant the query a fraction of each rank's time: see `LiveStream.grant`."""
        for part in self.parts.values():
            part.grant(budget, timeout)

    def close_window(self, timeout: float = REPLY_SECONDS) -> None:
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
            newest = self._absent[-1]
            facts.append(f"the newest incomplete value, number {newest.number:,}, lacks {numbered(newest.ranks)}")
        if late := sum(self.late.values()):
            facts.append(f"{late:,} arrived too late")
        facts += [f"rank {rank} {why}"[:80] for rank, why in list(self.gone.items())[:3]]
        return f"{super().__repr__()[:-1]}; {'; '.join(facts)}>"

    def _outlook(self) -> str:
        waiting = self.waiting
        return (f" It waits for {numbered(waiting)}." if waiting else "") + super()._outlook()

    # ------------------------------------------------------------ on the thread of the gathering

    def deliver(self, wholes: Sequence[AssembledWindow], late: Sequence[tuple[int, RankContribution]]) -> None:
        """Append complete windows; without combine, late values too."""
        if self.combined is None:
            found = [*late, *chain.from_iterable(whole.parts.items() for whole in wholes)]
            windows = None
        else:
            found = [(self.ranks[0], self._joined(whole, number)) for number, whole in enumerate(wholes, self._next)]
            windows = array("q", [whole.number for whole in wholes])
        if not found:
            return
        ranks, parts = array("q", [rank for rank, _ in found]), [part for _, part in found]
        clock = self._clock = self._clock or parts[0].clock
        flags = bytes([part.flag for part in parts])
        batch = Batch(
            self._next,
            array("q", [part.event for part in parts]),
            array("d", [part.time + part.clock - clock for part in parts]),
            [part.value for part in parts],
            clock,
            flags if any(flags) else b"",
            ranks[0],
            ranks=ranks if len(set(ranks)) > 1 else None,
            windows=windows,
        )
        self.publish(batch)
        if self.on_batch is not None:
            self.on_batch(batch)
        self._next += len(found)

    def on_ended(self, rank: int) -> None:
        """Note that a rank has ended, and how."""
        if rank not in self.gone:
            self.gone[rank] = f"{self.parts[rank].state}: {self.parts[rank].reason}"

    def on_moved(self, rank: int, seam: RunSeam) -> None:
        """Mark where the lowest rank continues with the next run."""
        if rank == self.ranks[0]:
            self.feed.add_seam(seam.old, seam.new, after=self._next - 1)

    def _joined(self, whole: AssembledWindow, number: int) -> RankContribution:
        """Return the value of all ranks for one event or window; it becomes ``number``."""
        newest = max(whole.parts.values(), key=lambda part: part.time + part.clock)
        value, flag = self._one(whole)
        if whole.missing:
            flag |= PARTIAL
            self._absent.append(Absent(number, whole.number, whole.missing))
        return newest._replace(event=max(part.event for part in whole.parts.values()), value=value, flag=flag)

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
        parts = self.parts.values()
        counts = zip(*((part.skipped, part.withheld, part.filtered) for part in parts), strict=True)
        self.skipped, self.withheld, self.filtered = map(sum, counts)
        self.cost = max(part.cost for part in parts)
        self.feed.traceback = next(filter(None, (self.traceback, *(part.traceback for part in parts))), "")
        self.thinned = self.thinned or any(part.thinned for part in parts)
        said: dict[str, list[int]] = {}
        for rank, part in self.parts.items():
            for note in list(part.notes):
                said.setdefault(note, []).append(rank)
        everybody = len(parts)
        found = {note: note if len(by) == everybody else f"{numbered(by)}: {note}" for note, by in said.items()}
        self.notes[:] = [*self.own_notes, *found.values()]
        limits = set(chain.from_iterable(part.limits for part in parts))
        self.limits[:] = [text for note, text in found.items() if note in limits]

    def finish(self) -> None:
        """End the stream: no rank will send anything more."""
        self.refresh()
        failed = {rank: part for rank, part in self.parts.items() if part.state == FAILED}
        reasons = list(dict.fromkeys(part.reason for part in self.parts.values()))
        if len(reasons) > 1:
            reasons = [f"rank {rank}: {part.reason}" for rank, part in (failed or self.parts).items()]
        self.feed.finish(FAILED if failed else ENDED, "; ".join(reasons[:3]))
