"""The stream of one rank, which passes its values on to be merged."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from looptap.client.ranks.gathering import Gathering
from looptap.client.session.run_handle import RunHandle
from looptap.client.streams.live import LiveFeed, LiveStream
from looptap.protocol import messages as m
from looptap.streams.stream.attention import PROMPT_SECONDS
from looptap.streams.stream.buffer import Batch, RunSeam
from looptap.streams.stream.feed import Feed

_MAX_KEPT_VALUES = 64  # they are read as they come


class RankFeed(LiveFeed):
    """The feed of one rank, which posts what comes to the merging thread."""

    patience = PROMPT_SECONDS  # the merging thread waits for the values

    def __init__(
        self, rank: int, gathering: Gathering, buffer: int, buffer_bytes: int, schedule: Callable[[Feed], None]
    ) -> None:
        super().__init__(buffer, buffer_bytes, schedule)
        self._rank, self._gathering = rank, gathering

    def set_fields(self, fields: Sequence[str] | None) -> None:
        """Keep the names: rows get them where the ranks are merged."""
        self.fields = tuple(fields or ())

    def publish(self, batch: Batch) -> None:
        """Append a batch, and pass new values to the merging thread."""
        fresh = batch if batch.first > self.newest else batch.part(self.newest + 1 - batch.first)
        super().publish(batch)
        if fresh.values:
            self._gathering.post(self._rank, fresh)

    def add_seam(self, old: str, new: str, after: int | None = None) -> None:
        """Record a move to another run, also for the merging thread."""
        super().add_seam(old, new, after)
        self._gathering.post(self._rank, RunSeam(0, old, new))

    def finish(self, state: str, reason: str = "", last: int = 0) -> None:
        """End the stream, also for the merging thread."""
        super().finish(state, reason, last)
        self._gathering.post(self._rank, None)


def rank_part(run: RunHandle, attach: m.Attach, gathering: Gathering, *, text: str, buffer_bytes: int) -> LiveStream:
    """Return the stream of one rank, which keeps hardly any values itself."""
    feed_type = functools.partial(RankFeed, run.info.rank, gathering)
    return LiveStream(
        run,
        attach,
        name=attach.name,
        text=text,
        buffer=_MAX_KEPT_VALUES,
        buffer_bytes=buffer_bytes,
        feed_type=feed_type,
    )
