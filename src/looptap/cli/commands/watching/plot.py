"""`looptap plot`: streams as charts, in a window, the browser or the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import Annotated, Any

from typer import Argument, BadParameter, Option

from looptap.cli import completion
from looptap.cli.formats import several
from looptap.cli.options import (
    RUN_HELP,
    Budget,
    Combine,
    Every,
    Follow,
    Of,
    On,
    Place,
    Ranks,
    Unsafe,
    Wait,
    WindowSize,
    choice,
    integer,
    only_with,
    query_arguments,
    time_of,
)
from looptap.cli.output import DONE, FAILED, MISTYPED, complain, remark, say
from looptap.cli.sources import compared_streams, is_stored_path, source, streams_of
from looptap.store.reader import open as open_stored
from looptap.streams.stream.stream import Stream
from looptap.streams.waiting import poll_until
from looptap.visualizers.charts.chart import IncompatibleStreams
from looptap.visualizers.plot import Plot
from looptap.visualizers.surfaces.saving import checked_path

POLL_INTERVAL_SECONDS = 0.05
"""Seconds between two checks while waiting for values."""
_COLLECT_SECONDS = 5.0  # unless an option says how long


def _weight(text: Any) -> float:
    """Return the weight of a moving average. Raises BadParameter."""
    try:
        if 0 <= (found := float(text)) < 1:
            return found
    except ValueError:
        pass
    raise BadParameter(f"{text!r} must be at least 0 and less than 1, such as 0.9.")


def plot_command(
    run: Annotated[
        str,
        Argument(
            metavar="RUN",
            show_default=False,
            help=f"{RUN_HELP} Or the file of a stored run, or a directory of TensorBoard's; several are compared.",
        ),
    ],
    queries: Annotated[
        list[str] | None,
        Argument(
            metavar="QUERY",
            help="Queries, each in quotes, or names of streams. By default all streams that the job declares or has "
            "stored, and the curves of what its events carry, from the first event on.",
            autocompletion=completion.query_words,
        ),
    ] = None,
    on: On = None,
    of: Of = None,
    window: WindowSize = None,
    every: Every = 1,
    ranks: Ranks = None,
    combine: Combine = None,
    budget: Budget = None,
    unsafe: Unsafe = False,
    chart: Annotated[
        str, Option(metavar="KIND", help="The kind of chart; by default the first value decides.", show_default=False)
    ] = "",
    x: Annotated[
        str,
        Option("--x", metavar="WHAT", show_default=False, help="Over step, epoch, event, time, wall, or a field."),
    ] = "",
    log: Annotated[
        str,
        Option(
            "--log",
            metavar="AXES",
            parser=choice("x", "y", "xy", "none"),
            show_default=False,
            help="Logarithmic axes: x, y, xy or none; by default by the values.",
        ),
    ] = "",
    smooth: Annotated[
        float,
        Option(
            "--smooth",
            metavar="WEIGHT",
            parser=_weight,
            show_default=False,
            help="Draw a moving average, as in 0.9.",
        ),
    ] = 0.0,
    clip: Annotated[bool, Option("--clip", help="Leave outliers out of the limits.")] = False,
    rows: Annotated[
        int, Option(metavar="N", parser=integer(1), help="The number of rows of charts.", show_default=False)
    ] = 0,
    together: Annotated[bool, Option("--together", help="Draw all on one chart.")] = False,
    place: Place = "",
    save: Annotated[
        str,
        Option(
            metavar="FILE",
            help="Open nothing; write the charts to FILE: .png, .svg, .pdf, .html, .csv, .txt or .gif.",
        ),
    ] = "",
    after: Annotated[
        float | None,
        Option(
            metavar="TIME",
            parser=time_of,
            show_default="5 s, or no limit with --count",
            help="With --save: how long to collect values, such as 10s.",
        ),
    ] = None,
    count: Annotated[
        int | None,
        Option(
            metavar="N",
            parser=integer(1),
            show_default=False,
            help="With --save: end as soon as each stream has N values.",
        ),
    ] = None,
    follow: Follow = False,
    wait: Wait = None,
) -> int:
    """Draw queries, or the streams of a stored run, as live charts.

    They update until you close the window or press Ctrl-C; the job continues. Several stored runs are drawn on shared
    axes, a line for each.

    \b
      looptap plot digits-cnn "step, loss" "mean(e.loss for e in events)"
      looptap plot digits-cnn "layer_norms(model, 'grad')" --every 20
      looptap plot digits-cnn loss lr --together
      looptap plot digits-cnn "step, loss" --ranks all
      looptap plot looptap-runs/digits-cnn-20260102-030405-1a2b.looptap
      looptap plot looptap-runs/*.looptap loss
      looptap plot digits-cnn loss --save loss.png --after 10s
      looptap plot digits-cnn "step, loss" --save loss.png --count 500

    The kind of chart follows from the first value; --chart names another. Keys: space pauses the pictures, s saves
    them here, l, e, x and c change axes, smoothing, x and outliers, k shows the knobs of the job, the arrows and End
    step through earlier frames and Enter plays them, h resets the view after a zoom, q closes.

    The window is one of Tk, else of Qt; without a display it is a page in the browser, or the terminal, and a line
    says why. A window needs matplotlib: pip install 'looptap[window]'.
    """
    from looptap.visualizers.surfaces.capabilities import NoPlace
    from looptap.visualizers.surfaces.showing import show

    only_with("a QUERY", bool(queries), unsafe=unsafe)
    how = query_arguments(on, window, every, budget, ranks, combine, of, unsafe)
    look: dict[str, Any] = {"chart": chart, "x": x, "rows": rows, "smooth": smooth, "clip": clip}
    only_with("--save", bool(save), count=count, after=after)  # a live chart takes values until you close it
    look["log"] = {"": None, "none": ""}.get(log, log)
    names, files = queries or [], [run] * is_stored_path(run)
    while files and names and is_stored_path(names[0]):
        files, names = [*files, names[0]], names[1:]
    with ExitStack() as opened:
        if save:
            opened.push(_say_unsaved)
            _check(save)  # before values are collected, for hours perhaps
        if len(files) > 1:
            groups = compared_streams([opened.enter_context(open_stored(file)) for file in files], names, how)
            look["x"] = x or "step"
        else:
            job = source(run, follow=follow, wait=wait)
            opened.callback(job.close)
            groups = [[stream] for stream in streams_of(job, names, how)]
        streams = [stream for group in groups for stream in group]
        apart = [group if len(group) > 1 else group[0] for group in groups]  # one stream may have several charts
        try:
            charts = Plot(*([streams] if together else apart), **look)
        except IncompatibleStreams as error:
            return complain(str(error))
        except ValueError as error:  # a kind of chart that there is not, or a look
            complain(str(error))
            return MISTYPED
        if save:
            return _save(charts, streams, save, after, count)
        try:
            with suppress(KeyboardInterrupt):  # enough seen
                show(charts, place=place, block=True, report=remark)
        except (NoPlace, ValueError) as error:
            return complain(str(error))
    return DONE


def _check(path: str) -> None:
    """Raise BadParameter for a file that cannot be written."""
    try:
        checked_path(path)
    except ValueError as error:
        raise BadParameter(str(error)) from None


def _say_unsaved(kind: type[BaseException] | None, *_: object) -> None:
    if kind is KeyboardInterrupt:
        complain("Interrupted, and nothing was saved.")


def _save(charts: Plot, streams: Sequence[Stream], path: str, after: float | None, count: int | None) -> int:
    """Write a chart to a file, after a time or when each stream has its values."""
    limit = _COLLECT_SECONDS if after is None and count is None else after
    wanted = math.inf if count is None else count
    fewest = partial(min, streams, key=lambda stream: stream.arrived)
    in_time = poll_until(lambda: not charts.live or fewest().arrived >= wanted, POLL_INTERVAL_SECONDS, limit)
    charts.pull()
    silent = [stream for stream in streams if not stream.arrived]
    if len(silent) == len(streams):
        why = "came" if in_time else f"came within {limit:g} s"
        said = f"No value of {streams[0].name!r} {why}, and nothing was saved. {streams[0].outlook()}"
        return complain(said.rstrip())
    try:
        charts.save(path)
    except (ValueError, ImportError) as error:
        return complain(str(error))
    say(f"{several(sum(stream.arrived for stream in streams), 'value')} drawn; saved: {path}")
    for stream in silent:
        why = stream.reason if stream.state == "failed" else stream.outlook()
        complain(f"No value of {stream.name!r} came, so its chart is empty. {why}".rstrip())
    if any(stream.state == "failed" for stream in streams):
        return FAILED
    if count is None or in_time:
        return DONE
    late = fewest()
    return complain(f"{late.arrived:,} of {several(count, 'value')} of {late.name!r} came within {limit:g} s.")
