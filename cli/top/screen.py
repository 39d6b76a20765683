"""`looptap top`: a run on one screen, or on one page where there is no terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from looptap.cli.formats import json_of, printable
from looptap.cli.output import DONE, FAILED, complain
from looptap.cli.sources import attached
from looptap.cli.top.model import Facts, measured, report


def top(
    name: str, queries: Sequence[str], how: dict[str, Any], *, as_json: bool, go_on: bool, wait: float | None = None
) -> int:
    """Show the run ``name`` until the user leaves it; returns the exit code.

    ``how`` are the further arguments of `Run.stream` for ``queries``; ``go_on`` moves on to the next run of the name.
    """
    with attached(name, go_on, queries, wait=wait) as run:
        streams = [run.stream(query, **how) for query in queries]
        if as_json:
            print(json_of(report(measured(run))))
            return DONE
        why = _no_screen()
        if why:
            _page(measured(run))
            print(f"looptap: {why} For one that goes on: looptap watch {name} QUERY", file=sys.stderr)
            return DONE
        try:
            from looptap.cli.top.app_screen import Top
        except ImportError as error:
            return complain(f"looptap top needs the package {error.name}: pip install 'looptap[terminal]'")
        app = Top(run, streams)
        app.run()
        if app.return_code:  # what went wrong was printed when the screen was given back
            return FAILED
    return DONE


def _no_screen() -> str:
    """Why there can be no screen here; empty if there can."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return "This is no terminal, so here is how the run is now."
    if os.environ.get("TERM", "dumb") in ("dumb", "unknown"):
        return f"The terminal (TERM={os.environ.get('TERM', '')}) draws no screen, so here is how the run is now."
    return ""


def _page(seen: Facts) -> None:
    from looptap.cli.top.views import commands, heading, vitals

    for line in (heading(seen), *vitals(seen)):
        print(line.plain)
    for stream in seen.streams:
        print(f"stream   {printable(stream.name)}: {stream.values:,} values, {stream.rate:.3g}/s")
    for control in seen.controls.values():
        print(f"control  {printable(str(control))}")
    for command in commands(seen, 5).plain.splitlines() if seen.commands else ():
        print(f"command  {command}")
