"""Random queries on a loop: it ends bit for bit the same, and a refusal says why."""

from __future__ import annotations

import contextlib
import math
import random

import pytest
from grammar import KINDS, query
from watched_loop import train

import looptap
from looptap.streams.errors import QueryError
from looptap.testing import pair

EVENTS = "forward", "backward", "batch"
@pytest.fixture(scope="module")
def bare():
    return train()


def asked(queries, how):
    """Return what the loop becomes with these queries, and their streams."""
    agent, run = pair("untouched")
    streams = []

    def attach():
        for text in queries:
            with contextlib.suppress(QueryError):  # of a function that is not known at all
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
    silent = [stream for stream in streams if not stream.arrived]
    assert all(stream.error_count and "RecursionError" not in stream.traceback for stream in silent)


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
