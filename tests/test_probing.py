"""Asking a model (`looptap.probe`): the loop ends bit-identical, and no part of the model notices."""

from __future__ import annotations

import collections
import random
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import looptap
from looptap.streams.modulestate import ModuleState
from looptap.streams.randomness import RandomState, numpy_state
from looptap.testing import pair

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what Dynamo's own imports warn of is not ours
    import torch._dynamo


class Odd(nn.Module):
    """A module that changes, in evaluation mode too, all that a forward pass may change."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("replaced", torch.zeros(4))
        self.register_buffer("passing", torch.zeros(4), persistent=False)
        self.calls, self.log, self.cache, self.deep = 0, [], {}, {"kept": [torch.zeros(2)]}
        self.plain = torch.zeros(3)
        self.queue = collections.deque(maxlen=3)
        self.generator = torch.Generator().manual_seed(3)
        self.numbers, self.more = np.random.default_rng(3), random.Random(3)

    def forward(self, x):
        self.calls += 1
        self.log.append(x)
        self.cache[len(self.cache)] = x
        self.deep["kept"][0] += 1
        self.plain += 1
        self.queue.append(x)
        self.seen += 1
        self.passing.add_(x.detach().mean(0))
        self.replaced = self.replaced + 1
        self.new = x
        self.register_buffer("another", torch.ones(1))
        drawn = torch.rand(1, generator=self.generator) + torch.rand(1) + self.numbers.random() + self.more.random()
        return self.linear(x) * (1 + 0 * self.passing) + 0 * (drawn + random.random() + np.random.rand())


def model_of_all_kinds():
    shared = nn.Linear(4, 4)
    model = nn.Sequential(
        nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.3), nn.ReLU(inplace=True), shared, nn.BatchNorm1d(4), shared,
        nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)), Odd(),
        nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2)),
    )  # fmt: skip
    model[5].eval()  # a frozen one stays frozen
    return model


def everything(model):
    """All that belongs to a model: what it has, and who it is."""
    found = []
    for module in model.modules():
        for name, value in sorted(vars(module).items()):
            found.append((id(value), name, repr(value)))
            if isinstance(value, dict):
                found += [(key, id(part), getattr(part, "_version", 0)) for key, part in value.items()]
            if isinstance(value, torch.Generator):
                found.append(value.get_state().tolist())
            if isinstance(value, np.random.Generator):
                found.append(value.bit_generator.state)
            if isinstance(value, random.Random):
                found.append(value.getstate())
            found.append(getattr(value, "_version", 0))
    return found


def globals_of_the_process():
    numbers = np.random.get_state()
    return (
        torch.get_rng_state().tolist(), random.getstate(), numbers[1].tolist(), numbers[2:],
        torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_cache_enabled(),
        torch.is_autocast_enabled("cpu"), torch._dynamo.eval_frame._stance, torch._C._len_torch_dispatch_stack(),
    )  # fmt: skip


def job(query=None, *, steps=12, between=False, direct=False):
    """Losses, weights and random numbers of a small job; with a query at each step, or asked by the host itself."""
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    model = model_of_all_kinds()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    agent, run = pair("probing")
    agent.expose(model=model)
    losses, stream = [], None if query is None else run.stream(query, on="batch")
    for step in range(steps):
        x, y = torch.randn(8, 4) + random.random() + np.random.randn(), torch.randint(2, (8,))
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        if between:
            agent.emit("batch", step=step, x=x, y=y)
        loss.backward()
        optimizer.step()
        if not between:
            agent.emit("batch", step=step, x=x, y=y)
        if direct:
            looptap.probe(model, x)
        losses.append(loss.item())
    agent.close()
    odd = model[8]
    return (
        losses, [t.tolist() for t in (*model.state_dict().values(), odd.passing, odd.plain)], globals_of_the_process(),
        [m.training for m in model.modules()], odd.calls, len(odd.log), len(odd.cache), odd.deep["kept"][0].tolist(),
        odd.generator.get_state().tolist(), odd.numbers.bit_generator.state, odd.more.getstate(),
    ), stream  # fmt: skip


@pytest.fixture(scope="module")
def bare():
    return job()[0]


QUERIES = {
    "answers": "probe(model, x).argmax(1)",
    "accuracy of a window": "mean((probe(e.model, e.x).argmax(1) == e.y).float().mean() for e in events)",
    "a gradient": "probe(model, x, gradient=True).sum().backward()",
    "with hooks": "probe(model, x, hooks=True)",
    "a function": lambda e: looptap.probe(e.model, e.x).softmax(1),
}


@pytest.mark.parametrize("between", [False, True], ids=["after the step", "with a pending graph"])
@pytest.mark.parametrize("name", QUERIES)
def test_a_job_of_which_the_model_is_asked_ends_bit_identical(name, between, bare):
    found, stream = job(QUERIES[name], between=between)
    assert found == bare
    assert stream.error_count == 0, stream.notes
    assert stream.arrived or "window" in name


def test_the_host_itself_may_ask(bare):
    assert job(direct=True)[0] == bare


def test_nothing_of_a_model_is_different_after_it_was_asked():
    model = model_of_all_kinds()
    model(torch.randn(8, 4)).sum().backward()
    fired = []
    for module in model.modules():
        module.register_forward_hook(lambda *_: fired.append(1))
        module.register_forward_pre_hook(lambda *_: fired.append(1))
    before, gradients = everything(model), [p.grad.clone() for p in model.parameters()]
    for gradient in (False, True):
        answer = looptap.probe(model, torch.ones(8, 4), gradient=gradient)
        assert answer.requires_grad == gradient
        if gradient:
            answer.sum().backward()
        assert everything(model) == before
        assert all(map(torch.equal, gradients, [p.grad for p in model.parameters()]))
    assert not fired
    looptap.probe(model, torch.ones(8, 4), hooks=True)
    assert fired


def test_the_answer_is_that_of_evaluation_mode():
    model, x = model_of_all_kinds(), torch.randn(8, 4)
    answer = looptap.probe(model, x)
    model.eval()
    with torch.no_grad():
        assert torch.equal(answer, model(x))


# ---------------------------------------------------------------- random numbers


def test_random_numbers_are_put_back_as_often_as_asked():
    np.random.randn()  # a second one waits
    random.gauss(0, 1)
    state, before = RandomState(), globals_of_the_process()
    for _ in range(2):
        torch.rand(3), np.random.randn(3000), random.random(), random.gauss(0, 1), torch.randn(7)
        state.put_back()
        assert globals_of_the_process() == before


@pytest.mark.parametrize("generator", [np.random.MT19937, np.random.PCG64])
def test_the_state_of_numpy_is_exact(generator):
    one = np.random.RandomState(generator(3))
    one.randn()
    put_back = numpy_state(one)
    drawn = one.randn(3001).tolist()
    put_back()
    assert one.randn(3001).tolist() == drawn


# ---------------------------------------------------------------- whatever runs, not asked by `probe`


def test_the_modules_work_on_copies_while_a_model_trains():
    model = model_of_all_kinds()
    before = everything(model)
    state = ModuleState(model)
    state.swap_in()
    try:
        model.eval()
        model.train()
        model(torch.randn(8, 4))
    finally:
        state.put_back()
    assert everything(model) == before
    assert state.changed() == ""
