"""`looptap modules`: the modules of a job's models."""

from __future__ import annotations

from typing import Annotated

import msgspec
from rich.text import Text
from typer import Argument, Option

from looptap.cli.formats import printable
from looptap.cli.options import RunName
from looptap.cli.output import DONE, complain, console, say_json
from looptap.client.attach import attach
from looptap.client.streams.model_modules import module_line


def modules_command(
    run: RunName,
    pattern: Annotated[
        str, Argument(metavar="PATTERN", help="A part of the names, or a pattern: 'encoder.*'.", show_default=False)
    ] = "",
    as_json: Annotated[bool, Option("--json", help="Print one JSON array with an object for each module.")] = False,
) -> int:
    """List the modules of a run's models, with classes and shapes.

    \b
      looptap modules digits-cnn
      looptap modules digits-cnn 'fc*'
      looptap watch digits-cnn "activations('fc').norm()"

    Of each module: its name in queries, its class, the numbers in its parameters and in those of the modules inside,
    the shapes of its own parameters, and why a query cannot watch it, if it cannot. The models are those that the job
    exposes or passes to its events.
    """
    with attach(run) as job:
        found = job.modules(pattern)
    if as_json:
        return say_json(msgspec.to_builtins(list(found.values())))
    if not found and found.models:
        return complain(f"No module is called {printable(pattern)!r}; looptap modules {job.name} lists all.")
    if not found and pattern:
        return complain("The job exposes no model, and passes none to its events: agent.expose(model=model).")
    lines = console()
    if not found:
        lines.print("This job has no modules. It has them once it calls agent.expose(model=model).")
    for name, one in found.items():
        lines.print(Text.assemble((printable(name), "cyan"), f"  {printable(module_line(one))}"))
    if found.left_out:
        lines.print(f"and {found.left_out:,} more; a PATTERN lists fewer.")
    return DONE
