"""Records objects without attributes to visit: generators, files, memory, tables."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

from looptap.agent.loop.guard.iterators import is_named, refuse_writing
from looptap.agent.loop.guard.reachable_walk import Walk
from looptap.agent.loop.guard.tensor_state import SMALL_BYTES, Change, ObjectPath
from looptap.streams.preserving.random_state import generator_state, seeds_state

MAX_COMPARED_ITEMS = 100_000
"""Cells of a table, or pixels of a picture, that are copied for a comparison."""
_NOWHERE = object()


def record_generator(walk: Walk, value: Any, path: ObjectPath) -> None:
    """Record the state of a generator of random numbers."""
    put_back = generator_state(value)

    def undo() -> Iterable[Change]:
        put_back()
        return ()

    walk.undo(path, undo)


def record_numpy_generator(walk: Walk, value: Any, path: ObjectPath) -> None:
    """Record numpy's generator: its state lies one object further."""
    walk.push(value.bit_generator, path)


def record_bit_generator(walk: Walk, value: Any, path: ObjectPath) -> None:
    """Record numpy's bits, and the seeds that it spawns others from."""
    record_generator(walk, value, path)
    if (seeds := getattr(value, "seed_seq", None)) is not None:
        walk.push(seeds, path)


def record_seeds(walk: Walk, value: Any, path: ObjectPath) -> None:
    """Record how many generators have been spawned, on which depend the next ones."""
    count = value.n_children_spawned
    put_back = seeds_state(value)

    def undo() -> Iterable[Change]:
        if value.n_children_spawned != count:
            put_back()
        return () if value.n_children_spawned == count else (Change(path, False),)

    walk.undo(path, undo)


def record_file(walk: Walk, value: Any, path: ObjectPath) -> None:
    """Record the position in a file; refuse to write to it."""
    refuse_writing(walk, path)
    try:
        if value.closed or not value.readable() or not value.seekable():
            return
        position = value.tell()
    except Exception:  # while its lines are read, the position of a text file is unknown
        return

    def undo() -> Iterable[Change]:
        if not value.closed and value.tell() != position:
            value.seek(position)
        return ()

    walk.undo(path, undo)


def record_bytes(walk: Walk, value: Any, path: ObjectPath) -> None:
    """Record a small array of bytes or numbers."""
    before = value[:]
    if len(before) <= SMALL_BYTES:
        walk.undo(path, lambda: () if value == before else _rewritten(value, before, path))


def _rewritten(value: Any, before: Any, path: ObjectPath) -> Iterable[Change]:
    value[:] = before
    return (Change(path, True),)


def record_view(walk: Walk, value: Any, path: ObjectPath) -> None:
    """Visit the memory that is viewed."""
    walk.push(value.obj, path)


def record_reference(walk: Walk, value: Any, path: ObjectPath) -> None:
    """Visit what a weak reference leads to."""
    if (referent := weakref.ref.__call__(value)) is not None:
        walk.push(referent, path)


def record_context(walk: Walk, value: Any, path: ObjectPath) -> None:
    """Record a context variable."""
    before = value.get(_NOWHERE)

    def undo() -> Iterable[Change]:
        if value.get(_NOWHERE) is before:
            return ()
        if before is not _NOWHERE:
            value.set(before)
        return (Change(path, before is not _NOWHERE),)

    walk.undo(path, undo)


def record_table(walk: Walk, value: Any, path: ObjectPath) -> None:
    """Compare a table or column of pandas afterwards, if the query names it."""
    if is_named(path, walk.named) and value.size <= MAX_COMPARED_ITEMS:
        before = value.copy()
        walk.undo(path, lambda: () if value.equals(before) else (Change(path, False),))


def record_picture(walk: Walk, value: Any, path: ObjectPath) -> None:
    """Compare a picture afterwards, if the query names it."""
    if is_named(path, walk.named) and value.width * value.height <= MAX_COMPARED_ITEMS:
        before = value.tobytes()
        walk.undo(path, lambda: () if value.tobytes() == before else (Change(path, False),))


GENERATORS = (record_generator, record_numpy_generator, record_bit_generator, record_seeds)
