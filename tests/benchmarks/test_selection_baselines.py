"""The baselines of `make bench-assistant`, against plain implementations."""

from __future__ import annotations

import bisect

import numpy as np
import pytest
import torch
from selection_baselines import BASELINES, BaselineSelection

from looptap.training.selection import METHODS

COUNT, BATCH = 40, 8


def baseline(name, **arguments):
    """Return a selection with a baseline, and the baseline by itself."""
    selection = BaselineSelection(COUNT, BATCH, name, switch="on", **arguments)
    return selection, BASELINES[name](selection.table, selection)


def known(selection, seed=0):
    """Give a selection losses and scores of all its instances; return the losses."""
    rng = np.random.default_rng(seed)
    losses = rng.exponential(1, COUNT).astype(np.float32)
    selection.table.observed(np.arange(COUNT), losses, rng.random(COUNT).astype(np.float32))
    return losses


def test_looptap_itself_has_none_of_them():
    assert not METHODS.keys() & BASELINES.keys()
    assert BaselineSelection.catalog.keys() == METHODS.keys() | BASELINES.keys()


def test_loss_draws_by_the_loss_and_weighs_nothing():
    selection, loss = baseline("loss")
    losses = known(selection)  # scores are known, and not used
    mean = losses.mean(dtype=np.float64)
    wanted = [min(1.0, max(0.2, min(one, 2 * mean) / mean)) for one in losses.tolist()]
    found = loss.acceptance(np.arange(COUNT)).probability
    assert found.tolist() == pytest.approx(wanted, rel=1e-5)
    assert loss.weights(np.arange(COUNT), found) is None  # all weigh alike


@pytest.mark.parametrize("epoch", [0, 1, 7, 18, 19, 30])
def test_spl_weighs_a_batch_as_the_papers_baseline_does(epoch):
    selection, spl = baseline("spl")
    losses = known(selection)
    spl.begin(epoch)
    share = 0.25 + 0.75 * min(1.0, epoch / 19)
    limit = sorted(losses.tolist())[int(COUNT * share) - 1] + 1e-6
    batch = np.array([0, 5, 9, 13, 20, 21, 33, 39])
    new = np.random.default_rng(3).exponential(1, BATCH).astype(np.float32)
    easy = [max(0.0, 1 - loss / limit) ** (1 / 3) for loss in new.tolist()]
    total = sum(easy) + 0.01 * BATCH
    found = spl.weigh(batch, new)
    assert found.tolist() == pytest.approx([BATCH / total * (e + 0.01) for e in easy], rel=1e-3)
    assert found.mean() == pytest.approx(1, rel=1e-5)
    if epoch >= 19:
        assert (spl.weigh(np.arange(COUNT), losses) > 0.02).sum() >= COUNT - 1


def test_spl_begins_with_all_alike():
    selection, _ = baseline("spl")
    batch = next(iter(selection))
    assert selection.weights(batch, torch.rand(BATCH)).tolist() == pytest.approx([1.0] * BATCH)


def test_selective_backprop_chooses_by_the_rank_of_the_loss_in_its_history():
    _, method = baseline("selective-backprop", seed=4)
    rng, chances, history = np.random.default_rng(0), np.random.default_rng([4, 0, 2]), []
    for step in range(300):
        losses = rng.exponential(1 / (1 + step / 50), BATCH).astype(np.float32)
        history = (history + losses.tolist())[-1024:]
        ranked = sorted(history)
        probability = [(bisect.bisect_right(ranked, loss) / len(ranked)) ** 2 for loss in losses.tolist()]
        chosen = [c < p for c, p in zip(chances.random(BATCH).tolist(), probability, strict=True)]
        if not any(chosen):
            chosen[int(np.argmax(losses))] = True
        found = method.weigh(np.arange(BATCH), losses)
        assert (found > 0).tolist() == chosen
        assert found[found > 0].tolist() == pytest.approx([BATCH / sum(chosen)] * sum(chosen))


def test_selective_backprop_goes_back_through_a_third():
    _, method = baseline("selective-backprop")
    rng = np.random.default_rng(0)
    shares = [(method.weigh(np.arange(BATCH), rng.random(BATCH).astype(np.float32)) > 0).mean() for _ in range(2000)]
    assert np.mean(shares[200:]) == pytest.approx(1 / 3, abs=0.03)


def test_rho_trains_on_the_tenth_with_the_highest_reducible_loss():
    reference = np.random.default_rng(1).random(400).astype(np.float32)
    selection = BaselineSelection(400, 10, "rho", reference=reference)
    batch = next(iter(selection))
    assert len(set(batch)) == 100
    losses = torch.rand(100, generator=torch.Generator().manual_seed(0))
    best = sorted(range(100), key=lambda place: losses[place].item() - reference[batch[place]])[-10:]
    weights = selection.weights(batch, losses)
    kept = weights > 0
    assert kept.nonzero()[:, 0].tolist() == sorted(best)
    assert (losses * weights).mean().item() == pytest.approx(losses[best].mean().item())
    selection.observe(torch.tensor(batch)[kept], losses=losses[kept])
    assert selection.taken == 10
    assert len(selection) == 4
    assert selection.note == ""


def test_the_screener_descends_the_loss_of_its_paper():
    """Against torch: the same net, the same loss, Adam."""
    features = np.random.default_rng(0).standard_normal((COUNT, 5)).astype(np.float32)
    selection, screener = baseline("screener", features=features)
    selection.learning_rate = 0.02
    first = torch.tensor(screener.first, dtype=torch.float64, requires_grad=True)
    second = torch.tensor(screener.second, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([first, second], lr=0.02)

    def weights(batch):
        hidden = torch.relu(first[:, :-1] @ torch.from_numpy(features[batch]).double().T + first[:, -1:])
        return torch.sigmoid(second[:-1] @ hidden + second[-1])

    rng = np.random.default_rng(1)
    for _ in range(40):
        batch = rng.permutation(COUNT)[:BATCH]
        losses = rng.exponential(1, BATCH).astype(np.float32)
        w, given = weights(batch), torch.from_numpy(losses).double()
        assert screener.weigh(batch, losses).tolist() == pytest.approx(w.tolist(), abs=2e-4)
        screener.observe(batch, losses, None)
        absolute = torch.cat([first.flatten(), second]).abs().mean()
        loss = ((1 - w) ** 2 * given + w**2 * (1 - given).clamp(min=0)).sum() + 0.01 * absolute
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    np.testing.assert_allclose(screener.first, first.detach().numpy(), atol=2e-3)
