"""What commands print: sentences and JSON on stdout, notes on stderr; exit codes."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

DONE, FAILED, MISTYPED, INTERRUPTED = 0, 1, 2, 130
"""Exit codes."""


def version_line() -> str:
    """Return what `looptap --version` prints."""
    from looptap.streams.native.compiled import which_tap
    from looptap.streams.native.installed import installed_version

    return f"looptap {installed_version()}, {which_tap()}"


def drop_output() -> None:
    """Print nothing from here on: the reader of the pipe has left."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or flushing at exit would fail again


def complain(text: str) -> int:
    """Print one sentence to stderr; return the exit code of a failure."""
    remark(text)
    return FAILED


def remark(text: str) -> None:
    """Print one sentence to stderr, below what was printed before."""
    from looptap.cli.formats import printable

    sys.stdout.flush()
    print("looptap:", printable(text, keep="\n\t"), file=sys.stderr, flush=True)


def say(text: str) -> None:
    """Print what may hold text of a job or a file; nothing in it steers the terminal."""
    from looptap.cli.formats import printable

    print(printable(text, keep="\n\t"), flush=True)


def say_json(value: Any) -> int:
    """Print a value as JSON on one line; return the exit code of success."""
    from looptap.cli.formats import json_of

    print(json_of(value))
    return DONE


def fact_line(name: str, text: str | Text) -> Text:
    """Return a line of a paragraph: a dim title, and a text that may be of a job."""
    from rich.text import Text

    from looptap.cli.formats import printable

    return Text.assemble((f"  {printable(name):<9} ", "dim"), printable(text) if isinstance(text, str) else text)


def can_draw() -> bool:
    """Return True if the output is a terminal on which lines can be drawn again."""
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def console() -> Console:
    """Return a console for lines, of any width."""
    from rich.console import Console

    class PipeConsole(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # instead of an exit with 1: see GroupedCommands

    return PipeConsole(highlight=False, soft_wrap=True)
