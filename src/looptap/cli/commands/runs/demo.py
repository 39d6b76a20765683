"""`looptap demo`: two real training jobs in other processes, and queries to them."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from types import FrameType
from typing import Annotated

from typer import Option

from looptap.cli.options import integer
from looptap.cli.output import DONE, complain

NEEDS = {"torch": "torch"}
"""Required packages, and the modules that they install."""
DEFAULT_WIDTH_COLUMNS = 100
"""The width of the output without a terminal."""


def demo_command(
    epochs: Annotated[int, Option(metavar="N", parser=integer(2), help="Epochs that the first job trains.")] = 60,
) -> int:
    """Start a small training job, attach to it, and query it.

    It takes a minute. First a network that learns handwritten digits: the loss of each batch, its mean over each
    epoch, the gradients of each layer, when it will be done, and the digits that it gets most wrong, live; then what
    these queries cost the job. Then a job that diverges, and a flight recorder that shows the batches before the first
    NaN. The jobs are looptap/examples/digits.py and diverging.py; they need torch:

    \b
      pip install 'looptap[demo]'
      looptap demo
    """
    missing = [package for package, module in NEEDS.items() if find_spec(module) is None]
    if missing:
        return complain(
            f"The demo trains a small network and needs {' and '.join(missing)}: pip install 'looptap[demo]'"
        )
    # Not at the top: every command would load what only the demo draws with.
    from rich.console import Console

    from looptap.cli.demo.digits import Digits
    from looptap.cli.demo.diverging import Diverging

    console = Console(highlight=False) if sys.stdout.isatty() else Console(highlight=False, width=DEFAULT_WIDTH_COLUMNS)
    with _stoppable():
        for part in (Digits(console, epochs), Diverging(console)):
            part.show()
            if problem := part.problem():
                return complain(problem)
    console.print(
        "\nNow a script of your own: [bold]looptap run train.py[/], and in another terminal "
        "[bold]looptap watch train loss[/]."
    )
    return DONE


@contextmanager
def _stoppable() -> Iterator[None]:
    """Let SIGTERM and a closed terminal end the demo, and its jobs, like Ctrl-C."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    names = [name for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {name: signal.signal(getattr(signal, name), interrupt) for name in names}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(getattr(signal, name), handler)
