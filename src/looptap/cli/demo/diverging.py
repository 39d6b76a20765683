"""The second part of the demo: a flight recorder in a job that diverges."""

from __future__ import annotations

import math

from rich.console import Console
from rich.table import Table
from rich.text import Text

from looptap.cli.demo.child import Job
from looptap.client.run import Run
from looptap.client.streams.live import LiveStream
from looptap.streams.errors import LooptapError, StreamEnded, StreamTimeout

QUERY = "step, loss, lr(optimizer), output.max()"
WHEN = "isnan(loss)"
BATCHES_BEFORE, BATCHES_AFTER = 12, 2
DIVERGE_TIMEOUT_SECONDS = 30.0
"""Seconds to wait for the job to diverge."""


class Diverging:
    """Demo of looptap.examples.diverging: the batches before the first NaN."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.stream: LiveStream | None = None

    def show(self) -> None:
        """Run this part from the start of the job to the table."""
        say = self.console.print
        with Job("looptap.examples.diverging", "--wait", "30") as job:
            say(f"\nStarting a job that diverges: [bold]{job}[/]")
            with job.attach() as run:
                # No batch may be skipped, not even on a busy machine, so the query has a budget of its own.
                how = {"when": WHEN, "before": BATCHES_BEFORE, "after": BATCHES_AFTER, "budget": math.inf}
                self.stream = stream = run.stream(QUERY, on="batch", **how)  # type: ignore[arg-type]
                shown = f"{QUERY!r}, when={WHEN!r}, before={BATCHES_BEFORE}, budget=math.inf"
                say(Text.assemble("A flight recorder is attached: ", (shown, "bold cyan")))
                try:
                    stream.wait(BATCHES_BEFORE + 1 + BATCHES_AFTER, DIVERGE_TIMEOUT_SECONDS)
                except (StreamEnded, StreamTimeout):
                    return
                seen = _seen(run)
            job.wait(timeout=5.0)  # it ends after a few more NaNs
        say(self.table(stream))
        say(
            f"{stream.arrived} values were sent{seen}. The last column says why: this job takes exp(output), and in "
            "single precision that is infinite above 88."
        )

    def table(self, stream: LiveStream) -> Table:
        """Return the batches around the first NaN; the one that fired is marked."""
        table = Table("step", "loss", "learning rate", "largest output", "", title="The batches before the first NaN")
        for column in table.columns[:4]:
            column.justify = "right"
        for record in stream.records:
            step, loss, rate, largest = record.value
            mark = f"◀ {WHEN} came true" if record.trigger else ""
            style = "bold red" if record.trigger else ""
            table.add_row(f"{step}", f"{loss:.4f}", f"{rate:g}", f"{largest:.1f}", mark, style=style)
        return table

    def problem(self) -> str:
        """Return why this part did not show what it should, "" if it did."""
        if self.stream is None or not any(record.trigger for record in self.stream.records):
            return f"The flight recorder did not fire within {DIVERGE_TIMEOUT_SECONDS:g} s."
        return ""


def _seen(run: Run) -> str:
    try:
        return f", of the {run.stats()['events']['batch']:,} batches so far"
    except LooptapError:  # the job has ended meanwhile
        return ""
