"""What holds a job's memory: lines and tensors, recorded over a few steps."""

from __future__ import annotations

import json
import os
import pickle
import threading
import tracemalloc

import pytest
import torch
from small_job import Job
from waiting import soon

import looptap
from looptap.agent.control.profiling import memory_recorder, memory_tracers
from looptap.cli.entry_point import exit_code as command
from looptap.client.control.commands import CommandPending
from looptap.streams.errors import ControlError

CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")


class Hoarder(Job):
    """A loop that keeps texts, and tensors, of every step."""

    def __init__(self):
        super().__init__()
        self.texts, self.kept, self.by_step = [], [], {}

    def step(self):
        super().step()
        self.texts.append(f"a text {len(self.texts)} " * 1000)  # the line that holds the most
        self.kept.append(torch.zeros(250))
        self.by_step[len(self.texts)] = torch.zeros(2, 5)


def test_lines_and_tensors_are_named_and_the_loop_computes_the_same(directory):
    job = Hoarder()
    with looptap.Agent("hoarding") as agent:
        agent.expose(model=job.model, optimizer=job.optimizer, job=job)
        report = job.while_asked(agent, lambda run: run.memory(steps=4))
    assert (report.kind, report.steps, report.notes) == ("python", 4, [])
    first = report.lines[0]
    assert (first.file, first.code.partition("  # ")[0]) == (__file__, job_line("self.texts.append"))
    assert first.count >= 4
    assert 4 * 8000 < first.size <= report.held <= report.peak
    tensors = {one.name: one for one in report.tensors}
    assert tensors["model.0.weight"].shape == tensors["model.0.weight.grad"].shape == (8, 8)
    assert tensors["optimizer.state[model.0.weight].exp_avg"].size == 256
    kept = tensors["job.kept[…]"]
    assert (kept.shape, kept.dtype, kept.device, kept.size) == ((250,), "float32", "cpu", 1000 * kept.count)
    assert kept.count > 8
    assert kept == report.tensors[0]
    assert report.tensor_bytes["cpu"] >= sum(one.size for one in report.tensors)
    assert report.step_seconds > 0
    assert report.step_seconds_before > 0
    assert report.stood > 0
    assert report.resident > 2**20
    assert not tracemalloc.is_tracing()
    bare = Job()
    for _ in job.losses:
        bare.step()
    assert bare.losses == job.losses


def job_line(begin):
    """Return the line of this file that begins so, without its comment."""
    with open(__file__) as file:
        return next(line.strip().partition("  # ")[0] for line in file if line.strip().startswith(begin))


def test_a_variable_of_the_loop_names_its_tensors(directory):
    job, mine = Job(), [torch.ones(3, 3), torch.ones(3, 3)]
    view = mine[0][0]
    with looptap.Agent("naming") as agent:
        report = job.while_asked(agent, lambda run: run.memory(steps=1))
    (found,) = [one for one in report.tensors if one.name == "mine[…]"]
    assert (found.count, found.size) == (2, 72)
    assert not [one for one in report.tensors if one.name == "view"]  # its storage has counted
    assert view.sum() == 3


def test_the_snapshot_is_a_file_that_is_not_overwritten(directory, tmp_path):
    job, path = Job(), tmp_path / "a.pickle"
    with looptap.Agent("filed") as agent:
        report = job.while_asked(agent, lambda run: run.memory(path, steps=2))
        again = job.while_asked(agent, lambda run: run.memory(path, steps=2))
    assert (report.path, report.file_bytes) == (str(path), path.stat().st_size)
    assert path.stat().st_mode & 0o777 == 0o600
    assert isinstance(tracemalloc.Snapshot.load(str(path)), tracemalloc.Snapshot)
    assert "File exists; nothing was written" in str(again)


def test_a_tracer_of_the_jobs_own_is_left_running(directory):
    job = Job()
    tracemalloc.start()
    try:
        with looptap.Agent("tracing") as agent:
            report = job.while_asked(agent, lambda run: run.memory(steps=1))
        assert tracemalloc.is_tracing()
        assert tracemalloc.get_traceback_limit() == 1
    finally:
        tracemalloc.stop()
    assert "the job traces memory itself" in report.notes[0]


def recording():
    """Return whether a recording has begun: its thread runs from its first event on."""
    return any(thread.name == "looptap-memory" for thread in threading.enumerate())


def begun(job, agent):
    """Ask for a long recording, and step until memory is traced."""
    pending = job.while_asked(agent, lambda run: run.memory(steps=20, timeout=0.0))
    assert isinstance(pending, CommandPending)
    soon(lambda: (job.step(), agent.emit("batch"), tracemalloc.is_tracing())[-1])


def test_a_recording_ends_with_the_run(directory):
    job = Job()
    agent = looptap.Agent("ending")
    begun(job, agent)
    agent.close()
    assert not tracemalloc.is_tracing()


@pytest.mark.promise("memory")
@pytest.mark.usefixtures("processes")
def test_a_forked_child_does_not_trace(directory):
    job = Job()
    with looptap.Agent("forking") as agent:
        begun(job, agent)
        child = os.fork()
        if child == 0:
            os._exit(int(tracemalloc.is_tracing()))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert tracemalloc.is_tracing()
    assert not tracemalloc.is_tracing()


def test_two_recordings_at_once_are_refused(directory, tmp_path):
    job = Job()
    with looptap.Agent("twice") as agent:
        begun(job, agent)
        refused = job.while_asked(agent, lambda run: run.profile(tmp_path / "a.json.gz"))
    assert "another profile or record of memory" in str(refused)


def test_a_recording_ends_in_a_loop_that_hangs(directory, monkeypatch):
    monkeypatch.setattr(memory_recorder, "MAX_SECONDS", 0.2)
    monkeypatch.setattr(memory_recorder, "LAST_EVENT_SECONDS", 0.1)
    job = Job()
    with looptap.Agent("hanging") as agent:
        pending = job.while_asked(agent, lambda run: run.memory(steps=100, timeout=0.0))
        soon(lambda: (job.step(), agent.emit("batch"), recording())[-1])
        with looptap.attach("hanging") as run:  # and no further event comes
            report = run.outcome(pending.id, timeout=300).result
    assert report["tensors"] == []
    assert report["notes"] == [
        "the recording ended after 0.2 s", "the loop raised no event at which tensors could be listed"
    ]  # fmt: skip
    assert not tracemalloc.is_tracing()


def test_a_tracer_that_needs_too_much_memory_ends_early(directory, monkeypatch):
    monkeypatch.setattr(memory_tracers, "MAX_TRACER_BYTES", 10_000)
    job = Hoarder()
    with looptap.Agent("filling") as agent:
        report = job.while_asked(agent, lambda run: run.memory(steps=100))
    assert report.steps < 100
    assert "too many allocations" in report.notes[0]
    assert report.tensors


@pytest.mark.parametrize(
    ("path", "steps", "words"), [("a.bin", 5, "ends in .pickle"), ("", 0, "1 to 100 steps"), ("", 101, "1 to 100")]
)
def test_wrong_arguments_are_refused(directory, path, steps, words):
    job = Job()
    with looptap.Agent("wrong") as agent:
        refused = job.while_asked(agent, lambda run: run.memory(path, steps=steps))
    assert isinstance(refused, ControlError)
    assert words in str(refused)


def test_the_command_line_shows_it(directory, capsys):
    job = Hoarder()
    with looptap.Agent("shown") as agent:
        agent.expose(job=job)
        assert job.while_asked(agent, lambda run: command(["memory", "shown", "--steps", "2", "--rows", "3"])) == 0
        shown = capsys.readouterr().out
        assert job.while_asked(agent, lambda run: command(["memory", "shown", "--steps", "2", "--json"])) == 0
        report = json.loads(capsys.readouterr().out)
        assert job.while_asked(agent, lambda run: command(["memory", "shown", "-o", "a.bin"])) == 1
        assert "ends in .pickle" in capsys.readouterr().err
    assert f"{__file__}:" in shown
    assert 'self.texts.append(f"a text' in shown
    assert "job.kept[…]  float32[250]" in shown
    assert "more rows: --rows shows up to 100" in shown
    assert "while memory was traced" in shown
    assert __file__ in [line["file"] for line in report["lines"]]


def test_the_lines_of_torchs_snapshot_are_those_of_the_job():
    library = torch.nn.functional.__file__
    frames = [{"filename": library, "line": 5, "name": "linear"}, {"filename": __file__, "line": 1, "name": "step"}]
    blocks = [
        {"state": "active_allocated", "size": 512, "requested_size": 500, "frames": frames},
        {"state": "active_allocated", "size": 2048, "requested_size": 2000, "frames": []},
        {"state": "inactive", "size": 4096, "requested_size": 0, "frames": frames},
    ]
    lines = memory_tracers.CudaTracer.lines({"segments": [{"blocks": blocks}]})
    assert [(one.file, one.line, one.size, one.count) for one in lines] == [("", 0, 2000, 1), (__file__, 1, 500, 1)]


@CUDA
def test_torchs_snapshot_on_a_device(directory, tmp_path):
    job, kept, path = Job(), [], tmp_path / "cuda.pickle"
    step = job.step
    job.step = lambda: (step(), kept.append(torch.ones(1_000_000, device="cuda")))
    job.step()
    with looptap.Agent("device") as agent:
        report = job.while_asked(agent, lambda run: run.memory(path, steps=3))
    assert report.kind == "cuda"
    assert [one for one in report.lines if one.file == __file__ and one.size >= 3 * 4_000_000]
    with path.open("rb") as file:
        assert {"segments", "device_traces"} <= set(pickle.load(file))
