"""Stack reports of a job that hangs: asleep, spinning in Python, waiting in C."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import pytest
import warm

import looptap

HANGS = {
    "sleeps": "time.sleep(60)",
    "spins": "\n".join(["end = time.monotonic() + 60", "while time.monotonic() < end: pass"]),
    "waits in C": "threading.Lock().acquire() and (lock := threading.Lock()).acquire() and lock.acquire(timeout=300)",
    "reads a pipe": "os.read(os.pipe()[0], 1)",
}


@pytest.fixture(params=HANGS)
def hanging(processes, request, directory):
    code = """
        import looptap, os, signal, threading, time
        signal.alarm(300)

        def stuck_here():
        HANG

        with looptap.Agent("hanging") as agent:
            for step in range(7):
                agent.emit("batch", step=step)
            print("ready", flush=True)
            stuck_here()
    """
    body = textwrap.indent(HANGS[request.param], " " * 4)
    source = textwrap.dedent(code).replace("HANG", body, 1).replace("    " + body, body)
    with warm.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        yield child
        child.kill()


def test_a_hanging_job_shows_its_stacks(hanging):
    with looptap.attach("hanging") as run:
        answer = run.stacks()
    assert answer["threads"][0]["thread"] == "MainThread"
    assert "in stuck_here" in answer["threads"][0]["stack"]
    assert any(t["thread"] == "looptap-io" for t in answer["threads"])
    assert answer["events"]["batch"]["count"] == 7


def test_the_command_line_shows_them_too(hanging):
    command = [sys.executable, "-m", "looptap.cli", "stacks", "hanging", "--timeout", "300"]
    text = warm.run(command, capture_output=True, text=True, timeout=300, check=True).stdout
    assert "in stuck_here" in text
    assert "7 batch events, the last" in text
    assert "looptap-io" not in text
    reported = warm.run([*command, "--json"], capture_output=True, text=True, timeout=300, check=True).stdout
    assert json.loads(reported)["events"]["batch"]["count"] == 7
