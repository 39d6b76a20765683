"""Queries on a busy CPU: preempted ones are not limited, expensive ones are."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time

import pytest
from waiting import soon

import looptap
from looptap.agent.loop.thread_time import thread_usage
from looptap.testing import parts_of

SLOW = 0.005


@pytest.fixture
def crowded():
    """Run three busy processes for each CPU."""
    if thread_usage() == (0.0, 0):
        pytest.skip("this kernel does not say how long a thread waits for a CPU")
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(3 * (os.cpu_count() or 1))]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def taking(seconds):
    """Return how many numbers are summed up in about ``seconds`` of CPU time."""
    sample, best = range(1000), math.inf
    for _ in range(200):
        started = time.thread_time()
        sum(sample)
        best = min(best, time.thread_time() - started)
    return int(1000 * seconds / best)


@pytest.mark.soak
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("query", "limited"), [("sum(range(few))", False), ("sum(range(many))", True), ("slow() or step", True)],
    ids=["cheap", "expensive", "sleeping"],
)  # fmt: skip
def test_a_query_is_not_charged_while_others_have_the_cpu(directory, crowded, query, limited):
    with looptap.Agent("budget", budget=0.03) as agent:
        agent.expose(few=taking(9e-6), many=taking(SLOW), slow=lambda: time.sleep(SLOW))
        watch = [sys.executable, "-m", "looptap.cli", "watch", "budget", query]
        with subprocess.Popen(watch, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as client:
            batch = parts_of(agent).sources.open("batch")
            soon(lambda: batch.queries, 60.0)
            step, seen, until = 0, False, time.monotonic() + 3
            while time.monotonic() < until and not (seen and limited):
                agent.emit("batch", step=step)
                step += 1
                seen = seen or batch.queries[0].limit.limited
            (asked,) = batch.queries
            client.kill()
        print(f"{1e6 * asked.seconds / asked.events:.1f} µs an event, {step:,} events")
        assert seen == limited, f"{1e6 * asked.seconds / asked.events:.1f} µs an event"
        assert limited or asked.events == step
