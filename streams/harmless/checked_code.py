"""Register code that checks itself, and the call that checks all other code."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import Any

MAX_CHECKED_COUNT = 20_000
"""Functions whose checked form is known at a time."""
CHECKS: dict[str, Any] = {}
"""The operations by the names that rewritten code has for them, in the order of its parameters."""
_checked: dict[int, tuple[CodeType, str]] = {}  # by identity: the hash of code takes a millisecond
_calls: list[Callable[..., Any]] = []


def call(f: Any, /, *given: Any, **named: Any) -> Any:
    """Return ``f(…)``, checked. Raises `Refusal`."""
    return _calls[0](f, *given, **named)


def bind_call(function: Callable[..., Any]) -> None:
    """Set what `call` does: `calls` needs the modules that need it."""
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
