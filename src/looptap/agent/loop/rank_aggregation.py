"""One rank's part of a reduction over ranks; its values carry a window number."""

from __future__ import annotations

from collections.abc import Sequence

from looptap.agent.handoff.value_batch import MIN_VALUE_BYTES, FlaggedValue
from looptap.agent.loop.attached_query import AttachedQuery
from looptap.streams.errors import LooptapError
from looptap.streams.events import Event
from looptap.streams.flags import ERROR
from looptap.streams.language.rank_windows import RankWindowStage
from looptap.streams.operators.pipeline import Output
from looptap.streams.values.snapshots import snapshot


class PartialAggregateQuery(AttachedQuery):
    """An attached query whose pipeline is `RankWindowStage`."""

    def flush(self, number: int, now: float, group: int = 0) -> None:
        """End the window of this group number, by default the open one."""
        assert isinstance(self.pipeline, RankWindowStage)
        if self.grouped:
            self.pipeline.at = group or self.pipeline.at + 1
        super().flush(number, now, group)

    def _put(self, outputs: Sequence[Output], event: Event | None, number: int, now: float) -> None:
        for flags, placed in outputs:
            value = placed.value
            if not flags & ERROR:
                try:
                    value, size = snapshot(value, self.max_bytes)
                    self._in_a_row = 0
                except LooptapError as error:
                    value, flags = str(error), flags | ERROR
            if flags & ERROR:
                size = MIN_VALUE_BYTES + len(value)
            self.sink.put(number, now, FlaggedValue(value, flags, window=placed.window), size)
            if flags & ERROR:
                self.record_error(value)
