"""Methods of selection, against plain implementations of their papers."""

from __future__ import annotations

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


# ------------------------------------------------------------ norm


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
    losses = torch.linspace(0, 1, 40)
    selection = Selection(40, 8, "autoassist", loss="mse", features=losses[:, None])
    for _ in range(10):
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


# ------------------------------------------------------------ what a method needs


def test_a_method_that_lacks_something_is_refused_and_nothing_changes():
    words = "the method 'autoassist' needs features"
    with pytest.raises(ControlError, match=words):
        Selection(COUNT, BATCH, "autoassist")
    selection = Selection(COUNT, BATCH, "infobatch")
    with pytest.raises(ControlError, match=words):
        selection.method = "autoassist"
    assert selection.method == "infobatch"
    assert selection.why == "'infobatch' always selects"
    state = selection.state_dict() | {"method": "autoassist", "epoch": 7}
    with pytest.raises(ControlError, match=words):
        selection.load_state_dict(state)
    assert (selection.method, selection.epoch) == ("infobatch", 0)
