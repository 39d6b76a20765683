"""A bounded walk through the objects that a query can reach."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import Any

from looptap.agent.loop.guard.containers import contents
from looptap.agent.loop.guard.modules import Modules
from looptap.agent.loop.guard.tensor_state import Change, ObjectPath, Tensors
from looptap.streams.values.plain import ATOM, kind_of

MAX_VISITED_OBJECTS = 4000
"""Objects that one walk visits."""

Undo = Callable[[], Iterable[Change]]


class Walk:
    """The objects recorded so far, and those still to be visited.

    ``named`` are the words that the query mentions.
    """

    def __init__(self, named: Collection[str]) -> None:
        self.named = named
        self.tensors = Tensors()
        self.visited: list[Any] = []
        """The visited objects, kept alive so that no other gets their ids."""
        self.containers: list[tuple[ObjectPath, Any, Any, bool]] = []
        self.modules = Modules()
        self.undos: list[tuple[ObjectPath, Undo]] = []
        self.stand_ins: list[tuple[dict[str, Any], str, Any]] = []
        """Objects that are replaced by a stand-in while the query runs."""
        self.waiting: deque[tuple[Any, ObjectPath]] = deque()
        self._seen: set[int] = set()

    def first(self, thing: Any) -> bool:
        """Return True if ``thing`` was not seen before, and mark it as seen."""
        if id(thing) in self._seen or len(self._seen) >= MAX_VISITED_OBJECTS:
            return False
        self._seen.add(id(thing))
        self.visited.append(thing)
        return True

    def seen(self, thing: Any) -> bool:
        """Return True if the walk has visited ``thing``."""
        return id(thing) in self._seen

    def push(self, value: Any, path: ObjectPath) -> None:
        """Queue ``value`` for a visit, once."""
        if (kind_of(type(value)) != ATOM or type(value) is bytearray) and self.first(value):
            self.waiting.append((value, path))

    def keep(self, container: Any, path: ObjectPath, attributes: bool = False) -> None:
        """Record a container's items; ``attributes``: they are an object's attributes."""
        self.containers.append((path, container, contents(container), attributes))

    def undo(self, path: ObjectPath, how: Undo) -> None:
        """Record ``how`` to restore what is at ``path``; it returns changes to report."""
        self.undos.append((path, how))
