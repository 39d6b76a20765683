"""Liveness: loops that hang and queries that never return are reported by name."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
import warm
from waiting import soon

import looptap

pytestmark = pytest.mark.usefixtures("processes")

PATIENCE = 90.0
PROGRESS = "from looptap.cli.commands.watching import progress; progress.STILL_SECONDS = 0.5\n"
PROGRESS += "from looptap.cli import main; main()"
HEAD = """
import logging, os, re, signal, sys, threading, time
import looptap
from looptap.agent.server import liveness as pulse
logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(message)s")
signal.alarm(200)
"""
QUICK = "pulse.LONG_SECONDS = 1.0\nlimits = looptap.Limits(heartbeat=0.1)\n"
HOLDS_GIL = "sum(map(int, itertools.repeat(1, 4 * 10**9)))"
HANGS = {
    "sleeps": "time.sleep(200)",
    "waits for a lock": "lock = threading.Lock(); lock.acquire(); lock.acquire()",
}


@contextlib.contextmanager
def job(code, *, quick=True):
    """Run a job in a process of its own; yield it once it is ready."""
    source = HEAD + (QUICK if quick else "limits = looptap.Limits()\n") + textwrap.dedent(code)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.PIPE, "text": True}
    with warm.Popen([sys.executable, "-u", "-c", source], **pipes) as child:
        heard: list[str] = []
        reader = threading.Thread(target=lambda: heard.extend(iter(child.stderr.readline, "")), daemon=True)
        try:
            assert child.stdout.readline() == "ready\n", child.stderr.read()
            child.heard = heard
            reader.start()
            yield child
        finally:
            child.kill()
            child.wait()
            reader.join(10)


def cli(*words):
    """Return what a shell command prints, from a process of its own."""
    command = [sys.executable, "-m", "looptap.cli", *words]
    return warm.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True).stdout


def ls():
    (report,) = json.loads(cli("ls", "--json"))
    return report


@pytest.mark.parametrize("hang", HANGS)
@pytest.mark.usefixtures("directory")
def test_a_later_client_sees_a_loop_that_hangs_from_its_first_second(hang):
    code = f"""
        with looptap.Agent("hangs", limits=limits) as agent:
            agent.emit("batch", step=0)
            agent.emit("epoch", epoch=0)
            print("ready")
            {HANGS[hang]}
    """
    with job(code):
        began = time.monotonic()
        seen = []
        while len(seen) < 3:  # each look is a client of its own, the first that the job ever sees
            soon(lambda: time.monotonic() - began > 0.8 + 0.4 * len(seen), PATIENCE)
            passed = time.monotonic() - began
            with looptap.attach("hangs", timeout=PATIENCE) as run:
                seen.append((passed, run.idle, run.ages(), run.stacks(PATIENCE)["events"], run.events()))
        for passed, idle, ages, events, counts in seen:
            assert counts == {"batch": 1, "epoch": 1}
            for age in (idle, *ages.values(), *(one["idle"] for one in events.values())):
                assert age > passed - 0.5  # a beat is 0.1 s here
        said = cli("ls")
        assert "1 batch event, the last" in said
        assert "0 s ago" not in said


@pytest.mark.promise("S34")
@pytest.mark.usefixtures("directory")
def test_a_job_that_hangs_before_its_first_event_says_so():
    code = """
        with looptap.Agent("early", limits=limits) as agent:
            print("ready")
            time.sleep(200)
    """
    with job(code):
        began = time.monotonic()
        soon(lambda: time.monotonic() - began > 1.5, PATIENCE)
        with looptap.attach("early", timeout=PATIENCE) as run:
            assert run.idle > 1.0
            assert run.ages() == {}
            assert "no event in the" in repr(run)
            assert run.stacks(PATIENCE)["age"] > 1.0
            with pytest.raises(looptap.StreamTimeout, match=r"none in the \d+ s since it started"):
                run.stream("step").wait(1, timeout=0.1)
        assert "since it started" in cli("stacks", "early")
        report = ls()
        assert (report["events"], report["ages"]) == ({}, {})
        assert report["idle"] > 1.0


@pytest.mark.usefixtures("directory")
def test_each_of_several_event_types_has_its_own_age():
    code = """
        with looptap.Agent("both", limits=limits) as agent:
            agent.emit("epoch", epoch=0)
            print("ready")
            while True:
                agent.emit("batch", step=0)
                time.sleep(0.01)
    """
    with job(code), looptap.attach("both", timeout=PATIENCE) as run:
        soon(lambda: run.ages()["epoch"] > 1.0 > run.ages()["batch"], PATIENCE)
        assert run.idle < run.ages()["epoch"]
        assert run.stacks(PATIENCE)["events"]["epoch"]["idle"] > 1.0


def test_progress_says_that_the_loop_does_not_move(directory, monkeypatch):
    code = """
        from looptap.training.progress import Progress
        with looptap.Agent("still", limits=limits) as agent:
            agent.emit("batch", step=0)
            print("ready")
            time.sleep(200)
    """
    with job(code):
        command = [sys.executable, "-c", PROGRESS, "progress", "still"]
        with warm.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as child:
            assert child.stderr is not None
            lines = []
            while not any("no event for" in line for line in lines):
                lines.append(child.stderr.readline())
                assert lines[-1], lines
            child.kill()
    assert any("looptap stacks still" in line for line in lines)


# ---------------------------------------------------------------- queries that do not come back

LOOP = """
    agent = looptap.Agent("stuck", limits=limits)
    agent.expose(model=object())
    agent.emit("batch", step=0, loss=0.5)
    print("ready")
    step = 0
    while True:
        step += 1
        agent.emit("batch", step=step, loss=0.5)
        time.sleep(0.01)
"""


def _sleeps(e):
    import time

    time.sleep(100)
    return e.step


QUERIES = {
    "a function that sleeps": _sleeps,
    "pure Python": "sum(i + step for i in range(10**12))",
}


@pytest.mark.promise("S34")
@pytest.mark.parametrize("kind", QUERIES)
@pytest.mark.usefixtures("directory")
def test_a_query_that_does_not_come_back_is_named_to_its_client_to_ls_and_in_the_log(kind):
    query = QUERIES[kind]
    name = "_sleeps" if callable(query) else query
    with job(LOOP) as child, looptap.attach("stuck", timeout=PATIENCE) as run:
        stream = run.stream(query, timeout=PATIENCE, unsafe=callable(query))
        soon(lambda: name in run.inside, PATIENCE, detail=lambda: repr(run))
        soon(lambda: any("one evaluation has taken" in note for note in stream.notes), PATIENCE)
        assert name in stream.outlook()
        assert run.state == "live"  # the agent answers
        (found_facts,) = run.stats(PATIENCE)["inside"]
        assert (found_facts["kind"], found_facts["name"], found_facts["on"]) == ("query", name, "batch")
        assert found_facts["seconds"] >= 1.0
        assert run.info.host
        assert [one["name"] for one in run.stacks(PATIENCE)["inside"]] == [name]
        assert name in "".join(cli("ls").split("\n"))
        assert [one["name"] for one in ls()["inside"]] == [name]
        soon(lambda: any(name in line for line in child.heard), PATIENCE)
        assert sum(name in line for line in child.heard) == 1  # once, not at each beat


@pytest.mark.usefixtures("directory")
def test_a_command_that_does_not_come_back_is_named(directory):
    with job(LOOP), looptap.attach("stuck", timeout=PATIENCE) as run:
        with pytest.raises(looptap.CommandPending):
            run.call(_sleeps, timeout=0.5)
        soon(lambda: "_sleeps" in run.inside, PATIENCE, detail=lambda: repr(run))
        assert ls()["inside"][0]["kind"] == "command call"


@pytest.mark.usefixtures("directory")
def test_a_query_that_returns_is_no_longer_named():
    def slow(e):
        import os
        import time

        while not os.path.exists(e.go):
            time.sleep(0.01)
        return e.step

    code = LOOP.replace("step=step,", "step=step, go=os.environ['LOOPTAP_DIR'] + '/go',")
    with job(code), looptap.attach("stuck", timeout=PATIENCE) as run:
        stream = run.stream(slow, timeout=PATIENCE, budget=float("inf"), unsafe=True)
        soon(lambda: run.inside, PATIENCE)
        Path(os.environ["LOOPTAP_DIR"], "go").touch()
        soon(lambda: not run.inside, PATIENCE)
        stream.wait(3, PATIENCE)
        soon(lambda: not any("one evaluation has taken" in note for note in stream.notes), PATIENCE)


SILENCING = {
    "a call in C that keeps the GIL": ("9**9**(8 if go else 1) * step", {}),
    "arithmetic on the I/O thread": ("sum(i for i in range(10**12 if go else 1)) + step", {}),
    "a recorder's condition": ("step", {"when": "sum(i for i in range(10**12 if go else 1)) + step > 3", "before": 1}),
}


@pytest.mark.parametrize("kind", SILENCING)
@pytest.mark.usefixtures("directory")
def test_the_client_names_the_query_if_the_agent_cannot_answer(kind, monkeypatch, caplog):
    query, how = SILENCING[kind]
    monkeypatch.setattr("looptap.client.session.vitals.SILENT_TICKS", 3)
    monkeypatch.setattr("looptap.client.transport.zmq_client.TICK_INTERVAL_SECONDS", 0.5)
    code = LOOP.replace("loss=0.5)", "loss=0.5, go=os.path.exists(os.environ['LOOPTAP_DIR'] + '/go'))")
    with job(code), looptap.attach("stuck", timeout=PATIENCE) as run:
        stream = run.stream(query, timeout=PATIENCE, **how)
        stream.wait(1, PATIENCE)  # its first event waits for no thread
        Path(os.environ["LOOPTAP_DIR"], "go").touch()
        soon(lambda: run.state == "silent", PATIENCE, detail=lambda: repr(run))
        assert repr(query) in run.reason
        assert "No answer for" in run.reason
        assert not run.alive
        assert stream.state == "live"  # it may go on
        soon(lambda: any(query in record.message for record in caplog.records), PATIENCE)  # logged a little later
        with pytest.raises(looptap.NoAnswer, match=r"No answer for \d+ s"):
            run.stats(timeout=0.1)
        if "GIL" not in kind:
            return
        report = ls()
        assert report["state"] == "silent"
        assert "keeps the interpreter" in report["problem"]
