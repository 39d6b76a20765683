"""Hooks on modules that are in no copy, no file and no script of the model.

A file with one could not be loaded with ``weights_only=True``, which allows nothing but the classes of the model.
"""

from __future__ import annotations

import contextlib
import copyreg
import functools
import sys
from typing import Any

_TABLES = ("_forward_hooks", "_forward_pre_hooks")
_MARKS = ("_forward_hooks_with_kwargs", "_forward_hooks_always_called", "_forward_pre_hooks_with_kwargs")
_MAX_DEPTH = 2
"""Containers in what a class pickles, around the dict of the module: a state with a version, arguments."""
_MAX_ITEMS_COUNT = 1000
"""Items of a container in which the dict is looked for."""


class UnsavedHook:
    """The base class of hooks that `leave_out` keeps out of copies and files."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Return a hook that does nothing, where a class copies its hooks itself."""
        return getattr, (contextlib.nullcontext(), "__exit__")


def leave_out(module: Any) -> None:
    """Keep each `UnsavedHook` out of copies, files and scripts of this class.

    A class for which the job has its own function in `copyreg` keeps that.
    """
    copyreg.dispatch_table.setdefault(type(module), _reduced)
    _leave_out_of_scripts(sys.modules.get("torch.jit._recursive"))


def _reduced(module: Any) -> Any:
    """Return what pickle would make of a module without our hooks.

    It has copies of the tables, since a thread may save the model while the training thread puts hooks in.
    """
    reduced = module.__reduce_ex__(2)
    return tuple(_without_ours(part, _MAX_DEPTH) for part in reduced) if isinstance(reduced, tuple) else reduced


def _is_ours(hook: Any) -> bool:
    """Return True for one of ours, and for what stands for it in a copy."""
    return isinstance(hook, UnsavedHook) or isinstance(getattr(hook, "__self__", None), contextlib.nullcontext)


def _has_ours(attributes: dict[str, Any]) -> bool:
    return any(_is_ours(hook) for name in _TABLES for hook in [*attributes.get(name, {}).values()])


def _without_ours(value: Any, depth: int) -> Any:
    """Return a part of what pickle makes of a module, with our hooks left out."""
    if type(value) is dict and any(name in value for name in _TABLES):
        return {**value, **_cleaned(value)}
    if depth == 0 or type(value) not in (tuple, list, dict) or len(value) > _MAX_ITEMS_COUNT:
        return value
    items = [*(value.items() if type(value) is dict else enumerate(value))]
    changed = {key: new for key, one in items if (new := _without_ours(one, depth - 1)) is not one}
    if not changed:
        return value
    if type(value) is dict:
        return {**value, **changed}
    return type(value)(changed.get(place, one) for place, one in items)


def _cleaned(attributes: dict[str, Any]) -> dict[str, Any]:
    """Return the tables of hooks in the attributes of a module, without ours."""
    tables = {name: attributes[name].copy() for name in (*_TABLES, *_MARKS) if name in attributes}
    ours = {key for name in _TABLES for key, hook in [*tables.get(name, {}).items()] if _is_ours(hook)}
    for table in tables.values():
        for key in ours:
            table.pop(key, None)
    return tables


def _leave_out_of_scripts(recursive: Any) -> None:
    """Have `torch.jit.script`, which compiles a model's hooks too, not find ours."""
    stubs = getattr(recursive, "get_hook_stubs", None)
    if stubs is None or hasattr(stubs, "__wrapped__"):
        return

    @functools.wraps(stubs)
    def without_ours(nn_module: Any) -> Any:
        attributes = vars(nn_module)
        if not _has_ours(attributes):
            return stubs(nn_module)
        before = {name: attributes[name] for name in _TABLES}
        attributes.update({name: table for name, table in _cleaned(attributes).items() if name in _TABLES})
        try:
            return stubs(nn_module)
        finally:
            attributes.update(before)

    recursive.get_hook_stubs = without_ours
