"""A client on the job's machine says what the process of a silent job does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from waiting import soon

import looptap
from looptap.protocol.errors import NoAnswer
from looptap.protocol.process.identity import Process, start_time

pytestmark = [pytest.mark.usefixtures("processes"), pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]

JOB = """
import sys, time
import looptap
agent = looptap.Agent("silent", limits=looptap.Limits(heartbeat=0.1))
agent.emit("batch", step=0)
print("ready", flush=True)
sys.stdin.readline()
sys.setswitchinterval(1e9)  # no other thread of the job gets the interpreter
while True:
    pass
"""


def process_of(pid: int) -> Process:
    here = Process.this()
    return Process(here.host, here.machine, here.boot, here.namespace, pid, start_time(pid) or "")


def test_a_job_that_moves_is_not_said_to_be_stopped_or_gone(directory):
    with subprocess.Popen([sys.executable, "-c", JOB], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as job:
        try:
            assert job.stdout.readline() == "ready\n"
            with looptap.attach("silent") as run:
                print("go", file=job.stdin, flush=True)
                soon(lambda: run.state == "silent")
                assert f"process {job.pid} is alive, and has used " in run.reason
                os.kill(job.pid, signal.SIGSTOP)
                soon(lambda: f"process {job.pid} is stopped; kill -CONT {job.pid}" in run.reason)
                with pytest.raises(NoAnswer, match=f"process {job.pid} is stopped"):
                    run.stream("step", on="batch", timeout=0.1)
        finally:
            job.kill()


@pytest.mark.promise("S34")
def test_what_a_process_does(directory):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        process = process_of(other.pid)
        soon(lambda: (process.pulse() or ("", 0))[0] == "S")
        assert process.activity(1e9) == f"the job's process {other.pid} is alive, and waits."
        other.communicate()
    assert process.activity(0.0) == f"the job's process {other.pid} is gone."
    assert Process("elsewhere", "", "", "", 1, "").activity(0.0) == ""
