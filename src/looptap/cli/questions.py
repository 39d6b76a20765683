"""Asks at the terminal before a command that may be a slip of the hand."""

from __future__ import annotations

import sys
from typing import Annotated

from typer import Option

from looptap.cli.formats import printable
from looptap.cli.output import FAILED, MISTYPED, complain

Yes = Annotated[bool, Option("--yes", "-y", help="Do it without a question; needed where there is no terminal.")]


def refused(question: str, yes: bool, option: str = "--yes") -> int | None:
    """Ask ``question`` at the terminal; return None after a yes, else the exit code.

    ``yes``, which is ``option``, answers it beforehand. Without a terminal nothing is asked and nothing done.
    """
    if yes:
        return None
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        complain(f"{question} There is no terminal to ask at, so nothing was done: confirm it with {option}.")
        return MISTYPED
    sys.stdout.flush()
    try:
        print(f"looptap: {printable(question)} [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() in ("y", "yes"):
            return None
    except KeyboardInterrupt:
        print(file=sys.stderr)  # below ^C
        complain("Nothing was done.")
        raise
    complain("Nothing was done.")
    return FAILED
