"""Steps that a Ctrl-C must not interrupt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


def run_between(begin: Callable[[], object], end: Callable[[], object], do: Callable[..., T], *given: Any) -> T:
    """Return what ``do`` gives between ``begin`` and ``end``.

    ``end`` is called whatever happens, also if ``begin`` raises. A second call of it must do no harm.
    """
    try:
        try:
            begin()
            return do(*given)
        finally:
            complete(end)
    except KeyboardInterrupt:
        complete(end)  # it may have come before that was done
        raise


def complete(step: Callable[[], object]) -> None:
    """Call ``step`` until no Ctrl-C interrupts it, then raise the last one.

    A second call of ``step`` must do no harm.
    """
    pressed: KeyboardInterrupt | None = None
    while True:
        try:
            step()
            break
        except KeyboardInterrupt as interrupt:
            pressed = interrupt
    if pressed is not None:
        raise pressed
