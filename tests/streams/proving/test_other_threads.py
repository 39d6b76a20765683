"""Queries lose, rewind and repeat nothing of the job's other threads."""

from __future__ import annotations

import collections
import math
import random
import threading

import numpy as np
import torch
from torch import nn
from waiting import soon

from looptap.testing import pair

EVENTS = 60
QUESTIONS = (
    "buffer.mean()",
    "len(buffer.items)",
    "buffer.count",
    "model(x).mean()",
    "probe(model, x).sum()",
    "data.stats()",
    "probe(model, x, train=True).sum()",
    "list(buffer.items)[:1]",
    "torch.rand(3).sum()",
    "np.random.rand()",
    "random.random()",
    "buffer.take()",
    "buffer.tallies['a']",
    "sum(buffer.numbers)",
    "buffer.lock.locked()",
)


class Buffer:
    """A replay buffer that an actor fills."""

    def __init__(self):
        self.items, self.numbers, self.count, self.lock = collections.deque(), [], 0, threading.Lock()
        self.tallies = collections.Counter()

    def add(self, value):
        with self.lock:
            self.items.append(value)
        self.numbers.append(value)
        self.count += 1
        self.tallies["a"] += 1

    def mean(self):
        return sum(self.items) / max(len(self.items), 1)

    def take(self):
        return self.items.popleft()


class Data:
    """Batches that another thread prepares from its own and the global generators."""

    def __init__(self):
        self.rng, self.dice, self.made = np.random.default_rng(1), random.Random(2), []

    def stats(self):
        return self.rng.normal() + len(self.made)

    def prepare(self):
        self.made.append(
            (self.rng.normal(), self.dice.random(), np.random.rand(), random.random(), torch.rand(1).item())
        )


def seed():
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)


def test_what_another_thread_adds_and_draws_meanwhile_stays():
    buffer, data, model, end = Buffer(), Data(), nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), threading.Event()
    x = torch.randn(5, 4)
    agent, run = pair("threads")
    agent.expose(buffer=buffer, data=data, model=model)
    for query in QUESTIONS:
        run.stream(query, on="batch", budget=math.inf)
    seed()

    def act():
        while not end.is_set():
            buffer.add(1.0)
            data.prepare()

    actor = threading.Thread(target=act)
    actor.start()
    for step in range(EVENTS):
        agent.emit("batch", step=step, x=x)
    soon(lambda: len(data.made) > EVENTS)
    end.set()
    actor.join()
    agent.close()
    assert len(buffer.items) == len(buffer.numbers) == buffer.count == buffer.tallies["a"] == len(data.made)
    seed()
    bare = Data()
    for _ in data.made:
        bare.prepare()
    assert data.made == bare.made
