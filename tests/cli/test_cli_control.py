"""Commands from the shell: printed output and exit codes."""

from __future__ import annotations

import json
import time

import pytest
from training_loop import training
from waiting import soon

import looptap
from looptap.agent.agent import name_events
from looptap.cli.commands.control import give_command
from looptap.protocol.files import command_file
from looptap.testing import parts_of


class Echo:
    factor = looptap.Control(int, default=2, minimum=1, maximum=16, doc="how often a batch is used", at="batch")


@pytest.fixture
def job(directory):
    with looptap.Agent("small", may_pause=20.0) as agent:
        agent.expose(echo=Echo(), settings={"rate": 0.5, "name": "a"})
        agent.checkpoint(lambda: "step.pt")
        agent.trigger("evaluate", lambda: {"error": 0.25})
        agent.trigger("fail", lambda: 1 / 0)
        with training(agent, step=1):
            yield agent


def test_controls_are_listed_set_and_logged_from_the_shell(job, here, tmp_path):
    code, out, _ = here("controls", "small")
    assert (code, out) == (0, "echo.factor = 2  (int; 1 to 16; how often a batch is used)\n")
    code, out, _ = here("set", "small", "echo.factor", "3", "--checkpoint", "--json")
    outcome = json.loads(out)
    assert (code, outcome["old"], outcome["new"], outcome["event"], outcome["saved"]) == (0, 2, 3, "batch", "step.pt")
    assert json.loads(here("controls", "small", "--json")[1])[0]["value"] == 3
    assert here("set", "small", "settings['rate']", "--", "-1.5")[1].startswith("set settings['rate']: 0.5 → -1.5, at")
    code, out, err = here("set", "small", "echo.factor", "99")
    assert (code, out, err) == (1, "", "looptap: echo.factor = 99 must be a whole number from 1 to 16.\n")
    code, out, _ = here("set", "small", "echo.facto", "3", "--json")
    assert (code, json.loads(out)["outcome"]) == (1, "ControlError")
    assert here("set", "small", "echo.factor", "3", "--id", outcome["id"])[1].startswith("set echo.factor: 2 → 3")
    lines = here("commands", "small")[1].splitlines()
    assert [line.split("  ")[2:4] for line in lines[:2]] == [
        ["set echo.factor 2 → 3", "done"], ["set settings['rate'] 0.5 → -1.5", "done"]
    ]  # fmt: skip
    records = json.loads(here("commands", "small", "--json")[1])
    assert [record["outcome"] for record in records] == ["done", "done", "refused", "refused"]
    clocks = [time.strftime("%H:%M:%S", time.localtime(record["time"])) for record in records]
    assert [line.split("  ")[0].split()[-1] for line in lines] == clocks  # with its date from another day
    path = tmp_path / "c.yaml"
    path.write_text(here("commands", "small", "--yaml")[1])
    assert [entry["value"] for entry in command_file.load_commands(path)] == [3, -1.5]


@pytest.mark.parametrize(
    ("words", "way_out"),
    [
        (["set", "small", "factor", "3"], "Did you mean 'echo.factor'?"),
        (["set", "small", "echo.factr", "3"], "Did you mean 'factor'?"),
        (["trigger", "small", "evalute"], "there are: evaluate, fail. Did you mean 'evaluate'?"),
        (["cancel", "small", "0f"], "looptap commands small lists those that it does"),
        (["modules", "small", "encoder"], "agent.expose(model=model)"),
        (["watch", "small", "stepp"], "Did you mean 'step'?"),
        (["call", "small", "import os"], "def f(e): import os; return 1"),
        (["stop", "smaal", "--yes"], "Did you mean 'small'?"),
    ],
    ids=lambda one: one[0] if isinstance(one, list) else "",
)
def test_a_slip_is_answered_with_the_likeliest_way_out(job, here, words, way_out):
    code, out, err = here(*words)
    assert (code, out) == (1, "")
    assert way_out in err


def test_an_id_only_asks_and_nothing_is_done(job, here):
    for words in (["set", "small", "echo.factor", "3"], ["trigger", "small", "evaluate"], ["checkpoint", "small"],
                  ["stop", "small"], ["call", "small", "step + 1"]):  # fmt: skip
        code, out, err = here(*words, "--id", "deadbeef")
        assert (code, out) == (1, "")
        assert "the job remembers no command with the id 'deadbeef'; nothing was done. Without --id" in err
    assert not job.stop_requested
    assert here("commands", "small")[1] == "No commands so far.\n"
    id = json.loads(here("set", "small", "echo.factor", "3", "--json")[1])["id"]
    for words in (["set", "small", "echo.factor", "9"], ["set", "small", "settings['rate']", "3"], ["stop", "small"]):
        code, _, err = here(*words, "--id", id)
        assert code == 1
        assert f"the command {id} was another one, and nothing was done: batch" in err
        assert "set echo.factor 2 → 3  done" in err
    with looptap.attach("small") as run:
        run.call("step + 1", id="one")
        assert run.commands[-1]["id"] == "one"
    assert here("call", "small", "step + 1", "--id", "one")[:2] == (0, "2\n")
    assert here("call", "small", "step + 2", "--id", "one")[0] == 1
    assert len(parts_of(job).dispatcher.commands.commands.records) == 2


def test_the_shell_suggests_shell_commands(job, here, tmp_path):
    code, _, err = here("set", "small", "settings['rate']", "4", "--on", "nosuchevent", "--timeout", "0.05")
    assert code == 1
    assert "The run has raised no 'nosuchevent' event yet; event types so far: 'batch'." in err
    id = parts_of(job).dispatcher.commands.commands.records[-1].id
    assert f"To ask for its outcome, give the same command with --id {id}: it never runs twice." in err
    assert here("call", "small", "1", "--on", "never", "--timeout", "0.05")[2].count("--id") == 1
    assert here("pause", "small", "15")[0] == 0
    with looptap.attach("small") as run:
        soon(lambda: run.paused)
    err = here("watch", "small", "step", "--timeout", "0.05")[2]
    assert here("share", "small", "--stream", "step", "-o", str(tmp_path / "v.json"))[0] == 0
    err += here("watch", str(tmp_path / "v.json"), "loss + 1")[2] + here("call", str(tmp_path / "v.json"), "1")[2]
    assert "looptap streams lists them" in err
    assert "run." not in err


def test_checkpoint_trigger_pause_resume_and_stop(job, here):
    assert here("checkpoint", "small")[1].startswith("checkpoint: 'step.pt', at batch ")
    assert json.loads(here("trigger", "small", "evaluate", "--json")[1])["result"] == {"error": 0.25}
    code, _, err = here("trigger", "small", "fail")
    assert code == 1
    assert "1 / 0" in err
    assert err.endswith("ZeroDivisionError: division by zero\n")
    assert here("pause", "small", "15")[0] == 0
    assert "looptap resume small ends that" in here("ls", "small")[1]
    assert "paused for" in here("stacks", "small")[1]
    code, out, _ = here("set", "small", "echo.factor", "4", "--timeout", "0.05", "--json")
    late = json.loads(out)
    assert (code, late["outcome"]) == (1, "CommandPending")
    assert here("resume", "small")[1].startswith("resume: ")
    assert here("resume", "small")[1] == "resume: the loop was not paused\n"
    assert here("set", "small", "echo.factor", "4", "--id", late["id"])[0] == 0
    code, out, _ = here("stop", "small", "--yes")
    assert code == 0
    assert "the job ends only if its loop reads agent.stop_requested, which it has not done so far" in out
    assert job.stop_requested
    assert "stop_requested" not in here("stop", "small", "--yes")[1]
    assert "nothing.yaml cannot be read" in here("replay", "nothing.yaml", "python")[2]


def test_a_command_that_waits_for_the_end_of_a_pause_says_how_to_end_it(job, here, monkeypatch):
    assert here("pause", "small", "15")[0] == 0
    said = "looptap: small is paused, and the command waits. looptap resume small ends the pause.\n"
    assert here("checkpoint", "small", "--timeout", "3")[2].startswith(said)  # with a heartbeat that says it
    assert here("call", "small", "step", "--timeout", "3")[2].startswith(said)
    assert here("resume", "small")[0] == 0
    monkeypatch.setattr(give_command, "WAIT_SECONDS", 0.05)
    _, _, err = here("trigger", "small", "evaluate", "--on", "epoch", "--timeout", "0.5")
    assert err.startswith("looptap: The command waits for its event. Ctrl-C ends the wait.\n")


def test_a_job_without_controls_says_how_to_get_some(directory, here):
    with looptap.Agent("bare"):
        assert "has no controls. It has them once it calls agent.control(...)" in here("controls", "bare")[1]
        assert here("commands", "bare")[1] == "No commands so far.\n"


def test_a_stop_of_a_loop_that_raises_no_usual_event_says_so_at_once(directory, here):
    with looptap.Agent("odd") as agent:
        stop = "stop", "odd", "--yes", "--timeout", "0"
        for words in ("has raised no event so far, and a command runs at one", "only step: give --on step."):
            code, _, err = here(*stop)
            assert (code, words in err) == (1, True)
            agent.emit("step", loss=0.5)
        assert "give --on" not in here(*stop, "--on", "step")[2]
    with looptap.Agent("named") as agent:
        name_events(agent, "batch", "step")
        agent.emit("step", loss=0.5)
        assert "give --on" not in here("stop", "named", "--yes", "--timeout", "0")[2]
