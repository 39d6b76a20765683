"""Queries over several ranks of a job: `Run.stream` with ``ranks=``, `Run.skew`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from looptap.client.rank_numbers import numbered
from looptap.client.ranks.clock_sync import Offset, clock_offset_between
from looptap.client.ranks.combiners import MERGE, Combine, combination
from looptap.client.ranks.rank_part import rank_part
from looptap.client.ranks.rank_stream import RankStream
from looptap.client.ranks.ranks import ALL, DEFAULT_LATE_TIMEOUT_SECONDS, RankHandle, split_replies
from looptap.client.ranks.window_assembler import AssembledWindow
from looptap.client.streams.live import LiveStream
from looptap.client.transport.timeouts import REPLY_SECONDS
from looptap.protocol import messages as m
from looptap.protocol.errors import LimitReached, NoAnswer
from looptap.protocol.replies import SubscriptionInfo
from looptap.protocol.values.number_checks import is_real
from looptap.streams.errors import QueryError
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
_MAX_KEPT_STATES = 64  # that the stream of a relay keeps: they are passed on as they come


def over_ranks(
    run: RankHandle,
    attach: m.Attach,
    ranks: str | int | Iterable[int] | None,
    combine: str | Callable[..., Any] | None,
    *,
    patience: float,
    timeout: float,
    text: str,
    buffer: int,
    buffer_bytes: int,
    relay: bool = False,
) -> RankStream:
    """Attach a query to several ranks; return its stream. Raises like `Run.stream`."""
    merging = combine == MERGE
    f = None if combine is None or merging else combination(combine)
    if merging and (not attach.code.text or attach.code.pickled):
        raise QueryError("combine='merge' needs the query as text, to see its parts.", text)
    if relay and not merging:
        raise QueryError(f"relay=True merges on the way: combine='merge', not {combine!r}.", text)
    if relay and run.session.follow:
        hint = "attach without follow=True, or ask without relay=True."
        raise QueryError("a relay ends with its run, and follows no other.", text, hint=hint)
    stream = _attach_to_ranks(
        run,
        msgspec.structs.replace(attach, align=m.STATES if merging else m.VALUES if f else ""),
        ranks,
        patience=patience,
        timeout=timeout,
        text=text,
        buffer=buffer,
        buffer_bytes=buffer_bytes,
        relay=relay,
    )
    try:
        _combine(stream, attach.code.text, combine, f)
    except BaseException:
        stream.close(0.0)
        raise
    stream.gathering.start()
    return stream


def _combine(stream: RankStream, text: str, combine: str | Callable[..., Any] | None, f: Combine | None) -> None:
    """Have a stream merge its ranks, or combine their values by ``f``."""
    names, whole_rows = stream.lead.feed.fields or (), callable(combine) or combine == "list"
    if not whole_rows:
        stream.feed.set_fields(names)
    if combine == MERGE:
        if stream.declared is not None:
            hint = "combine='mean' combines such values; a query of your own can be merged."
            what = f"{stream.declared!r} is declared by the job, which sends its values, not their parts."
            raise QueryError(what, text, hint=hint)
        merger = _merger(text, stream.lead.functions)
        stream.combined = lambda whole: merger.value(_values(whole))
    elif f is not None:
        named = rows(names) if whole_rows and names else list
        stream.combined = lambda whole: f(list(named(_values(whole))))


def joined_by_relay(
    run: RankHandle, attach: m.Attach, ranks: Iterable[int], on_batch: Callable[[Batch], None]
) -> tuple[RankStream, SubscriptionInfo]:
    """Open the stream of merged states of ``ranks``; return it with its attach reply.

    The states go to ``on_batch`` as they come.
    """
    stream = _attach_to_ranks(
        run,
        attach,
        ranks,
        patience=DEFAULT_LATE_TIMEOUT_SECONDS,
        timeout=_NODE_ATTACH_TIMEOUT_SECONDS,
        text=attach.code.text,
        buffer=_MAX_KEPT_STATES,
        buffer_bytes=DEFAULT_BUFFER_BYTES,
    )
    lead = stream.lead
    merger = _merger(attach.code.text, lead.functions)
    stream.combined = lambda whole: merger.joined(_values(whole))
    stream.on_batch = on_batch
    notes, fields = tuple(stream.notes), lead.feed.fields or ()
    return stream, SubscriptionInfo(
        mapped=False, fields=fields, explain=lead.explain(), notes=notes, functions=lead.functions
    )


def spread_over_ranks(
    run: RankHandle,
    on: str,
    ranks: str | int | Iterable[int],
    every: int,
    *,
    patience: float,
    timeout: float,
    buffer: int,
) -> RankStream:
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
    run: RankHandle,
    attach: m.Attach,
    ranks: str | int | Iterable[int] | None,
    *,
    patience: float,
    timeout: float,
    text: str,
    buffer: int,
    buffer_bytes: int,
    relay: bool = False,
) -> RankStream:
    """Return a stream attached to each rank; its values are not assembled yet."""
    if not (is_real(patience) and 0 <= patience < math.inf):
        raise QueryError(f"patience={patience!r} must be a number of seconds, 0 or more.")
    asked = run.ranks.select(ALL if ranks is None else ranks)
    nodes = run.ranks.nodes(asked) if relay else {}
    chosen = tuple(nodes) or asked
    stream = RankStream(
        run, attach, chosen, asked=asked, text=text, buffer=buffer, buffer_bytes=buffer_bytes, patience=patience
    )
    seconds = attach.align and isinstance(attach.window, Seconds)

    def begin(rank: RankHandle) -> LiveStream:
        together = nodes.get(rank.info.rank, ())
        if len(together) > 1:
            rank = run.ranks.relay(together, timeout)
        origin = attach.origin + (_offset(run, chosen[0], rank).seconds if seconds else 0.0)
        request, number = rank.session.requests.number(), rank.session.streams.number()
        own = msgspec.structs.replace(attach, request=request, stream=number, origin=origin)
        part = rank_part(rank, own, stream.gathering, text=text, buffer_bytes=buffer_bytes)
        rank.session.begin(part, timeout)
        return part

    replies = run.ranks.each(begin, chosen, timeout)
    silent = [rank for rank, error in replies.items() if isinstance(error, NoAnswer)]
    if 0 < len(silent) < len(chosen):  # where others answer, it may have been busy
        replies |= run.ranks.each(begin, silent, timeout)
    parts, refusals = split_replies(replies)
    stream.parts.update(parts)
    wrong = next((error for error in refusals.values() if isinstance(error, QueryError | LimitReached)), None)
    if wrong or not parts:
        stream.close(0.0)
        raise wrong or next(iter(refusals.values()))
    for rank, error in refusals.items():
        stream.gone[rank] = str(error)
        stream.own_notes.append(f"without rank {rank}: {error}")
        stream.gathering.post(rank, None)
    lead = stream.lead
    stream.mapped, stream.declared, stream.unit, stream.on = lead.mapped, lead.declared, lead.unit, lead.on
    stream.own_notes += [f"{numbered(together)} by a relay" for together in nodes.values()]
    if missing := run.ranks.missing if ranks in (None, ALL) else ():
        stream.own_notes.append(f"no agent answers on rank {', '.join(map(str, missing))}")
    stream.refresh()
    return stream


def _values(whole: AssembledWindow) -> list[Any]:
    return [part.value for part in whole.parts.values()]


def _merger(text: str, functions: Iterable[str]) -> RankMerger:
    from looptap.streams.language.rank_windows import RankMerger  # not at the top: few need the compiler of queries

    return RankMerger(text, functions)


def _offset(run: RankHandle, first: int, rank: RankHandle) -> Offset:
    """Measure how far the clock of ``rank`` is ahead of that of the rank ``first``."""
    lead = run.ranks.reach(first)
    return clock_offset_between(lead.session, rank.session, (run.ranks.boot(first), run.ranks.boot(rank.info.rank)))


class _Spread:
    """A function from the ranks' times of one event to their spread."""

    def __init__(self, run: RankHandle, ranks: tuple[int, ...]) -> None:
        self._ranks, self._run = ranks, run
        self._boots = {rank: run.ranks.boot(rank) for rank in ranks}
        self._offsets = dict.fromkeys(ranks, Offset(0.0, 0.0))
        self._one = len(ranks) == 1 or (len(set(self._boots.values())) == 1 and all(self._boots.values()))
        self._compared = -math.inf
        self._compare(5.0)
        worst = max(offset.error for offset in self._offsets.values())
        note = f"clocks of different hosts are compared by the time that answers take: to {1e3 * worst:.2g} ms here"
        self.notes = [] if self._one else [note]

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
        if self._one:
            return

        def offset(rank: RankHandle) -> Offset:
            return _offset(self._run, self._ranks[0], rank)

        found, _ = split_replies(self._run.ranks.each(offset, self._ranks, timeout))
        self._offsets.update(found)
