"""The command line as one tree: every command, in the order of the help."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Annotated, Any

import typer
from typer import Option
from typer.core import TyperCommand, TyperGroup

from looptap.cli.output import DONE, drop_output, version_line

GROUPS: dict[str, dict[str, str]] = {
    "Start": {"run": "runs"},
    "Look": {
        **dict.fromkeys(["ls", "watch", "plot", "top", "web", "progress"], "watching"),
        **dict.fromkeys(["names", "streams", "modules"], "watching"),
        **dict.fromkeys(["stacks", "profile", "memory"], "diagnosing"),
    },
    "Steer": {
        **dict.fromkeys(["controls", "set", "undo", "trigger", "checkpoint", "pause", "resume", "stop"], "control"),
        **dict.fromkeys(["cancel", "commands", "call"], "control"),
        "replay": "runs",
    },
    "Keep and compare": dict.fromkeys(["keep", "open", "compare", "export"], "runs"),
    "Share": {"share": "runs"},
    "Many runs": {"guard": "watching"},
    "Reach a job without looptap": {"inject": "runs"},
    "Try it": {"demo": "runs"},
    "Plumbing": dict.fromkeys(["bridge", "relay"], "runs"),
}
"""Each command and its folder in looptap.cli.commands, in the groups of the help."""
COMMANDS = {name: folder for group in GROUPS.values() for name, folder in group.items()}


class GroupedCommands(TyperGroup):
    """The commands of the help in their groups."""

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        """Read the options; the help is among them."""
        with _until_the_reader_leaves():
            return super().make_context(*arguments, **options)

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        with _until_the_reader_leaves():
            return super().invoke(ctx)

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands, in the order of the help."""
        return [name for name in COMMANDS if name in self.commands]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the groups, each with a line a command."""
        width = max(map(len, COMMANDS))
        for group, names in GROUPS.items():
            lines = [(f"{name:{width}}", self.commands[name].get_short_help_str(80)) for name in names]
            with formatter.section(group):
                formatter.write_dl(lines)


class CommandWithUsage(TyperCommand):
    """A command whose usage line names its arguments as the help does: RUN QUERY..."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the parts of the usage line, without braces around what is required."""
        pieces = [piece.replace("{", "").replace("}", "") for piece in super().collect_usage_pieces(ctx)]
        return [piece.replace("......", "...") for piece in pieces]  # a metavar that has them gets three more


@contextmanager
def _until_the_reader_leaves() -> Iterator[None]:
    """Exit cleanly if the reader closes the pipe."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        drop_output()
        raise typer.Exit(DONE) from None


def command_line(words: Sequence[str] = ()) -> typer.Typer:
    """Return the command line; if ``words`` begin with a command, with that one only.

    A command's module loads what the command needs, so that a command does not wait for the others.
    """
    app = typer.Typer(
        cls=GroupedCommands,
        callback=looptap,
        invoke_without_command=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    for name in words[:1] if words and words[0] in COMMANDS else COMMANDS:
        module = import_module(f"looptap.cli.commands.{COMMANDS[name]}.{name}")
        command, settings = getattr(module, f"{name}_command"), getattr(module, "CONTEXT_SETTINGS", None)
        app.command(name, cls=CommandWithUsage, context_settings=settings)(command)
    return app


def looptap(
    context: typer.Context,
    version: Annotated[bool, Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Attach to a running training loop, ask it anything, watch the answers live.

    To see it work:

    \b
      looptap demo

    With a script of your own, as it is, or one that has a looptap.Agent:

    \b
      looptap run train.py
      looptap ls
      looptap watch train "step, loss"
    """
    if version:
        typer.echo(version_line())
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())
