"""Layers that sum their gradients from those of single examples."""

from __future__ import annotations

import copy
from contextlib import nullcontext

import pytest
import torch
from single_gradients import error, gradients_of, norms_of, products
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from looptap.training.prioritized import ExactPriorities, Prioritized, fused_layers

N, T, WIDTH, CLASSES = 8, 65, 32, 4
CROSS_ENTROPY = nn.CrossEntropyLoss(reduction="none")


class Mean(nn.Module):
    """The mean over all positions."""

    def forward(self, x):
        return x.mean(1)


class Twice(nn.Module):
    """One layer, called twice."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4 * WIDTH, 4 * WIDTH)

    def forward(self, x):
        return self.inner(self.inner(x).relu_())


def sequence(*layers, width=4 * WIDTH, tokens=T):
    model = nn.Sequential(*layers, Mean(), nn.Linear(width, CLASSES))
    return model, torch.randn(N, tokens, 4 * WIDTH)


def grid():
    return nn.Sequential(nn.Linear(4 * WIDTH, 2 * WIDTH), nn.Flatten(1, 2), Mean(), nn.Linear(2 * WIDTH, CLASSES))


def frozen_bias():
    model, x = sequence(nn.Linear(4 * WIDTH, 4 * WIDTH))
    model[0].bias.requires_grad_(False)
    return model, x


def image(*layers, channels=4, size=(18, 18)):
    pooled = nn.Sequential(*layers, nn.Flatten(2), nn.AdaptiveAvgPool1d(3), nn.Flatten())
    return nn.Sequential(pooled, nn.LazyLinear(CLASSES)), torch.randn(N, channels, *size)


def convolution(*given, **named):
    return lambda: image(nn.Conv2d(4, 6, *given, **named), nn.ReLU(inplace=True))


def last_channels():
    model, x = image(nn.Conv2d(4, 6, 3))
    return model, x.to(memory_format=torch.channels_last)


FUSED = {
    "linear": lambda: sequence(nn.Linear(4 * WIDTH, 4 * WIDTH), nn.ReLU(inplace=True)),
    "without a bias": lambda: sequence(nn.Linear(4 * WIDTH, 2 * WIDTH, bias=False), width=2 * WIDTH),
    "a frozen bias": frozen_bias,
    "in a row": lambda: sequence(nn.Linear(4 * WIDTH, 8 * WIDTH), nn.GELU(), nn.Linear(8 * WIDTH, 4 * WIDTH)),
    "called twice": lambda: sequence(Twice()),
    "of four dimensions": lambda: (grid(), torch.randn(N, 5, 13, 4 * WIDTH)),
    "a convolution": convolution(3, padding=1),
    "a convolution without a bias": convolution((3, 1), bias=False),
    "a convolution of padding 'same'": convolution((5, 1), padding="same", dilation=2),
    "a convolution with strides": convolution(2, stride=(1, 2), padding=(1, 0)),
    "convolutions in a row": lambda: image(
        nn.Conv2d(4, 8, 3, padding=1), nn.Tanh(), nn.Conv2d(8, 4, 1), nn.Conv2d(4, 4, 3, padding=1), nn.Tanh()
    ),
    "one dimension": lambda: image(nn.Conv1d(4, 5, 3, stride=2), nn.Conv1d(5, 7, 1), size=(250,)),
}
PLAIN = {
    "short": lambda: sequence(nn.Linear(4 * WIDTH, 4 * WIDTH), tokens=31),
    "without tokens": lambda: (nn.Sequential(nn.Linear(WIDTH, CLASSES)), torch.randn(N, WIDTH)),
    "few positions": lambda: image(nn.Conv2d(4, 6, 3), size=(17, 17)),
    "groups": convolution(3, groups=2),
    "padding by copies": convolution(3, padding=1, padding_mode="circular"),
    "padding of two sizes": convolution((1, 2), padding="same"),
    "channels last": last_channels,
    "three dimensions": lambda: image(nn.Conv3d(4, 4, 1), size=(5, 6, 7)),
    "a frozen weight": lambda: sequence(nn.Linear(4 * WIDTH, 4 * WIDTH).requires_grad_(False), nn.PReLU()),
}


@pytest.fixture(autouse=True)
def _small_layers_pay(monkeypatch):
    monkeypatch.setattr(fused_layers, "MIN_MULTIPLICATIONS", 1)


def made(case):
    torch.manual_seed(1)
    model, x = (FUSED | PLAIN)[case]()
    with torch.no_grad():
        model(x)
    gbar = [torch.randn_like(one) for one in model.parameters()]
    return model, x, torch.arange(N) % CLASSES, gbar


def is_fused(model, x, gbar):
    """Return True if a layer of the model gets another graph."""
    seen = []
    handles = [one.register_forward_hook(lambda layer, given, out: seen.append(out.grad_fn)) for one in model.modules()]
    with ExactPriorities(model, CROSS_ENTROPY).ghost_pass(gbar, fused=True):
        model(x)
    for one in handles:
        one.remove()
    return any(one is not None and one.name() == "FusedLayerBackward" for one in seen)


def close(model, plain):
    return all(
        a.grad is b.grad is None or error(a.grad, b.grad) <= 1e-5
        for a, b in zip(model.parameters(), plain.parameters(), strict=True)
    )


@pytest.mark.filterwarnings("ignore:Using padding='same'")  # torch's own
@pytest.mark.parametrize("case", [*FUSED, *PLAIN])
def test_priorities_are_exact_and_gradients_those_of_a_plain_pass(case):
    model, x, y, gbar = made(case)
    plain = copy.deepcopy(model)
    trained = [one for one in plain.parameters() if one.requires_grad]
    along = [one for one, parameter in zip(gbar, plain.parameters(), strict=True) if parameter.requires_grad]
    true = gradients_of(CROSS_ENTROPY(plain(x), y), trained)
    assert is_fused(model, x, gbar) == (case in FUSED)
    exact = ExactPriorities(model, CROSS_ENTROPY)
    for _ in range(2):  # the first batch is checked; the gradients accumulate
        CROSS_ENTROPY(plain(x), y).mean().backward()
        with exact.ghost_pass(gbar, fused=True) as ghost:
            ghost.backward(CROSS_ENTROPY(model(x), y))
        assert error(ghost.priorities, products(true, along)) <= 1e-4
    assert close(model, plain)
    assert not any(one._forward_hooks for one in model.modules())


@pytest.mark.parametrize("case", FUSED)
def test_without_it_a_step_trains_bit_for_bit_as_a_plain_one(case):
    model, x, y, gbar = made(case)
    plain = copy.deepcopy(model)
    CROSS_ENTROPY(plain(x), y).mean().backward()
    exact = ExactPriorities(model, CROSS_ENTROPY)
    with exact.ghost_pass(gbar) as ghost:
        ghost.backward(CROSS_ENTROPY(model(x), y))
    for a, b in zip(model.parameters(), plain.parameters(), strict=True):
        assert a.grad is b.grad is None or torch.equal(a.grad, b.grad)
    with exact.ghost_pass(gbar, norms=True, fused=True) as normed:
        normed.backward(CROSS_ENTROPY(model(x), y))
    assert error(normed.priorities, ghost.priorities) <= 1e-5
    trained = [one for one in plain.parameters() if one.requires_grad]
    assert error(normed.norms, norms_of(gradients_of(CROSS_ENTROPY(plain(x), y), trained))) <= 1e-4


def test_weights_and_parts_of_a_batch_keep_to_single_losses():
    model, x, y, gbar = made("in a row")
    plain, weights = copy.deepcopy(model), torch.rand(N) + 0.1
    (CROSS_ENTROPY(plain(x), y) * weights).mean().backward()
    exact = ExactPriorities(model, CROSS_ENTROPY)
    with exact.ghost_pass(gbar, fused=True) as ghost:
        ghost.backward(CROSS_ENTROPY(model(x), y), weights=weights)
    assert close(model, plain)
    assert error(ghost.priorities, exact(x, y, gbar).priorities) <= 1e-5


@pytest.mark.parametrize("case", ["in a row", "convolutions in a row"])
@pytest.mark.parametrize("how", ["autocast", "checkpoint", "double"])
def test_where_autograd_does_more_than_the_layer_it_is_left_alone(how, case):
    model, x, y, gbar = made(case)
    if how == "double":
        model, x = model.double(), x.double()
    plain = copy.deepcopy(model)

    def losses(net):
        with torch.autocast("cpu", torch.bfloat16) if how == "autocast" else nullcontext():
            return CROSS_ENTROPY(checkpoint(net, x, use_reentrant=False) if how == "checkpoint" else net(x), y)

    losses(plain).mean().backward()
    with ExactPriorities(model, CROSS_ENTROPY).ghost_pass([one.to(x.dtype) for one in gbar], fused=True) as ghost:
        ghost.backward(losses(model))
    for a, b in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(a.grad, b.grad)


@pytest.mark.parametrize("case", ["in a row", "convolutions in a row"])
def test_gradients_of_gradients_and_a_backward_pass_after_the_context_are_plain(case):
    model, x, y, gbar = made(case)
    plain = copy.deepcopy(model)
    x = x.requires_grad_()

    def penalty(net):
        (found,) = torch.autograd.grad(CROSS_ENTROPY(net(x), y).mean(), x, create_graph=True)
        return found.square().sum() * 1e4

    with ExactPriorities(model, CROSS_ENTROPY).ghost_pass(gbar, fused=True):
        penalty(model).backward()
        late = CROSS_ENTROPY(model(x), y).mean()
    late.backward()
    penalty(plain).backward()
    CROSS_ENTROPY(plain(x), y).mean().backward()
    assert close(model, plain)


@pytest.mark.parametrize("case", ["linear", "a convolution"])
def test_what_fails_in_a_sum_leaves_the_gradients_whole(case):
    model, x, y, gbar = made(case)
    plain = copy.deepcopy(model)
    CROSS_ENTROPY(plain(x), y).mean().backward()
    exact = ExactPriorities(model, CROSS_ENTROPY)
    exact(x, y, gbar)
    with exact.ghost_pass(gbar, fused=True) as ghost:
        losses = CROSS_ENTROPY(model(x), y)
        ghost._along[0] = torch.zeros(3)
        with pytest.raises(ValueError, match=r"the hook of a layer failed.*jvp"):
            ghost.backward(losses)
    for a, b in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(a.grad, b.grad)


@pytest.mark.parametrize("case", ["in a row", "convolutions in a row"])
def test_pgd_trains_a_model_with_such_layers_along_its_gradient(case):
    model, x, y, _ = made(case)
    plain = copy.deepcopy(model)
    prioritized = Prioritized(N, model, N, "published", k=0.5, r=0.5, switch="on")
    for _ in range(4):  # the first two passes take no step
        for batch in prioritized:
            model.zero_grad()
            prioritized.backward(batch, functional.cross_entropy(model(x[batch]), y[batch], reduction="none"))
            prioritized.observe(batch)
    functional.cross_entropy(plain(x[batch]), y[batch]).backward()
    assert close(model, plain)
    assert not prioritized.note
    assert torch.from_numpy(prioritized.trends.priority).isfinite().all()
    prioritized.close()
