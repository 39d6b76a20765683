"""How a run is named on the command line."""

from __future__ import annotations

from typing import Annotated

from typer import Argument

RUN_HELP = (
    "The run: its name, its id, the beginning of either, a pattern such as 'digits-*', or the path of a connection "
    "file; elsewhere ssh://host/run, ssh://login/host/run or 'command:… looptap bridge run'. `looptap ls` lists them."
)
Name = Annotated[str, Argument(metavar="RUN", help=RUN_HELP, show_default=False)]
