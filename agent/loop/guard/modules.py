"""Modules of a model as they were before a query: attributes, children, hooks."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator
from typing import Any

from looptap.agent.loop.guard.containers import as_before, places, refill
from looptap.agent.loop.guard.tensor_state import Change, ObjectPath
from looptap.streams.preserving.module_state import module_attributes
from looptap.streams.values.plain import attributes_of

_STORED = ("_parameters", "_modules", "_buffers")


@functools.cache
def _hooks() -> tuple[str, ...]:
    """Return the standard attributes that hold hooks."""
    return tuple(name for name in module_attributes() if "_hooks" in name)


class Modules:
    """All modules that a query can reach: perhaps hundreds, few of which change."""

    def __init__(self) -> None:
        self._all: list[tuple[ObjectPath, Any, type, Any, dict[str, Any], list[dict[str, Any]]]] = []
        self._hooks: list[tuple[ObjectPath, dict[Any, Any], dict[Any, Any]]] = []

    def add(self, module: Any, path: ObjectPath) -> Iterator[tuple[Any, ObjectPath]]:
        """Record a module; yield the objects to visit next, buffers excepted."""
        own = attributes_of(module)
        held = [own.get(name) or {} for name in _STORED]
        self._all.append((path, module, type(module), own, dict(own), [dict(part) for part in held]))
        for part in held[:2]:
            for name, item in part.items():
                yield item, ObjectPath(path, name)
        for name in own.keys() - module_attributes():
            yield own[name], ObjectPath(path, name)
        if any(map(own.get, _hooks())):
            for name in _hooks():
                if own.get(name):  # what is put into an empty one is found by its number
                    self._hooks.append((ObjectPath(path, name), own[name], dict(own[name])))

    def restore(self) -> Iterator[Change]:
        """Restore everything; yield what had changed."""
        for path, module, kind, own, before, held in self._all:
            if type(module) is not kind:
                module.__class__ = kind
                yield Change(ObjectPath(path, "__class__"), True)
            if not _same(own, before):
                yield from _refilled(path, own, before, True)
            for name, stored in zip(_STORED, held, strict=True):
                now = own.get(name)
                if isinstance(now, dict) and (now or stored) and not as_before(now, stored):
                    yield from _refilled(path, now, stored, True)
        for path, hooks, before in self._hooks:
            if not as_before(hooks, before):
                yield from _refilled(path, hooks, before, False)

    def hooks(self) -> Iterator[Any]:
        """Yield all dictionaries of hooks."""
        for _, _, _, own, _, _ in self._all:
            yield from map(own.get, _hooks())


def _same(own: dict[str, Any], before: dict[str, Any]) -> bool:
    return len(own) == len(before) and all(map(operator.is_, own.values(), before.values()))


def _refilled(path: ObjectPath, container: Any, before: Any, attributes: bool) -> Iterator[Change]:
    changed = list(places(path, container, before, attributes))
    undone = refill(container, before)
    yield from (Change(place, undone) for place in changed)
