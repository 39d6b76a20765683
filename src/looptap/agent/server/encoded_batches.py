"""Packs batches of values for the wire, once for all clients that get the same.

A batch is known by its identity: readers of one query are given the same object. What is kept is bounded, and only of
queries that several clients read; for one that reads later the batch is packed again.
"""

from __future__ import annotations

import time
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from looptap.agent.handoff.value_batch import FlaggedValue
from looptap.agent.run.resume_lineage import RunHistory
from looptap.agent.server.subscription import Subscription, finished_value
from looptap.protocol import messages as m
from looptap.protocol.codec import encode
from looptap.protocol.values.packing import pack, pack_values
from looptap.streams.columns.value_columns import ValueColumns
from looptap.streams.errors import LooptapError
from looptap.streams.flags import ERROR
from looptap.streams.language.rank_windows import RankWindowStage
from looptap.streams.stream.buffer import Batch
from looptap.streams.text import public_line
from looptap.streams.values.device_transfer import Pending

MAX_KEPT_BYTES, MAX_KEPT_BATCHES = 4_194_304, 256
"""Bytes and number of the packed batches that are kept for other clients, except for the newest one alone."""


class _Body(NamedTuple):
    """What is the same for all clients in the message of a batch."""

    events: memoryview
    times: memoryview
    clock: float
    form: int
    values: msgspec.Raw
    flags: bytes
    rank: int
    windows: bytes


class EncodedBatches:
    """The encoder of an agent's values. I/O thread only."""

    def __init__(self, run_history: RunHistory, rank: int) -> None:
        self._run_history, self._rank = run_history, rank
        self._kept: OrderedDict[tuple[int, bool, bool], tuple[Batch, _Body]] = OrderedDict()
        self.nbytes = 0
        """Bytes kept."""

    def frame(self, stream: Subscription, batch: Batch, *, alike: bool) -> bytes:
        """Return the message of a batch for one client; ``alike``: others get it, too."""
        body = self._body_for_all(stream, batch) if alike else self._body(stream, batch)
        return encode(m.Values(stream.number, stream.first(batch), *body))  # type: ignore[arg-type]  # views, for bytes

    def forget(self) -> None:
        """Drop what is kept."""
        self._kept.clear()
        self.nbytes = 0

    def _body_for_all(self, stream: Subscription, batch: Batch) -> _Body:
        key = id(batch), stream.client.viewer, stream.client.version >= m.COLUMNS_SINCE
        if (known := self._kept.get(key)) is not None:
            return known[1]
        body = self._body(stream, batch)
        self._kept[key] = batch, body
        self.nbytes += _size_of(body)
        while len(self._kept) > 1 and (self.nbytes > MAX_KEPT_BYTES or len(self._kept) > MAX_KEPT_BATCHES):
            _, (_, oldest) = self._kept.popitem(last=False)
            self.nbytes -= _size_of(oldest)
        return body

    def _body(self, stream: Subscription, batch: Batch) -> _Body:
        """Pack a batch; values that cannot be packed become errors."""
        values, flags = finished(batch)
        if flags and stream.client.viewer:  # not where in the job's code it failed, nor what else there is
            values = [public_line(v) if f & ERROR else v for v, f in zip(values, flags, strict=True)]
        flags = self._run_history.flagged(stream.query.on, batch, flags)
        knows_columns = stream.client.version >= m.COLUMNS_SINCE
        try:
            form, raw = pack_values(values, columns=knows_columns)
        except LooptapError:
            values, flags = list(values), flags or bytearray(len(values))
            for i, value in enumerate(values):
                try:
                    pack(value)
                except LooptapError as error:
                    flags[i], values[i] = flags[i] | ERROR, str(error)
            form, raw = pack_values(values, columns=knows_columns)
        windows = b""
        if isinstance(stream.query.pipeline, RankWindowStage):
            windows = array("q", [v.window for v in batch.values]).tobytes()
        return _Body(
            memoryview(batch.events),
            memoryview(batch.times),
            time.time() - time.monotonic(),
            form,
            msgspec.Raw(raw),
            bytes(flags) if any(flags) else b"",
            self._rank,
            windows,
        )


def _size_of(body: _Body) -> int:
    return body.events.nbytes + body.times.nbytes + len(memoryview(body.values)) + len(body.flags)


_UNFINISHED = frozenset({FlaggedValue, Pending})


def finished(batch: Batch) -> tuple[Sequence[Any], bytearray]:
    """Return values and their flags, if any; waits for copies from a device."""
    if isinstance(batch.values, ValueColumns):
        return batch.values, bytearray()
    values, flags = list(batch.values), bytearray()
    if not _UNFINISHED.isdisjoint(map(type, values)):
        flags = bytearray(len(values))
        for i, value in enumerate(values):
            values[i], flags[i] = finished_value(value)
    return values, flags
