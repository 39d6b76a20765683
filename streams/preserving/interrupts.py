"""Steps that a Ctrl-C must not cut short."""

from __future__ import annotations

from collections.abc import Callable


def complete(step: Callable[[], object]) -> None:
    """Call ``step`` until Ctrl-C no longer cuts it short, then raise the last one; a second call must do no harm."""
    pressed: KeyboardInterrupt | None = None
    while True:
        try:
            step()
            break
        except KeyboardInterrupt as interrupt:
            pressed = interrupt
    if pressed is not None:
        raise pressed
