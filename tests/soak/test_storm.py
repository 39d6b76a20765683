"""Clients come and go for an hour; memory, descriptors and threads stay flat."""

from __future__ import annotations

import gc
import math
import os
import random
import subprocess
import sys
import textwrap
import time

import pytest

import looptap

SECONDS = float(os.environ.get("SOAK_SECONDS", "3600"))
WARM = min(60.0, SECONDS / 4)
"""Seconds until the first look: by then all code has run and all caches are full."""

JOB = """
    import os, signal, sys, threading, time, looptap
    from looptap.testing import parts_of
    signal.alarm(int(float(sys.argv[1])) + 120)
    def footprint():
        with open("/proc/self/statm") as file:
            memory = int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")
        return memory, len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))
    asked = threading.Event()
    def listen():
        for line in sys.stdin:
            asked.set()
        os._exit(1)  # the watching process has died
    threading.Thread(target=listen, daemon=True).start()
    with looptap.Agent("storm") as agent:
        agent.expose(boom=lambda: 1 / 0)
        print("ready", flush=True)
        step, looks = 0, []
        while True:
            step += 1
            agent.emit("batch", step=step, loss=1 / step, text="x" * 1000)
            if step % 100 == 0:
                agent.emit("epoch")
            if asked.is_set() and not agent.stats()["clients"]:
                looks.append(footprint())
                if len(looks) == 2000:  # libzmq closes the sockets of those who left a moment later
                    print(*map(min, zip(*looks)), step, parts_of(agent).connection.link.faults, flush=True)
                    asked.clear()
                    looks.clear()
            time.sleep(0.001)
"""
QUERIES = (
    "step, loss", "mean(e.loss for e in events)", "1 / 0", "boom()", "list(e.step for e in events)", "text",
    "quantile((e.loss for e in events), 0.9)", "max(e.loss for e in recent(50))",
)  # fmt: skip


def visit(dice):
    """Attach, start and end some streams, and leave, with or without a goodbye."""
    run = looptap.attach("storm")
    streams = [
        run.stream(dice.choice(QUERIES), on="batch", window=dice.choice([None, 7, looptap.sliding(3)]), budget=math.inf)
        for _ in range(dice.randint(1, 8))
    ]
    for stream in streams[:: dice.randint(1, 3)]:
        stream.close(timeout=0.5)
    if dice.random() < 0.3:
        run.call("step", timeout=5)
    if dice.random() < 0.8:
        run.close()


@pytest.mark.soak
@pytest.mark.skipif(sys.platform != "linux", reason="memory and descriptors are read from /proc")
@pytest.mark.timeout(SECONDS + 300)
def test_an_hour_of_short_lived_clients_leaves_nothing_behind(directory, progress):
    dice, visits, looks = random.Random(8), 0, []
    command = [sys.executable, "-c", textwrap.dedent(JOB), str(SECONDS)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as job:
        try:
            assert job.stdout.readline() == "ready\n"
            with looptap.attach("storm") as run:  # a frame that is sent uncopied starts pyzmq's own context, once
                assert len(run.stream("text * 400", on="batch").wait(1)[0]) == 400_000
            started = time.monotonic()
            for until in (WARM, SECONDS):
                while time.monotonic() - started < until:
                    visit(dice)
                    visits += 1
                    progress(visits, f"visits in {time.monotonic() - started:.0f} of {SECONDS:.0f} s")
                    assert job.poll() is None
                gc.collect()
                job.stdin.write("look\n")
                job.stdin.flush()
                looks.append([int(x) for x in job.stdout.readline().split()])
        finally:
            job.kill()
    (memory, descriptors, threads, _, _), (later, still, as_many, steps, faults) = looks
    print(f"{visits} visits, {steps} steps, {later - memory} bytes grown, {still} descriptors, {as_many} threads")
    assert faults == 0
    assert still <= descriptors
    assert as_many <= threads
    assert later - memory < 16 << 20
