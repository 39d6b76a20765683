"""Read the source of a function, from its file or as sent with it."""

from __future__ import annotations

import inspect
import types

SOURCE = "__looptap_source__"
"""The attribute of a function that has travelled: its lines, the number of the first, its file."""


def source_of(f: types.FunctionType) -> tuple[str, int, str] | None:
    """Return a function's lines, the number of the first, and the file, or None."""
    travelled = f.__dict__.get(SOURCE)
    if type(travelled) is tuple and tuple(map(type, travelled)) == (str, int, str):
        return travelled
    try:
        lines, first = inspect.getsourcelines(f.__code__)
    except (OSError, TypeError, IndexError, SyntaxError):
        return None
    return "".join(lines), max(first, 1), f.__code__.co_filename
