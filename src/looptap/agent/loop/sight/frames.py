"""Reads names from the frames of the job: the user's first, inner before outer.

Frames of torch, of the standard library and of looptap are passed over. A frame is read only if its code has the name.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dis import get_instructions
from functools import cache, lru_cache
from inspect import CO_OPTIMIZED
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, ModuleType
from typing import Any

from looptap.agent.loop.calls.frame_variables import variable_names, variables_in
from looptap.streams.events import BUILT_IN, MACHINE
from looptap.streams.language import builtins

MAX_FRAMES_COUNT = 200
"""Frames that a search goes through, from the inside out."""
MAX_LISTED_NAMES_COUNT = 100
"""Names that a message lists."""
MAX_PATH_PARTS_COUNT = 4
"""Names in a path to an attribute that a message suggests."""
MAX_LOOKED_OBJECTS_COUNT = 2000
"""Objects of which the attributes are looked at for it."""
_PLAIN_WORDS = frozenset({"iter", "input", "id", "hash", "dir", "bin", "format", "type", "next", "object"})
_OWN = frozenset({*BUILT_IN, *MACHINE})
_SYNTAX = frozenset({"e", "v", "events", "values", "recent", "latest"})
_NO_VALUES = (ModuleType, FunctionType, BuiltinFunctionType, type)
USER, LIBRARY, HIDDEN = "user", "library", "hidden"
"""Kinds of files."""


def find(frame: FrameType | None, name: str) -> Any:
    """Return the value of a name in sight from ``frame``. Raises KeyError.

    Of modules there are torch's own only, by the job's names for them.
    """
    if is_own_name(name):
        raise KeyError(name)
    if found := find_all(frame, (name,)):
        return found[name]
    spaces = [*(dict(variables_in(one, (name,))) for one in outward(frame)), *_globals(frame)]
    if modules := [space[name] for space in spaces if _is_part_of_torch(space.get(name))]:
        return modules[0]
    raise KeyError(name)


def find_all(frame: FrameType | None, names: Iterable[str]) -> dict[str, Any]:
    """Return the values of those of ``names`` that are in sight and no modules."""
    found: dict[str, Any] = {}
    missing = names
    for one in outward(frame):
        found |= {name: value for name, value in variables_in(one, missing) if not issubclass(type(value), _NO_VALUES)}
        if not (missing := [name for name in missing if name not in found]):
            return found
    for space in _globals(frame):
        values = {name: space[name] for name in missing if name in space and name not in found}
        found |= {name: value for name, value in values.items() if not issubclass(type(value), _NO_VALUES)}
    return found


class NearestFrame:
    """The user's innermost frame: usually it is as far from here as the last time."""

    def __init__(self) -> None:
        self._last: tuple[int, CodeType | None] = 0, None

    def frame(self) -> FrameType | None:
        """Return the frame; None if there is none."""
        depth, code = self._last
        with suppress(ValueError):  # the stack is not that deep
            if (frame := sys._getframe(depth)).f_code is code:
                return frame
        here: FrameType | None = sys._getframe()
        depth, nearest = 0, next(outward(here), None)
        while here not in (nearest, None):
            here, depth = here.f_back, depth + 1
        self._last = depth, getattr(nearest, "f_code", None)
        return nearest


def no_value(frame: FrameType | None, name: str) -> str:
    """Return "function", "class" or "module" for a name that is one, or nothing."""
    spaces = (space for one in outward(frame) for space in (dict(variables_in(one, (name,))), one.f_globals))
    kinds = (type(space[name]) for space in spaces if name in space)
    named = ((ModuleType, "module"), (type, "class"), (FunctionType, "function"), (BuiltinFunctionType, "function"))
    return next((word for kind in kinds for base, word in named if issubclass(kind, base)), "")


def path_to(frame: FrameType | None, name: str) -> str:
    """Return how a query reads what an object in sight has by this name, or nothing.

    That is a path such as ``self.state.epoch``. Attributes are read from the objects' own dicts: no code of the job's
    runs.
    """
    found = (path for path, key, value in _paths(frame) if key == name and not issubclass(type(value), _NO_VALUES))
    return next(found, "")


def path_of(frame: FrameType | None, thing: Any) -> str:
    """Return the path to an object that an object in sight has, or nothing."""
    return next((path for path, _, value in _paths(frame) if value is thing), "")


def _paths(frame: FrameType | None) -> Iterator[tuple[str, str, Any]]:
    """Yield what objects in sight have: path, last name and value, the nearest first."""
    seen: set[int] = set()
    level = [*bindings(frame)]
    for _ in range(MAX_PATH_PARTS_COUNT - 1):
        inner: list[tuple[str, Any]] = []
        for path, holder in level:
            if id(holder) in seen or issubclass(type(holder), _NO_VALUES) or len(seen) >= MAX_LOOKED_OBJECTS_COUNT:
                continue
            seen.add(id(holder))
            parts = _parts(holder, path)
            yield from [(whole, key, value) for key, (whole, value) in parts.items()]
            inner += parts.values()
        level = inner


def in_sight(frame: FrameType | None) -> list[str]:
    """Return names in sight that a message may list."""
    names = [
        name
        for one in outward(frame)
        if kind_of_file(one.f_code.co_filename) == USER
        for name in variable_names(one)
        if not name.startswith(("_", ".")) and name not in language_words() and any(True for _ in _values(one, (name,)))
    ]
    return list(dict.fromkeys(names))[:MAX_LISTED_NAMES_COUNT]


def may_come(frame: FrameType | None, name: str) -> bool:
    """Return True if `find` may find the name later, as a function's variable.

    Functions that the user's modules in sight define count, too.
    """
    return home_of(frame, name) is not None


def home_of(frame: FrameType | None, name: str) -> str | None:
    """Return the function that has the variable, such as ``Trainer.test``.

    Functions in sight come first; for a script itself it is ``<module>``; None if there is none.
    """
    if is_own_name(name):
        return None
    for one in outward(frame):
        if name in _assigned(one.f_code) and not variables_in(one, (name,)):
            return _home_in(one.f_code, name)
    for space in _globals(frame):
        things = [thing for thing in [*space.values()] if issubclass(type(thing), FunctionType | type)]
        things = [thing for thing in things if thing.__module__ == space.get("__name__")]
        things += [part for thing in things if issubclass(type(thing), type) for part in vars(thing).values()]
        functions = [thing for thing in things if type(thing) is FunctionType and name in _assigned(thing.__code__)]
        for function in functions:
            if kind_of_file(function.__code__.co_filename) == USER:
                return _home_in(function.__code__, name)
    return None


def bindings(frame: FrameType | None) -> Iterator[tuple[str, Any]]:
    """Yield all names in sight and their values, in the order of a search."""
    for one in outward(frame):
        names = [name for name in variable_names(one) if not name.startswith("__")]
        yield from variables_in(one, names)
    for space in _globals(frame):
        yield from [(name, value) for name, value in [*space.items()] if not name.startswith("__")]


def scope_of(frame: FrameType | None, name: str) -> str:
    """Return the function, or else the module, that has a name in sight; or nothing."""
    for one in outward(frame):
        if variables_in(one, (name,)):
            return str(getattr(one.f_code, "co_qualname", one.f_code.co_name))
    return next((str(space.get("__name__")) for space in _globals(frame) if name in space), "")


def is_argument(frame: FrameType | None, name: str) -> bool:
    """Return True if the nearest variable of that name is an argument."""
    for one in outward(frame):
        code = one.f_code
        if name in code.co_varnames:
            return name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return False


def variables_in_sight(frame: FrameType | None) -> dict[str, Any]:
    """Return the values in sight by name, as `find` finds them, without modules."""
    found: dict[str, Any] = {}
    for name, value in bindings(frame):
        if name not in found and not issubclass(type(value), _NO_VALUES):
            found[name] = value
    return found


def outward(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield the frames to read: the user's from the inside out, then libraries'."""
    later: list[FrameType] = []
    for _ in range(MAX_FRAMES_COUNT):
        if frame is None:
            break
        kind = USER if frame.f_globals.get("__name__") == "__main__" else kind_of_file(frame.f_code.co_filename)
        if kind == USER:
            yield frame
        elif kind == LIBRARY:
            later.append(frame)
        frame = frame.f_back
    yield from later


@lru_cache(4096)
def kind_of_file(file: str) -> str:
    """Return whether a file is the user's, a library's, or hidden from queries.

    >>> kind_of_file("train.py"), kind_of_file("<frozen runpy>"), kind_of_file(os.__file__)
    ('user', 'hidden', 'hidden')
    """
    if file.startswith(("<frozen", "<string>", "<torch_package", "<eval_with_key>", "<__array_function__")):
        return HIDDEN
    for folder, kind in _folders():
        if file.startswith(folder):
            return kind
    return USER


def is_own_name(name: str) -> bool:
    """Return True for names of an event itself, whatever the job calls so.

    >>> is_own_name("rank"), is_own_name("__name__"), is_own_name("norm")
    (True, True, False)
    """
    return name in _OWN or name.startswith("__")


@cache
def language_words() -> frozenset[str]:
    """Return the words of the query language, which keep their meaning.

    A variable of the job of that name is ``e['norm']``.
    """
    return frozenset(builtins.names()) - _PLAIN_WORDS | _SYNTAX | _OWN


@cache
def _folders() -> tuple[tuple[str, str], ...]:
    """Return folders of libraries and of hidden files, the longest first."""
    torch, package = sys.modules.get("torch"), sys.modules["looptap"]
    hidden = {os.path.dirname(os.path.realpath(getattr(module, "__file__", None) or "")) for module in (torch,)}
    hidden |= {os.path.dirname(getattr(torch, "__file__", None) or "")}
    hidden |= {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), os.path.dirname(os.__file__)}
    ours = os.path.dirname(package.__file__ or "")
    rooms = [os.path.join(ours, name) for name in sorted(os.listdir(ours))] if os.path.isdir(ours) else []
    hidden |= {path for room in rooms if os.path.isdir(room) for path in (room, os.path.realpath(room))}
    hidden -= {os.path.realpath(os.path.join(ours, "examples")), os.path.join(ours, "examples")}
    libraries = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    libraries |= {path for path in sys.path if path.endswith(("site-packages", "dist-packages"))}
    found = [(path, HIDDEN) for path in hidden if path] + [(path, LIBRARY) for path in libraries if path]
    ends = [(os.path.join(path, ""), kind) for path, kind in found]
    return tuple(sorted(ends, key=lambda end: -len(end[0])))


# ---------------------------------------------------------------- one frame


@lru_cache(4096)
def _assigned(code: CodeType, inner: bool = False) -> frozenset[str]:
    """Return the names that a code and those in it have for variables.

    The body of a class has none.
    """
    stores = ("STORE_GLOBAL",) if inner and not code.co_flags & CO_OPTIMIZED else ("STORE_GLOBAL", "STORE_NAME")
    names = {*code.co_varnames, *code.co_cellvars, *code.co_freevars}
    names |= {one.argval for one in get_instructions(code) if one.opname in stores}
    return frozenset(names.union(*(_assigned(one, True) for one in code.co_consts if isinstance(one, CodeType))))


def _home_in(code: CodeType, name: str) -> str:
    """Return the innermost function of a code whose variable the name is."""
    for inner in code.co_consts:
        if isinstance(inner, CodeType) and name in _assigned(inner, True):
            return _home_in(inner, name)
    return str(getattr(code, "co_qualname", code.co_name))


def _values(frame: FrameType, names: Iterable[str]) -> Iterator[Any]:
    return (value for _, value in variables_in(frame, names) if not issubclass(type(value), _NO_VALUES))


def _parts(holder: Any, path: str) -> dict[str, tuple[str, Any]]:
    """Return attributes of an object or items of a dict: paths and values by name."""
    if type(holder) is dict:
        return {key: (f"{path}[{key!r}]", value) for key, value in [*holder.items()] if type(key) is str}
    try:
        own = object.__getattribute__(holder, "__dict__")
    except AttributeError:
        return {}
    if type(own) is not dict:
        return {}
    registered = [own[one] for one in ("_modules", "_parameters", "_buffers") if type(own.get(one)) is dict]
    items = [item for space in (own, *registered) for item in [*space.items()]]
    named = [(key, value) for key, value in items if type(key) is str and key.isidentifier() and key[:1] != "_"]
    return {key: (f"{path}.{key}", value) for key, value in named}


def _is_part_of_torch(thing: Any) -> bool:
    return type(thing) is ModuleType and f"{vars(thing).get('__name__')}.".startswith("torch.")


def _globals(frame: FrameType | None) -> Iterator[dict[str, Any]]:
    """Yield the module variables of the functions in sight, then of the script."""
    seen: set[int] = set()
    for one in outward(frame):
        if id(one.f_globals) not in seen and kind_of_file(one.f_code.co_filename) == USER:
            seen.add(id(one.f_globals))
            yield one.f_globals
    main = sys.modules.get("__main__")  # also once it has ended, and no function of it is in sight
    if main is not None and id(vars(main)) not in seen and kind_of_file(_file_of(main)) == USER:
        yield vars(main)


def _file_of(module: ModuleType) -> str:
    return str(vars(module).get("__file__") or "<frozen")
