"""The command line as one tree: every command, in the order of the help."""

from __future__ import annotations

from typing import Annotated

import typer
from typer import Option

from looptap.cli.commands.control import (
    call,
    cancel,
    checkpoint,
    commands,
    controls,
    pause,
    resume,
    set,
    stop,
    trigger,
    undo,
)
from looptap.cli.commands.runs import bridge, compare, demo, export, keep, open, relay, replay, share
from looptap.cli.commands.watching import guard, ls, plot, progress, stacks, streams, top, watch, web

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


@app.callback(invoke_without_command=True)
def looptap(
    context: typer.Context,
    version: Annotated[bool, Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Attach to a running training loop, ask it anything, watch the answers live.

    To see it work:

    \b
      looptap demo

    With a job of your own that has a looptap.Agent:

    \b
      looptap ls
      looptap watch digits-cnn "step, loss"
    """
    if version:
        from importlib.metadata import version as version_of

        typer.echo(f"looptap {version_of('looptap')}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


for module in (
    *(ls, watch, streams, call, plot, top, web, progress, stacks),
    *(controls, set, undo, trigger, checkpoint, pause, resume, stop, cancel, commands, replay, guard),
    *(share, keep, open, compare, export, bridge, relay, demo),
):
    name = module.__name__.rpartition(".")[2]
    app.command(name, context_settings=getattr(module, "CONTEXT_SETTINGS", None))(module.main)
