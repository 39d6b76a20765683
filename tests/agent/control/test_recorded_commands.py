"""A job that writes a file of commands into its working directory says so."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import warm

import looptap

JOB = """
import sys, time, looptap
with looptap.Agent("commanded") as agent:
    agent.control("knob", lambda: 0.5, print)
    print("ready", flush=True)
    while not agent.stop_requested:
        agent.emit("batch")
        time.sleep(0.002)
"""


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("chosen", [False, True], ids=["by default", "where the user says"])
def test_a_job_says_where_its_commands_are_recorded(place, tmp_path, monkeypatch, chosen):
    monkeypatch.delenv("LOOPTAP_STORE")
    extra = {"LOOPTAP_STORE": str(tmp_path / "there")} if chosen else {}
    environment = {**os.environ, **extra}
    command = [sys.executable, "-c", JOB]
    with warm.Popen(
        command, env=environment, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as job:
        assert job.stdout.readline() == "ready\n"
        with looptap.attach("commanded") as run:
            run.stop()
        said = job.communicate(timeout=300)[1]
    (file,) = tmp_path.glob("*/commanded-*.looptap")
    assert [command.what for command in looptap.open(file).commands] == ["stop"]
    announced = "looptap: the commands of clients are recorded in" in said
    assert announced == (not chosen)
    assert (file.name in said) == (not chosen)
    assert said.count("\n") == announced
