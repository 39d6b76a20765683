"""The command line as one tree: every command, in the order of the help."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Annotated

import typer
from typer import Option

from looptap.cli.output import version_line

COMMANDS = {
    **dict.fromkeys(["ls", "watch", "streams"], "watching"),
    **dict.fromkeys(["call"], "control"),
    **dict.fromkeys(["plot", "top", "web", "progress", "stacks"], "watching"),
    **dict.fromkeys(
        ["controls", "set", "undo", "trigger", "checkpoint", "pause", "resume", "stop", "cancel", "commands"], "control"
    ),
    **dict.fromkeys(["replay"], "runs"),
    **dict.fromkeys(["guard"], "watching"),
    **dict.fromkeys(["share", "keep", "open", "compare", "export", "bridge", "relay", "demo"], "runs"),
}
"""Each command and its folder in looptap.cli.commands."""


def command_line(words: Sequence[str] = ()) -> typer.Typer:
    """Return the command line; if ``words`` begin with a command, with that one only.

    A command's module loads what the command needs, so that a command does not wait for the others.
    """
    app = typer.Typer(
        callback=looptap,
        invoke_without_command=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    for name in words[:1] if words and words[0] in COMMANDS else COMMANDS:
        module = import_module(f"looptap.cli.commands.{COMMANDS[name]}.{name}")
        app.command(name, context_settings=getattr(module, "CONTEXT_SETTINGS", None))(module.main)
    return app


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
        typer.echo(version_line())
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())
