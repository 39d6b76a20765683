"""The thread that merges the values of several ranks into one stream."""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from looptap.client.ranks.window_assembler import AssembledWindow, RankContribution, WindowAssembler
from looptap.client.transport.background import background_thread
from looptap.streams.expressions import format_error
from looptap.streams.stream.buffer import Batch, RunSeam
from looptap.streams.stream.feed import Feed
from looptap.streams.stream.state_and_cost import FAILED

_MAX_INBOX_VALUES, _MAX_INBOX_BYTES = 200_000, 268_435_456  # values, and their bytes, that wait for the thread
_RANK_CHECK_INTERVAL_SECONDS = 1.0  # seconds between two checks of the ranks


class MergedStream(Protocol):
    """A `RankStream`, as its merging thread sees it."""

    feed: Feed

    def deliver(self, wholes: Sequence[AssembledWindow], late: Sequence[tuple[int, RankContribution]]) -> None:
        """Append complete windows, and values of ranks that came late."""

    def on_ended(self, rank: int) -> None:
        """Note that a rank has ended."""

    def on_moved(self, rank: int, seam: RunSeam) -> None:
        """Note that a rank continues with the next run."""

    def refresh(self) -> None:
        """Copy the costs, counts and notes of the ranks."""

    def finish(self) -> None:
        """End the stream: no rank will send anything more."""


class Gathering:
    """The merging thread of a stream, which does not keep it alive and ends with it."""

    def __init__(self, assembly: WindowAssembler, stream: weakref.ref[MergedStream]) -> None:
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
        background_thread(self._run, "looptap-ranks", self.stop).start()

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
        refreshed = 0.0
        while (inbox := self._next_inbox()) is not None:
            now = time.monotonic()
            late = [(rank, part) for rank, what in inbox for part in self._assemble(rank, what, now)]
            wholes = list(self.assembly.ready(now))
            self._awaited = self.assembly.awaited(now), now
            stream = self._stream()
            if stream is None:
                return
            try:
                for rank, what in inbox:
                    if what is None:
                        stream.on_ended(rank)
                    elif type(what) is RunSeam:
                        stream.on_moved(rank, what)
                stream.deliver(wholes, late)
                if now - refreshed > _RANK_CHECK_INTERVAL_SECONDS:
                    refreshed = now
                    stream.refresh()
                if not self.assembly.live and self.assembly.deadline() == math.inf:
                    stream.finish()
                    return
            except Exception as error:
                stream.feed.finish(FAILED, format_error(error))
                return
            del stream

    def _next_inbox(self) -> deque[tuple[int, Batch | RunSeam | None]] | None:
        """Wait for what ranks post, a deadline or the next check; None once stopped."""
        with self._changed:
            if not self._inbox and not self._stopped:
                left = self.assembly.deadline() - time.monotonic()
                self._changed.wait(min(_RANK_CHECK_INTERVAL_SECONDS, max(0.0, left)))
            inbox, self._inbox = self._inbox, deque()
            self._inbox_values = self._inbox_bytes = 0
            return None if self._stopped else inbox

    def _assemble(self, rank: int, what: Batch | RunSeam | None, now: float) -> Sequence[RankContribution]:
        """Pass what a rank posted to the assembly; return its values that came late."""
        match what:
            case None:
                self.assembly.over(rank)
            case RunSeam():
                self.assembly.moved(rank)
            case _:
                return [part for _, part in self.assembly.take(rank, what, now)]
        return ()
