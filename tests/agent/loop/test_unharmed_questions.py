"""Random questions leave jobs of all kinds as they were, or are refused."""

from __future__ import annotations

import collections
import json
import random
import sys
import threading
from pathlib import Path

import asked_ranks
import loader_job
import numpy as np
import pytest
import torch
from asking import asked, refusals
from grammar import KINDS, query
from rank_jobs import printed
from torch import nn
from watched_loop import train

STEPS = 4
FEATURES: dict[str, torch.Tensor] = {}


class Job:
    """A deterministic job with hooks, a cache, a filling thread, AMP and a loader."""

    def __init__(self):
        torch.manual_seed(5)
        random.seed(5)
        np.random.seed(5)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))
        FEATURES.clear()
        self.model[0].register_forward_hook(lambda m, given, out: FEATURES.update(fc=out))
        self.optimizer = torch.optim.Adam(self.model.parameters(), 0.01)
        self.generator, self.cache, self.history = torch.Generator().manual_seed(7), {}, collections.deque(maxlen=5)
        self.items: list[float] = []
        self.loader = torch.utils.data.DataLoader(
            torch.utils.data.TensorDataset(torch.arange(64.0).reshape(16, 4).sin()),
            batch_size=4,
            shuffle=True,
            generator=torch.Generator().manual_seed(9),
        )

    def accuracy(self, out, y):
        return (out.argmax(1) == y).float().mean()

    def features(self, x):
        key = float(x.sum())
        if key not in self.cache:
            self.cache[key] = x.mean(0)
        return self.cache[key]

    def remember(self, value):
        self.history.append(value)
        return len(self.history)

    @property
    def draw(self):
        return torch.rand(1, generator=self.generator).item()

    def fill(self):
        rng = np.random.default_rng(1)
        self.items.extend(rng.normal() for _ in range(200))


ASKED = (
    "model(x).mean()",
    "probe(model, x).argmax(1)",
    "job.accuracy(out, y)",
    "job.features(x).sum()",
    "job.draw",
    "job.remember(1)",
    "len(job.items)",
    "job.items[-1:]",
    "job.loader.batch_size",
    "next(iter(job.loader))[0].sum()",
    "features['fc'].norm()",
    "list(features)",
    "features.pop('fc').sum()",
    "optimizer.state_dict()['param_groups'][0]['lr']",
    "sum(p.grad.norm() for p in model.parameters())",
    "torch.nn.functional.cross_entropy(out, y)",
    "optimizer.step() or 1",
    "model[1].running_mean.norm()",
    "torch.rand(1, generator=job.generator).item()",
    "model.eval()(x).sum()",
    "out.softmax(-1).max(1).values.mean()",
    "y.bincount(minlength=3)",
    "torch.corrcoef(out.T)[0, 1]",
    "job.history.clear()",
    "[type(m).__name__ for m in model.modules()]",
    "getattr(model[0], 'weight').mean()",
    "job.cache.clear() or 1",
    "torch.linalg.svdvals(model[0].weight)[0]",
    "x.add_(1).sum()",
    "torch.manual_seed(1).initial_seed()",
    "job.fill() or 1",
    "mean(e.model(e.x).sum() for e in events)",
    "max((e.job.remember(e.step) for e in events))",
    "probe(model, x, gradient=True).sum().backward() or 1",
    "probe(model, x, train=True).std()",
)


def worked(agent=None, begin=lambda: None):
    """Return the state of the job at its end."""
    job = Job()
    if agent is not None:
        agent.expose(job=job, model=job.model, optimizer=job.optimizer, features=FEATURES)
    begin()
    filling = threading.Thread(target=job.fill)
    filling.start()
    losses = []
    for step, (x,) in zip(range(STEPS), job.loader, strict=False):
        x = x + job.draw
        y = torch.randint(3, (4,))
        with torch.autocast("cpu", torch.bfloat16):
            out = job.model(x)
        loss = nn.functional.cross_entropy(out.float(), y)
        job.optimizer.zero_grad()
        loss.backward()
        if agent is not None:
            agent.emit("batch", step=step, x=x, y=y, out=out, loss=loss)
        job.optimizer.step()
        job.features(x)
        job.remember(loss.item())
        losses.append((loss.item(), x.tolist(), FEATURES["fc"].tolist(), random.random(), np.random.rand()))
    filling.join()
    tensors = [t.tolist() for t in (*job.model.state_dict().values(), *(p.grad for p in job.model.parameters()))]
    moments = [[value.tolist() for value in one.values()] for one in job.optimizer.state.values()]
    return (
        losses,
        tensors,
        moments,
        job.items,
        list(job.history),
        [v.tolist() for v in job.cache.values()],
        sorted(FEATURES),
        torch.get_rng_state().tolist(),
        job.generator.get_state().tolist(),
        job.model.training,
        [len(m._forward_hooks) for m in job.model.modules()],
        torch.is_grad_enabled(),
    )


@pytest.fixture(scope="module")
def bare():
    return worked(), train()


EVERY_TIME = pytest.mark.parametrize(
    "times", [30, pytest.param(1000, marks=[pytest.mark.soak, pytest.mark.timeout(7200)], id="1000")]
)


@pytest.mark.filterwarnings("ignore")  # of torch, about odd questions
@EVERY_TIME
def test_a_job_ends_bit_identical_under_random_questions(times, bare, progress):
    dice = random.Random(times)
    refused = 0
    for number in range(0, times, 6):
        progress(number, f"of {times} questions left their job as it was")
        ours = [dice.choice(ASKED) for _ in range(3)]
        theirs = [
            query(dice) if dice.random() < 0.5 else dice.choice(KINDS[dice.choice(list(KINDS))]) for _ in range(3)
        ]
        theirs = [text.format(e="", n=3) for text in theirs]
        for work, texts, alone in ((worked, ours, bare[0]), (train, theirs, bare[1])):
            became, errors = asked(work, [("batch", text) for text in texts])
            assert became == alone, texts
            refused += len(refusals(errors))
    assert refused > times / 20


@pytest.mark.filterwarnings("ignore")  # as above
@pytest.mark.usefixtures("processes")
@pytest.mark.promise("S19")
@EVERY_TIME
def test_a_job_with_loader_workers_and_modes_of_its_own_ends_bit_identical(times, progress):
    dice, bare, refused = random.Random(times), loader_job.worked(), 0
    for number in range(0, times, 10):
        progress(number, f"of {times} questions left a job with workers as it was")
        questions = [(dice.choice(loader_job.EVENTS), dice.choice(loader_job.ASKED)) for _ in range(10)]
        became, errors = asked(loader_job.worked, questions)
        assert became == bare, questions
        refused += len(refusals(errors))
    assert refused > times / 20


@pytest.mark.usefixtures("processes")
@pytest.mark.promise("S19", "S23")
@EVERY_TIME
def test_two_ranks_that_are_asked_different_questions_end_bit_identical(times, tmp_path):
    for text in printed(tmp_path, [sys.executable, str(Path(asked_ranks.__file__)), str(times)], 2):
        report = json.loads(text)
        assert report["changed"] == []
        assert report["refused"] > times / 20
