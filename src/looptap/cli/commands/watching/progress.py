"""`looptap progress`: when a run will be done, as a bar with a band."""

from __future__ import annotations

import math
import re
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from typer import Option

from looptap.cli.commands.watching.guess import Guess, guess_of
from looptap.cli.formats import json_of, printable, several
from looptap.cli.options import RunName, TimeSpan, Wait, integer, time_of
from looptap.cli.output import DONE, can_draw, complain, remark, say
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
_POLL_INTERVAL_SECONDS = 0.05  # seconds between two checks for a report


def progress_command(
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
    count: Annotated[int | None, Option("--count", metavar="N", parser=integer(1), help="End after N reports.")] = None,
    timeout: Annotated[
        float | None,
        Option(
            metavar="TIME",
            parser=time_of,
            show_default=False,
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
    wrong = ""
    with attached(run, follow=False, wait=wait) as job, suppress(KeyboardInterrupt):
        stream = _guessed(job, name, every) or reports(job, name, on, every)
        with _display(job, as_json) as display:
            wrong = _follow(job, stream, display, name, count, every, deadline)
    return complain(wrong) if wrong else DONE  # printed below the final bar


def _guessed(run: Run, name: str, every: float) -> Guess | None:
    """Return guesses for a job that exposes no `Progress`, but says where it ends."""
    exposed = name != "progress" or run.role == VIEWER or f"{name}.epochs" in run.controls
    return None if exposed else guess_of(run, every)


def _display(run: Run, as_json: bool) -> ProgressView | ProgressLines:
    return ProgressLines(run.id, as_json) if as_json or not can_draw() else ProgressView(run.id)


def _follow(
    run: Run,
    stream: Reports,
    display: ProgressView | ProgressLines,
    name: str,
    count: int | None,
    every: float,
    deadline: float,
) -> str:
    """Show reports until the run ends; return what went wrong, if anything."""
    shown, notice = 0, time.monotonic() + _NOTICE_AFTER_SECONDS
    for records in _polled(stream, every, exported=run.role == VIEWER):
        for record in records:
            if not is_report(record.value):
                return _nothing(run, name, stream)
            display.show(record)
            shown += 1
            if shown == count:
                return ""
        if stream.state != "live":
            continue  # a last look
        if stream.error_count or stream.traceback:
            return _nothing(run, name, stream)
        still = _still(run)
        if time.monotonic() > deadline:
            return _late(run, shown, count, still)
        waits = not shown and time.monotonic() > notice
        display.wait(still, f"waiting for an event {stream.on!r} of {run.id}" * waits)
    display.end(stream)
    if stream.state != "failed":
        return ""
    return f"{stream.title} failed: {stream.reason}" if shown else _nothing(run, name, stream)


def _polled(stream: Reports, every: float, exported: bool) -> Iterator[list[Record]]:
    """Yield what is new, many times a second, until the stream is over.

    Reports that are ``exported`` may come more often than requested: of these only the newest, when one is due.
    """
    number, due, over = 0, -math.inf, False
    while not over:
        over = stream.state != "live"  # read before the records, so that the last ones are seen
        records = stream.records_after(number)
        if exported:
            records = records[-1:] if over or time.monotonic() >= due else []
        if records:
            number, due = records[-1].number, time.monotonic() + every
        yield records
        time.sleep(_POLL_INTERVAL_SECONDS)


def _late(run: Run, shown: int, count: int | None, still: str) -> str:
    """Return the error for missing reports; "" if those that came were enough."""
    if shown and count is None:
        return ""
    wanted = "No report" if count is None else f"{shown:,} of {several(count, 'report')}"
    return f"{wanted} of {run.id} came in time{f'; {still}' if still else ''}."


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


class ProgressLines:
    """Reports as lines of text or JSON; notes to stderr."""

    def __init__(self, run: str, as_json: bool) -> None:
        self._run, self._as_json = run, as_json
        self._noted = ("", "")

    def __enter__(self) -> ProgressLines:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def show(self, record: Record) -> None:
        """Print a report."""
        if self._as_json:
            about = {"run": self._run, "event": record.event, "time": record.wall}
            print(json_of({**about, **record.value}), flush=True)
            return
        text = ""
        for line in said(record.value):
            text = f"{text.rstrip('.')}{'. ' if line[0].isupper() else '; '}{line}" if text else line
        say(f"{time.strftime('%H:%M:%S', time.localtime(record.wall))}  {text}")

    def wait(self, still: str, waiting: str) -> None:
        """Print why there is no report, once."""
        notes = still, waiting
        for note, before in zip(notes, self._noted, strict=True):
            if note and not before:
                remark(note)
        self._noted = notes

    def end(self, stream: Reports) -> None:
        """Print why there are no more."""
        if stream.state != "failed":
            print(printable(f"{self._run}: {stream.reason}"), file=sys.stderr)


class ProgressView:
    """The bar on a terminal, which counts down between two reports."""

    def __init__(self, run: str) -> None:
        from rich.console import Console
        from rich.live import Live

        self.run = run
        self.report: Mapping[str, Any] | None = None
        self.at = 0.0
        self.waiting = self.over = self.still = ""
        self._live = Live(self, console=Console(highlight=False), refresh_per_second=4)

    def __enter__(self) -> ProgressView:
        self._live.start(refresh=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show(self, record: Record) -> None:
        """Draw a report."""
        self.report, self.at = record.value, time.monotonic()

    def wait(self, still: str, waiting: str) -> None:
        """Draw why there is no report, too."""
        self.still, self.waiting = still, waiting

    def end(self, stream: Reports) -> None:
        """Draw why there are no more."""
        self.over = stream.reason

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
