"""`looptap top`: a run on one screen; printed once if there is no terminal."""

from __future__ import annotations

import os
import sys
from typing import Annotated

from typer import Argument, Option

from looptap.cli.formats import printable, scalar_lines
from looptap.cli.options import (
    Budget,
    Every,
    Follow,
    On,
    RunName,
    Unsafe,
    Wait,
    WindowSize,
    only_with,
    query_arguments,
)
from looptap.cli.output import DONE, FAILED, complain, remark, say, say_json
from looptap.cli.sources import attached, from_start
from looptap.cli.top.model import Facts, measured, report


def top_command(
    run: RunName,
    queries: Annotated[
        list[str] | None, Argument(metavar="QUERY", help="Shown in addition to the streams that the job declares.")
    ] = None,
    on: On = None,
    window: WindowSize = None,
    every: Every = 1,
    budget: Budget = None,
    unsafe: Unsafe = False,
    follow: Follow = False,
    wait: Wait = None,
    as_json: Annotated[
        bool, Option("--json", help="Print one JSON object with the state of the run, and exit.")
    ] = False,
) -> int:
    """Show a run on one screen: rates, costs, streams, controls.

    \b
      looptap top digits-cnn
      looptap top digits-cnn "step, loss" "mean(e.loss for e in events)"
      looptap top digits-cnn --json | jq .events

    It opens with the declared streams. Without a query it also shows the curves of the numbers in events, from the
    first event on. Keys: a adds a query, g the norm of all gradients, d drops the stream that was selected with Tab;
    e moves to the controls, where Enter asks for a new value; u undoes the last change, p pauses and resumes, s stops
    the job, each after you confirm; c shows how the run was started; q or Ctrl-C quits, and the job continues.

    The first line says when the connection is lost; looptap reconnects automatically. Without a terminal, the state
    of the run is printed once. It needs the package textual: pip install 'looptap[terminal]'.
    """
    only_with("a QUERY", bool(queries), unsafe=unsafe)
    how = query_arguments(on, window, every, budget, unsafe=unsafe)
    with attached(run, follow, queries or (), wait=wait) as job:
        streams = [job.stream(query, **how, history=from_start(job, query, how)) for query in queries or ()]
        if as_json:
            return say_json(report(measured(job)))
        if why := _no_screen():
            _page(measured(job))
            remark(f"{why} For a live view: looptap watch {run} QUERY")
            return DONE
        try:
            from looptap.cli.top.app_screen import Top
        except ImportError as error:
            return complain(f"looptap top needs the package {error.name}: pip install 'looptap[terminal]'")
        app = Top(job, streams)
        app.run()
    return FAILED if app.return_code else DONE  # what went wrong was printed when the screen was given back


def _no_screen() -> str:
    """Return why no screen can open here; "" if one can."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return "This is no terminal, so here is the state of the run."
    term = os.environ.get("TERM", "")
    blind = term in ("", "dumb", "unknown")
    return f"The terminal (TERM={term}) draws no screen, so here is the state of the run." if blind else ""


def _page(seen: Facts) -> None:
    from looptap.cli.top.views import heading, newest_commands, vitals

    for line in (heading(seen), *vitals(seen)):
        say(line.plain)
    for stream in seen.streams:
        print(f"stream   {printable(stream.name)}: {stream.values:,} values, {stream.rate:.3g}/s")
    for scalars in scalar_lines(seen.scalars):
        print(f"scalars  {printable(scalars)}")
    for control in seen.controls.values():
        print(f"control  {printable(str(control))}")
    for command in newest_commands(seen, 5).plain.splitlines() if seen.commands else ():
        say(f"command  {command}")
