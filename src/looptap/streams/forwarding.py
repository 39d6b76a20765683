"""Methods that the parts of an object carry out, under the name that users call.

A TypeError of Python names the function that got a wrong argument. Users know the whole object and not its parts, so
the methods here have its name: ``Agent.control() got an unexpected keyword argument``.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C", bound=type)
_FACADES: set[type] = set()


def forwarded(part: str, method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
    """Make a method that calls ``method`` of the attribute ``part``.

    Or of the object itself, if ``part`` is empty. It has the signature and the docstring of ``method``, which is named
    after the object.
    """
    return cast("Callable[Concatenate[Any, P], T]", _Forwarded(part, method))


def facade(whole: C) -> C:
    """Name the methods that a class inherits from its parts after the class.

    Its parts are its bases up to the next façade.
    """
    for base in whole.__mro__[1:-1]:
        if base in _FACADES:
            break
        for name, method in vars(base).items():
            if isinstance(method, FunctionType) and not name.startswith("_"):
                method.__qualname__ = f"{whole.__qualname__}.{name}"
    _FACADES.add(whole)
    return whole


def check_options(called: str, options: Iterable[str], function: Callable[..., Any]) -> None:
    """Raise TypeError, as of a call of ``called``, for what ``function`` lacks."""
    known = inspect.signature(function).parameters
    for name in options:
        if name not in known or known[name].kind is not inspect.Parameter.KEYWORD_ONLY:
            raise TypeError(f"{called}() got an unexpected keyword argument {name!r}")


class _Forwarded:
    """A method in the body of a class, until the names of both are known."""

    def __init__(self, part: str, method: Callable[..., Any]) -> None:
        self._part, self._method = part, method

    def __set_name__(self, owner: type, name: str) -> None:
        part, method = self._part, self._method
        method.__qualname__ = f"{owner.__qualname__}.{name}"

        @functools.wraps(method)
        def forward(whole: Any, /, *args: Any, **kwargs: Any) -> Any:
            return method(getattr(whole, part), *args, **kwargs)

        setattr(owner, name, forward if part else method)
