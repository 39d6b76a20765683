"""`looptap progress` of a job without `Progress`: a guess from its events."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import warm

from looptap.cli import main
from looptap.cli.commands.watching.guess import EpochPlace, GuessedReports, counted
from looptap.client.estimates import said
from looptap.testing import pair

JOB = """
import sys, threading, looptap
agent = looptap.Agent("plain", config={"trainer": {"max_steps": 100_000}})
over, step = threading.Event(), 0
threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
while not over.wait(0.005):
    agent.emit("batch", step=step, loss=1.0 / (step + 1))
    step += 1
    if step == 400:
        print("here", flush=True)
agent.close()
"""


def test_a_job_without_progress_has_a_guess(directory, capsys):
    environment = {**os.environ, "LOOPTAP_DIR": str(directory), "LOOPTAP_STORE": str(directory / "runs")}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with warm.Popen([sys.executable, "-c", JOB], env=environment, text=True, **pipes) as job:
        assert job.stdout.readline() == "here\n"
        for more in ([], ["--json"]):
            with pytest.raises(SystemExit) as ended:
                main(["progress", "plain", "--count", "1", *more])
            assert ended.value.code == 0
            out = capsys.readouterr().out
            if more:
                report = json.loads(out)
                assert "max_steps of the config, 100,000" in report["guess"]
                assert report["remaining"][0] > 60
                assert 0 < report["fraction"] < 0.2
            else:
                assert "a guess: " in out
                assert " to go (" in out
        job.stdin.close()


@pytest.mark.parametrize(
    ("config", "carried"),
    [
        ({"max_steps": 1000}, lambda step: {"step": step}),
        ({"epochs": 20}, lambda step: {"step": step, "epoch": step // 50}),
        ({"epochs": 20}, lambda step: {"step": step % 50, "epoch": step // 50}),
    ],
)
def test_a_guess_uses_the_estimator_with_the_times_of_the_events(config, carried):
    now = [0.0]
    agent, run = pair("guessed", clock=lambda: now[0], history=True, config=config)
    agent.emit("batch", **carried(0))
    what = counted(run)
    assert what is not None
    reports = GuessedReports(run, what, 0.0)
    report = None
    for step in range(1, 400):
        now[0] += 2.0
        agent.emit("batch", **carried(step))
        for record in reports.records_after(0):
            report = record.value
    assert report["remaining"][0] == pytest.approx(600 * 2.0, rel=0.06)
    assert said(report)[0].startswith("a guess: ")
    run.close()
    agent.close()


def test_a_run_that_does_not_say_where_it_ends_has_no_guess():
    agent, run = pair("endless", history=True)
    agent.emit("batch", step=0)
    assert counted(run) is None
    run.close()
    agent.close()


def test_parts_of_an_epoch_count_once_its_steps_are_known():
    place = EpochPlace()
    assert [place.done(step // 4, step % 4) for step in range(9)] == [0, 0, 0, 0, 1, 1.25, 1.5, 1.75, 2]
