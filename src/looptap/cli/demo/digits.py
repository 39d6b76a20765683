"""The first part of the demo: five queries to a job that learns digits."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from heapq import nlargest
from typing import Any

from rich.columns import Columns
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.live import Live
from rich.table import Table
from rich.text import Text

from looptap.cli.demo.child import Job, JobFailed
from looptap.cli.formats import sized
from looptap.client.estimates import banded, said
from looptap.client.run import Run
from looptap.client.streams.live import LiveStream
from looptap.streams.durations import short_time
from looptap.streams.errors import LooptapError
from looptap.streams.text import cut
from looptap.visualizers.drawing.backends.blocks import bar, shaded, side_by_side, sparkline

MAX_SHOW_SECONDS = 25.0
"""The longest show, on a slow machine."""

LIMITED = ("evaluated", "suspended")
"""How notes about the limits of the budget begin."""
MAX_WORST_VALUES = 20
"""The number of values that the picture of the worst digits chooses from: 200 batches."""

LOSS = "step, loss"
MEAN = "mean(e.loss for e in events)"
NORMS = "layer_norms(model, 'grad')"
LEFT = "progress.report"
MAX_DIGITS = 3
"""The number of digits from a batch, and in the picture."""
WORST = f"batch_topk({MAX_DIGITS}, losses, image=image.numpy(), target=target, output=output.argmax(1))"


class Digits:
    """Demo of looptap.examples.digits: five live streams, then what they cost."""

    def __init__(self, console: Console, epochs: int) -> None:
        self.console, self.epochs = console, epochs
        self.streams: list[LiveStream] = []
        self.stats: dict[str, Any] = {}

    def show(self) -> None:
        """Run this part from the start of the job to the summary."""
        say = self.console.print
        with Job("looptap.examples.digits", "--epochs", str(self.epochs)) as job:
            say(f"Starting a training job in a process of its own: [bold]{job}[/]")
            with job.attach() as run:
                say(f"Attached to [bold]{run.id}[/]. In another terminal, meanwhile: looptap ls\n")
                self.ask(run)
                self.watch(run)
                cut = self.loss.state == "live"
                for stream in self.streams:
                    stream.close(timeout=1.0)
            if not cut and job.wait(timeout=10.0):
                raise JobFailed(f"{job} failed. Its last output:\n{job.printed()}")
            said = job.printed(1)
        say(Group(*self.summary()))
        say(f"The job {'was stopped here' if cut else 'has ended'}. Its last output: {said}")

    def ask(self, run: Run) -> None:
        """Attach the five queries to the running job, which was not prepared for them."""
        self.loss = run.stream(LOSS, on="batch")
        self.mean = run.stream(MEAN, on="batch")
        self.norms = run.stream(NORMS, on="batch", every=20)
        self.worst = run.stream(WORST, on="batch", every=10)
        self.left = run.stream(LEFT, on="batch", every=12)
        self.streams = [self.loss, self.mean, self.norms, self.worst, self.left]

    def watch(self, run: Run) -> None:
        """Show new values until the job ends or has run long enough."""
        deadline = time.monotonic() + MAX_SHOW_SECONDS
        shown = 0
        live = Live(DigitsView(self), console=self.console, refresh_per_second=8) if self.console.is_terminal else None
        with live or contextlib.nullcontext():
            while self.loss.state == "live" and time.monotonic() < deadline:
                with contextlib.suppress(LooptapError):  # the job has just ended
                    self.stats = run.stats(timeout=2.0)
                if live is None:
                    shown = self.progress(shown)
                time.sleep(0.2)
        if live is None:
            self.progress(shown)
            self.console.print("", WORST, *self.pictures(self.console.width), sep="\n", markup=False)

    def progress(self, shown: int) -> int:
        """Print some of the epochs after the first ``shown``; return how many there are."""
        losses, ends = self.loss.columns(), self.mean.columns()
        for number in range(shown + 1, len(ends.values) + 1):
            since, until = ends.events[number - 2] if number > 1 else 0, ends.events[number - 1]
            curve = [v[1] for v, at in zip(losses.values, losses.events, strict=True) if since < at <= until]
            if number <= 5 or number % 5 == 0:
                mean = f"mean loss {ends.values[number - 1]:.4f}"
                self.console.print(f"epoch {number:>2}: {mean}, batch by batch {sparkline(curve, 47)}")
                if self.left.latest:
                    self.console.print(f"          {said(self.left.latest)[0]}")
        return len(ends.values)

    def pictures(self, width: int) -> list[str]:
        """Return the digits that the model got most wrong lately, with captions."""
        rows = {row["image"].tobytes(): row for value in self.worst.values[-MAX_WORST_VALUES:] for row in value}
        most = min(MAX_DIGITS, (width + 3) // 23)
        blocks = [_block(row) for row in nlargest(most, rows.values(), key=lambda row: row["by"])]
        return [line.rstrip() for line in side_by_side(blocks)]

    def summary(self) -> Iterator[Any]:
        """Print the values and the cost of each stream."""
        title = "What was asked, and what it cost the job"
        table = Table("query", "values", "lost", "an event", "of the step time", title=title)
        for column in table.columns[1:]:
            column.justify = "right"
        for stream in self.streams:
            lost = stream.dropped + stream.error_count
            cost = short_time(stream.cost.nanoseconds / 1e9), f"{stream.cost.share:.2%}"
            table.add_row(Text(cut(stream.name, self.console.width - 56)), f"{stream.arrived:,}", f"{lost:,}", *cost)
        table.add_section()
        values, lost = sum(s.arrived for s in self.streams), sum(s.dropped + s.error_count for s in self.streams)
        share = sum(stream.cost.share for stream in self.streams)
        table.add_row("together", f"{values:,}", f"{lost:,}", "", f"{share:.2%}")
        yield ""
        yield table
        for stream in self.streams:
            limits = [note for note in stream.notes if note.startswith(LIMITED)]
            yield from (Text(f"{stream.name}: {note}.") for note in limits[-1:])
        if self.stats:
            yield f"At most {sized(self.stats['outbox_peak'])} of values waited to be sent."

    def problem(self) -> str:
        """Return why this part did not show what it should, "" if it did."""
        silent = [stream.name for stream in self.streams if not stream.arrived]
        return f"No value came of {silent[0]!r}." if silent else ""


class DigitsView:
    """The five streams on a terminal."""

    def __init__(self, digits: Digits) -> None:
        self._of = digits

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        of, width = self._of, options.max_width
        losses = [row[1] for row in of.loss.values]
        head = f"  on 'batch': {len(losses):,} values" + (f", the newest {losses[-1]:.4f}" if losses else "")
        yield Text.assemble((LOSS, "bold cyan"), head)
        yield Text(sparkline(losses, width - 1), "green")
        yield Text()
        if of.left.latest:
            yield Text.assemble((LEFT, "bold cyan"), f"  {said(of.left.latest)[0]}", no_wrap=True)
            yield Text(banded(of.left.latest, min(60, width - 1)), "green")
            yield Text()
        yield Columns([self._epochs(), self._layers(width)], padding=(0, 4))
        yield Text()
        yield Text(cut(WORST, width), "bold cyan")
        yield Text("\n".join(of.pictures(width)), no_wrap=True)

    def _epochs(self) -> Table:
        table = _table(MEAN, "epoch", "mean loss", "")
        means = self._of.mean.values
        for number in range(max(0, len(means) - 6), len(means)):
            table.add_row(f"{number + 1}", f"{means[number]:.4f}", bar(means[number], max(means[-6:]), 12))
        return table

    def _layers(self, width: int) -> Table:
        table = _table(NORMS, "layer", "norm", "")
        norms = self._of.norms.latest or {}
        largest = max(norms.values(), default=0.0)
        for name, norm in norms.items():
            table.add_row(name, f"{norm:.4f}", bar(norm, largest, max(8, min(24, width - 66))))
        return table


def _table(title: str, *columns: str) -> Table:
    table = Table(box=None, title=Text(title, "bold cyan"), title_justify="left", padding=(0, 1, 0, 0))
    for name in columns:
        table.add_column(name, justify="right" if name in ("epoch", "norm", "mean loss") else "left", no_wrap=True)
    return table


def _block(row: dict[str, Any]) -> list[str]:
    """Return one digit with its caption, 20 characters wide."""
    caption = f"{row['target']} read as {row['output']}: {row['by']:.2f}"
    return [f"{line:<20}" for line in (*shaded(row["image"][0].tolist()), caption)]
