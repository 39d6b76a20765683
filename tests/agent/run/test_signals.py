"""Signals: none is handled, except SIGTERM on request (S24)."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
import textwrap
import threading

import pytest
import warm
from waiting import soon

import looptap
from looptap.testing import pair

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="signals as POSIX has them"),
    pytest.mark.usefixtures("directory"),
]


def child(program, *arguments):
    """Run ``program`` in a process of its own, and wait until it is ready."""
    command = [sys.executable, "-c", textwrap.dedent(program), *arguments]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    process = warm.Popen(command, text=True, **pipes)
    assert process.stdout.readline() == "ready\n"
    return process


HANDLERS = """
    import gc, signal, sys, torch, looptap
    def handlers():
        return {n: signal.getsignal(n) for n in signal.valid_signals()}, signal.set_wakeup_fd(-1)
    def load():
        for _ in torch.utils.data.DataLoader(list(range(4)), num_workers=2, multiprocessing_context="fork"):
            pass
    load()  # torch watches its workers with a handler of its own
    before = handlers()
    agent = looptap.Agent("quiet")
    assert handlers() == before, "construction"
    agent.emit("batch", step=0)
    print("ready", flush=True)
    sys.stdin.readline()
    agent.emit("batch", step=1)
    assert handlers() == before, "a query"
    load()
    assert handlers() == before, "workers"
    sys.stdin.readline()
    agent.emit("batch", step=2)
    agent.close()
    assert handlers() == before, "close"
    with looptap.Agent("quiet", sigterm=True):
        assert handlers() != before
    assert handlers() == before, "SIGTERM is given back"
"""


@pytest.mark.promise("S24")
@pytest.mark.usefixtures("processes")
def test_no_signal_is_handled_by_an_agent_its_queries_or_its_end():
    with child(HANDLERS) as job:
        with looptap.attach("quiet") as run:
            stream = run.stream("step", on="batch")
            job.stdin.write("go\n")
            job.stdin.flush()
            assert stream.wait(1, timeout=300) == [1]
        job.stdin.write("go\n")
        job.stdin.close()
        assert job.wait(300) == 0, job.stderr.read()


ENDED = """
    import os, signal, sys, time, looptap
    from looptap.testing import parts_of
    signal.alarm(300)
    exec(sys.argv[1])
    agent = looptap.Agent("ended", sigterm=sys.argv[2] == "True")
    if sys.argv[3] == "closing":
        link = parts_of(agent).connection.link
        def stop(timeout):
            del link.stop
            os.kill(os.getpid(), signal.SIGTERM)
            link.stop(timeout)
        link.stop = stop
    print("ready", flush=True)
    sys.stdin.readline()
    for step in range(1000):
        agent.emit("batch", step=step, text="x" * 1000)
    if sys.argv[3] == "closing":
        agent.close()
    os.kill(os.getpid(), signal.SIGTERM)
    print("after", flush=True)
"""
BEFORE = {
    "default": ("pass", -signal.SIGTERM, "terminated (SIGTERM)"),
    "exits": ("signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))", 3, "ended"),
    "leaves at once": ("signal.signal(signal.SIGTERM, lambda *_: os._exit(4))", 4, ""),
    "continues": ("signal.signal(signal.SIGTERM, lambda *_: None)", 0, "ended"),
    "ignored": ("signal.signal(signal.SIGTERM, signal.SIG_IGN)", 0, "ended"),
}


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize(
    ("who", "asked"), [*((who, True) for who in BEFORE), ("default", False), ("leaves at once", False)]
)
def test_with_the_hook_nothing_is_lost_and_the_job_ends_as_without(who, asked):
    handler, status, reason = BEFORE[who]
    with child(ENDED, handler, str(asked), "") as job:
        run = looptap.attach("ended")
        stream = run.stream("step, text", on="batch", budget=100.0)
        job.stdin.write("go\n")
        job.stdin.close()
        assert job.wait(300) == status
        assert (job.stdout.read() == "after\n") == (status == 0)
        if asked and reason:
            soon(lambda: stream.state != "live")
            assert reason in stream.reason
            assert stream.arrived == 1000
        elif asked:
            soon(lambda: stream.arrived == 1000)
        run.close()


@pytest.mark.promise("S24")
@pytest.mark.usefixtures("processes")
def test_a_sigterm_while_the_agent_closes_waits_for_its_goodbye():
    with child(ENDED, "pass", "True", "closing") as job:
        run = looptap.attach("ended")
        stream = run.stream("step, text", on="batch", budget=100.0)
        job.stdin.write("go\n")
        job.stdin.close()
        assert job.wait(300) == -signal.SIGTERM
        soon(lambda: stream.state != "live")
        assert stream.arrived == 1000
        assert stream.state == "ended"
        run.close()


def test_off_the_main_thread_the_hook_is_refused_in_a_sentence_and_nothing_is_left(tmp_path):
    said = []

    def make():
        try:
            looptap.Agent("elsewhere", sigterm=True)
        except ValueError as error:
            said.append(str(error))
        looptap.Agent("elsewhere", sigterm=True, enabled=False).emit("batch")

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    assert said == ["sigterm=True: only the main thread can handle signals. Create the agent there."]
    assert list(tmp_path.iterdir()) == []


def test_a_later_signal_handler_stays():
    def theirs(number, frame):
        raise AssertionError("no process sends it")

    before = signal.getsignal(signal.SIGTERM)
    try:
        with looptap.Agent("covered", sigterm=True):
            ours = signal.signal(signal.SIGTERM, theirs)
        assert signal.getsignal(signal.SIGTERM) is theirs
        assert callable(ours)
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("others", [(), ("lambda e: str(e.k)",)], ids=["numbers", "at the event"])
def test_an_event_of_a_signal_handler_amid_another_one_costs_no_value(others):
    calls, looping = itertools.count(), True

    def clock():
        time = next(calls)
        if looping and time % 7 == 3:  # amid an event of the loop
            signal.raise_signal(signal.SIGUSR1)
        return float(time)

    agent, run = pair(clock=clock)
    queries = ("k", "(e.k + 1 for e in events)", *others)
    streams = [run.stream(query, on="batch", buffer=1000) for query in queries]
    counted = run.stream("len(events), sum(e.k for e in events)", on="batch")
    before = signal.signal(signal.SIGUSR1, lambda *_: agent.emit("batch", k=1000))
    try:
        for k in range(200):
            agent.emit("batch", k=k)
        looping = False
    finally:
        signal.signal(signal.SIGUSR1, before)
    agent.end_group("batch")
    ((events, total),) = counted.values
    assert events > 220
    assert total == sum(range(200)) + (events - 200) * 1000
    for stream in streams:
        assert sorted(record.event for record in stream.records) == list(range(1, events + 1))
        assert stream.dropped == stream.error_count == 0
    assert [value for value in streams[0].values if value < 1000] == list(range(200))
    agent.close()
