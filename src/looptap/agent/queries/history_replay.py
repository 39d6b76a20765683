"""Histories that queries over the values of a declared stream begin with.

I/O thread. Such a query is held back until it has seen the history: what its source yields meanwhile waits in its
inbox. The history is evaluated a piece at a time, so that clients are answered in between.
"""

from __future__ import annotations

from collections import deque

from looptap.agent.handoff.value_batch import Item
from looptap.agent.handoff.value_ring import ValueRing
from looptap.agent.loop.derived_query import DerivedQuery
from looptap.agent.queries.query_registry import QueryRegistry
from looptap.streams.errors import QueryError

PIECE_VALUES = 1024
"""Values of a history that are evaluated at once."""


class HistoryReplays:
    """The queries that are still being fed the history of their source."""

    def __init__(self, queries: QueryRegistry) -> None:
        self._queries = queries
        self._going: dict[DerivedQuery, deque[Item]] = {}  # and what is left to evaluate
        self._busy = False

    def hold(self, query: DerivedQuery, ring: ValueRing | None, *, wanted: bool) -> tuple[str, ...]:
        """Hold a query back that begins with a history, if ``wanted``; return notes.

        Raises QueryError.
        """
        if ring is None:
            if wanted:
                raise QueryError(
                    f"history=True is for declared streams, which have one: {query.of!r:.120} is a query of a client."
                )
            return ()
        held = len(ring)
        if not wanted:
            what = f"history=True begins with the values in its history, {held:,} so far"
            return (f"begins with the next value of {query.of!r}; {what}",) if held else ()
        if not query.pipeline.trusted:
            raise QueryError(
                "history=True needs a query that is known to be harmless, since its history is evaluated "
                "outside the loop; write it as an expression without your own functions.",
                query.pipeline.text,
            )
        query.held = True
        return ()

    def start(self, query: DerivedQuery, ring: ValueRing) -> None:
        """Take the history of a query that is held, once values come to its inbox."""
        self._going[query] = deque(ring.read(0, ring.keep))

    def go_on(self) -> bool:
        """Evaluate a piece of each history; return True if more can be evaluated now."""
        if self._busy:  # a value has woken this thread, which in a test is the one that evaluates
            return False
        self._busy = True
        try:
            self._evaluate_pieces()
        finally:
            self._busy = False
        return any(self._going.values())

    def _evaluate_pieces(self) -> None:
        for query, items in list(self._going.items()):
            query.replay([items.popleft() for _ in range(min(PIECE_VALUES, len(items)))])
            if query.detached or (not items and self._queries.release(query)):
                del self._going[query]

    def __len__(self) -> int:
        return len(self._going)
