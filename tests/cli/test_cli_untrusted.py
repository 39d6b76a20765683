"""Files that a command reads run nothing without a yes, and steer no terminal."""

from __future__ import annotations

import sys

import pytest

import looptap
from looptap.cli.formats import json_of
from looptap.client.transport.tunnel.process import over_ssh, relay_of
from looptap.protocol.errors import NoSuchRun
from looptap.streams.text import as_cell

STEERING = "\x1b[2J\x1b]0;x\x07\x9b31m"


@pytest.fixture
def calls(tmp_path):
    """Make a file of a recorded call."""
    path = tmp_path / "calls.yaml"
    path.write_text("- {event: batch, number: 1, what: call, value: \"open('ran', 'w')\"}\n")
    return path


def test_a_replay_of_calls_needs_a_yes(calls, here, tmp_path):
    code, _, err = here("replay", calls, sys.executable, "-c", "open('started', 'w')")
    assert code == 2
    assert "open(\\'ran" in err or "open('ran" in err
    assert "confirm it with --allow-calls" in err


def test_a_replay_without_calls_asks_nothing_and_one_with_allow_calls_starts(calls, tmp_path, monkeypatch, here):
    started = []
    monkeypatch.setattr("os.execvpe", lambda *words: started.append(words[1]))
    plain = tmp_path / "plain.yaml"
    plain.write_text("- {event: batch, number: 1, what: set, name: lr, value: 0.1}\n")
    here("replay", plain, "job")
    here("replay", "--allow-calls", calls, "job")
    assert started == [["job"], ["job"]]


@pytest.mark.parametrize("action", ["shell: touch ran", "call: open('ran', 'w')"])
def test_rules_of_a_file_that_run_code_need_a_yes(action, here, tmp_path, directory):
    rules = tmp_path / "rules.yaml"
    rules.write_text(f'rules:\n- query: isnan(loss)\n  actions: ["log", "{action}"]\n')
    code, _, err = here("guard", rules, "none", "--once")
    assert code == 2
    assert "confirm it with --allow-calls" in err
    assert here("guard", rules, "none", "--once", "--allow-calls")[0] == 0
    assert here("guard", rules, "none", "--once", "--dry-run")[0] == 0


HOSTS = ["-oProxyCommand=touch ran", "me@-oProxyCommand=x", "-l", "a b", "a\nb", "node7\n", "", "a,b", "a;b", "$(x)"]


@pytest.mark.parametrize("host", HOSTS)
def test_no_host_becomes_an_option_of_ssh(host):
    with pytest.raises(NoSuchRun, match="is no host"):
        over_ssh([host], ["relay"])
    with pytest.raises(NoSuchRun, match="is no host"):
        over_ssh([host, "node7"], ["relay"])


def test_usual_hosts_are_hosts():
    for host in ("node7", "me@node-7.example.org:22", "[::1]", "fe80--1", "user-x@10.0.0.1"):
        assert host in " ".join(over_ssh([host], ["relay"]))
    assert relay_of("ssh://node7/x", "-x", "0")[-1] == "looptap relay --ranks 0 -- -x"


@pytest.mark.parametrize("name", ["bad", STEERING])
def test_names_of_files_do_not_steer_the_terminal(name, here, directory):
    (directory / f"{name}.json").write_text("{")
    code, out, err = here("ls", "--all")
    assert code == 0
    assert "unusable file" in out
    assert not {*out, *err} & {*"\x1b\x07\x9b"}


@pytest.mark.usefixtures("processes")
def test_texts_of_a_job_do_not_steer_the_terminal(here, directory):
    with looptap.Agent("steering", config={"note": STEERING, STEERING: 1}) as agent:
        agent.stream("loss", "loss", on="batch", unit=STEERING, keep=True)
        agent.emit("batch", **{"loss": 0.5, "text": STEERING})
        for words in (
            ("ls",), ("ls", "steering"), ("ls", "steering", "--json"), ("stacks", "steering"), ("streams", "steering"),
            ("top", "steering", "--once"), ("controls", "steering"), ("keep", "steering", "loss"),
            ("commands", "steering"), ("share", "steering", "--list"),
        ):  # fmt: skip
            _, out, err = here(*words)
            assert not {*out, *err} & {*"\x1b\x07\x9b"}, words
    assert json_of("\x9b\x7f") == '"\\u009b\\u007f"'


FORMULAS = ["=1+1", " =1+1", "\u00a0=1", "\ufeff=1+1", "\u200b@x", "\t=1", "+x", "－1+1", "-2+cmd|'x'"]


@pytest.mark.parametrize("text", FORMULAS)
def test_a_text_that_a_spreadsheet_would_compute_gets_an_apostrophe(text):
    assert as_cell(text) == f"'{text}"


@pytest.mark.parametrize("text", ["-0.5", "+1e-3", "loss", " loss", "a=b", "1-2"])
def test_other_texts_stay(text):
    assert as_cell(text) == text
