"""`looptap progress`: when a run will be done, as a bar with a band."""

from __future__ import annotations

import math
import os
import re
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from typer import Option

from looptap.cli.commands.watching.bar_guess import bar_reports
from looptap.cli.commands.watching.guess import Guess, GuessedReports, counted
from looptap.cli.formats import json_of, printable, several
from looptap.cli.options import RunName, TimeSpan, Wait, time_of, whole
from looptap.cli.output import DONE, complain, say
from looptap.cli.sources import attached
from looptap.client.estimates import banded, is_report, reports, said
from looptap.protocol.keys import VIEWER
from looptap.streams.durations import duration
from looptap.streams.text import last_line

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

    from looptap.client.run import Run
    from looptap.client.streams.live import LiveStream
    from looptap.streams.stream.stream import Record

    Reports: TypeAlias = LiveStream | Guess

STILL_SECONDS = 5.0
"""Seconds without an event after which a note is shown."""
_NOTICE_AFTER_SECONDS = 3.0  # after which a note says what it waits for


def main(
    run: RunName,
    name: Annotated[str, Option("--name", metavar="NAME", help="The observable that holds it.")] = "progress",
    on: Annotated[
        str | None,
        Option("--on", metavar="EVENT", help="The type of event at which it is read.", show_default="the commonest"),
    ] = None,
    every: Annotated[
        float,
        Option("--throttle", metavar="TIME", parser=time_of, help="Show at most one report in that time, such as 30s."),
    ] = TimeSpan(1),
    count: Annotated[int | None, Option("--count", metavar="N", parser=whole(1), help="End after N reports.")] = None,
    timeout: Annotated[
        float | None,
        Option(
            metavar="TIME", parser=time_of, show_default=False,
            help="End after that time, such as 5m; it is an error if not all reports came by then.",
        ),
    ] = None,
    wait: Wait = None,
    as_json: Annotated[bool, Option("--json", help="Print a JSON object on a line for each report.")] = False,
) -> int:
    """Show when a run will be done, and how certain that is.

    It shows how much is done, how long the rest will take, and where early stopping will end it.

    \b
      looptap progress digits-cnn
      looptap progress digits-cnn --throttle 30s >> eta.txt
      looptap progress digits-cnn --count 1 --json | jq '.remaining[0]'

    The full part of the bar is certainly done, the shaded part may be: the truth lies in the band about 80% of the
    time. The job has looptap.training.progress.Progress, and shows it by agent.expose(progress=progress). Without it,
    the end is guessed from the step or epoch of events and a total in the config, such as max_steps or epochs, or from
    the bar of tqdm around the loop.

    An object of --json has fraction, over, elapsed, remaining and stop_at (each median, low, high), epoch, steps,
    speeds in instances a second, costs in instances, overhead, note, and the run. What is not known is null.
    """
    deadline = time.monotonic() + (math.inf if timeout is None else timeout)
    with attached(run, follow=False, wait=wait) as job:
        stream = _guessed(job, name, every) or reports(job, name, on, every)
        try:
            wrong = _follow(job, stream, name, count, as_json, every, deadline)
            return complain(wrong) if wrong else DONE  # printed below the final bar
        except KeyboardInterrupt:
            return DONE


def _guessed(run: Run, name: str, every: float) -> Guess | None:
    """Return guesses for a job that exposes no `Progress`, but says where it ends."""
    if name != "progress" or run.role == VIEWER or f"{name}.epochs" in run.controls:
        return None
    what = counted(run)
    return bar_reports(run, every) if what is None else GuessedReports(run, what, every)


def _follow(
    run: Run, stream: Reports, name: str, count: int | None, as_json: bool, every: float, deadline: float
) -> str:
    """Show reports on a terminal or as lines; return what went wrong, if anything."""
    if not as_json and sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
        from rich.console import Console
        from rich.live import Live

        view = ProgressView(run.id)
        with Live(view, console=Console(highlight=False), refresh_per_second=4):
            return _looked(run, stream, name, count, as_json, every, deadline, view)
    return _looked(run, stream, name, count, as_json, every, deadline, None)


def _looked(
    run: Run,
    stream: Reports,
    name: str,
    count: int | None,
    as_json: bool,
    every: float,
    deadline: float,
    view: ProgressView | None,
) -> str:
    """Show reports until the run ends; return what went wrong, if anything."""
    number, looks, begun, asked, shown, still = 0, 0, False, time.monotonic(), -math.inf, ""
    exported = run.role == VIEWER  # its reports may come more often than requested
    while True:
        over = stream.state != "live"  # read before the records, so that the last ones are seen
        records = stream.records_after(number)
        if exported:
            records = records[-1:] if over or time.monotonic() - shown >= every else []
        for record in records:
            number, shown = record.number, time.monotonic()
            if record.error is not None or not is_report(record.value):
                return _nothing(run, name, stream)
            looks, begun = looks + 1, True
            if view is not None:
                view.report, view.at = record.value, time.monotonic()
            else:
                _print(run, record, as_json)
            if looks == count:
                return ""
        if over:
            if view is not None:
                view.over = stream.reason
            if stream.state == "failed":
                if not looks:
                    return _nothing(run, name, stream)
                return f"{stream.title} failed: {stream.reason}"
            if view is None:
                print(printable(f"{run.id}: {stream.reason}"), file=sys.stderr)
            return ""
        if stream.error_count or stream.traceback:
            return _nothing(run, name, stream)
        if time.monotonic() > deadline:
            wanted = "No report" if count is None else f"{looks:,} of {several(count, 'report')}"
            why = f"; {still}" if (still := _still(run)) else ""
            return "" if looks and count is None else f"{wanted} of {run.id} came in time{why}."
        still, before = _still(run), still
        if view is not None:
            view.still = still
        elif still and not before:
            print(f"looptap: {printable(still)}", file=sys.stderr, flush=True)
        if not begun and time.monotonic() - asked > _NOTICE_AFTER_SECONDS:
            begun = True
            waiting = f"waiting for an event {stream.on!r} of {run.id}"
            if view is not None:
                view.waiting = waiting
            else:
                print(f"looptap: {printable(waiting)}", file=sys.stderr, flush=True)
        time.sleep(0.05)


def _still(run: Run) -> str:
    """Return a note if the loop does not move, with the reason if known; else ""."""
    if run.state != "live":
        return run.reason
    if run.paused or run.idle <= STILL_SECONDS:
        return ""
    if run.inside:
        return f"the loop waits for {run.inside}"
    return f"no event for {duration(run.idle)}; looptap stacks {run.name} shows where the loop is"


def _nothing(run: Run, name: str, stream: Reports) -> str:
    """Return the error for a run without progress of that name, and how to add it."""
    why = last_line(stream.traceback) or stream.reason or "the value is of another kind"
    why = re.sub(r"^[\w.]+: ", "", why)
    why, _, listed = why.partition("; there are: ")
    near = re.search(r" Did you mean '[^']+'\?$", listed)
    return (
        f"{run.id} shows no progress as {name!r} ({why.rstrip('.')}): expose one in the job with "
        "agent.expose(progress=Progress(...)). The end can be guessed from max_steps or epochs in its config, from a "
        "tqdm bar around its loop, or from a script's variables: step or epoch, and such a total."
        f"{near[0] if near else ''}"
    )


def _print(run: Run, record: Record, as_json: bool) -> None:
    if as_json:
        print(json_of({"run": run.id, "event": record.event, "time": record.wall, **record.value}), flush=True)
        return
    text = ""
    for line in said(record.value):
        text = f"{text.rstrip('.')}{'. ' if line[0].isupper() else '; '}{line}" if text else line
    say(f"{time.strftime('%H:%M:%S', time.localtime(record.wall))}  {text}")


class ProgressView:
    """The bar on a terminal, which counts down between two reports."""

    def __init__(self, run: str) -> None:
        self.run = run
        self.report: Mapping[str, Any] | None = None
        self.at = 0.0
        self.waiting = self.over = self.still = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        width = options.max_width
        yield Text.assemble((self.run, "bold"), f"  {self.over or self.waiting * (self.report is None)}".rstrip())
        if self.still and not self.over:
            yield Text(printable(self.still), "red", overflow="ellipsis", no_wrap=True)
        if self.report is None:
            return
        yield Text(banded(self.report, max(10, min(60, width - 2))), "green")
        head, *more = said(self.report)
        if self.report["remaining"] is not None and not self.report["over"] and not self.over:
            until = time.time() + self.report["remaining"][0] - (time.monotonic() - self.at)
            head += f", about {time.strftime('%a %H:%M', time.localtime(until))}"
        yield Text(head, "bold", overflow="ellipsis", no_wrap=True)
        for line in more:
            yield Text(line, "yellow" if line == self.report["note"] else "", overflow="ellipsis", no_wrap=True)
