"""The sum tree, the trends, and what a `Prioritized` shows."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from looptap.training.prioritized import Prioritized
from looptap.training.prioritized.methods.priority_trends import PriorityTrends
from looptap.training.prioritized.methods.renewals import Renewals
from looptap.training.prioritized.methods.sum_tree import SumTree


@pytest.mark.parametrize("size", [1, 2, 3, 8, 100, 1000])
def test_a_sum_tree_stays_exact_over_many_changes(size):
    rng = np.random.default_rng(size)
    tree, weights = SumTree(size), np.zeros(size)
    for _ in range(300):
        places = rng.choice(size, rng.integers(1, size + 1), replace=False)
        weights[places] = rng.exponential(size=len(places)) * (rng.random(len(places)) < 0.7)
        tree.put(places, weights[places])
    assert np.array_equal(tree.weights, weights)
    assert tree.total == pytest.approx(weights.sum(), rel=1e-12)
    edges = np.cumsum(weights)
    inner = rng.random(1000) * edges[-1]
    inner = inner[np.abs(inner[:, None] - edges).min(1) > 1e-9 * edges[-1]]
    assert np.array_equal(tree.at(inner), np.searchsorted(edges, inner, side="right"))


def test_draws_of_a_sum_tree_are_in_proportion_and_stratified():
    rng = np.random.default_rng(8)
    weights = np.array([0.0, 5.0, 1.0, 0.0, 2.0, 0.25, 1.75])
    tree = SumTree(len(weights))
    tree.put(np.arange(len(weights)), weights)
    counts = np.zeros(len(weights))
    for _ in range(500):
        drawn = np.bincount(tree.draw(rng, 40), minlength=len(weights))
        assert (np.abs(drawn - 4 * weights) < 2).all()  # one of each fortieth part of the sum
        counts += drawn
    expected = 2000 * weights
    assert not counts[expected == 0].any()
    known = expected > 0
    assert ((counts - expected)[known] ** 2 / expected[known]).sum() < 13.3  # chi-square of 4 degrees at 1%
    for wrong in (-1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="0 or more"):
            tree.put(np.array([1]), np.array([wrong]))


def test_a_trend_keeps_signs_clips_slopes_and_stays_finite():
    trends = PriorityTrends(4)
    ids = np.arange(4)
    trends.learn(ids, np.array([1.0, -1.0, 1.0, 0.0], np.float32), 0, 0.5)
    trends.learn(ids, np.array([2.0, -2.0, -1.0, 3.0], np.float32), 2, 0.5)
    np.testing.assert_allclose(trends.slope, [math.log(2) / 4, math.log(2) / 4, 0, 0], rtol=1e-6)
    np.testing.assert_allclose(trends.estimate(ids, 6), [4, -4, -1, 3], rtol=1e-6)
    trends.learn(ids, np.full(4, 1e30, np.float32), 3, 0.0)
    assert trends.slope.max() == 1.0
    assert np.isfinite(trends.estimate(ids, 10**9)).all()


def test_the_rank_correlation_is_spearmans():
    rng = np.random.default_rng(0)
    first = rng.integers(0, 6, 300).astype(np.float64)  # with many ties
    second = first + rng.normal(size=300)
    renewals = Renewals()
    assert math.isnan(renewals.rank_correlation())
    for place in range(0, 300, 50):
        renewals.add(first[place : place + 50], second[place : place + 50])
    ranks = [np.array([(values < one).sum() + ((values == one).sum() - 1) / 2 for one in values])
             for values in (first, second)]  # fmt: skip
    assert renewals.rank_correlation() == pytest.approx(np.corrcoef(*ranks)[0, 1])
    renewals.add(np.full(5000, 1.0), np.full(5000, np.nan))
    assert renewals.count == 300


class Pictures:
    def __len__(self):
        return 120

    def __getitem__(self, index):
        return torch.full((1, 4, 4), index / 120), index % 3


@pytest.mark.parametrize("method", ["norm", "loss", "published", "repaired", "uniform"])
def test_every_chart_of_the_panel_can_be_computed(method):
    torch.manual_seed(0)
    data, model = Pictures(), nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    prioritized = Prioritized(data, model, 12, method, k=0.05, r=0.05, switch="on")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def charts():
        found = {title: eval(value, {"np": np}, {"self": prioritized})
                 for title, value, *_ in prioritized.__looptap_panel__}  # fmt: skip
        assert math.isnan(prioritized.staleness) or prioritized.staleness >= 0
        assert math.isnan(prioritized.share_negative) or 0 <= prioritized.share_negative <= 1
        assert repr(prioritized)
        return found

    charts()
    for _ in range(4):
        for batch in prioritized:
            images, labels = (torch.stack([torch.as_tensor(data[i][part]) for i in batch]) for part in range(2))
            logits = model(images)
            optimizer.zero_grad()
            prioritized.backward(batch, functional.cross_entropy(logits, labels, reduction="none"))
            optimizer.step()
            prioritized.observe(batch, logits=logits, targets=labels)
    shown = charts()
    assert not prioritized.note
    most, least = shown["most important"], shown["least important"]
    assert len(most) == len(least) == 9
    assert {"image", "label", "priority", "loss", "drawn", "index"} <= set(most[0])
    assert min(row["priority"] for row in most) >= max(row["priority"] for row in least)
    top = list(shown["share of the top"].values())
    assert top == sorted(top)
    assert 0 < top[0] <= top[-1] <= 1
    assert prioritized.gradient_work == shown["gradient work"]["computed"] > 0
    assert abs(prioritized.rank_correlation) <= 1
    if method == "published":
        assert prioritized.work_saved == 0
    if method == "norm":
        assert prioritized.work_saved > 0


@pytest.mark.parametrize("method", ["norm", "published"])
def test_the_example_prints_what_is_most_important(method, monkeypatch, capsys):
    from looptap.examples import prioritized

    monkeypatch.setenv("LOOPTAP_DISABLED", "1")
    monkeypatch.setattr("sys.argv", ["prioritized", "--method", method, "--epochs", "3"])
    threads = torch.get_num_threads()
    try:
        prioritized.main()
    finally:
        torch.set_num_threads(threads)
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["epoch 0", "epoch 1", "epoch 2", *["most important"] * 3]
