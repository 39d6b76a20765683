"""A change that the job undoes itself is reported to the client that made it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from own_rate_job import own_rate
from steering import SCHEDULES, done, optimizer_of
from waiting import soon

import looptap
from looptap.agent.control.knobs.control_watch import WATCHED_EVENTS_COUNT
from looptap.testing import pair, parts_of


def waiting(agent):
    """Return how many calls wait for events: after a change those that read it again."""
    return sum(len(source.commands) for _, source in parts_of(agent).sources.types())


def steps(agent, count, write=lambda: None):
    for step in range(count):
        write()
        agent.emit("batch", step=step)


@pytest.fixture
def job():
    """Return an agent whose optimizer has no schedule, its client, and the optimizer."""
    agent, run = pair("own-rate")
    optimizer = optimizer_of(2)
    agent.expose(optimizer=optimizer)
    return agent, run, optimizer


def test_a_rate_that_the_job_writes_at_each_step_is_reported_with_the_first_step(job):
    agent, run, optimizer = job
    change = done(agent, run, run.set, "optimizer.lr[0]", 0.5)
    assert (change.new, change.warning, change.stood) == (0.5, "", 0)
    optimizer.param_groups[0]["lr"] = 0.001
    steps(agent, 1)
    now = run.outcome(change.id)
    assert now.warning == "it did not last: the job's own code set it to 0.001 by batch 2, and may do so again"
    assert now.warning in str(now)
    assert run.commands[-1]["warning"] == now.warning
    assert waiting(agent) == 0


def test_a_change_that_lasts_is_read_again_at_a_few_events_only(job):
    agent, run, _ = job
    assert waiting(agent) == 0
    change = done(agent, run, run.set, "optimizer.lr", 0.2)
    for _ in range(2):  # the end of an epoch has it read again
        steps(agent, WATCHED_EVENTS_COUNT)
        assert [name for name, source in parts_of(agent).sources.types() if source.commands] == ["epoch"]
        agent.emit("epoch")
    steps(agent, 3)
    assert waiting(agent) == 0
    now = run.outcome(change.id)
    assert (now.warning, now.stood) == ("", WATCHED_EVENTS_COUNT + 4)


def test_a_rate_that_is_written_after_an_epoch_is_reported(job):
    agent, run, optimizer = job
    change = done(agent, run, run.set, "optimizer.lr", 0.2)
    steps(agent, 3 * WATCHED_EVENTS_COUNT)
    agent.emit("epoch")
    steps(agent, 1, lambda: optimizer.param_groups[1].update(lr=0.3))
    assert "set it to [0.2, 0.3] by batch" in run.outcome(change.id).warning


def test_what_other_commands_change_is_not_the_job(job):
    agent, run, optimizer = job
    one = done(agent, run, run.set, "optimizer.lr[0]", 0.5)
    two = done(agent, run, run.set, "optimizer.lr", 0.2)
    three = done(agent, run, run.call, lambda e: e.optimizer.param_groups[1].update(lr=0.7))
    steps(agent, 3)
    assert {run.outcome(change.id).warning for change in (one, two, three)} == {""}
    four = done(agent, run, run.set, "optimizer.momentum[0]", 0.5)
    five = done(agent, run, run.set, "optimizer.lr[0]", 0.6)
    optimizer.param_groups[0]["momentum"] = 0.1
    steps(agent, 1)
    assert "set it to 0.1 by" in run.outcome(four.id).warning
    assert run.outcome(five.id).warning == ""
    again = done(agent, run, run.undo, "optimizer.lr[0]")
    optimizer.param_groups[0]["lr"] = 0.9
    steps(agent, 1)
    assert "set it to 0.9 by" in run.outcome(again.id).warning


@pytest.mark.parametrize("schedule", ["scale", "freeze"])
@pytest.mark.parametrize("kind", SCHEDULES)
def test_what_a_schedule_changes_is_not_the_job(kind, schedule):
    agent, run = pair("scheduled")
    optimizer = optimizer_of()
    scheduler = SCHEDULES[kind](optimizer)
    agent.expose(optimizer=optimizer, scheduler=scheduler)
    change = done(agent, run, run.set, "optimizer.lr", 0.05, schedule=schedule)
    for _ in range(8):
        optimizer.step()
        scheduler.step()
        agent.emit("batch")
    now = run.outcome(change.id)
    assert (now.warning, now.stood) == ("", None if schedule == "scale" else 8)


def test_many_changes_leave_one_watch_and_an_object_that_is_gone_none(job):
    agent, run, _ = job
    for value in range(1, 20):
        done(agent, run, run.set, "optimizer.lr", value / 100)
        done(agent, run, run.set, "optimizer.momentum", value / 100)
    assert waiting(agent) == 2
    agent.expose(optimizer=None)
    steps(agent, 2)
    assert waiting(agent) == 0


def set_rate():
    """Return what the command prints, as an operator's shell shows it."""
    command = [sys.executable, "-m", "looptap", "set", "own", "optimizer.lr", "0.5", "--json", "--yes"]
    said = subprocess.run(command, capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    found = json.loads(said.stdout)
    assert found["new"] == 0.5
    return found


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize(("when", "written"), [("step", "0.001"), ("epoch", "0.002"), ("never", "")])
def test_a_script_that_writes_its_rate_is_named_in_the_output_of_looptap_set(place, tmp_path, when, written):
    with own_rate(tmp_path, when):
        outcome = set_rate()
        if when == "step":  # the command waits a second for the next steps: on a busy machine that may be too short
            soon(lambda: "set it to 0.001 by step" in set_rate()["warning"])
        with looptap.attach("own") as run:
            if when == "never":
                soon(lambda: run.outcome(outcome["id"]).stood >= WATCHED_EVENTS_COUNT)
                assert run.outcome(outcome["id"]).warning == outcome["warning"] == ""
            else:
                soon(lambda: f"set it to {written} by step" in run.outcome(outcome["id"]).warning)
