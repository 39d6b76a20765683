"""Writes docs/cli.md from the commands themselves, for `make docs`.

tests/cli/test_cli_page.py compares the two.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import typer

from looptap.cli.app import GROUPS, command_line
from looptap.cli.options import RUN_HELP

NOT_RUN = {
    "inject": ("", "needs a process of yours"),
    "relay": ("", "needs a job on several ranks"),
    "export": ("looptap export --live", "needs the engines, tests/client/test_sinks.py has stand-ins"),
}
"""Commands with examples that tests/docs/test_documented.py leaves out: how their block begins, and why."""
PAGE = Path(__file__).with_name("cli.md")
INTRODUCTION = """\
# The commands

This page is made from `looptap --help` by `make docs`. `looptap COMMAND --help` prints the same.

RUN is the name of a run, its id, the beginning of either, a pattern such as `'digits-*'`, or the path of a connection
file; elsewhere `ssh://host/run`, `ssh://login/host/run` or `'command:… looptap bridge run'`. Where a file is allowed,
it is that of a stored run. `looptap ls` lists the live runs.

`looptap --install-completion` teaches your shell the commands, their options, and the names of runs and controls.

Exit codes: 0 done, 1 failed, 2 a usage error, 130 interrupted.
"""


def page() -> str:
    """Return the page."""
    commands = typer.main.get_command(command_line()).commands  # type: ignore[attr-defined] # a group has them
    parts = [INTRODUCTION]
    for group, names in GROUPS.items():
        rows = [f"| [`{name}`](#looptap-{name}) | {commands[name].get_short_help_str(200)} |" for name in names]
        parts.append("\n".join([f"## {group}", "", "| command | does |", "|---|---|", *rows, ""]))
        parts += [section(name, commands[name]) for name in names]
    return "\n".join(parts)


def section(name: str, command: Any) -> str:
    """Return the section of one command."""
    usage = " ".join(["looptap", name, *command.collect_usage_pieces(typer.Context(command))])
    prose = _prose(command.help)
    if name in NOT_RUN:
        begin, why = NOT_RUN[name]
        prose = prose.replace(f"```sh\n{begin}", f"<!-- not run: {why} -->\n```sh\n{begin}")
    rows = [f"| {_name(one)} | {_meaning(one)} |" for one in command.params]
    table = ["| argument or option | meaning |", "|---|---|", *rows, ""] if rows else []
    return "\n".join([f"### looptap {name}", "", "```text", usage, "```", "", prose, "", *table])


def _prose(text: str) -> str:
    """Return a command's help as Markdown; after a backspace comes a program."""
    parts = []
    for paragraph in text.strip().split("\n\n"):
        if paragraph.startswith("\b"):
            lines = [line.removeprefix("  ") for line in paragraph.splitlines()[1:]]
            parts.append("\n".join([f"```{'yaml' if lines[0].endswith(': digits-*') else 'sh'}", *lines, "```"]))
        else:
            parts.append(_with_options(paragraph.replace("<", r"\<")))
    return "\n\n".join(parts)


def _with_options(text: str) -> str:
    """Return a text with its options as code; what is code already stays."""
    return re.sub(r"`[^`]*`|(?<!\w)--[a-z][\w-]*", lambda found: f"`{found[0].strip('`')}`", text)


def _name(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{parameter.metavar or parameter.name.upper()}`"
    value = "" if getattr(parameter, "is_flag", False) else f" {parameter.metavar or 'VALUE'}"
    return ", ".join(f"`{option}{value}`".replace("|", "\\|") for option in parameter.opts)


def _meaning(parameter: Any) -> str:
    text = (getattr(parameter, "help", None) or "").replace(RUN_HELP, "The run: see above.")
    text = _with_options(text.replace("|", "\\|").replace("<", r"\<"))
    shown, default = getattr(parameter, "show_default", False), parameter.default
    if isinstance(shown, str):
        return f"{text} Default: {_with_options(shown)}."
    if shown and default not in (None, False, "", ()) and not getattr(parameter, "is_flag", False):
        return f"{text} Default: {default}."
    return text


if __name__ == "__main__":
    PAGE.write_text(page())
