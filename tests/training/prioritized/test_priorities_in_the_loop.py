"""Priorities in a training loop, by each way: those of single gradients."""

from __future__ import annotations

import copy
import io

import numpy as np
import pytest
import torch
from single_gradients import error, gradients_of, products, rank_correlation
from torch import nn
from torch.nn import functional
from torch.nn.utils import spectral_norm
from torch.utils.checkpoint import checkpoint

from looptap.training.prioritized import ExactPriorities, Prioritized
from looptap.training.prioritized.distributed import ReducedGradients
from looptap.training.sampling.per_example import PerExample

N, WIDTH, CLASSES = 16, 6, 4
SMOOTHED = nn.CrossEntropyLoss(label_smoothing=0.3)
WEIGHTED = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 0.5, 3.0]))
EACH = nn.CrossEntropyLoss(reduction="none")


def hidden(*layers, norm=True):
    before = (nn.Linear(WIDTH, 8), nn.BatchNorm1d(8)) if norm else (nn.Linear(WIDTH, 8),)
    return nn.Sequential(*before, *layers, nn.Tanh(), nn.Linear(8, CLASSES))


class Tokens(nn.Module):
    """A classifier of each token, with sparse gradients."""

    def __init__(self, norm: bool = True) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(9, WIDTH, sparse=True), nn.Linear(WIDTH, CLASSES)
        self.norm = nn.BatchNorm1d(WIDTH) if norm else nn.Identity()

    def forward(self, x):
        return self.head(self.norm(self.embed(x).transpose(1, 2)).transpose(1, 2)).transpose(1, 2)


class Reentrant(nn.Module):
    """Runs its first layer in a reentrant checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        return self.head(checkpoint(self.first, x.clone().requires_grad_(), use_reentrant=True))


def images():
    torch.manual_seed(2)
    return torch.randn(N, WIDTH), torch.arange(N) % CLASSES


def tokens():
    torch.manual_seed(2)
    targets = torch.arange(5 * N).view(N, 5) % CLASSES
    targets[::2, 3:] = -100
    return torch.randint(9, (N, 5)), targets


def per_token(outputs, targets):
    losses, known = EACH(outputs, targets), targets != -100
    return losses.sum(1) / known.sum(1)


def smoothed(outputs, targets):
    return functional.cross_entropy(outputs, targets, reduction="none", label_smoothing=0.3)


def weighted(outputs, targets):
    return functional.cross_entropy(outputs, targets, WEIGHTED.weight, reduction="none")


def squared(outputs, targets):
    return (outputs - functional.one_hot(targets, CLASSES)).square().mean(1)


def detached(outputs, targets):
    return PerExample(EACH(outputs.detach(), targets), None)


def trained(model, data, each, **given):
    """Train; return the loop's `Prioritized`, the last priorities, and the true ones."""
    x, y = data()
    prioritized = Prioritized(N, model, N, k=0.5, r=0.5, switch="on", **{"method": "published", **given})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    parameters = list(model.parameters())
    for _ in range(3):  # the first two passes take no step
        for batch in prioritized:
            indices = torch.tensor(batch)
            optimizer.zero_grad()
            state, gbar = torch.get_rng_state(), [one.clone() for one in prioritized.average.tensors]
            before = copy.deepcopy(model)
            with torch.random.fork_rng():  # the random numbers of the loop's own pass
                torch.set_rng_state(state)
                losses = each(before(x[indices]), y[indices])
                single = gradients_of(losses, list(before.parameters()))
            prioritized.backward(indices, each(model(x[indices]), y[indices]), inputs=x[indices], targets=y[indices])
            after = torch.get_rng_state()
            torch.set_rng_state(state)
            model(x[indices])
            assert torch.equal(after, torch.get_rng_state())  # it has drawn what a plain step draws
            optimizer.step()
            prioritized.observe(indices)
    prioritized.close()
    assert all(one.grad is not None for one in parameters)
    found = torch.from_numpy(np.array([prioritized.trends.priority[index] for index in batch])).float()
    single = [one.to_dense() if one.is_sparse else one for one in single]
    return prioritized, found, products(single, gbar)


CASES = {
    "BatchNorm": (hidden, images, EACH, "cross_entropy", "jvp"),
    "BatchNorm and dropout": (lambda: hidden(nn.Dropout(0.3)), images, EACH, "cross_entropy", "jvp"),
    "label smoothing": (hidden, images, smoothed, SMOOTHED, "jvp"),
    "class weights": (hidden, images, weighted, WEIGHTED, "jvp"),
    "a function": (hidden, images, smoothed, smoothed, "jvp"),
    "a function without a graph": (hidden, images, EACH, detached, "finite_difference"),
    "padded tokens": (Tokens, tokens, per_token, "cross_entropy", "jvp"),
    "sparse gradients": (lambda: Tokens(norm=False), tokens, per_token, "cross_entropy", "ghost"),
    "hooks and dropout": (lambda: hidden(nn.Dropout(0.3), norm=False), images, EACH, "cross_entropy", "ghost"),
}


@pytest.mark.parametrize("case", CASES)
def test_priorities_in_a_loop_are_those_of_its_losses_and_its_dropout(case):
    torch.manual_seed(1)
    build, data, each, loss, way = CASES[case]
    prioritized, found, true = trained(build(), data, each, loss=loss)
    assert (prioritized.way, prioritized.note) == (way, "")
    if way == "finite_difference":
        assert rank_correlation(found, true) >= 0.97  # 16 examples
    else:
        assert error(found, true) <= 1e-4


@pytest.mark.parametrize("case", ["BatchNorm", "BatchNorm and dropout", "label smoothing", "hooks and dropout"])
def test_a_finite_difference_in_a_loop_ranks_them_right(case):
    torch.manual_seed(1)
    build, data, each, loss, _ = CASES[case]
    prioritized, found, true = trained(build(), data, each, loss=loss, exact="finite_difference")
    assert (prioritized.way, prioritized.note) == ("finite_difference", "")
    assert rank_correlation(found, true) >= 0.97  # 16 examples


@pytest.mark.parametrize("exact", ["auto", "finite_difference"])
def test_a_loss_that_is_not_that_of_the_loop_is_noted(exact):
    torch.manual_seed(1)
    prioritized, _, _ = trained(hidden(), images, squared, exact=exact)
    assert "differ from those of loss=" in prioritized.note


@pytest.mark.parametrize("given", [{"variant": "S"}, {"method": "repaired"}])
def test_gradients_of_a_part_of_a_batch_may_be_sparse(given):
    torch.manual_seed(1)
    prioritized, found, true = trained(Tokens(norm=False), tokens, per_token, **given)
    assert not prioritized.note
    assert error(found, true) <= 1e-4


def test_what_allows_no_gradient_of_a_part_of_a_batch_trains_on_all_of_it():
    torch.manual_seed(1)
    (x, y), model = images(), Reentrant()
    prioritized, plain = Prioritized(N, model, N, "repaired", k=0.5, r=0.5, switch="on"), copy.deepcopy(model)
    EACH(plain(x), y).mean().backward()
    for batch in prioritized:
        model.zero_grad()
        prioritized.backward(batch, EACH(model(x[batch]), y[batch]), inputs=x[batch], targets=y[batch])
        prioritized.observe(batch)
    for a, b in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)
    prioritized.close()


def test_each_pass_of_a_finite_difference_begins_with_the_same_buffers():
    torch.manual_seed(1)
    model = nn.Sequential(spectral_norm(nn.Linear(WIDTH, 8)), nn.Tanh(), nn.Linear(8, CLASSES))
    (x, y), gbar = images(), [torch.randn_like(one) for one in model.parameters()]
    single = copy.deepcopy(model)
    true = products(gradients_of(EACH(single(x), y), list(single.parameters())), gbar)
    before = copy.deepcopy(dict(model.named_buffers()))
    exact = ExactPriorities(model, EACH)
    assert rank_correlation(exact(x, y, gbar).priorities, true) >= 0.97  # 16 examples
    assert all(torch.equal(one, before[name]) for name, one in model.named_buffers())


@pytest.mark.parametrize("norm", [False, True])
def test_copies_and_pickles_of_the_model_are_made_at_any_time_and_watch_nothing(norm):
    torch.manual_seed(1)
    (x, y), model = images(), hidden(norm=norm)
    prioritized = Prioritized(N, model, N, "published", k=0.5, r=0.5, switch="on")

    def copies():
        saved = io.BytesIO()
        torch.save(model, saved)
        saved.seek(0)
        return copy.deepcopy(model), torch.load(saved, weights_only=False)

    for _ in range(3):
        for batch in prioritized:
            made = copies()
            losses = EACH(model(x[batch]), y[batch])
            made += copies()
            for one in made:
                assert EACH(one(torch.cat([x, x])), torch.cat([y, y])).mean().isfinite()
            prioritized.backward(batch, losses, inputs=x[batch], targets=y[batch])
            prioritized.observe(batch)
    prioritized.close()
    assert not prioritized.note
    assert torch.from_numpy(prioritized.trends.priority).isfinite().all()


@pytest.mark.parametrize("norm", [False, True])
def test_a_scaler_scales_from_the_first_step_on(norm):
    torch.manual_seed(1)
    (x, y), model = images(), hidden(norm=norm)
    prioritized = Prioritized(N, model, N, "published", k=0.5, r=0.5, switch="on")
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.05), torch.amp.GradScaler("cpu", init_scale=1024.0)
    steps = 0
    for _ in range(3):
        for batch in prioritized:
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                losses = EACH(model(x[batch]), y[batch])
            prioritized.backward(batch, losses, scale=scaler, inputs=x[batch], targets=y[batch])
            initial, gbar = not model[0].weight.grad.any(), prioritized.average.tensors[0]
            assert initial or gbar.norm() < model[0].weight.grad.norm() / 100
            before = model[0].weight.clone()
            scaler.step(optimizer)
            scaler.update()
            assert initial == before.equal(model[0].weight)
            steps += not initial
            prioritized.observe(batch)
    prioritized.close()
    assert steps
    assert not prioritized.note
    assert torch.from_numpy(prioritized.trends.priority).isfinite().all()


@pytest.fixture
def _process_group(tmp_path):
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("_process_group")
@pytest.mark.parametrize("method", ["published", "repaired"])
@pytest.mark.parametrize("static", [False, True])
def test_ddp_reduces_each_step_whether_its_graph_is_static_or_not(method, static):
    torch.manual_seed(1)
    (x, y), network = images(), hidden(norm=False)
    model = nn.parallel.DistributedDataParallel(network, static_graph=static)
    reduced = ReducedGradients(model)
    prioritized = Prioritized(N, model, 4, method, k=0.1, r=0.2, switch="on")
    steps = 0
    for _ in range(4):
        for batch in prioritized:
            model.zero_grad()
            prioritized.backward(batch, EACH(model(x[batch]), y[batch]))
            prioritized.observe(batch)
            steps += 1
    prioritized.close()
    assert reduced.reductions == steps
    for taken, one in zip(reduced.taken(), network.parameters(), strict=True):
        torch.testing.assert_close(taken, one.grad)


@pytest.mark.usefixtures("_process_group")
def test_the_first_batch_is_not_checked_where_ddp_learns_its_static_graph_from_it():
    torch.manual_seed(1)
    (x, y), network = images(), hidden(norm=False)
    model = nn.parallel.DistributedDataParallel(network, static_graph=True)
    reduced, exact = ReducedGradients(model), ExactPriorities(model, EACH)
    gbar = [torch.randn_like(one) for one in network.parameters()]
    true = products(gradients_of(EACH(network(x), y), list(network.parameters())), gbar)
    for step in range(3):
        with exact.ghost_pass(gbar) as ghost:
            ghost.backward(EACH(model(x), y))
        assert error(ghost.priorities, true) <= 1e-4
        assert reduced.reductions == step + 1
