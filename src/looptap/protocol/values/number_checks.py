"""Checks of numbers that users and other programs give: plain ones, not bools."""

from __future__ import annotations

from typing import Any, TypeGuard


def is_real(value: object) -> TypeGuard[int | float]:
    """Return True for a number of Python's own; True and False are none.

    >>> is_real(0.5), is_real(2), is_real(True), is_real("2")
    (True, True, False, False)
    """
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_whole(value: object) -> TypeGuard[int]:
    """Return True for a whole number; True and False are none.

    >>> is_whole(2), is_whole(2.0), is_whole(True)
    (True, False, False)
    """
    return isinstance(value, int) and not isinstance(value, bool)


def unboxed(value: Any) -> Any:
    """Return the number in an array without dimensions, anything else as it is.

    >>> import numpy as np
    >>> unboxed(np.float32(0.5)), unboxed("a")
    (0.5, 'a')
    """
    return value.item() if getattr(value, "ndim", None) == 0 and hasattr(value, "item") else value
