"""The commands of `looptap` that open a screen or a window, with their options and their help."""

from __future__ import annotations

from typing import Annotated

import typer
from typer import Argument, Option

from looptap.cli.names import Name

On = Annotated[
    str | None,
    Option(
        "--on", metavar="EVENT", show_default=False,
        help="The type of event of the queries; batch if not given.",
    ),
]  # fmt: skip
Window = Annotated[
    str | None,
    Option(
        metavar="SIZE", show_default=False,
        help="What a reduction goes over: 100 (events), 30s (seconds), sliding:100. Without it: a group of the job.",
    ),
]  # fmt: skip
Every = Annotated[int, Option(metavar="N", help="Look at each N-th event only.")]
Follow = Annotated[bool, Option("--follow", help="When the run has ended, go on with the next of its name.")]


def install(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    app.command("top", short_help="A run on one screen: rates, costs, streams, controls, commands.")(top)


def top(
    run: Name,
    queries: Annotated[
        list[str] | None, Argument(metavar="[QUERY]...", help="Shown beside the streams that the job declares.")
    ] = None,
    on: On = None,
    window: Window = None,
    every: Every = 1,
    follow: Follow = False,
    as_json: Annotated[bool, Option("--json", help="Print how the run is now as one JSON object, and end.")] = False,
) -> int:
    """Show a run on one screen: how fast its loop is, what looptap costs it, its streams, controls and last commands.

    \b
      looptap top digits-cnn
      looptap top digits-cnn "step, loss" "mean(e.loss for e in events)"
      looptap top digits-cnn --json | jq .events

    The streams that the job declares are there from the start. Keys: a adds a query, d drops the stream that was
    chosen with Tab; e goes to the controls, where Enter asks for a new value; p pauses and resumes, s stops the job,
    both after a question; q or Ctrl-C leaves. The job goes on.

    A link that is lost is said in the first line, and restored by itself. Where there is no terminal, how the run is
    now is printed once. It needs the package textual: pip install 'looptap[terminal]'.
    """
    from looptap.cli import top as screen
    from looptap.cli.watching import window_of

    how = {"on": on, "window": window_of(window), "every": every}
    return screen.top(run, queries or [], how, as_json=as_json, go_on=follow)
