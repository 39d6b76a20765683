"""The demo and its jobs: keep their promises, clean up, and ignore clients."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from io import StringIO
from pathlib import Path

import pytest
import warm
from rich.console import Console

import looptap
from looptap.cli import main
from looptap.cli.demo.digits import Digits, DigitsView
from looptap.testing import pair
from looptap.training.progress import Progress

torch = pytest.importorskip("torch")

JOB = ["-m", "looptap.examples.digits", "--epochs", "8"]
WAIT = 300.0
"""Seconds until a test gives up: a job that shares its cores with six others needs a minute to import torch."""
pytestmark = pytest.mark.timeout(4 * WAIT)


@pytest.fixture
def environment(directory):
    return dict(os.environ)


@pytest.fixture
def start(environment):
    """Return a function that starts Python with ``arguments``, its output captured."""
    started = []

    def begin(*arguments, **more):
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        started.append(warm.Popen([sys.executable, *arguments], env={**environment, **more}, **pipes))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def until(condition, process):
    """Return ``condition()`` as soon as it is true, while ``process`` runs."""
    deadline = time.monotonic() + WAIT
    while time.monotonic() < deadline:
        ended = process.poll() is not None
        if found := condition():
            return found
        assert not ended, process.communicate()[0]
        time.sleep(0.01)
    raise AssertionError(f"not within {WAIT:g} s: {' '.join(process.args)}")


def attached(process):
    """Return a client of the only run, as soon as it announces itself."""
    return until(looptap.runs, process)[0].attach(timeout=WAIT)


def checksum(job):
    out, _ = job.communicate(timeout=WAIT)
    assert job.returncode == 0, out
    return out.splitlines()[-1]


@pytest.mark.usefixtures("processes")
def test_a_job_ends_bit_identical_with_two_clients_one_of_which_is_killed(start, tmp_path):
    plain, job = start(*JOB, LOOPTAP_DISABLED="1"), start(*JOB)
    go_on = str(tmp_path / "go on")

    def until_all_who_ask_are_there(event):
        while not os.path.exists(go_on):
            time.sleep(0.01)

    with attached(job) as run:
        with pytest.raises(looptap.CommandPending):
            run.call(until_all_who_ask_are_there, timeout=0.01)
        demo = Digits(Console(file=StringIO()), 8)
        demo.ask(run)
        client = start("-u", "-m", "looptap.cli", "watch", run.id, "step, losses, layer_norms(model)")
        until(lambda: len(run.stats(WAIT)["queries"]) == 6, client)
        Path(go_on).touch()
        assert "losses" in client.stdout.readline()
        client.kill()
        reported = checksum(job)
        assert not demo.problem()
    assert reported.startswith("checksum of all losses: ")
    assert reported == checksum(plain)


@pytest.mark.usefixtures("processes")
def test_the_demo_shows_both_jobs_and_what_the_questions_cost(start):
    demo = start("-m", "looptap.cli", "demo", "--epochs", "6", LOOPTAP_DISABLED="1")
    out, _ = demo.communicate(timeout=WAIT)
    assert demo.returncode == 0, out
    assert "epoch  1: mean loss " in out
    assert "read as" in out
    assert " to go (" in out
    assert "What was asked, and what it cost the job" in out
    assert "checksum of all losses" in out
    assert "inf" in out
    assert "◀ isnan(loss) came true" in out
    assert looptap.runs() == []


@pytest.mark.usefixtures("processes")
def test_the_demo_ends_its_job_when_it_is_interrupted(start):
    demo = start("-m", "looptap.cli", "demo")
    with attached(demo) as run:
        demo.send_signal(signal.SIGINT)
        out, _ = demo.communicate(timeout=WAIT)
    assert demo.returncode == 130
    assert "Traceback" not in out
    assert looptap.runs() == []
    with contextlib.suppress(ProcessLookupError):
        os.kill(run.info.pid, 0)
        raise AssertionError("the job is still there")


def test_the_live_view_draws_what_has_come_and_says_what_has_not():
    agent, run = pair("digits")
    demo = Digits(Console(file=StringIO(), width=80), 1)
    demo.ask(run)
    assert demo.problem() == "No value came of 'step, loss'."
    model = torch.nn.Linear(2, 2)
    model(torch.ones(1, 2)).sum().backward()
    progress = Progress(100, epochs=1)
    agent.expose(model=model, progress=progress)
    for step in progress.train(range(100)):
        image, target = torch.rand(4, 1, 8, 8), torch.tensor([1, 2, 3, 4])
        losses = torch.tensor([0.1, 5.0, 0.2, 4.0]) / (step + 1)
        agent.emit(
            "batch", step=step, loss=losses.mean(), losses=losses, image=image, target=target, output=torch.eye(4)
        )
        if step % 50 == 49:
            agent.emit("epoch")
    demo.console.print(DigitsView(demo))
    drawn = demo.console.file.getvalue()
    assert "100 values, the newest 0.0232" in drawn
    assert "2 read as 1:" in drawn
    assert "bias" in drawn
    assert "progress.report  " in drawn
    assert demo.problem() == ""
    agent.close()


def test_the_demo_says_what_to_install_where_its_jobs_cannot_run(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(SystemExit) as exit:
        main(["demo"])
    assert exit.value.code == 1
    assert capsys.readouterr().err == (
        "looptap: The demo trains a small network and needs torch: pip install 'looptap[demo]'\n"
    )
