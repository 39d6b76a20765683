"""`looptap export`: writes a stored stream in another format."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from looptap.cli.commands.runs.open import failures
from looptap.cli.formats import several
from looptap.cli.options import STORED_HELP
from looptap.cli.output import DONE, MISTYPED, complain
from looptap.store.reader import open as open_stored

FORMATS = ("csv", "parquet", "tensorboard")
"""The formats of an exported stream."""


def main(
    file: Annotated[str, Argument(metavar="FILE", help=STORED_HELP, show_default=False)],
    stream: Annotated[str, Argument(metavar="STREAM", help="The stream, as `looptap open` calls it.")],
    to: Annotated[str, Option("--to", metavar="FORMAT", help="csv, parquet or tensorboard.")] = "csv",
    output: Annotated[
        str | None,
        Option(
            "--output", "-o", metavar="PATH", show_default=False,
            help="The file to write (tensorboard: the directory). By default a new one here, called after the stream.",
        ),
    ] = None,
) -> int:  # fmt: skip
    """Write a stored stream as CSV, Parquet or for TensorBoard.

    \b
      looptap export digits.looptap loss
      looptap export digits.looptap loss --to parquet -o loss.parquet
      looptap export digits.looptap loss --to tensorboard -o logs/digits

    CSV has the columns number, event, rank, time, wall, and one for each field. TensorBoard takes numbers only, and the
    number of the event as the step.
    """
    if to not in FORMATS:
        complain(f"--to {to!r} is no format; there are {', '.join(FORMATS)}.")
        return MISTYPED
    with open_stored(file) as run:
        stored = run.stream(stream)
        suffix = "" if to == "tensorboard" else f".{to}"
        place = Path(output) if output else Path(re.sub(r"[^\w.+-]+", "_", f"{run.name}-{stored.name}") + suffix)
        if output is None and suffix and os.path.lexists(place):
            return complain(f"{place} exists already; name another file with --output, or this one to replace it.")
        write = {"csv": stored.to_csv, "parquet": stored.to_parquet, "tensorboard": stored.to_tensorboard}[to]
        count = write(place)
        if failed := failures(stored):
            complain(f"In {file} the query of {stored.name!r} has {failed}. Where it failed there is no value.")
    print(f"{several(count, 'point' if to == 'tensorboard' else 'value')} written to {place}")
    return DONE
