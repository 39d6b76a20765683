"""`looptap demo`: two real training jobs in processes of their own, and what can be asked of them."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from types import FrameType

from rich.console import Console

from looptap.cli.demo.digits import Digits
from looptap.cli.demo.diverging import Diverging
from looptap.cli.output import DONE, complain

NEEDS = {"torch": "torch", "scikit-learn": "sklearn"}
"""Packages, and the modules that they bring."""
DEFAULT_WIDTH_COLUMNS = 100
"""Columns where there is no terminal that says how many it has."""


def demo(epochs: int) -> int:
    """Run both parts, the first job for ``epochs``; the exit code is 0 only if every query yielded values."""
    missing = [package for package, module in NEEDS.items() if find_spec(module) is None]
    if missing:
        return complain(
            f"The demo trains a small network and needs {' and '.join(missing)}: pip install 'looptap[demo]'"
        )
    console = Console(highlight=False) if sys.stdout.isatty() else Console(highlight=False, width=DEFAULT_WIDTH_COLUMNS)
    with _stoppable():
        for part in (Digits(console, epochs), Diverging(console)):
            part.show()
            if problem := part.problem():
                return complain(problem)
    console.print(
        '\nIn a job of your own: [bold]agent = looptap.Agent("name")[/], and at each step '
        '[bold]agent.emit("batch", step=step, loss=loss)[/].'
    )
    return DONE


@contextmanager
def _stoppable() -> Iterator[None]:
    """Let SIGTERM and a closed terminal end the demo as Ctrl-C does, so that no job is left behind."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    names = [name for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {name: signal.signal(getattr(signal, name), interrupt) for name in names}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(getattr(signal, name), handler)
