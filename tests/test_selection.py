"""Selection: which instances are drawn, and what they count."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from looptap.training.selection import METHODS, Selection, WithIndex


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
            loss = selection.mean(indices, functional.cross_entropy(logits, y, reduction="none"))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            selection.observe(indices, logits=logits, targets=y)
    return model


@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains_and_offers_each_instance_once_an_epoch(method):
    data = easy_and_hard()
    selection = Selection(data, 16, method, epochs=6, switch="on", features=data.tensors[0], reference=[0.1] * 400)
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
