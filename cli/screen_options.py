"""The commands of `looptap` that open a screen or a window, with their options and their help."""

from __future__ import annotations

from typing import Annotated

import typer
from typer import Argument, Option

from looptap.cli.names import RUN_HELP, Budget, Combine, Name, Ranks, Wait, ranks_of

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
Follow = Annotated[
    bool, Option("--follow", help="Wait for a run that has not started, and when it has ended for the next one.")
]


def install(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    app.command("plot", short_help="Show queries, or the streams of a stored run, as charts in a window.")(plot)
    app.command("top", short_help="A run on one screen: rates, costs, streams, controls, commands.")(top)


def top(
    run: Name,
    queries: Annotated[
        list[str] | None, Argument(metavar="QUERY", help="Shown beside the streams that the job declares.")
    ] = None,
    on: On = None,
    window: Window = None,
    every: Every = 1,
    budget: Budget = None,
    follow: Follow = False,
    wait: Wait = None,
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
    from looptap.cli.commands.watch import window_of
    from looptap.cli.top import screen

    how = {"on": on, "window": window_of(window), "every": every, "budget": budget}
    return screen.top(run, queries or [], how, as_json=as_json, go_on=follow, wait=wait)


def plot(
    run: Annotated[
        str,
        Argument(
            metavar="RUN",
            show_default=False,
            help=f"{RUN_HELP} Or the file of a stored run, or a directory of TensorBoard's.",
        ),
    ],
    queries: Annotated[
        list[str] | None,
        Argument(metavar="QUERY", help="Queries, each in quotes, or names of streams. Without: all there are."),
    ] = None,
    on: On = None,
    window: Window = None,
    every: Every = 1,
    ranks: Ranks = None,
    combine: Combine = None,
    budget: Budget = None,
    chart: Annotated[
        str, Option(metavar="KIND", help="The kind of chart, where the first value does not tell.", show_default=False)
    ] = "",
    x: Annotated[
        str,
        Option("--x", metavar="WHAT", show_default=False, help="Over step, epoch, event, time, wall, or a field."),
    ] = "",
    rows: Annotated[int, Option(metavar="N", help="In how many rows the charts stand.", show_default=False)] = 0,
    together: Annotated[bool, Option("--together", help="All on one chart.")] = False,
    place: Annotated[
        str, Option("--in", metavar="PLACE", help="tk, qt, browser or terminal; else the first that works.")
    ] = "",
    save: Annotated[
        str, Option(metavar="FILE", help="Open nothing; write the charts to FILE: .png, .svg, .pdf or .html.")
    ] = "",
    after: Annotated[float, Option(metavar="S", help="With --save: once values have come for S seconds.")] = 5.0,
    follow: Follow = False,
    wait: Wait = None,
) -> int:
    """Show what queries yield as charts that move, until you close the window or press Ctrl-C. The job goes on.

    \b
      looptap plot digits-cnn "step, loss" "mean(e.loss for e in events)"
      looptap plot digits-cnn "layer_norms(model, 'grad')" --every 20
      looptap plot digits-cnn loss lr --together
      looptap plot digits-cnn "step, loss" --ranks all
      looptap plot looptap-runs/digits-cnn-20260102-030405-1a2b.looptap
      looptap plot digits-cnn loss --save loss.png --after 10

    The kind of chart follows from the first value; --chart says another. Keys: space lets the pictures stand, s saves
    them here, the arrows and End go through earlier frames and Enter plays them, h shows the whole again after a zoom,
    q closes.

    The window is one of Tk, else of Qt; where there is no display, it is a page in the browser, or the terminal, and a
    line says why. A window needs matplotlib: pip install 'looptap[window]'.
    """
    from looptap.cli.commands import plot as plotting
    from looptap.cli.commands.watch import window_of

    how: dict[str, object] = {"on": on, "window": window_of(window), "every": every, "budget": budget}
    if ranks is not None or combine is not None:
        how |= {"ranks": ranks_of(ranks), "combine": combine}
    look = {"chart": chart, "x": x, "rows": rows}
    return plotting.plot(
        run, queries or [], how, look, together=together, place=place, save=save, after=after, go_on=follow, wait=wait
    )
