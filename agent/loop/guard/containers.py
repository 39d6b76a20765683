"""Copies of containers from before a query, and how to restore them."""

from __future__ import annotations

import operator
from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import Any

from looptap.agent.loop.guard.tensor_state import ObjectPath

MAX_ITEMS = 1000
"""Items of a container that are copied; of a longer one only its length and ends are."""


def contents(container: Any) -> Any:
    """Copy the items; of a long sequence only its length and ends."""
    if isinstance(container, dict):
        return dict(container) if len(container) <= MAX_ITEMS else len(container)
    if isinstance(container, list | deque):
        return list(container) if len(container) <= MAX_ITEMS else _ends(container)
    return set(container) if len(container) <= MAX_ITEMS else len(container)


def _ends(container: Any) -> tuple[int, list[Any]]:
    places = [*range(64), *range(-64, 0)]
    return len(container), [container[place] for place in places]


def as_before(container: Any, before: Any) -> bool:
    """Return True if a container has the same items; runs no code of the job."""
    if isinstance(before, tuple):
        return len(container) == before[0] and all(map(operator.is_, before[1], _ends(container)[1]))
    if isinstance(before, int):
        return len(container) == before
    if len(container) != len(before):
        return False
    if isinstance(before, dict):
        same = all(map(operator.is_, container, before))
        return same and all(map(operator.is_, container.values(), before.values()))
    if isinstance(before, set):
        return set(map(id, container)) == set(map(id, before))
    return all(map(operator.is_, container, before))


def places(path: ObjectPath, container: Any, before: Any, attributes: bool) -> Iterator[ObjectPath]:
    """Yield what changed: of a fully copied dictionary its items, else the container."""
    if not isinstance(before, dict):
        yield path
        return
    for key in [*before, *(key for key in container if key not in before)]:
        if key not in container or key not in before or container[key] is not before[key]:
            yield ObjectPath(path, str(key)) if attributes else ObjectPath(path, "[", key)


def refill(container: Any, before: Any) -> bool:
    """Restore the items; return False where only their number is known."""
    if isinstance(before, tuple | int):
        return False
    if isinstance(container, dict):
        base = OrderedDict if isinstance(container, OrderedDict) else dict
        base.clear(container)
        base.update(container, before)
    elif isinstance(container, list):
        list.__setitem__(container, slice(None), before)
    elif isinstance(container, deque):
        deque.clear(container)
        deque.extend(container, before)
    else:
        set.clear(container)
        set.update(container, before)
    return True
