"""Methods of an object that its parts carry out."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def forwarded(part: str, method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
    """Make a method that calls ``method`` of the attribute ``part``.

    It has the signature and the docstring of that method.
    """

    @functools.wraps(method)
    def forward(whole: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return method(getattr(whole, part), *args, **kwargs)

    return forward
