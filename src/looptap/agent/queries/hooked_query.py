"""Gives a query the hooks that it needs on modules of the model."""

from __future__ import annotations

from typing import TypeVar

from looptap.agent.loop.attached_query import AttachedQuery
from looptap.agent.loop.event_sources import EventSources
from looptap.agent.loop.hooks.query_hooks import QueryHooks
from looptap.streams.errors import QueryError
from looptap.streams.operators.pipeline import Pipeline

Query = TypeVar("Query", bound=AttachedQuery)


def hooked(query: Query, pipeline: Pipeline, sources: EventSources) -> Query:
    """Return ``query``, with hooks for the modules that its ``pipeline`` reads.

    They are put in at its first event. Raises QueryError for modules that cannot be watched; in a script as it is, that
    is known at the event.
    """
    if query.recorder is not None and query.recorder.condition.module_reads:
        raise QueryError("when= is evaluated on copies of observables: put the modules into the query instead.")
    if pipeline.module_reads:
        reads, events = pipeline.module_reads, sources.open(query.on)
        query.hooks = QueryHooks(reads, sources.exposed, events, query.on, query.every)
        if not sources.searched:
            query.hooks.check()
    return query
