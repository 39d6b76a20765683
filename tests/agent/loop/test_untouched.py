"""Random queries on a loop: it ends bit for bit the same, or with a report."""

from __future__ import annotations

import math
import random

import pytest
from grammar import KINDS, query
from watched_loop import train

import looptap
from looptap.testing import pair

EVENTS = "forward", "backward", "batch"
MAY_FAIL = (
    "torch.autograd.grad(loss, h, retain_graph=False)[0].abs().max()",  # after the backward pass the graph is gone
    "torch.autograd.grad(out.sum(), model.fc.bias, allow_unused=True)[0].norm()",
    "loss.backward() or 1", "model(x).sum().backward() or 1", "torch.autograd.backward(loss) or 1", "next(batches)",
    "list(batches)",
)  # fmt: skip
"""All others are answered."""


@pytest.fixture(scope="module")
def bare():
    return train()


def asked(queries, how):
    """Return what the loop becomes with these queries, and their streams."""
    agent, run = pair("untouched")
    streams = []

    def attach():
        for text in queries:
            streams.append(run.stream(text, budget=math.inf, **how(text)))

    try:
        became = train(agent, attach)
        return became, streams
    finally:
        agent.close()


def differences(became, bare):
    return [name for name in bare if became[name] != bare[name]]


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("kind", KINDS)
def test_all_queries_of_a_kind_together_leave_the_loop_as_it_was(kind, event, bare):
    texts = [text.format(e="", n=3) for text in KINDS[kind]]
    became, streams = asked(texts, lambda text: {"on": event})
    assert differences(became, bare) == []
    failed = {text for text, stream in zip(texts, streams, strict=True) if not stream.arrived}
    assert failed == set(MAY_FAIL[2 * (event == "forward") :]) & set(texts)


def combination(dice):
    """Return queries and how they are attached, at random."""
    ways = {}
    for _ in range(dice.randrange(3, 9)):
        text = query(dice)
        how = {"on": dice.choice(EVENTS), "every": dice.choice([1, 1, 2])}
        if "events" in text:
            how["window"] = dice.choice([None, 2, looptap.sliding(3)])
        ways[text] = how
    return ways


@pytest.mark.parametrize("times", [8, pytest.param(300, marks=[pytest.mark.soak, pytest.mark.timeout(3600)], id="300")])
def test_a_loop_with_random_queries_ends_as_without_them(times, bare, progress):
    for seed in range(times):
        progress(seed, f"of {times} combinations were identical")
        ways = combination(random.Random(seed))
        became, _ = asked(ways, ways.get)
        assert differences(became, bare) == [], (seed, ways)
