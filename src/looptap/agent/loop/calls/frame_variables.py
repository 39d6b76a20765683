"""Reads variables of a function that runs, so that nothing lives longer for it.

Before Python 3.13 reading makes a copy of a function's variables that the frame keeps: it is emptied at once. A
function that calls ``locals`` or ``exec`` shares that copy with the job; it is not read.
"""

from __future__ import annotations

import dis
import inspect
import sys
from collections.abc import Iterable
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any

_COPIES_LOCALS = sys.version_info < (3, 13)
_OPTIMIZED = inspect.CO_OPTIMIZED  # of code whose variables are no dict
_SHARING = frozenset({"locals", "vars", "dir", "eval", "exec"})


def variable_names(frame: FrameType) -> list[str]:
    """Return the names that a frame's code has for variables."""
    code = frame.f_code
    return [*variables_of(code)] if code.co_flags & _OPTIMIZED else [*frame.f_locals]


def variables_in(frame: FrameType, names: Iterable[str]) -> list[tuple[str, Any]]:
    """Return those of ``names`` that a frame has now, with their values.

    >>> def double(x):
    ...     return variables_in(sys._getframe(), ["x", "y"])
    >>> double(2)
    [('x', 2)]
    """
    code = frame.f_code
    if not code.co_flags & _OPTIMIZED:
        space = frame.f_locals
        return [(name, space[name]) for name in names if name in space]
    known = variables_of(code)
    wanted = [name for name in names if name in known]
    if not wanted:
        return []
    space = frame.f_locals
    try:
        return [(name, space[name]) for name in wanted if name in space]
    finally:
        if _COPIES_LOCALS:
            space.clear()


@lru_cache(4096)
def variables_of(code: CodeType) -> frozenset[str]:
    """Return the variables of a function's code; none if they are shared with it."""
    if _COPIES_LOCALS and not _SHARING.isdisjoint(code.co_names):
        loads = ("LOAD_GLOBAL", "LOAD_NAME")  # and not an attribute of this name
        if any(one.opname in loads and one.argval in _SHARING for one in dis.get_instructions(code)):
            return frozenset()
    return frozenset((*code.co_varnames, *code.co_cellvars, *code.co_freevars))
