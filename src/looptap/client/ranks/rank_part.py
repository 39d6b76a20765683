"""The stream of one rank, which passes its values on to be merged."""

from __future__ import annotations

from collections.abc import Sequence

from looptap.client.ranks.gathering import Gathering
from looptap.client.streams.live import LiveFeed, LiveStream
from looptap.protocol import messages as m
from looptap.protocol.replies import SubscriptionInfo
from looptap.streams.stream.attention import PROMPT_SECONDS
from looptap.streams.stream.buffer import Batch, RunSeam


class RankFeed(LiveFeed):
    """The feed of one rank for the merging thread; ``names`` are those of rows."""

    names: tuple[str, ...] = ()
    rank: int
    gathering: Gathering
    patience = PROMPT_SECONDS  # the merging thread waits for them

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
