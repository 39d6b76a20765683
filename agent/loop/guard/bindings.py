"""Records what classes and functions of the job bind.

Attributes of classes, globals, variables of enclosing functions.
"""

from __future__ import annotations

import opcode
import operator
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from looptap.agent.loop.guard.reachable_walk import Undo, Walk
from looptap.agent.loop.guard.references import MAX_TYPES, is_library, is_own, methods_of, module_names, references
from looptap.agent.loop.guard.tensor_state import Change, ObjectPath

MAX_FUNCTIONS = 200
"""Functions that a class's methods call, and these in turn, in which generators and globals are looked for."""
_STORE_GLOBAL = opcode.opmap["STORE_GLOBAL"]
_NOWHERE = object()

_reached_by: dict[type, list[types.FunctionType]] = {}
_globals_of: dict[type, list[tuple[dict[str, Any], str]]] = {}


def record_class(walk: Walk, kind: type, path: ObjectPath, is_generator: Callable[[Any], bool]) -> None:
    """Record a class of the job, and what its methods bind and draw."""
    for base in kind.__mro__:
        if base.__module__ != "builtins" and is_own(base.__module__):
            walk.undo(path, _class_undo(base, dict(vars(base)), path))
    for function in _reached(kind):
        for name, item in references(function):
            if is_generator(item):
                walk.push(item, ObjectPath(None, name))
    for space, name in _globals_of[kind]:
        walk.undo(path, _global_undo(space, name, space.get(name, _NOWHERE)))


def record_function(walk: Walk, function: types.FunctionType, path: ObjectPath) -> None:
    """Record the variables outside that a function can bind."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        walk.undo(path, _cell_undo(cell, _contents(cell), ObjectPath(None, name)))
    if _binds(function.__code__):
        for name in function.__code__.co_names:
            space = function.__globals__
            walk.undo(path, _global_undo(space, name, space.get(name, _NOWHERE)))


def _reached(kind: type) -> list[types.FunctionType]:
    """Return the functions that methods lead to; note which globals all bind."""
    found = _reached_by.get(kind)
    if found is None:
        if len(_reached_by) > MAX_TYPES:
            _reached_by.clear()
            _globals_of.clear()
        methods = methods_of(kind)
        found = list(called(methods))
        binding = [function for function in (*methods, *found) if _binds(function.__code__)]
        own = [(f.__globals__, name) for f in binding for name in f.__code__.co_names]
        _globals_of[kind] = [*own, *(pair for function in (*methods, *found) for pair in module_names(function))]
        _reached_by[kind] = found
    return found


def called(functions: Iterable[types.FunctionType]) -> Iterator[types.FunctionType]:
    """Yield the job's functions that these refer to, and those in turn."""
    waiting = list(functions)
    seen = set(map(id, waiting))
    while waiting and len(seen) < MAX_FUNCTIONS:
        for _, item in references(waiting.pop()):
            if isinstance(item, types.FunctionType) and id(item) not in seen and not is_library(item):
                seen.add(id(item))
                waiting.append(item)
                yield item


def _binds(code: types.CodeType) -> bool:
    """Return True if code may bind a global, or looks like it."""
    return _STORE_GLOBAL in code.co_code[::2] or any(_binds(c) for c in code.co_consts if isinstance(c, types.CodeType))


def _class_undo(kind: type, before: dict[str, Any], path: ObjectPath) -> Undo:
    def undo() -> Iterable[Change]:
        now = vars(kind)
        if len(now) == len(before) and all(map(operator.is_, now.values(), before.values())):
            return ()
        changed = [name for name, item in before.items() if now.get(name, _NOWHERE) is not item]
        added = [name for name in now if name not in before and not name.startswith("__")]
        for name in changed:
            type.__setattr__(kind, name, before[name])
        for name in added:
            type.__delattr__(kind, name)
        return [Change(ObjectPath(path, name), True) for name in (*changed, *added)]

    return undo


def _global_undo(space: dict[str, Any], name: str, before: Any) -> Undo:
    def undo() -> Iterable[Change]:
        if space.get(name, _NOWHERE) is before:
            return ()
        if before is _NOWHERE:
            del space[name]
        else:
            space[name] = before
        return (Change(ObjectPath(None, name), True),)

    return undo


def _contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is empty so far
        return _NOWHERE


def _cell_undo(cell: types.CellType, before: Any, path: ObjectPath) -> Undo:
    def undo() -> Iterable[Change]:
        if _contents(cell) is before:
            return ()
        if before is _NOWHERE:
            del cell.cell_contents
        else:
            cell.cell_contents = before
        return (Change(path, True),)

    return undo
