"""Queries over several ranks of a job: `Run.stream` with ``ranks=``, `Run.skew`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from looptap.client.rank_numbers import numbered
from looptap.client.ranks.clock_sync import Offset, between
from looptap.client.ranks.combiners import MERGE, combination
from looptap.client.ranks.rank_part import RankPart
from looptap.client.ranks.rank_stream import Combined, RankStream
from looptap.client.ranks.ranks import ALL, DEFAULT_LATE_TIMEOUT_SECONDS, RankHandle
from looptap.client.ranks.window_assembler import AssembledWindow
from looptap.client.transport.timeouts import REPLY_SECONDS
from looptap.protocol import messages as m
from looptap.protocol.errors import LimitReached, NoAnswer
from looptap.protocol.replies import SubscriptionInfo
from looptap.streams.errors import LooptapError, QueryError
from looptap.streams.operators.windows import Seconds
from looptap.streams.stream.buffer import Batch
from looptap.streams.stream.state_and_cost import DEFAULT_BUFFER_BYTES
from looptap.streams.values.rows import rows

if TYPE_CHECKING:
    from looptap.streams.language.rank_windows import RankMerger

SPREAD = ("spread", "slowest", "fastest", "uncertainty")
"""The fields of a value of `Run.skew`."""
_NODE_ATTACH_TIMEOUT_SECONDS = 0.8 * REPLY_SECONDS  # to reach the ranks of a node, so that it can answer in time
_CLOCK_SYNC_INTERVAL_SECONDS, _CLOCK_REPLY_TIMEOUT_SECONDS = 30.0, 0.5
_MAX_KEPT_VALUES_PER_RANK = 64  # values that the stream of one rank keeps: they are read as they come


def over_ranks(
    run: RankHandle, attach: m.Attach, ranks: str | int | Iterable[int] | None,
    combine: str | Callable[..., Any] | None, *, patience: float, timeout: float, text: str, buffer: int,
    buffer_bytes: int, relay: bool = False,
) -> RankStream:  # fmt: skip
    """Attach a query to several ranks; return its stream. Raises like `Run.stream`."""
    f = None if combine is None or combine == MERGE else combination(combine)
    if combine == MERGE:
        if not attach.code.text or attach.code.pickled:
            raise QueryError("combine='merge' needs the query as text, to see its parts.", text)
        attach = msgspec.structs.replace(attach, align=m.STATES)
    elif f is not None:
        attach = msgspec.structs.replace(attach, align=m.VALUES)
    if relay and combine != MERGE:
        raise QueryError(f"relay=True merges on the way: combine='merge', not {combine!r}.", text)
    if relay and run.session.follow:
        hint = "attach without follow=True, or ask without relay=True."
        raise QueryError("a relay ends with its run, and follows no other.", text, hint=hint)
    stream = _attach_to_ranks(
        run, attach, ranks, patience=patience, timeout=timeout, text=text, buffer=buffer, buffer_bytes=buffer_bytes,
        relay=relay,
    )  # fmt: skip
    lead = next(iter(stream.parts.values()))
    try:
        if combine == MERGE and lead.declared is not None:
            raise QueryError(
                f"{lead.declared!r} is declared by the job, which sends its values, not their parts.", text,
                hint="combine='mean' combines such values; a query of your own can be merged.",
            )  # fmt: skip
        if f is not None and (isinstance(combine, str) is False or combine == "list"):
            named = rows(lead.names) if lead.names else None
            stream.combined = lambda whole: f(_values(whole) if named is None else list(named(_values(whole))))
        else:
            stream.feed.set_fields(lead.names)
            if f is not None:
                stream.combined = lambda whole: f(_values(whole))
        if combine == MERGE:
            stream.combined = _merged(attach.code.text, lead.functions)
    except BaseException:
        stream.close(0.0)
        raise
    stream.gathering.start()
    return stream


class _Joined(RankStream):
    """A stream of the merged states of several ranks, passed on as they come."""

    on_batch: Callable[[Batch], None]

    def publish(self, batch: Batch) -> None:
        super().publish(batch)
        self.on_batch(batch)


def joined(
    run: RankHandle, attach: m.Attach, ranks: Iterable[int], on_batch: Callable[[Batch], None]
) -> tuple[RankStream, SubscriptionInfo]:
    """Open the stream of merged states of ``ranks``; return it with its attach reply."""
    stream = _attach_to_ranks(
        run, attach, ranks, patience=DEFAULT_LATE_TIMEOUT_SECONDS, timeout=_NODE_ATTACH_TIMEOUT_SECONDS,
        text=attach.code.text, buffer=_MAX_KEPT_VALUES_PER_RANK,
        buffer_bytes=DEFAULT_BUFFER_BYTES, kind=_Joined,
    )  # fmt: skip
    assert isinstance(stream, _Joined)
    lead = next(iter(stream.parts.values()))
    merger = _merger(attach.code.text, lead.functions)
    stream.combined = lambda whole: merger.joined(_values(whole))
    stream.on_batch = on_batch
    return stream, SubscriptionInfo(
        mapped=False, fields=lead.names, explain=lead.explain(), notes=tuple(stream.notes), functions=lead.functions
    )


def spread_over_ranks(
    run: RankHandle, on: str, ranks: str | int | Iterable[int], every: int, *, patience: float, timeout: float,
    buffer: int,
) -> RankStream:  # fmt: skip
    """Attach to several ranks for the stream of `Run.skew`."""
    attach = m.Attach(0, 0, m.Code("event_number"), on, every=every, align=m.VALUES, name="skew")
    stream = _attach_to_ranks(
        run, attach, ranks, patience=patience, timeout=timeout, text="skew", buffer=buffer, buffer_bytes=buffer * 512
    )
    stream.unit, stream.drawn = "s", SPREAD[:1]
    stream.combined = _Spread(run, stream.ranks)
    stream.feed.set_fields(SPREAD)
    stream.own_notes += stream.combined.notes
    stream.gathering.start()
    return stream


def _attach_to_ranks(
    run: RankHandle, attach: m.Attach, ranks: str | int | Iterable[int] | None, *, patience: float, timeout: float,
    text: str, buffer: int, buffer_bytes: int, relay: bool = False, kind: type[RankStream] = RankStream,
) -> RankStream:  # fmt: skip
    """Return a stream attached to each rank; its values are not assembled yet."""
    if isinstance(patience, bool) or not isinstance(patience, int | float) or not 0 <= patience < math.inf:
        raise QueryError(f"patience={patience!r} must be a number of seconds, 0 or more.")
    asked = run.ranks.select(ALL if ranks is None else ranks)
    nodes = run.ranks.nodes(asked) if relay else {}
    chosen = tuple(nodes) or asked
    stream = kind(
        run, attach, chosen, text=text, buffer=buffer, buffer_bytes=buffer_bytes, patience=patience,
    )  # fmt: skip
    stream.asked = asked
    seconds = attach.align and isinstance(attach.window, Seconds)

    def begin(rank: RankHandle) -> RankPart:
        origin = attach.origin + (_offset(run, chosen[0], rank).seconds if seconds else 0.0)
        own = msgspec.structs.replace(
            attach, request=rank.session.requests.number(), stream=rank.session.streams.number(), origin=origin
        )
        part = RankPart(
            rank, own, name=attach.name, text=text, buffer=_MAX_KEPT_VALUES_PER_RANK, buffer_bytes=buffer_bytes
        )
        part.feed.rank, part.feed.gathering = rank.info.rank, stream.gathering
        rank.session.begin(part, timeout)
        return part

    def begin_there(rank: RankHandle) -> RankPart:
        ranks = nodes.get(rank.info.rank, ())
        return begin(run.ranks.relay(ranks, timeout) if len(ranks) > 1 else rank)

    replies = run.ranks.each(begin_there, chosen, timeout)
    silent = [rank for rank, error in replies.items() if isinstance(error, NoAnswer)]
    if 0 < len(silent) < len(chosen):  # where others answer, it may have been busy
        replies |= run.ranks.each(begin_there, silent, timeout)
    stream.parts.update({rank: part for rank, part in replies.items() if isinstance(part, RankPart)})
    refusals = {rank: error for rank, error in replies.items() if isinstance(error, LooptapError)}
    wrong = next((e for e in refusals.values() if isinstance(e, QueryError | LimitReached)), None)
    if wrong is not None or not stream.parts:
        stream.close(0.0)
        raise wrong or next(iter(refusals.values()))
    for rank, error in refusals.items():
        stream.gone[rank] = str(error)
        stream.own_notes.append(f"without rank {rank}: {error}")
        stream.gathering.post(rank, None)
    lead = next(iter(stream.parts.values()))
    stream.mapped, stream.declared, stream.unit, stream.on = lead.mapped, lead.declared, lead.unit, lead.on
    for together in nodes.values():
        stream.own_notes.append(f"{numbered(together)} by a relay")
    if missing := run.ranks.missing if ranks in (None, ALL) else ():
        stream.own_notes.append(f"no agent answers on rank {', '.join(map(str, missing))}")
    stream.refresh()
    return stream


def _values(whole: AssembledWindow) -> list[Any]:
    return [part.value for part in whole.parts.values()]


def _merged(text: str, functions: Iterable[str]) -> Combined:
    merger = _merger(text, functions)
    return lambda whole: merger.value(_values(whole))


def _merger(text: str, functions: Iterable[str]) -> RankMerger:
    from looptap.streams.language.rank_windows import RankMerger  # not at the top: few need the compiler of queries

    return RankMerger(text, functions)


def _offset(run: RankHandle, first: int, rank: RankHandle) -> Offset:
    """Measure how far the clock of ``rank`` is ahead of that of the rank ``first``."""
    lead = run.ranks.reach(first)
    return between(lead.session, rank.session, (run.ranks.boot(first), run.ranks.boot(rank.info.rank)))


class _Spread:
    """A function from the ranks' times of one event to their spread."""

    def __init__(self, run: RankHandle, ranks: tuple[int, ...]) -> None:
        self._ranks, self._run = ranks, run
        self._boots = {rank: run.ranks.boot(rank) for rank in ranks}
        self._offsets = dict.fromkeys(ranks, Offset(0.0, 0.0))
        self._one = len(set(self._boots.values())) == 1 and all(self._boots.values())
        self._compared = -math.inf
        self._compare(5.0)
        worst = max(offset.error for offset in self._offsets.values())
        self.notes = [] if self._one or len(ranks) == 1 else [
            f"clocks of different hosts are compared by the time that answers take: to {1e3 * worst:.2g} ms here"
        ]  # fmt: skip

    def __call__(self, whole: AssembledWindow) -> tuple[float, int, int, float]:
        if time.monotonic() > self._compared + _CLOCK_SYNC_INTERVAL_SECONDS:
            self._compare(_CLOCK_REPLY_TIMEOUT_SECONDS)
        times = {rank: part.time - self._offsets[rank].seconds for rank, part in whole.parts.items()}
        slowest, fastest = max(times, key=times.__getitem__), min(times, key=times.__getitem__)
        error = self._offsets[slowest].error + self._offsets[fastest].error
        return times[slowest] - times[fastest], slowest, fastest, error

    def _compare(self, timeout: float) -> None:
        """Compare the clocks again; a rank that does not answer keeps its offset."""
        self._compared = time.monotonic()
        if self._one or len(self._ranks) == 1:
            return

        def offset(rank: RankHandle) -> Offset:
            return _offset(self._run, self._ranks[0], rank)

        found = self._run.ranks.each(offset, self._ranks, timeout)
        self._offsets.update({rank: one for rank, one in found.items() if isinstance(one, Offset)})
