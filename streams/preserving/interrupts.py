"""Steps that a Ctrl-C must not interrupt."""

from __future__ import annotations

from collections.abc import Callable


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
