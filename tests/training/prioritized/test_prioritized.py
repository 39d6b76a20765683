"""`Prioritized`: each method against a plain re-implementation, and its step."""

from __future__ import annotations

import copy
import io
from collections import deque
from contextlib import nullcontext
from itertools import islice

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from looptap.streams.errors import ControlError
from looptap.training.prioritized import Prioritized, PriorityError
from looptap.training.selection import Selection

N, WIDTH, RATE = 60, 5, 0.5


@pytest.fixture
def data():
    torch.manual_seed(3)
    x = torch.randn(N, WIDTH, dtype=torch.float64)
    y = ((x[:, 0] + 0.8 * torch.randn(N) > 0.3) + (x[:, 1] > 1).long()).clamp(max=1).long()
    return x, y


def a_model():
    torch.manual_seed(0)
    return nn.Linear(WIDTH, 2).double()


def an_optimizer(model, rate=RATE, momentum=0.0):
    return torch.optim.SGD(model.parameters(), abs(rate), momentum=momentum, maximize=rate < 0)


def epoch(sampler, model, optimizer, data, *, backward=Prioritized.backward):
    """Train by the loop of the documentation; yield each batch after its step."""
    x, y = data
    for batch in sampler:
        logits = model(x[batch])
        optimizer.zero_grad()
        backward(sampler, batch, functional.cross_entropy(logits, y[batch], reduction="none"))
        optimizer.step()
        sampler.observe(batch, logits=logits, targets=y[batch])
        yield batch


def trained(sampler, model, data, epochs, rate=RATE, momentum=0.0, **how):
    """Train for some epochs; return the batches."""
    optimizer = an_optimizer(model, rate, momentum)
    return [batch for _ in range(epochs) for batch in epoch(sampler, model, optimizer, data, **how)]


class PlainPGD:
    """PGD in numpy, one example after the other, on a linear softmax model."""

    def __init__(self, x, y, weight, bias, *, k, r, lam, order, repaired=False, variant="A"):
        self.x, self.y, self.w, self.b = x.numpy(), y.numpy(), weight.copy(), bias.copy()
        self.k, self.r, self.lam, self.order = round(k * N), round(r * N), lam, list(order)
        self.repaired, self.variant, self.pointer = repaired, variant, 0
        self.p, self.a, self.j = np.full(N, np.nan), np.zeros(N), np.zeros(N, int)
        self.gbar = np.zeros(weight.size + bias.size)
        self.batches = []

    def gradient(self, i):
        z = self.w @ self.x[i] + self.b
        q = np.exp(z - z.max())
        q = q / q.sum() - np.eye(2)[self.y[i]]
        return np.concatenate([np.outer(q, self.x[i]).ravel(), q])

    def start(self):
        self.gbar = sum(self.gradient(i) for i in range(N))
        self.p = np.array([self.gbar @ self.gradient(i) for i in range(N)])

    def learn(self, i, p, t):
        if not np.isnan(self.p[i]):
            ratio = p / self.p[i] if self.p[i] else 0.0
            a = np.log(ratio) / max(t - self.j[i], 1) if ratio > 0 else 0.0
            self.a[i] = self.lam * self.a[i] + (1 - self.lam) * np.clip(a, -1, 1)
        self.p[i], self.j[i] = p, t

    def step(self, t):
        s = [self.order[(self.pointer + place) % N] for place in range(self.r)]
        others = [self.order[(self.pointer + place) % N] for place in range(self.r, N)]
        estimates = {i: self.p[i] * np.exp(self.a[i] * (t - self.j[i])) for i in others if not np.isnan(self.p[i])}
        short = max(0, self.k - len(estimates))
        s += others[:short]
        top = sorted((i for i in estimates if i not in s), key=lambda i: -estimates[i])[: self.k - short]
        self.pointer += len(s)
        gradients = {i: self.gradient(i) for i in s + top}
        for i, gradient in gradients.items():
            self.learn(i, self.gbar @ gradient, t)
        total = sum(gradients.values())
        if self.repaired:
            self.gbar = 0.8 * self.gbar + 0.2 * sum(gradients[i] for i in s) / len(s)
        else:
            self.gbar = (1 - (self.r + self.k) / N) * self.gbar + total
        moved = sum(gradients[i] for i in top) / len(top) if self.variant == "S" else total / len(gradients)
        self.w -= RATE * moved[: self.w.size].reshape(self.w.shape)
        self.b -= RATE * moved[self.w.size :]
        self.batches.append(s + top)


@pytest.mark.parametrize(("method", "variant"), [("published", "A"), ("published", "S"), ("repaired", "A")])
@pytest.mark.parametrize(("k", "r", "lam"), [(0.1, 0.1, 0.8), (0.05, 0.2, 0.5)])
def test_pgd_takes_the_steps_of_a_plain_implementation(data, method, variant, k, r, lam):
    model, epochs = a_model(), 8
    weight, bias = (one.detach().numpy() for one in model.parameters())
    prioritized = Prioritized(N, model, 10, method, k=k, r=r, lam=lam, variant=variant, switch="on", seed=4)
    order = np.random.default_rng([4, 0, 6]).permutation(N)
    plain = PlainPGD(
        *data, weight, bias, k=k, r=r, lam=lam, order=order, repaired=method == "repaired", variant=variant
    )
    first = trained(prioritized, model, data, 2) if method == "published" else []
    if first:  # two passes over the data without a step
        assert np.array_equal(weight, plain.w)
        drawn = [one for batch in first for one in batch]
        for once in (drawn[:N], drawn[N:]):
            assert sorted(once) == list(range(N))
        plain.start()
        assert prioritized.gradient_work == 2 * N
    batches = trained(prioritized, model, data, epochs)
    for t in range(len(batches)):
        plain.step(t)
    assert batches == plain.batches
    assert len(batches) >= epochs * N // (round(k * N) + round(r * N))
    np.testing.assert_allclose(weight, plain.w, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(bias, plain.b, rtol=1e-6, atol=1e-9)
    scale = 1.0 if method == "repaired" else N  # ours is of means, that of the paper of sums
    gbar = np.concatenate([one.numpy().ravel() for one in prioritized.average.tensors])
    np.testing.assert_allclose(scale * gbar, plain.gbar, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(scale * prioritized.trends.priority, plain.p, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(prioritized.trends.slope, plain.a, rtol=1e-3, atol=1e-5)
    assert prioritized.gradient_work == sum(map(len, first + batches))
    assert not prioritized.note


@pytest.mark.parametrize("method", ["norm", "uniform"])
def test_the_default_is_a_selection_bit_for_bit(data, method):
    models = [a_model() for _ in range(3)]
    prioritized = [Prioritized(N, model, 10, method, switch="on", seed=2, epochs=6) for model in models[:2]]
    selection = Selection(N, 10, method if method == "norm" else "uniform", switch="on", seed=2, epochs=6)
    batches = trained(prioritized[0], models[0], data, 6, momentum=0.9)
    others = [
        trained(
            sampler, model, data, 6, momentum=0.9,
            backward=lambda sampler, batch, losses: sampler.mean(batch, losses).backward(),
        )
        for sampler, model in zip((prioritized[1], selection), models[1:], strict=True)
    ]  # fmt: skip
    assert batches == others[0] == others[1]
    assert torch.equal(models[0].weight, models[1].weight)
    assert torch.equal(models[0].weight, models[2].weight)
    if method == "norm":
        assert prioritized[0].work_saved == pytest.approx(selection.skipped / selection.walk.walked)
        assert prioritized[0].work_saved > 0


def test_drawing_by_loss_is_that_of_its_formula_and_unbiased(data):
    model = a_model()
    prioritized = Prioritized(N, model, 12, "loss", floor=0.25, seed=1)
    batches = trained(prioritized, model, data, 4)
    assert sorted(one for batch in batches[:5] for one in batch) == list(range(N))  # until every loss is known
    losses = prioritized.table.loss.astype(np.float64)
    q = 0.75 * losses / losses.sum() + 0.25 / N
    counts, weights = np.zeros(N), np.zeros(N)
    draws = 4000
    epochs = (batch for _ in range(draws) for batch in prioritized)
    for batch in islice(epochs, draws):
        indices = np.array(batch)
        np.add.at(counts, indices, 1)
        np.add.at(weights, indices, prioritized.table.weight[indices])
        np.testing.assert_allclose(prioritized.table.weight[indices], 1 / (N * q[indices]), rtol=1e-4)
    expected = draws * 12 * q
    assert ((counts - expected) ** 2 / expected).sum() < 90  # chi-square of 59 degrees: 87.2 at 1%, and strata lower it
    assert np.abs(weights / weights.mean() - 1).max() < 0.15  # each counts as often as by plain sampling


@pytest.mark.long
@pytest.mark.parametrize("method", ["norm", "loss", "published", "repaired", "uniform"])
@pytest.mark.parametrize("steps", [0, 3, 7, 23, 41])
def test_a_resumed_run_is_bit_identical_at_any_step(data, method, steps):
    def begun():
        model = a_model()
        prioritized = Prioritized(N, model, 10, method, k=0.1, r=0.1, switch="on", seed=5)
        return model, an_optimizer(model, momentum=0.9), prioritized

    def run(model, optimizer, prioritized):
        while True:
            yield from epoch(prioritized, model, optimizer, data)

    straight = begun()
    running = run(*straight)
    deque(islice(running, steps))
    file = io.BytesIO()
    torch.save([one.state_dict() for one in straight], file)
    expected = list(islice(running, 40))
    file.seek(0)
    resumed = begun()
    for one, state in zip(resumed, torch.load(file, weights_only=True), strict=True):
        one.load_state_dict(state)
    assert list(islice(run(*resumed), 40)) == expected
    assert torch.equal(straight[0].weight, resumed[0].weight)
    assert straight[2].gradient_work == resumed[2].gradient_work


def test_the_method_changes_between_any_two_steps_and_carries_over_what_is_known(data):
    model = a_model()
    prioritized = Prioritized(N, model, 10, "repaired", k=0.1, r=0.1, switch="on")
    trained(prioritized, model, data, 2)
    known = prioritized.trends.priority.copy()
    assert np.isfinite(known).all()
    for method, size in (("published", 12), ("loss", 10), ("norm", 10), ("published", 12), ("uniform", 10)):
        prioritized.method = method
        before = prioritized.gradient_work
        batches = trained(prioritized, model, data, 1)
        assert {len(batch) for batch in batches[1:-1]} == {size}
        assert prioritized.gradient_work - before < 2 * N  # all priorities are known: no initial passes
        assert not prioritized.note
    assert len(prioritized.model._forward_pre_hooks) == 0


def test_published_stops_where_the_loss_rises_unless_the_switch_is_on(data):
    for switch, prioritizes in (("auto", False), ("on", True), ("off", False)):
        model = a_model()
        prioritized = Prioritized(N, model, 10, method="published", k=0.1, r=0.1, switch=switch)
        prioritized.k, prioritized.r = 0.05, 0.1
        trained(prioritized, model, data, 5, rate=0.01)
        if switch == "off":
            assert "by hand" in prioritized.why
            continue
        trained(prioritized, model, data, 12, rate=-3.0)  # uphill
        assert prioritized.selecting is prioritizes, switch
        assert ("too high" in prioritized.why) is not prioritizes
    prioritized.method = "published"
    trained(prioritized, model, data, 1)


@pytest.mark.parametrize("wrong", [
    {"k": 0.0}, {"k": 1.0}, {"r": -0.1}, {"r": 1.5}, {"k": 0.6, "r": 0.6}, {"lam": 2}, {"variant": "B"},
    {"method": "best"}, {"exact": "magic"}, {"method": "published", "model": None}, {"model": 3},
    {"method": "repaired", "model": None}, {"data": (one for one in "abc")}, {"batch_size": 0}, {"k": "much"},
])  # fmt: skip
def test_what_is_wrong_is_said_at_construction(wrong):
    given = {"data": N, "model": nn.Linear(2, 2), "batch_size": 10} | wrong
    with pytest.raises((ValueError, TypeError)) as caught:
        Prioritized(given.pop("data"), given.pop("model"), **given)
    assert len(str(caught.value)) > 20


def test_ratios_are_refused_at_runtime_too_and_risky_ones_are_said(data):
    prioritized = Prioritized(N, a_model(), 10, method="published", k=0.5, r=0.5)
    with pytest.raises(ControlError, match=r"k \+ r must be at most 1"):
        prioritized.k = 0.6
    assert prioritized.k == 0.5
    for k, r in ((0.2, 0.1), (0.001, 0.001)):
        with pytest.warns(RuntimeWarning, match="known to diverge"):
            Prioritized(N, a_model(), 10, method="published", k=k, r=r)


class WithBatchNorm(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(WIDTH, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
        self.double()


def test_a_model_that_hooks_cannot_treat_falls_back_to_a_finite_difference(data):
    torch.manual_seed(0)
    x, y = data
    with pytest.raises(PriorityError, match="BatchNorm1d"):
        Prioritized(N, WithBatchNorm(), 10, exact="ghost")
    for given in (True, False):
        model = WithBatchNorm()
        prioritized = Prioritized(N, model, 10, method="repaired", k=0.1, r=0.2, switch="on")

        def backward(sampler, batch, losses, given=given):
            sampler.backward(batch, losses, **({"inputs": x[batch], "targets": y[batch]} if given else {}))

        with nullcontext() if given else pytest.warns(RuntimeWarning, match="pass inputs= and targets="):
            trained(prioritized, model, data, 3, rate=0.1, backward=backward)
        assert np.isfinite(prioritized.trends.priority).all() == given
        assert prioritized.steps > 9


def test_nothing_raises_into_the_loop_and_the_gradient_is_the_plain_one(data):
    x, y = data
    model = a_model()
    prioritized = Prioritized(N, model, 10, method="repaired", k=0.1, r=0.1)
    batch = next(iter(prioritized))

    def step(losses, indices):
        model.zero_grad()
        with pytest.warns(RuntimeWarning):
            prioritized.backward(indices, losses)
        expected = torch.autograd.grad(functional.cross_entropy(model(x[batch]), y[batch]), model.weight)[0]
        return model.weight.grad, expected

    def losses():
        return functional.cross_entropy(model(x[batch]), y[batch], reduction="none")

    for wrong in (batch[:-1], [10**9] * len(batch), "abc"):
        torch.testing.assert_close(*step(losses(), wrong))
        assert ".." not in prioritized.note
    found, _ = step(losses() * torch.tensor(float("nan")), batch)
    assert found.isnan().all()  # as a plain step would
    assert all(one.isfinite().all() for one in prioritized.average.tensors)
    prioritized.observe(batch, losses=losses().detach())
    with pytest.warns(RuntimeWarning, match=r"needs prioritized\.backward"):
        prioritized.observe(batch, losses=losses())
    prioritized.observe(None)
    prioritized.close()


def test_gradients_that_were_there_stay_and_a_scale_does_not_reach_the_average(data):
    x, y = data
    found = []
    for scale, earlier in ((1.0, False), (1024.0, False), (1.0, True)):
        model = a_model()
        prioritized = Prioritized(N, model, 10, method="repaired", k=0.1, r=0.1)
        batch = next(iter(prioritized))
        if earlier:
            for one in model.parameters():
                one.grad = torch.ones_like(one)
        prioritized.backward(batch, functional.cross_entropy(model(x[batch]), y[batch], reduction="none"), scale=scale)
        found.append(((model.weight.grad - float(earlier)) / scale, prioritized.average.tensors[0].clone()))
    for gradient, average in found[1:]:
        torch.testing.assert_close(gradient, found[0][0])
        torch.testing.assert_close(average, found[0][1])


def test_a_deep_copy_of_the_model_and_an_evaluation_are_left_alone(data):
    x, _ = data
    model = a_model()
    prioritized = Prioritized(N, model, 10, method="repaired", k=0.1, r=0.1)
    for _ in range(3):
        with torch.no_grad():
            model(x)
        copy.deepcopy(model)(x).sum().backward()
        trained(prioritized, model, data, 1)
    assert not prioritized.note


@pytest.mark.parametrize("method", ["loss", "published", "repaired"])
def test_on_another_number_of_ranks_priorities_are_taken_over_by_index(data, method):
    states, known = [], np.full(N, np.nan, np.float32)
    for rank in range(2):
        model = a_model()
        prioritized = Prioritized(N, model, 10, method, k=0.1, r=0.1, rank=rank, world=2, agree=lambda number: number)
        trained(prioritized, model, data, 4)
        states.append(prioritized.state_dict())
        source = prioritized.table.loss if method == "loss" else prioritized.trends.priority
        known[rank::2] = source[rank::2]
    assert np.isfinite(known).all()
    model = a_model()
    alone = Prioritized(N, model, 10, method, k=0.1, r=0.1)
    alone.load_state_dict(*states)
    assert np.array_equal(alone.table.loss if method == "loss" else alone.trends.priority, known)
    assert not alone.note
    work = alone.gradient_work
    trained(alone, model, data, 2)
    assert 2 * N <= alone.gradient_work - work < 3 * N
    assert not alone.note
    with pytest.warns(RuntimeWarning, match="Of 2 ranks the states of 1 were given"):
        Prioritized(N, a_model(), 10, method, k=0.1, r=0.1).load_state_dict(states[0])
    with pytest.raises(ValueError, match="other parameters") if method != "loss" else nullcontext():
        Prioritized(N, nn.Linear(3, 3), 10, method, k=0.1, r=0.1).load_state_dict(*states)
