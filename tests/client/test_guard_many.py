"""One guard over many agents: it misses no event, and its cost a run is bounded."""

from __future__ import annotations

import contextlib
import math
import os
import subprocess
import sys

import pytest
import warm
from places import ROOT
from waiting import soon

import looptap

CROWD = ROOT / "benchmarks" / "crowd.py"
EACH, EPOCH = 10, 50
"""Agents of a process, and batches of an epoch."""


@contextlib.contextmanager
def crowd(count, period, steps):
    """Run ``count`` agents, ten in a process, that wait for `go`."""
    with contextlib.ExitStack() as stack:
        processes = []
        for first in range(0, count, EACH):
            words = [sys.executable, str(CROWD), *map(str, (first, EACH, period, steps))]
            process = warm.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            processes.append(stack.enter_context(process))
            stack.callback(process.kill)
        for process in processes:
            assert process.stdout.readline() == f"{EACH}\n"
        yield processes


def tell(processes):
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()


@pytest.mark.promise("runs")
@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize(
    ("count", "steps"), [(20, 100), pytest.param(100, 1000, marks=[pytest.mark.soak, pytest.mark.timeout(600)])]
)
def test_a_guard_of_many_agents_misses_no_event_that_a_rule_needs(directory, count, steps):
    rules = [
        looptap.Rule("alarm", show="step", again=0.0, budget=math.inf),
        looptap.Rule("len(events)", above=0, again=0.0, budget=math.inf, name="epochs"),
        looptap.Rule.worse_than_siblings("loss", step="epoch", budget=math.inf),
        looptap.Rule.stalled(minutes=60),
    ]
    wanted = count * (steps + 2 * steps // EPOCH)
    with crowd(count, 0.02 if count < 100 else 0.05, steps) as processes:
        before = len(os.listdir("/proc/self/task")) if os.path.isdir("/proc") else 0
        with looptap.guard("crowd-*", rules, dry_run=True) as guard:
            soon(lambda: len(guard.watched) == len(rules) * count, 120)
            if before:
                assert len(os.listdir("/proc/self/task")) - before < count + 30  # a thread for a run, not three
            tell(processes)
            soon(lambda: sum(w.judged + w.missing for w in guard.watched if w.rule != rules[-1].name) >= wanted, 300)
            for process in processes:
                process.stdin.close()  # that ends them
            assert guard.wait(300)
    firings = guard.firings
    assert [firing for firing in firings if firing.action in ("gap", "problem")] == []
    alarms = sorted((f.run.split("-")[1], f.value) for f in firings if f.rule == "alarm")
    expected = [(n, step) for n in range(count) for step in range(1, steps + 1) if step % EPOCH == n % EACH % EPOCH]
    assert alarms == [(f"{n:03}", step) for n, step in expected]
    assert sorted(f.value for f in firings if f.rule == "epochs") == [EPOCH] * (count * steps // EPOCH)
    judged = {(each.judged, each.missing) for each in guard.watched if each.rule == "alarm"}
    assert judged == {(steps, 0)}
