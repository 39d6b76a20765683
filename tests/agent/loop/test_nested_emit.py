"""A query that emits events, and `emit` where the interpreter has no frame left."""

from __future__ import annotations

import subprocess
import sys

import pytest

from looptap.testing import pair


@pytest.mark.parametrize("window", [None, 3])
def test_an_event_that_a_query_emits_counts_and_starts_no_evaluation(window):
    agent, run = pair("nested")
    depth, deepest = 0, 0

    def emits(events):
        nonlocal depth, deepest
        depth += 1
        deepest = max(deepest, depth)
        for event in ("batch", "epoch", "other"):
            agent.emit(event, step=0)
        agent.end_group("batch")
        depth -= 1
        return 1

    agent.stream("emits", emits, on="batch", window=window, unsafe=True)
    seen = run.stream("step", on="batch")
    for step in range(12):
        agent.emit("batch", step=step + 1)
        if step % 4 == 3:
            agent.emit("epoch")
    assert deepest == 1
    count = agent.stats()["events"]["batch"]
    assert count > 12
    assert agent.stats()["events"]["other"] == count - 12
    agent.close()
    assert [step for step in seen.values if step] == list(range(1, 13))
    assert seen.arrived + seen.dropped == count


DEEP = """
import sys
import looptap.testing
agent = looptap.testing.pair("deep")[0] if sys.argv[1] == "watched" else looptap.Agent("deep")
if sys.argv[1] == "watched":
    agent.stream("again", lambda event: event.loss + 1, on="batch")
emit, raised, called, first = agent.emit, 0, 0, sys.argv[1] == "first"
if not first:
    emit("batch", loss=0.5)


def dive(left):
    global raised, called
    if left:
        dive(left - 1)
        return
    try:
        emit(name, loss=0.5)
        called += 1
    except RecursionError:
        raised += 1


def room(n):
    global name
    name = f"batch{n}" if first else "batch"
    try:
        dive(n)
    except RecursionError:
        return False
    return True


most = sys.getrecursionlimit()
tried = sum(room(n) for n in range(most - 120, most))
print(tried, raised, called, sum(agent.stats()["events"].values()) - (not first))
"""


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("what", ["bare", "watched", "first"])
@pytest.mark.parametrize("pure", ["", "1"])
def test_emit_raises_nothing_where_the_stack_ends(what, pure, directory, monkeypatch):
    monkeypatch.setenv("LOOPTAP_PURE", pure)
    done = subprocess.run([sys.executable, "-c", DEEP, what], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    tried, raised, called, counted = map(int, done.stdout.split())
    assert tried > 50
    # A call of any Python function at the very limit raises in its caller: without the tap, `emit` is one.
    assert raised == bool(pure)
    assert called == tried - raised
    assert counted == called
