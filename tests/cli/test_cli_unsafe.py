"""`--unsafe` of each command that takes a query, and the switch of `looptap top`."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys

import pytest
from training_loop import training
from waiting import soon

import looptap
from looptap.cli.commands.watching.guard import rules_of
from looptap.testing import parts_of


@pytest.fixture
def job(directory):
    with looptap.Agent("small", budget=math.inf) as agent, training(agent, step=1, loss=0.5):
        yield agent


def asked(agent):
    """Return the texts of the unsafe queries that are on record, without their end."""
    records = parts_of(agent).dispatcher.commands.commands.records
    return [record.name for record in records if record.what == "unsafe"]


@pytest.mark.usefixtures("processes")
def test_it_is_given_in_the_shell_and_listed_by_commands(job, directory):
    command = [sys.executable, "-m", "looptap", "watch", "small", "step + 1", "--unsafe", "--count", "1", "--json"]
    environment = {**os.environ, "LOOPTAP_DIR": str(directory)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert (done.returncode, json.loads(done.stdout.splitlines()[0])["value"]) == (0, 2)
    listing = [sys.executable, "-m", "looptap", "commands", "small"]

    def listed():
        return subprocess.run(listing, env=environment, capture_output=True, text=True, timeout=300).stdout

    soon(lambda: "unsafe step + 1  ended  after " in listed())
    assert asked(job) == ["step + 1"]


@pytest.mark.parametrize(
    "words",
    [
        ["watch", "small", "step + 1", "--unsafe", "--count", "1"],
        ["plot", "small", "step + 1", "--unsafe", "--save", "x.txt", "--count", "1"],
        ["top", "small", "step + 1", "--unsafe", "--json"],
        ["keep", "small", "step + 1", "--unsafe", "--name", "kept"],
        ["share", "small", "--stream", "step + 1", "--unsafe", "--name", "shown"],
    ],
    ids=lambda words: words[0],
)
def test_each_command_with_a_query_takes_it(job, here, tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    assert here(*words)[0] == 0
    assert asked(job) == ["step + 1"]
    assert here(*(word for word in words if word != "--unsafe"))[0] in (0, 1)  # the names of streams are taken
    assert asked(job) == ["step + 1"]


def test_a_live_export_takes_it(job, here, directory):
    pytest.importorskip("prometheus_client")
    words = ["export", "--live", "small", "1 / (step - 1)", "--unsafe", "--to", "prometheus", "-o", "0"]
    assert here(*words)[0] == 1
    assert asked(job) == ["1 / (step - 1)"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["plot", "small", "--unsafe"], "--unsafe has an effect only with a QUERY."),
        (["top", "small", "--unsafe"], "--unsafe has an effect only with a QUERY."),
        (["share", "small", "--unsafe"], "--unsafe has an effect only with --stream."),
        (["export", "small", "loss", "--unsafe"], "--unsafe has an effect only with --live."),
    ],
)
def test_without_a_query_it_is_a_mistake(job, here, words, said):
    code, _, err = here(*words)
    assert (code, said in " ".join(err.replace("│", "").split())) == (2, True)


def test_the_way_out_of_an_error_is_the_option_in_the_shell():
    from looptap.cli.shell_names import in_shell
    from looptap.streams.errors import QueryError

    said = QueryError("x.pop() may change the job.", hint="To run it as it is, on record: unsafe=True")
    assert in_shell(said).endswith("To run it as it is, on record: --unsafe")


def test_a_rule_says_it_and_the_command_line_too(job, here, tmp_path):
    rules = tmp_path / "rules.yaml"
    rules.write_text("rules:\n  - query: step > 0\n    unsafe: true\n")
    assert [rule.unsafe for rule in rules_of(str(rules))[1]] == [True]
    code, _, err = here("guard", rules, "small", "--once")
    assert code == 1
    assert "rules.yaml, line 2: unsafe: true runs a query that may change the job; add --unsafe." in err
    assert asked(job) == []
    with looptap.guard("small", rules_of(str(rules))[1]) as guard:
        soon(lambda: guard.firings)
    assert asked(job) == ["(step > 0), (step)"]
    rules.write_text("rules:\n  - query: step > 0\n    unsafe: 'yes'\n")
    assert "rules.yaml, line 2: unsafe='yes' must be true or false." in here("guard", rules, "small", "--once")[2]
