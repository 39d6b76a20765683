"""The command line's own account: help in groups, page, shell completion."""

from __future__ import annotations

import importlib.util
import math
import os
import subprocess
import sys
from collections import defaultdict
from importlib import metadata

import pytest
import typer
from places import ROOT

import looptap
from looptap.cli.app import COMMANDS, GROUPS, command_line
from looptap.cli.entry_point import exit_code
from looptap.cli.options import time_of


def completed(monkeypatch, capsys, *words):
    """Return what bash offers after these words, the last one half typed."""
    monkeypatch.setenv("_LOOPTAP_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", " ".join(words))
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    capsys.readouterr()
    with pytest.raises(SystemExit, match="0"):
        exit_code([])
    return capsys.readouterr().out.split()


def test_the_page_of_the_commands_is_what_they_say_themselves():
    spec = importlib.util.spec_from_file_location("commands_page", ROOT / "docs" / "commands.py")
    maker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(maker)
    assert maker.PAGE.read_text() == maker.page(), "make docs writes it again"


def test_the_help_names_each_command_once_under_its_group(capsys):
    assert exit_code([]) == 0
    lines = capsys.readouterr().out.splitlines()
    for group, names in GROUPS.items():
        start = lines.index(f"{group}:") + 1
        assert [line.split()[0] for line in lines[start : start + len(names)]] == list(names)
    assert sorted(COMMANDS) == sorted(name for names in GROUPS.values() for name in names)


def test_a_shell_completes_commands_runs_and_controls(place, monkeypatch, capsys):
    with looptap.Agent("completes-me") as agent:
        agent.control("knob", lambda: 0.5, print)
        assert completed(monkeypatch, capsys, "looptap", "wat") == ["watch"]
        assert completed(monkeypatch, capsys, "looptap", "watch", "completes") == ["completes-me"]
        assert completed(monkeypatch, capsys, "looptap", "set", "completes-me", "kn") == ["knob"]
        assert completed(monkeypatch, capsys, "looptap", "set", "no-such-run", "kn") == []


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("variable", ["COMP_WORDS", "_TYPER_COMPLETE_ARGS"])
def test_completing_after_a_command_loads_only_that_command(place, variable):
    code = (
        "import sys; from looptap.cli.entry_point import main\n"
        "try: main([])\n"
        "finally: print([m for m in ('numpy', 'looptap.cli.commands.watching.watch') if m in sys.modules])"
    )
    shell = {"COMP_WORDS": "bash", "_TYPER_COMPLETE_ARGS": "fish"}[variable]
    action = {"COMP_CWORD": "2", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    asked = {"_LOOPTAP_COMPLETE": f"complete_{shell}", variable: "looptap streams comp", **action}
    with looptap.Agent("completes-me"):
        command, environment = [sys.executable, "-c", code], {**os.environ, **asked}
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.stdout.splitlines() == ["completes-me", "[]"], done.stdout + done.stderr


def test_the_version_is_that_of_the_package(capsys):
    assert exit_code(["--version"]) == 0
    installed = metadata.version("looptap")
    assert looptap.__version__ == installed
    assert capsys.readouterr().out.startswith(f"looptap {installed}, ")


SAME_WORDS = 12
"""Options that several commands have, each with the same meaning, value and help in all of them."""
OTHERWISE = {
    "--json": "what is printed", "--on": "a query, or a command", "--name": "a stream, a run, or an observable",
    "--id": "a command, or a share", "--ranks": "one or several are asked, or all obey", "--timeout": "for all values",
    "--count": "values, reports, or values of a picture", "--throttle": "values, or reports", "--output": "which file",
    "--rows": "lines, or charts", "--save": "which picture", "--after": "around an event, or for a picture",
}  # fmt: skip
"""Options whose help differs between commands, and by what."""


def test_an_option_has_the_same_words_in_each_command():
    found = defaultdict(lambda: defaultdict(list))
    for name, command in typer.main.get_command(command_line()).commands.items():
        assert command.help[0].isupper()
        for one in command.params:
            if one.param_type_name == "option":
                found[max(one.opts, key=len)][one.metavar, one.help].append(name)
    shared = {option: ways for option, ways in found.items() if sum(map(len, ways.values())) > 1}
    assert {option for option, ways in shared.items() if len(ways) > 1} <= set(OTHERWISE)
    assert len([option for option, ways in shared.items() if len(ways) == 1]) >= SAME_WORDS
    times = {metavar for option in ("--timeout", "--wait", "--throttle") for metavar, _ in found[option]}
    assert times == {"TIME"}


TIMES = [("90", 90), (".5s", 0.5), ("2min", 120), ("1.5h", 5400), ("inf", math.inf)]


@pytest.mark.parametrize(("text", "seconds"), TIMES)
def test_a_time_has_a_unit(text, seconds):
    assert time_of(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "-1", "nan", "5 minutes", "1e3"])
def test_what_is_no_time_is_refused_with_the_units(text, capsys):
    assert exit_code(["stacks", "any", f"--timeout={text}"]) == 2
    assert "Write 30 or 30s for seconds, 5m, 8h or 2d." in capsys.readouterr().err
