"""Register code that checks itself, and the call that checks all other code."""

from __future__ import annotations

import inspect
import linecache
import re
import sys
import types
from collections.abc import Callable
from types import CodeType
from typing import Any

MAX_CHECKED_COUNT = 20_000
"""Functions whose checked form is known at a time."""
CHECKS: dict[str, Any] = {}
"""The operations by the names that rewritten code has for them, in the order of its parameters."""
_checked: dict[int, tuple[CodeType, str]] = {}  # by identity: the hash of code takes a millisecond
_calls: list[Callable[..., Any]] = []


def checked_call(f: Any, /, *given: Any, **named: Any) -> Any:
    """Return ``f(…)``, checked. Raises `Refusal`."""
    return _calls[0](f, *given, **named)


def bind_call(function: Callable[..., Any]) -> None:
    """Set what `checked_call` does: `calls` needs the modules that need it."""
    _calls[:] = [function]


def note_checked(code: CodeType, file: str) -> None:
    """Note code whose functions check themselves; ``file`` has its source."""
    if len(_checked) > MAX_CHECKED_COUNT:
        _checked.clear()
    _checked[id(code)] = code, file
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            note_checked(constant, file)


def is_checked(code: CodeType) -> bool:
    """Return True for the code of a function that checks its own operations."""
    return id(code) in _checked


def file_of(code: CodeType) -> str:
    """Return the file of a checked function of the job; "" for anything else."""
    return _checked[id(code)][1] if id(code) in _checked else ""


SOURCE = "__looptap_source__"
"""The attribute of a function that has travelled: its lines, the number of the first, its file."""


def code_lines(f: types.FunctionType) -> tuple[str, int, str] | None:
    """Return a function's lines, the number of the first, and the file, or None."""
    travelled = f.__dict__.get(SOURCE)
    if type(travelled) is tuple and tuple(map(type, travelled)) == (str, int, str):
        return travelled
    code, frozen = f.__code__, re.fullmatch("<frozen (.*)>", f.__code__.co_filename)
    try:
        if frozen:  # a module of Python's that is part of the interpreter, and has a file all the same
            file = str(sys.modules[frozen[1]].__file__)
            found = inspect.getblock(linecache.getlines(file)[code.co_firstlineno - 1 :])
            return "".join(found), code.co_firstlineno, file
        lines, first = inspect.getsourcelines(code)
    except (OSError, TypeError, IndexError, SyntaxError, KeyError):
        return None
    return "".join(lines), max(first, 1), code.co_filename
