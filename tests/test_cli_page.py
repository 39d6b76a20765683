"""The command line's own account: help in groups, page, shell completion."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

import looptap
from looptap.cli.app import COMMANDS, GROUPS
from looptap.cli.entry_point import run

ROOT = Path(__file__).parent.parent


def completed(monkeypatch, capsys, *words):
    """Return what bash offers after these words, the last one half typed."""
    monkeypatch.setenv("_LOOPTAP_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", " ".join(words))
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    capsys.readouterr()
    with pytest.raises(SystemExit, match="0"):
        run([])
    return capsys.readouterr().out.split()


def test_the_page_of_the_commands_is_what_they_say_themselves():
    spec = importlib.util.spec_from_file_location("commands_page", ROOT / "docs" / "commands.py")
    maker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(maker)
    assert maker.PAGE.read_text() == maker.page(), "make docs writes it again"


def test_the_help_names_each_command_once_under_its_group(capsys):
    assert run([]) == 0
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


def test_the_version_is_that_of_the_package(capsys):
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.split()[:2] == ["looptap", looptap.__version__]
