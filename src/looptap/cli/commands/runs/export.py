"""`looptap export`: writes a stored stream in another format."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Annotated

from typer import Argument, BadParameter, Option

from looptap.cli.commands.runs.live_export import send_live
from looptap.cli.commands.runs.open import failures
from looptap.cli.formats import several
from looptap.cli.options import STORED_HELP, Every, On, Unsafe, WindowSize, only_with, parsed_window
from looptap.cli.output import DONE, complain, say
from looptap.client.sinks.opening import SINKS
from looptap.store.reader import open as open_stored
from looptap.streams.text import did_you_mean

FORMATS = ("csv", "parquet", "tensorboard")
"""The formats of an exported stream."""
ENDINGS = {"": "csv", ".csv": "csv", ".txt": "csv", ".parquet": "parquet", ".pq": "parquet"}
"""The formats by the ending of a file."""


def export_command(
    file: Annotated[str, Argument(metavar="FILE", help=STORED_HELP, show_default=False)],
    stream: Annotated[str, Argument(metavar="STREAM", help="The stream, as `looptap open` calls it.")],
    to: Annotated[
        str,
        Option(
            "--to",
            metavar="FORMAT",
            show_default="by the ending of -o, else csv",
            help="csv, parquet or tensorboard; with --live prometheus, otel, wandb, mlflow, trackio or tensorboard.",
        ),
    ] = "",
    output: Annotated[
        str | None,
        Option(
            "--output",
            "-o",
            metavar="PATH",
            show_default=False,
            help="The file to write (tensorboard: the directory), and - for CSV to stdout. By default a new one here, "
            "called after the stream. "
            "With --live: the port, endpoint, project or directory.",
        ),
    ] = None,
    live: Annotated[bool, Option("--live", help="FILE is a live run or a pattern of names, STREAM a query.")] = False,
    on: On = None,
    window: WindowSize = None,
    every: Every = 1,
    unsafe: Unsafe = False,
) -> int:
    """Write a stored stream as a file, or send a live one.

    \b
      looptap export digits.looptap loss
      looptap export digits.looptap loss --to parquet -o loss.parquet
      looptap export digits.looptap loss --to tensorboard -o logs/digits

    With --live, the numbers of a run go to your monitoring system until the run ends or you press Ctrl-C. A pattern
    sends those of all matching runs, including runs that start later:

    \b
      looptap export --live "digits-*" "step, loss" --to prometheus -o 9464
      looptap export --live digits-cnn "step, loss" --to otel -o http://collector:4318/v1/metrics
      looptap export --live digits-cnn "step, loss" --to wandb -o my-project

    prometheus serves the newest values (on 127.0.0.1 unless -o names a host), and otel sends them by OTLP. wandb,
    mlflow and trackio get a run for each run (-o: project or experiment), and tensorboard a folder. Each uses its own
    package and settings.

    CSV has the columns number, event, rank, time, wall, and one for each field. TensorBoard takes numbers only, and the
    number of the event as the step.
    """
    if live:
        how = {"on": on, "window": parsed_window(window), "every": every}
        given = {name: value for name, value in how.items() if value not in (None, 1)}
        return send_live(file, stream, {**given, "unsafe": unsafe}, to, output)
    only_with("--live", live, on=on, window=window, every=every != 1, unsafe=unsafe)
    to = _format(to, output)
    with open_stored(file) as run:
        stored = run.stream(stream)
        if output == "-":
            sys.stdout.flush()
            stored.to_csv(os.fdopen(os.dup(sys.stdout.fileno()), "wb"))
            return DONE
        suffix = "" if to == "tensorboard" else f".{to}"
        place = Path(output or re.sub(r"[^\w.+-]+", "_", f"{run.name}-{stored.name}") + suffix)
        if output is None and suffix and os.path.lexists(place):
            return complain(f"{place} exists already; name another file with --output, or this one to replace it.")
        count = getattr(stored, f"to_{to}")(place)
        if failed := failures(stored):
            complain(f"In {file} the query of {stored.name!r} has {failed}. Where it failed there is no value.")
        if run.lacks:
            complain(f"{file} is not complete. {run.lacks}")
    say(f"{several(count, 'point' if to == 'tensorboard' else 'value')} written to {place}")
    return DONE


def _format(to: str, output: str | None) -> str:
    """Return the format ``to``, else that of the file's ending. Raises BadParameter."""
    ending = "" if output in (None, "-") else Path(str(output)).suffix.lower()
    to = to or ENDINGS.get(ending, "")
    wrong = [
        (not to, f"--output {output}: {ending} is the ending of none of {', '.join(FORMATS)}; add --to."),
        (to in SINKS and to not in FORMATS, f"--to {to} sends the values of a live run: add --live."),
        (to not in FORMATS, f"--to {to}: there are {', '.join(FORMATS)}.{did_you_mean(to, FORMATS)}"),
        (output == "-" and to != "csv", f"--output - is for CSV; {to} needs a file."),
    ]
    for holds, text in wrong:
        if holds:
            raise BadParameter(text)
    return to
