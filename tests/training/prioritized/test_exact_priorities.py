"""Exact priorities: each way to compute them, against single gradients."""

from __future__ import annotations

import copy

import pytest
import torch
from single_gradients import error, gradients_of, products, rank_correlation
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from looptap.training.prioritized import ExactPriorities, GhostPass, PriorityError

N, CLASSES = 12, 5
CROSS_ENTROPY = nn.CrossEntropyLoss(reduction="none")


class Attention(nn.Module):
    """A block of a transformer, of plain layers."""

    def __init__(self, width: int, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x):
        n, t, d = x.shape
        q, k, v = self.qkv(self.first(x)).view(n, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.out(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, t, d))
        return x + self.mlp(self.second(x))


class Transformer(nn.Module):
    """Predicts tokens; the head's weight may be the embedding's."""

    def __init__(self, block, *, tied: bool = False, padding: int | None = 0, checkpointed: bool = False) -> None:
        super().__init__()
        self.embed, self.block = nn.Embedding(11, 8, padding_idx=padding), block(8)
        self.head = nn.Linear(8, 11, bias=False)
        self.checkpointed = checkpointed
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, x):
        x = self.embed(x)
        x = checkpoint(self.block, x, use_reentrant=False) if self.checkpointed else self.block(x)
        return self.head(x)


class Repeated(nn.Module):
    """Calls a layer three times."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(6, 6), nn.Linear(6, CLASSES)

    def forward(self, x):
        for _ in range(3):
            x = self.inner(x).tanh()
        return self.head(x)


class Loose(nn.Module):
    """Uses the weight of a layer without calling the layer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(6, 6), nn.Linear(6, CLASSES)

    def forward(self, x):
        return self.head(self.inner(x).tanh() @ self.inner.weight)


class TimeFirst(nn.Module):
    """Runs its layer with the batch as the second dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(6, 6), nn.Linear(6, CLASSES)

    def forward(self, x):
        return self.head(self.inner(x.transpose(0, 1)).tanh().transpose(0, 1).mean(1))


def fused_attention(width: int) -> nn.Module:
    return nn.TransformerEncoderLayer(width, 2, 16, dropout=0.0, batch_first=True)


def per_token(outputs, targets):
    return functional.cross_entropy(outputs.transpose(1, 2), targets, reduction="none").mean(1)


def vectors(*shape: int):
    return torch.randn(N, *shape), torch.randint(CLASSES, (N,)), CROSS_ENTROPY


def tokens():
    return torch.randint(11, (N, 7)), torch.randint(11, (N, 7)), per_token


def mlp():
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(inplace=True), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, CLASSES))


def cnn():
    return nn.Sequential(
        *(nn.Conv2d(2, 4, 3, padding=1, padding_mode="circular"), nn.BatchNorm2d(4), nn.ReLU(inplace=True)),
        *(nn.Conv2d(4, 6, 3, stride=2, groups=2, bias=False), nn.GroupNorm(2, 6), nn.ReLU()),
        *(nn.Conv2d(6, 4, 2, dilation=2, padding="same"), nn.Flatten(), nn.Linear(4 * 9, CLASSES)),
    ).eval()


def cnn_1d():
    return nn.Sequential(
        *(nn.Conv1d(3, 4, 3, padding=1, stride=2), nn.BatchNorm1d(4), nn.ReLU(inplace=True), nn.Flatten()),
        nn.Linear(4 * 4, CLASSES),
    ).eval()


CASES = {
    "mlp": (mlp, lambda: vectors(6)),
    "repeated": (Repeated, lambda: vectors(6)),
    "sequences": (lambda: nn.Sequential(mlp(), nn.Flatten(), nn.Linear(4 * CLASSES, CLASSES)), lambda: vectors(4, 6)),
    "cnn": (cnn, lambda: vectors(2, 8, 8)),
    "cnn 1d": (cnn_1d, lambda: vectors(3, 8)),
    "transformer": (lambda: Transformer(Attention), tokens),
    "tied": (lambda: Transformer(Attention, tied=True, padding=None), tokens),
    "tied with padding": (lambda: Transformer(Attention, tied=True), tokens),
    "checkpointed": (lambda: Transformer(Attention, checkpointed=True), tokens),
}


def made(case: str):
    """Return a case's model, inputs, targets, loss and direction, always the same."""
    torch.manual_seed(3)
    build, data = CASES[case]
    model, (x, y, loss) = build(), data()
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
            layer.running_mean.normal_(0, 0.3)
            layer.running_var.uniform_(0.5, 2)
    return model, x, y, loss, [torch.randn_like(one) for one in model.parameters()]


def single_gradients(model, x, y, loss):
    """Return the gradients of single examples, (n, ...), by `vmap(grad)`."""
    parameters = {name: one.detach() for name, one in model.named_parameters()}

    def of(values, one, target):
        return loss(torch.func.functional_call(model, values, (one[None],)), target[None])[0]

    plain = copy.deepcopy(model)
    plain.checkpointed = False
    model = plain
    with sdpa_kernel(SDPBackend.MATH):  # the others have no batching rule
        return list(torch.func.vmap(torch.func.grad(of), (None, 0, 0))(parameters, x, y).values())


@pytest.mark.parametrize("case", CASES)
def test_hooks_find_the_priorities_and_the_gradient_of_single_examples(case):
    model, x, y, loss, gbar = made(case)
    single = single_gradients(model, x, y, loss)
    exact = ExactPriorities(model, loss)
    assert exact.method == "ghost"
    found = exact(x, y, gbar)
    assert error(found.priorities, products(single, gbar)) <= 1e-4
    assert error(torch.cat([one.flatten() for one in found.gradients]),
                 torch.cat([one.mean(0).flatten() for one in single])) <= 1e-4  # fmt: skip
    assert error(found.losses, loss(model(x), y)) <= 1e-5


@pytest.mark.parametrize("case", [name for name in CASES if name != "tied with padding"])
def test_forward_mode_finds_the_priorities_of_single_examples(case):
    model, x, y, loss, gbar = made(case)
    found = ExactPriorities(model, loss, method="jvp")(x, y, gbar)
    assert error(found.priorities, products(single_gradients(model, x, y, loss), gbar)) <= 1e-4


@pytest.mark.parametrize("case", [name for name in CASES if name != "tied with padding"])
def test_a_finite_difference_ranks_the_priorities_of_single_examples(case):
    model, x, y, loss, gbar = made(case)
    exact = ExactPriorities(model, loss, method="finite_difference")
    true = products(single_gradients(model, x, y, loss), gbar)
    assert rank_correlation(exact(x, y, gbar).priorities, true) >= 0.995
    assert torch.equal(exact(x, y, gbar, losses=loss(model(x), y)).losses, loss(model(x), y))


@pytest.mark.parametrize("case", CASES)
def test_one_backward_pass_trains_as_it_would_without(case):
    model, x, y, loss, gbar = made(case)
    plain = copy.deepcopy(model)
    loss(plain(x), y).mean().backward()
    with GhostPass(model, gbar, check=True) as ghost:
        ghost.backward(loss(model(x), y))
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(model.parameters(), plain.parameters(), strict=True))
    single = single_gradients(model, x, y, loss)
    assert error(ghost.priorities, products(single, gbar)) <= 1e-4
    assert not any(layer._forward_hooks for layer in model.modules())


@pytest.mark.parametrize("method", ["ghost", "jvp", "finite_difference"])
def test_the_job_keeps_its_gradients_modes_buffers_and_random_numbers(method):
    model, x, y, loss, gbar = made("cnn")
    model.add_module("dropout", nn.Dropout(0.3))
    model.dropout.train()
    for one in model.parameters():
        one.grad = torch.ones_like(one)
    before, modes = copy.deepcopy(model.state_dict()), [layer.training for layer in model.modules()]
    state = torch.get_rng_state()
    ExactPriorities(model, loss, method=method)(x, y, gbar)
    assert torch.equal(state, torch.get_rng_state())
    assert modes == [layer.training for layer in model.modules()]
    assert all(torch.equal(model.state_dict()[name], one) for name, one in before.items())
    assert all(torch.equal(one.grad, torch.ones_like(one)) for one in model.parameters())
    assert torch.backends.mha.get_fastpath_enabled()


def test_dropout_is_the_same_in_each_method():
    model, x, y, loss, gbar = made("mlp")
    model.insert(2, nn.Dropout(0.5))
    found = {name: ExactPriorities(model, loss, method=name)(x, y, gbar).priorities
             for name in ("ghost", "jvp", "finite_difference")}  # fmt: skip
    assert error(found["jvp"], found["ghost"]) <= 1e-4
    assert rank_correlation(found["finite_difference"], found["ghost"]) >= 0.99


def test_batch_norm_in_training_mode_takes_forward_mode():
    model, x, y, loss, gbar = made("cnn")
    model.train()
    before = copy.deepcopy(model.state_dict())
    exact = ExactPriorities(model, loss)
    assert exact.method == "jvp"
    trained = copy.deepcopy(model)
    true = products(gradients_of(loss(trained(x), y), [*trained.parameters()]), gbar)
    assert error(exact(x, y, gbar).priorities, true) <= 1e-4
    found = ExactPriorities(model, loss, method="finite_difference")(x, y, gbar)
    assert rank_correlation(found.priorities, true) >= 0.995
    assert all(torch.equal(model.state_dict()[name], one) for name, one in before.items())
    with pytest.raises(PriorityError, match=r"training mode.*method='jvp' or 'finite_difference'"):
        ExactPriorities(model, loss, method="ghost")
    model.eval()
    assert exact.method == "ghost"


def test_attention_of_torch_is_followed_in_training_and_evaluation_mode():
    CASES["fused"] = (lambda: Transformer(fused_attention), tokens)
    try:
        model, x, y, loss, gbar = made("fused")
    finally:
        del CASES["fused"]
    single = single_gradients(model, x, y, loss)
    for exact in (ExactPriorities(model, loss), ExactPriorities(model.eval(), loss)):
        found = exact(x, y, gbar)
        assert exact.method == "ghost"
        assert error(found.priorities, products(single, gbar)) <= 1e-4
    assert error(ExactPriorities(model, loss, method="jvp")(x, y, gbar).priorities, products(single, gbar)) <= 1e-4


def test_autocast_keeps_the_ranks():
    for case in ("mlp", "cnn", "transformer"):
        model, x, y, loss, gbar = made(case)
        true = products(single_gradients(model, x, y, loss), gbar)
        with torch.autocast("cpu", torch.bfloat16):
            exact = ExactPriorities(model, loss)
            assert error(exact(x, y, gbar).priorities, true) <= 0.05
            assert error(ExactPriorities(model, loss, method="jvp")(x, y, gbar).priorities, true) <= 0.05
            loss(model(x), y).mean().backward()  # what the loop casts is its own
        assert all(one.grad is not None for one in model.parameters())


@pytest.mark.parametrize("method", ["jvp", "finite_difference"])
def test_a_shared_weight_with_padding_is_refused_where_it_would_be_wrong(method):
    model, x, y, loss, gbar = made("tied with padding")
    with pytest.raises(PriorityError, match=r"padding_idx shares its weight: use method='ghost'"):
        ExactPriorities(model, loss, method=method)(x, y, gbar)


def test_a_reentrant_checkpoint_is_refused_with_the_way_out_or_runs_in_backward():
    torch.manual_seed(0)
    inner, head = nn.Linear(6, 6), nn.Linear(6, CLASSES)

    class Reentrant(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.head, self.reentrant = inner, head, True

        def forward(self, x):
            x = x.clone().requires_grad_() if self.reentrant else x
            return self.head(checkpoint(self.inner, x, use_reentrant=True) if self.reentrant else self.inner(x))

    model, (x, y, loss) = Reentrant(), vectors(6)
    gbar = [torch.randn_like(one) for one in model.parameters()]
    with pytest.raises(PriorityError, match=r"pass use_reentrant=False"):
        ExactPriorities(model, loss, method="ghost")(x, y, gbar)
    with GhostPass(model, gbar) as ghost:
        ghost.backward(loss(model(x), y))
    model.reentrant = False
    single = single_gradients(model, x, y, loss)
    assert error(ghost.priorities, products(single, gbar)) <= 1e-4


@pytest.mark.parametrize(("build", "shape"), [(Loose, (6,)), (TimeFirst, (N, 6))])
def test_what_hooks_cannot_see_is_found_at_the_first_batch(build, shape):
    torch.manual_seed(0)
    model, (x, y, loss) = build(), vectors(*shape)
    gbar = [torch.randn_like(one) for one in model.parameters()]
    with pytest.raises(PriorityError, match=r"hooks account for.*method='jvp'"):
        ExactPriorities(model, loss, method="ghost")(x, y, gbar)
    exact, true = ExactPriorities(model, loss), products(single_gradients(model, x, y, loss), gbar)
    assert error(exact(x, y, gbar).priorities, true) <= 1e-4
    assert exact.method == "jvp"
    assert "used outside of their layers" in exact.refused["ghost"]


def test_frozen_parameters_and_missing_directions_count_as_zero():
    model, x, y, loss, gbar = made("mlp")
    model[0].weight.requires_grad_(False)
    single = single_gradients(model, x, y, loss)
    gbar[3] = None
    true = products(single[1:3] + single[4:], gbar[1:3] + gbar[4:])
    for method in ("ghost", "jvp"):
        assert error(ExactPriorities(model, loss, method=method)(x, y, gbar).priorities, true) <= 1e-4


def test_a_layer_that_is_not_called_has_no_gradient_and_no_share():
    model, x, y, loss, gbar = made("mlp")
    single = single_gradients(model, x, y, loss)
    model.unused = nn.Linear(3, 3)
    model.forward = lambda x: nn.Sequential.forward(model[:5], x)
    found = ExactPriorities(model, loss)(x, y, [*gbar, torch.ones(3, 3), torch.ones(3)])
    assert error(found.priorities, products(single, gbar)) <= 1e-4
    assert found.gradients[-2:] == [None, None]


def test_wrong_arguments_are_refused_in_a_sentence():
    model, x, y, loss, gbar = made("mlp")
    exact = ExactPriorities(model, loss)
    with pytest.raises(PriorityError, match=r"direction has 5 tensors; the model has 6"):
        exact(x, y, gbar[1:])
    with pytest.raises(PriorityError, match=r"direction is of \(2,\) for '0.weight' of \(16, 6\)"):
        exact(x, y, [torch.ones(2), *gbar[1:]])
    with pytest.raises(PriorityError, match=r"losses of shape \(\) must be \(n,\).*reduction='none'"):
        ExactPriorities(model, nn.CrossEntropyLoss())(x, y, gbar)
    with pytest.raises(ValueError, match=r"method='fast' must be 'auto' or one of ghost, jvp, finite_difference"):
        ExactPriorities(model, loss, method="fast")
    with pytest.raises(TypeError, match=r"model is a torch.nn.Module, not str"):
        ExactPriorities("model", loss)
    outputs = model(x)
    with GhostPass(model, gbar) as ghost, pytest.raises(PriorityError, match=r"the layers saw 0 examples"):
        ghost.backward(loss(outputs, y))
    assert not any(layer._forward_hooks for layer in model.modules())


def test_a_pass_stays_open_over_steps_follows_its_direction_and_leaves_other_backward_passes_alone():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, CLASSES))
    direction = [torch.zeros_like(one) for one in model.parameters()]
    with GhostPass(model, direction) as ghost:
        for _ in range(3):
            x, y = torch.randn(N, 4), torch.randint(CLASSES, (N,))
            for one in direction:
                one.copy_(torch.randn_like(one))
            model(torch.randn(3, 4)).sum().backward()  # of another size, and none of ours
            model(torch.randn(N, 4)).sum().backward()
            model.zero_grad()
            ghost.backward(CROSS_ENTROPY(model(x), y))
            exact = ExactPriorities(model, CROSS_ENTROPY, method="jvp")
            torch.testing.assert_close(ghost.priorities, exact(x, y, direction).priorities)
            with pytest.raises(PriorityError, match=r"of another layer|the losses are of"):
                ghost.backward(model(x).sum(1)[:3] + model(x[:3]).sum(1))


def test_the_gradient_is_whole_though_priorities_cannot_be_computed():
    class Reshaping(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(4, 6), nn.Linear(4, 2)

        def forward(self, x):
            return self.second(self.first(x).view(-1, 4)).view(len(x), -1).sum(1)

    torch.manual_seed(0)
    model, x = Reshaping(), torch.randn(N, 4)
    model(x).mean().backward()
    expected = [one.grad.clone() for one in model.parameters()]
    model.zero_grad()
    with GhostPass(model, [torch.ones_like(one) for one in model.parameters()]) as ghost:
        losses = model(x)
        with pytest.raises(PriorityError, match="it must be the batch in all of them"):
            ghost.backward(losses)
    for one, gradient in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(one.grad, gradient)
