"""Queries shared by clients: those that ask for the same get one evaluation.

A query is joined where a fresh one would yield the same from the next event on: its values depend on one event or on
one window, and its code is known to have no effect beyond them. A client that comes in mid-window has a query of its
own until both have seen a window from its start: then the two `agree`, and it joins. I/O thread only.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Mapping
from typing import Any

import msgspec

from looptap.agent.loop.attached_query import AttachedQuery
from looptap.protocol import messages as m

_OF_A_CLIENT: dict[str, Any] = {
    "request": 0,
    "stream": 0,
    "above": 0,
    "name": "",
    "named": False,
    "latency": "",
    "history": False,
}
"""What two requests may differ in, and get the same values: all other fields have to be equal."""


class SharedQuery:
    """A query and what was asked for."""

    def __init__(self, query: AttachedQuery, key: Hashable) -> None:
        self.query, self.key = query, key

    def sound(self) -> bool:
        """Return True if nothing sets it apart from a fresh query but its open window."""
        query = self.query
        limited = query.limit.suspended or query.limit.limited
        reported = query.errors or query.warning or query.missing_names
        return query.state == "live" and not (limited or reported or query.derived) and bool(query.sink.readers)

    def joinable(self, *, group_begins: bool) -> bool:
        """Return True if it yields what a fresh query would from the next event on.

        ``group_begins``: that event is the first of its group.
        """
        query, pipeline = self.query, self.query.pipeline
        if not self.sound():
            return False
        if pipeline.mapped or not query.events:
            return True
        begins = not query.grouped or (group_begins and query.every == 1)
        return begins and not (pipeline.events or pipeline.partial or pipeline.failure)

    def agrees(self, other: SharedQuery) -> bool:
        """Return True if both yield the same from now on.

        Nothing may be evaluated meanwhile.
        """
        mine, its = self.query, other.query
        begun = mine.events and its.events and mine.seen == its.seen
        return bool(begun) and self.sound() and other.sound() and mine.pipeline.agrees(its.pipeline)


class SharedQueries:
    """The shared queries of an agent, by what their clients asked for."""

    def __init__(self, exposed: Mapping[str, Any]) -> None:
        self._exposed = exposed
        self._known: weakref.WeakValueDictionary[Hashable, SharedQuery] = weakref.WeakValueDictionary()

    def find(self, ask: m.Attach) -> SharedQuery | None:
        """Return the query that a client may join instead of ``ask``, if there is one."""
        return self._known.get(self._key(ask))

    def add(self, ask: m.Attach, query: AttachedQuery) -> SharedQuery | None:
        """Return a new query as one that others may join; None if it cannot be shared."""
        alone = ask.when is not None or ask.align or ask.code.pickled or ask.unsafe
        if alone or not query.pipeline.trusted or not query.pipeline.forgetful:
            return None
        return SharedQuery(query, self._key(ask))

    def leader(self, shared: SharedQuery) -> SharedQuery:
        """Return the query that clients join instead of ``shared``, or itself."""
        known = self._known.get(shared.key)
        if known is None or not known.sound():
            known = self._known[shared.key] = shared
        return known

    def _key(self, ask: m.Attach) -> Hashable:
        """Return what two requests have in common if one query can answer both."""
        exposed = frozenset((name, id(value)) for name, value in list(self._exposed.items()))
        return msgspec.structs.replace(ask, **_OF_A_CLIENT), exposed
