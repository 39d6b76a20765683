"""Methods of selection, against plain implementations of their papers."""

from __future__ import annotations

import bisect
import math

import numpy as np
import pytest
import torch

from looptap.streams.errors import ControlError
from looptap.training.selection import METHODS, Selection

COUNT, BATCH = 40, 8


def known(selection, scores=True, seed=0):
    """Give a selection losses and scores of all its instances; return them."""
    rng = np.random.default_rng(seed)
    losses = rng.exponential(1, COUNT).astype(np.float32)
    found = rng.random(COUNT).astype(np.float32) if scores else None
    selection.table.observed(np.arange(COUNT), losses, found)
    return losses, found


def method_of(name, **arguments):
    selection = Selection(COUNT, BATCH, name, switch="on", **arguments)
    return selection, METHODS[name](selection.table, selection)


# ------------------------------------------------------------ norm and loss


@pytest.mark.parametrize("floor", [0.0, 0.2, 0.7, 1.0])
def test_norm_draws_by_the_score_over_its_mean(floor):
    selection, norm = method_of("norm", floor=floor)
    _, scores = known(selection)
    scores[3] = selection.table.score[3] = np.nan
    selection.table.recount()
    mean = np.nanmean(scores, dtype=np.float64)
    wanted = [1.0 if math.isnan(s) else min(1.0, max(floor, s / mean)) for s in scores.tolist()]
    found = norm.acceptance(np.arange(COUNT))
    assert found.probability.tolist() == pytest.approx(wanted, rel=1e-5)
    assert found.floor == floor


def test_norm_without_scores_draws_by_the_loss_up_to_the_cap():
    selection, norm = method_of("norm")
    losses, _ = known(selection, scores=False)
    selection.cap = 1.5
    mean = losses.mean(dtype=np.float64)
    wanted = [min(1.0, max(0.2, min(loss, 1.5 * mean) / mean)) for loss in losses.tolist()]
    assert norm.acceptance(np.arange(COUNT)).probability.tolist() == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize(
    ("elapsed", "exponent", "scores", "wanted"),
    [
        (0.0, 1.0, True, 0.5), (0.5, 1.0, True, 0.5), (0.675, 1.0, True, 0.75), (0.85, 1.0, True, 1.0),
        (1.0, 1.0, True, 1.0), (None, 1.0, True, 0.5), (0.675, 0.6, True, 0.45), (0.1, 1.0, False, 1.0),
        (1.0, 0.0, True, 0.0),
    ],
)  # fmt: skip
def test_norm_corrects_the_bias_more_towards_the_end_of_the_plan(elapsed, exponent, scores, wanted):
    selection, norm = method_of("norm", epochs=None if elapsed is None else 1000)
    known(selection, scores)
    selection.exponent = exponent
    selection.walk.walked = round((elapsed or 0) * 1000 * COUNT)
    assert norm.bias_correction == pytest.approx(wanted)


def test_the_weights_of_norm_have_a_running_mean_of_1():
    selection, norm = method_of("norm")
    known(selection)
    rng, mean = np.random.default_rng(1), math.nan
    for step in range(40):
        if step == 25:  # the switch turns on again
            norm.resume()
            mean = math.nan
        probability = rng.uniform(0.2, 1, BATCH).astype(np.float32)
        raw = [p**-0.5 for p in probability.tolist()]
        mean = sum(raw) / BATCH if math.isnan(mean) else 0.95 * mean + 0.05 * sum(raw) / BATCH
        found = norm.weights(np.arange(BATCH), probability)
        assert found.tolist() == pytest.approx([w / mean for w in raw], rel=1e-5)


def test_the_step_is_not_longer_when_it_is_turned_on():
    scores = np.where(np.arange(1000) % 10 == 0, 1, 0.05).astype(np.float32)
    selection, means = Selection(1000, 100, switch="off"), []
    selection.table.observed(np.arange(1000), scores, scores)
    for epoch in range(4):
        selection.switch = "on" if epoch in (1, 3) else "off"
        for batch in selection:
            means.append(float(selection.table.weight[batch].mean()))
            selection.observe(batch, losses=torch.from_numpy(scores[batch]))
    assert selection.skipped > 500
    assert means == pytest.approx([1.0] * len(means), abs=0.2)  # 1.5 if the running mean began with 1


def test_a_method_without_weights_trains_on_the_loss_of_torch():
    selection = Selection(40, 8, "loss", loss="mse")
    losses = torch.linspace(0, 1, 40)
    for _ in range(3):
        for batch in selection:
            outputs = losses[batch].sqrt()
            assert torch.equal(selection.loss(batch, outputs, torch.zeros(8)), outputs.square().mean())
            selection.observe(batch, losses=losses[batch])
    assert selection.skipped > 10
    selection.method = "infobatch"
    batch = next(iter(selection))
    weights = torch.from_numpy(selection.table.weight[batch])
    torch.testing.assert_close(selection.mean(batch, losses[batch]), (weights * losses[batch]).mean())
    assert weights.max() > 1


def test_loss_draws_by_the_loss_and_weighs_nothing():
    selection, loss = method_of("loss")
    losses, _ = known(selection)  # scores are known, and not used
    mean = losses.mean(dtype=np.float64)
    wanted = [min(1.0, max(0.2, min(one, 2 * mean) / mean)) for one in losses.tolist()]
    found = loss.acceptance(np.arange(COUNT)).probability
    assert found.tolist() == pytest.approx(wanted, rel=1e-5)
    assert loss.weights(np.arange(COUNT), found) is None  # all weigh alike


# ------------------------------------------------------------ infobatch


def test_infobatch_leaves_out_half_of_what_is_below_the_mean_of_the_epochs_begin():
    selection, infobatch = method_of("infobatch", epochs=16)
    losses, _ = known(selection)
    threshold = losses.mean(dtype=np.float64)
    infobatch.begin(1)
    known(selection, seed=5)  # later losses move the draw, and not the threshold
    wanted = [0.5 if loss < threshold else 1.0 for loss in selection.table.loss.tolist()]
    found = infobatch.acceptance(np.arange(COUNT))
    assert found.probability.tolist() == wanted
    assert 5 < wanted.count(0.5) < 35
    assert infobatch.weights(np.arange(COUNT), found.probability).tolist() == [1 / p for p in wanted]
    selection.walk.walked = 14 * COUNT  # the last eighth of the plan
    infobatch.begin(14)
    assert infobatch.acceptance(np.arange(COUNT)).probability.tolist() == [1.0] * COUNT


def test_infobatch_begins_with_all_the_data():
    _, infobatch = method_of("infobatch")
    infobatch.begin(0)
    assert infobatch.acceptance(np.arange(COUNT)).probability.tolist() == [1.0] * COUNT


# ------------------------------------------------------------ self-paced learning


@pytest.mark.parametrize("epoch", [0, 1, 7, 18, 19, 30])
def test_spl_weighs_a_batch_as_the_papers_baseline_does(epoch):
    selection, spl = method_of("spl")
    losses, _ = known(selection)
    spl.begin(epoch)
    share = 0.25 + 0.75 * min(1.0, epoch / 19)
    limit = sorted(losses.tolist())[int(COUNT * share) - 1] + 1e-6
    batch = np.array([0, 5, 9, 13, 20, 21, 33, 39])
    new = np.random.default_rng(3).exponential(1, BATCH).astype(np.float32)
    easy = [max(0.0, 1 - loss / limit) ** (1 / 3) for loss in new.tolist()]
    total = sum(easy) + 0.01 * BATCH
    found = spl.choose(batch, new)
    assert found.tolist() == pytest.approx([BATCH / total * (e + 0.01) for e in easy], rel=1e-3)
    assert found.mean() == pytest.approx(1, rel=1e-5)
    if epoch >= 19:
        assert (spl.choose(np.arange(COUNT), losses) > 0.02).sum() >= COUNT - 1


def test_spl_begins_with_all_alike_and_weighs_by_the_loss_of_the_step():
    selection = Selection(COUNT, BATCH, "spl")
    batch = next(iter(selection))
    losses = torch.rand(BATCH, dtype=torch.float64)
    assert selection.mean(batch, losses).item() == pytest.approx(losses.mean().item())
    known(selection)
    selection.method = "spl"  # its limit is that of the newest losses
    weights = METHODS["spl"](selection.table, selection)
    weights.begin(0)
    wanted = (torch.from_numpy(weights.choose(np.array(batch), losses.numpy())) * losses).mean()
    assert selection.mean(batch, losses).item() == pytest.approx(wanted.item())


# ------------------------------------------------------------ selective backprop


def test_selective_backprop_chooses_by_the_rank_of_the_loss_in_its_history():
    _, method = method_of("selective-backprop", seed=4)
    rng, chances, history = np.random.default_rng(0), np.random.default_rng([4, 0, 2]), []
    for step in range(300):
        losses = rng.exponential(1 / (1 + step / 50), BATCH).astype(np.float32)
        history = (history + losses.tolist())[-1024:]
        ranked = sorted(history)
        probability = [(bisect.bisect_right(ranked, loss) / len(ranked)) ** 2 for loss in losses.tolist()]
        chosen = [c < p for c, p in zip(chances.random(BATCH).tolist(), probability, strict=True)]
        if not any(chosen):
            chosen[int(np.argmax(losses))] = True
        found = method.choose(np.arange(BATCH), losses)
        assert (found > 0).tolist() == chosen
        assert found[found > 0].tolist() == pytest.approx([BATCH / sum(chosen)] * sum(chosen))


def test_selective_backprop_goes_back_through_a_third():
    _, method = method_of("selective-backprop")
    rng = np.random.default_rng(0)
    shares = [(method.choose(np.arange(BATCH), rng.random(BATCH).astype(np.float32)) > 0).mean() for _ in range(2000)]
    assert np.mean(shares[200:]) == pytest.approx(1 / 3, abs=0.03)


# ------------------------------------------------------------ rho


def test_rho_trains_on_the_tenth_with_the_highest_reducible_loss():
    reference = np.random.default_rng(1).random(400).astype(np.float32)
    selection = Selection(400, 10, "rho", reference=torch.from_numpy(reference))
    batch = next(iter(selection))
    assert len(set(batch)) == 100
    losses = torch.rand(100, generator=torch.Generator().manual_seed(0))
    best = sorted(range(100), key=lambda place: losses[place].item() - reference[batch[place]])[-10:]
    chosen = selection.choose(torch.tensor(batch), losses)
    assert chosen.nonzero()[:, 0].tolist() == sorted(best)
    assert selection.mean(torch.tensor(batch)[chosen], losses[chosen]).item() == pytest.approx(
        losses[best].mean().item()
    )
    assert selection.mean(torch.tensor(batch), losses).item() == pytest.approx(losses[best].mean().item())
    selection.observe(torch.tensor(batch)[chosen], losses=losses[chosen])
    assert selection.taken == 10
    assert len(selection) == 4
    assert selection.note == ""


def test_rho_without_a_choice_of_the_loop_takes_the_mean_over_the_chosen():
    selection = Selection(400, 10, "rho", reference=[0.0] * 400)
    batch = next(iter(selection))
    losses = torch.rand(100).requires_grad_()
    mean = selection.mean(batch, losses)
    assert mean.item() == pytest.approx(losses.detach().sort().values[-10:].mean().item())
    mean.backward()
    assert (losses.grad > 0).sum() == 10


def test_rho_of_a_small_shard_still_trains_on_whole_batches():
    selection = Selection(30, 10, "rho", reference=[0.0] * 30)
    batch = next(iter(selection))
    assert len(batch) == 30
    assert selection.choose(batch, torch.rand(30)).sum() == 10


@pytest.mark.parametrize(
    ("reference", "words"),
    [([0.0] * 39, r"shape \(39,\) must be one loss for each of 40"), ([math.nan] * 40, "not finite")],
)
def test_a_wrong_reference_is_refused(reference, words):
    with pytest.raises(ValueError, match=words):
        Selection(COUNT, BATCH, "rho", reference=reference)


# ------------------------------------------------------------ screener


def test_the_screener_descends_the_loss_of_its_paper():
    """Against torch: the same net, the same loss, Adam."""
    features = np.random.default_rng(0).standard_normal((COUNT, 5)).astype(np.float32)
    selection, screener = method_of("screener", features=features)
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
        assert screener.choose(batch, losses).tolist() == pytest.approx(w.tolist(), abs=2e-4)
        screener.observe(batch, losses, None)
        absolute = torch.cat([first.flatten(), second]).abs().mean()
        loss = ((1 - w) ** 2 * given + w**2 * (1 - given).clamp(min=0)).sum() + 0.01 * absolute
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    np.testing.assert_allclose(screener.first, first.detach().numpy(), atol=2e-3)


def test_the_screener_learns_to_weigh_what_is_hard():
    features = np.repeat([[0.0], [1.0]], COUNT // 2, axis=0)
    selection = Selection(COUNT, BATCH, "screener", features=features)
    for _ in range(60):
        for batch in selection:
            losses = torch.tensor([2.0 if index >= COUNT // 2 else 0.05 for index in batch])
            selection.mean(batch, losses)
            selection.observe(batch, losses=losses)
    weights = selection.scores[[0, -1]]
    assert weights[0] < 0.3
    assert weights[1] > 0.7
    assert selection.skipped == 0
    assert selection.accuracy > 0.9


# ------------------------------------------------------------ what a method needs


@pytest.mark.parametrize(("name", "words"), [("rho", "reference="), ("screener", "features="), ("autoassist", "feat")])
def test_a_method_that_lacks_something_is_refused_and_nothing_changes(name, words):
    with pytest.raises(ControlError, match=words):
        Selection(COUNT, BATCH, name)
    selection = Selection(COUNT, BATCH, "infobatch")
    with pytest.raises(ControlError, match=words):
        selection.method = name
    assert selection.method == "infobatch"
    assert selection.why == "'infobatch' always selects"
    state = selection.state_dict() | {"method": name, "epoch": 7}
    with pytest.raises(ControlError, match=words):
        selection.load_state_dict(state)
    assert (selection.method, selection.epoch) == ("infobatch", 0)
