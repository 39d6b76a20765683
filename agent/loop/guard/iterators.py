"""Iterators, queues, locks and files, of which a query may take nothing."""

from __future__ import annotations

import gc
import itertools
import types
from collections.abc import Collection, Iterable
from typing import Any

from looptap.agent.loop.guard.reachable_walk import Walk
from looptap.agent.loop.guard.tensor_state import Change, ObjectPath
from looptap.streams.errors import QueryError

ITERATOR = (
    "{} is an iterator of the loop: the loop would miss the items that a query takes from it. Expose the "
    "data that it iterates over, or emit its items."
)
QUEUE = (
    "{} is a queue of the loop: the loop would miss the items that a query takes from it. Emit the "
    "items that the loop takes."
)
LOCK = "{} is a lock of the loop: if a query keeps it, the loop waits forever."
FILE = "{} is a file of the loop, which would then contain what the query writes. Return the value instead."
_TAKES = frozenset({"get", "get_nowait", "recv", "recv_bytes"})
_LOCKS = frozenset({"acquire", "wait"})
_WRITES = frozenset({"write", "writelines", "truncate"})
_MAX_DEPTH = 5
_QUEUES = ("queue", "_queue", "multiprocessing.queues", "multiprocessing.connection", "torch.multiprocessing.queue")


def is_queue(kind: type) -> bool:
    """Return True for queues and pipes of the standard library, and torch's."""
    return kind.__module__ in _QUEUES and any(hasattr(kind, name) for name in _TAKES)


def record_queue(walk: Walk, value: Any, path: ObjectPath) -> None:
    """Refuse a queue that the query names together with a method that takes from it."""
    if is_named(path, walk.named) and not _TAKES.isdisjoint(walk.named):
        raise QueryError(QUEUE.format(path))


def is_lock(kind: type) -> bool:
    """Return True for the locks, semaphores and the like of the standard library."""
    return kind.__module__ in ("_thread", "threading") and hasattr(kind, "acquire")


def record_lock(walk: Walk, value: Any, path: ObjectPath) -> None:
    """Refuse a lock that the query names together with a method that takes it."""
    if is_named(path, walk.named) and not _LOCKS.isdisjoint(walk.named):
        raise QueryError(LOCK.format(path))


def refuse_writing(walk: Walk, path: ObjectPath) -> None:
    """Refuse a file that the query names together with a method that writes."""
    if is_named(path, walk.named) and not _WRITES.isdisjoint(walk.named):
        raise QueryError(FILE.format(path))


def record_iterator(walk: Walk, value: Any, path: ObjectPath) -> bool:
    """Refuse an iterator that the query names; restore another, or report its move.

    Returns False for one of the job's own classes, which is an object like others.
    """
    if is_named(path, walk.named):
        raise QueryError(ITERATOR.format(path))
    kind = type(value)
    if kind in _COMPOSED or kind.__module__ == "itertools" or not hasattr(kind, "__setstate__"):
        if kind is not types.GeneratorType and kind.__module__ not in ("builtins", "itertools"):
            return False
        before = _position(value)
        walk.undo(path, lambda: () if _position(value) == before else (Change(path, False),))
        return True
    if kind.__module__ != "builtins":
        return False
    state = value.__reduce__()[2:]

    def undo() -> Iterable[Change]:
        now = value.__reduce__()[2:]
        if now != state and now and state:
            value.__setstate__(state[0])
        return (Change(path, False),) if bool(now) != bool(state) else ()

    walk.undo(path, undo)
    return True


_COMPOSED = (enumerate, filter, map, zip)


def _position(value: Any, depth: int = 0) -> Any:
    """Return what tells how far an iterator has come, which not all of them say."""
    kind = type(value)
    if kind is types.GeneratorType:
        frame = value.gi_frame
        return None if frame is None else (frame.f_lasti, {n: id(v) for n, v in frame.f_locals.items()})
    if kind in (itertools.count, itertools.repeat):
        return repr(value)
    own = value.__reduce__()[1][1:] if kind is enumerate else ()
    left = kind.__length_hint__(value) if hasattr(kind, "__length_hint__") else None
    held = [part for one in gc.get_referents(value) for part in (one if type(one) is tuple else (one,))]
    parts = [part for part in held if hasattr(type(part), "__next__") or type(part) is list]
    if depth == _MAX_DEPTH:
        return own, left
    return own, left, [len(part) if type(part) is list else _position(part, depth + 1) for part in parts]


def is_named(path: ObjectPath, named: Collection[str]) -> bool:
    """Return True if the query mentions each step of a path."""
    at: ObjectPath | None = path
    while at is not None:
        if at.step != "[" and at.step not in named:
            return False
        at = at.parent
    return True
