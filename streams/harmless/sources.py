"""Read the source of a function, from its file or as sent with it."""

from __future__ import annotations

import inspect
import linecache
import re
import sys
import types

SOURCE = "__looptap_source__"
"""The attribute of a function that has travelled: its lines, the number of the first, its file."""


def source_of(f: types.FunctionType) -> tuple[str, int, str] | None:
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
