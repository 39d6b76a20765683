"""Selection: which instances are drawn, and what they count."""

from __future__ import annotations

import copy
import gc
import weakref

import numpy as np
import pytest
import torch
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from looptap.training.instances import expected_length
from looptap.training.selection import METHODS, PerExample, Selection, WithIndex


def easy_and_hard(count=400):
    """Return a data set of which three quarters are learned at once."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, 16, generator=generator)
    y = torch.randint(0, 2, (count,), generator=generator)
    easy = 3 * count // 4
    x[:easy] = 0
    x[:easy, 0] = 4.0 * (2 * y[:easy] - 1)
    return TensorDataset(x, y)


def train(selection, data, epochs, rate=0.2, workers=0):
    """Train a small model; return it."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    loader = DataLoader(WithIndex(data), batch_sampler=selection, num_workers=workers)
    for _ in range(epochs):
        for indices, (x, y) in loader:
            logits = model(x)
            loss = selection.loss(indices, logits, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            selection.observe(indices, logits=logits, targets=y)
    return model


@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains_and_offers_each_instance_once_an_epoch(method):
    data = easy_and_hard()
    selection = Selection(data, 16, method, epochs=6, switch="on", features=data.tensors[0])
    train(selection, data, 6)
    assert selection.note == ""
    assert (selection.table.seen > 0).all()
    assert 6 * len(data) <= selection.walk.walked < 6 * len(data) + 64
    assert selection.steps * selection.drawn_size == selection.table.seen.sum()
    assert selection.taken < 6 * len(data) if selection.skipped else selection.taken == selection.table.seen.sum()


def test_easy_instances_are_skipped_and_hard_ones_are_kept():
    data = easy_and_hard()
    selection = Selection(data, 16, epochs=12, switch="on")
    train(selection, data, 12)
    assert selection.table.seen[:300].mean() < 0.7 * selection.table.seen[300:].mean()
    assert selection.gain > 1.2
    assert set(selection.easiest(20)) <= set(range(300))
    assert selection.auc > 0.85


def test_the_weights_take_the_bias_away():
    """With the full exponent the expected weighted mean is that of uniform sampling."""
    selection = Selection(1000, 50, switch="on", seed=3)
    selection.exponent = 1.0
    losses = np.linspace(0.01, 4, 1000, dtype=np.float32)
    selection.table.observed(np.arange(1000), losses, None)
    selection.observe([0], losses=torch.tensor([0.01]))
    sums = []
    for _ in range(30):
        for batch in selection:
            sums.append(selection.mean(batch, torch.from_numpy(losses[batch])).item())
    assert np.mean(sums) == pytest.approx(losses.mean(), rel=0.02)
    assert len(sums) < 30 * 18


def test_the_loss_is_that_of_torch_while_all_are_drawn_alike_and_weighted_after_it():
    selection = Selection(40, 8, switch="off")
    x, y = torch.randn(40, 3), torch.arange(40) % 3
    plain = functional.cross_entropy(x[:8], y[:8])
    assert torch.equal(selection.loss(range(8), x[:8], y[:8]), plain)
    selection.table.weight[:4], selection.table.weighted = 3.0, True
    losses = functional.cross_entropy(x[:8], y[:8], reduction="none")
    torch.testing.assert_close(selection.loss(range(8), x[:8], y[:8]), (losses[:4].sum() * 3 + losses[4:].sum()) / 8)
    torch.testing.assert_close(selection.loss([99], x[:8], y[:8]), plain)
    assert "99" in selection.note


@pytest.mark.parametrize("form", ["losses", "PerExample"])
def test_the_loss_may_be_a_function_of_ones_own(form):
    def own(outputs, targets):
        losses = (outputs - targets).abs()
        return losses if form == "losses" else PerExample(losses, None)

    selection, x = Selection(8, 4, loss=own), torch.ones(4, requires_grad=True)
    selection.loss(range(4), x, torch.zeros(4)).backward()
    assert x.grad.tolist() == [0.25] * 4
    assert selection.note == ""


def test_what_was_drawn_with_weights_is_forgotten_after_epochs_without():
    selection, plain = Selection(64, 8, "infobatch", switch="on"), []
    for epoch in range(6):
        selection.method = "infobatch" if epoch < 3 else "uniform"
        for batch in selection:
            selection.observe(batch, losses=torch.tensor(batch) / 64)
        plain.append(selection.table.plain)
    assert plain == [False] * 4 + [plain[4], True]


def test_an_object_that_is_deleted_is_gone_at_once():
    selection = Selection(64, 8)
    for batch in selection:
        selection.observe(batch, losses=torch.ones(8))
    gone = weakref.ref(selection)
    gc.disable()
    try:
        del selection
        assert gone() is None
    finally:
        gc.enable()


def test_a_copy_has_methods_with_its_own_settings():
    selection = Selection(64, 8, floor=0.1)
    other = copy.deepcopy(selection)
    other.floor = 0.7
    other.table.observed(np.arange(64), np.ones(64, np.float32), np.arange(64, dtype=np.float32))
    selection.table.observed(np.arange(64), np.ones(64, np.float32), np.arange(64, dtype=np.float32))
    for one, floor in ((selection, 0.1), (other, 0.7)):
        one.observe([0], losses=torch.zeros(1), targets=torch.zeros(1, dtype=torch.int64))
        assert one.acceptance_by_class[0] == pytest.approx(floor)


@pytest.mark.parametrize("switch", ["on", "off"])
def test_the_length_of_the_next_epoch_costs_nothing_to_ask_for(switch, monkeypatch):
    selection = Selection(640, 8, switch=switch)
    for _ in range(3):
        kept = 0
        for batch in selection:
            selection.observe(batch, losses=torch.tensor(batch) / 64)
            kept += 1
    for method in METHODS.values():
        monkeypatch.setattr(method, "acceptance", None)
    assert selection.expected_length == pytest.approx(kept, rel=0.1)


@pytest.mark.usefixtures("processes")
def test_the_length_of_an_epoch_stays_while_workers_are_ahead_of_the_loop():
    """The second epoch is shorter: the first drew some of its instances."""
    data = easy_and_hard(44)
    selection = Selection(data, 8, switch="off")
    loader = DataLoader(WithIndex(data), batch_sampler=selection, num_workers=2)
    for length in (6, 5, 6):
        for indices, (x, _) in loader:
            assert expected_length(loader) == pytest.approx(length, abs=0.51)
            last = expected_length(loader)
            selection.observe(indices, losses=x[:, 0])
        assert last == length
