"""Objects that the job's functions and classes refer to, arguments apart."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Iterator
from typing import Any

MAX_TYPES = 2000
"""Types in the cache, which classes made in a loop must not fill without bound."""

_LIBRARIES = frozenset({
    "torch", "numpy", "looptap", "zmq", "msgspec", "pandas", "matplotlib", "logging", "threading", "multiprocessing",
    "concurrent", "asyncio", "socket", "weakref", "subprocess", "queue", "functools", "ctypes",
})  # fmt: skip
"""Libraries whose objects are not searched, unless their kind is known here."""

_methods_of: dict[type, list[types.FunctionType]] = {}


def references(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the objects outside that a function refers to, with their names."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            yield name, cell.cell_contents
        except ValueError:  # it is empty so far
            continue
    names = function.__code__.co_names
    for name, item in _mentioned(function):
        if isinstance(item, types.ModuleType):
            yield from ((f"{name}.{one}", vars(item)[one]) for one in _named_in(item, names))
        elif not isinstance(item, type) or is_own(item.__module__):
            yield name, item
    yield from ((f"{function.__name__}()", item) for item in function.__defaults__ or ())


def module_names(function: types.FunctionType) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the namespaces of other modules of the job, with names that it mentions."""
    for _, item in _mentioned(function):
        if isinstance(item, types.ModuleType):
            yield from ((vars(item), one) for one in _named_in(item, function.__code__.co_names))


def _mentioned(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the names in a function's code, each with the global or the module.

    That is None if there is neither. Names of attributes are among them, so no global is asked whether it is true.
    """
    space = function.__globals__
    for name in function.__code__.co_names:
        yield name, space[name] if name in space else sys.modules.get(name)  # which the function imports itself


def _named_in(module: types.ModuleType, names: tuple[str, ...]) -> list[str]:
    return [one for one in names if one in vars(module)] if is_own(module.__name__) else []


def methods_of(kind: type) -> list[types.FunctionType]:
    """Return the functions of a class and its bases, except those of libraries."""
    found = _methods_of.get(kind)
    if found is None:
        if len(_methods_of) > MAX_TYPES:
            _methods_of.clear()
        found = _methods_of[kind] = list(_methods(kind))
    return found


def _methods(kind: type) -> Iterator[types.FunctionType]:
    for base in kind.__mro__:
        if is_library(base) or base.__module__ == "builtins":
            continue
        for item in vars(base).values():
            parts = (item.fget, item.fset) if isinstance(item, property) else (getattr(item, "__func__", item),)
            yield from (part for part in parts if isinstance(part, types.FunctionType))


def is_library(thing: Any) -> bool:
    """Return True for a class or function of a library that is not searched."""
    module = str(getattr(thing, "__module__", "") or "").partition(".")[0]
    return module in _LIBRARIES or (module in sys.stdlib_module_names and module != "__main__")


@functools.lru_cache(maxsize=MAX_TYPES)
def is_own(name: str) -> bool:
    """Return True if a module is the job's own, not an installed one."""
    top = name.partition(".")[0]
    if top in _LIBRARIES or (top in sys.stdlib_module_names and top != "__main__"):
        return False
    file = str(getattr(sys.modules.get(name), "__file__", None) or "")
    return not any(folder in file for folder in ("site-packages", "dist-packages"))
