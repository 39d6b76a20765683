"""A trace of some steps by torch's profiler, written by the job."""

from __future__ import annotations

import gzip
import json

import pytest
import torch
from small_job import Job
from waiting import soon

import looptap
from looptap.client.control.commands import CommandPending
from looptap.streams.errors import ControlError


def trace(path):
    """Return the names of a trace's events."""
    with gzip.open(path) as file:
        return [event.get("name", "") for event in json.load(file)["traceEvents"]]


def test_a_trace_has_the_steps_asked_for_and_the_loop_computes_the_same(directory, tmp_path):
    job, file = Job(), tmp_path / "steps.json.gz"
    with looptap.Agent("profiled") as agent:
        done = job.while_asked(agent, lambda run: run.profile(file, steps=3))
        again = job.while_asked(agent, lambda run: run.profile(file, steps=3))
    assert trace(file).count("Optimizer.step#Adam.step") == 3
    assert file.stat().st_mode & 0o777 == 0o600
    assert str(file) in str(done.result)
    assert "File exists; nothing was written" in str(again)
    assert list(tmp_path.rglob("*.json*.part")) == []
    bare = Job()
    for _ in job.losses:
        bare.step()
    assert bare.losses == job.losses
    assert not torch.autograd._profiler_enabled()


def test_a_job_that_has_a_profiler_keeps_it(directory, tmp_path):
    job = Job()
    with looptap.Agent("profiling") as agent, torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        refused = job.while_asked(agent, lambda run: run.profile(tmp_path / "a.json.gz", steps=2))
    assert isinstance(refused, ControlError)
    assert "another profiler" in str(refused)
    assert not (tmp_path / "a.json.gz").exists()


@pytest.mark.promise("profile")
def test_a_profile_ends_with_the_run(directory, tmp_path):
    job, file = Job(), tmp_path / "a.json.gz"
    agent = looptap.Agent("ending")
    pending = job.while_asked(agent, lambda run: run.profile(file, steps=100, timeout=0.0))
    assert isinstance(pending, CommandPending)
    soon(lambda: (job.step(), agent.emit("batch"), torch.autograd._profiler_enabled())[-1])
    agent.close()
    assert not torch.autograd._profiler_enabled()
    assert not file.exists()


@pytest.mark.parametrize(
    ("path", "steps", "words"),
    [("a.json", 5, "ends in .json.gz"), ("a.json.gz", 0, "1 to 100 steps"), ("a.json.gz", 101, "1 to 100 steps")],
)
def test_wrong_arguments_are_refused(directory, path, steps, words):
    job = Job()
    with looptap.Agent("wrong") as agent:
        refused = job.while_asked(agent, lambda run: run.profile(path, steps=steps))
    assert isinstance(refused, ControlError)
    assert words in str(refused)


def test_a_folder_that_is_not_there_is_an_error(directory, tmp_path):
    job = Job()
    with looptap.Agent("nowhere") as agent:
        refused = job.while_asked(agent, lambda run: run.profile(tmp_path / "no" / "a.json.gz"))
    assert "No such file or directory" in str(refused)
