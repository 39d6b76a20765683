"""The switch of a selection, and the statistics that are estimated at its end."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch
from torch import nn

from looptap.training.sampling.per_example import CrossEntropy
from looptap.training.selection import Selection, recalibrate
from looptap.training.selection.honest_gain import HonestGain
from looptap.training.selection.switch import AUTO, OFF, ON, Switch


def switch(step=1.0, cost=0.0, on=False):
    found = Switch()
    found.on = on
    for _ in range(40):
        found.timed(step, cost)
    return found


def after(found, gain, steps=25):
    for _ in range(steps):
        found.tested(gain, False, AUTO)
    return found.on


@pytest.mark.parametrize(
    ("gain", "step", "cost", "on", "wanted"),
    [
        (1.04, 1.0, 0.0, False, False), (1.06, 1.0, 0.0, False, True),  # from a net gain of 1.05
        (1.03, 1.0, 0.0, True, True), (1.01, 1.0, 0.0, True, False),  # off below 1.02
        (1.04, 1.0, 0.0, True, True),  # between them it stays as it is
        (2.0, 1.0, 0.90, False, True), (2.0, 1.0, 0.91, False, False),  # G t / (t + o)
        (2.0, 1.0, 0.95, True, True), (2.0, 1.0, 0.97, True, False), (math.nan, 1.0, 0.0, True, False),
    ],
)  # fmt: skip
def test_it_is_on_from_a_net_gain_of_1_05_and_off_below_1_02(gain, step, cost, on, wanted):
    found = switch(step, cost, on)
    assert after(found, gain) is wanted
    net = gain * step / (step + cost)
    assert found.net == pytest.approx(net, nan_ok=True)
    assert ("no gain is known" if math.isnan(gain) else f"gain {gain:.2f}") in found.why


def test_it_is_tested_every_25_steps():
    found = switch()
    assert [after(found, 2.0, 1) for _ in range(25)] == [False] * 24 + [True]
    assert [after(found, 1.0, 1) for _ in range(25)] == [True] * 24 + [False]


def test_the_first_epoch_is_plain_and_a_hand_decides_at_once():
    found = switch()
    assert not any(found.tested(5.0, True, AUTO) for _ in range(200))
    assert "first epoch" in found.why
    assert found.tested(math.nan, True, ON)
    assert found.why == "turned on by hand"
    assert not found.tested(5.0, False, OFF)
    assert found.why == "turned off by hand"


def test_a_failure_turns_it_off_for_25_steps():
    found = switch(on=True)
    after(found, 2.0, 24)
    found.fail("NaN")
    assert [after(found, 2.0, 1) for _ in range(26)] == [False] * 25 + [True]


@pytest.mark.parametrize(("step", "cost"), [(1.0, 0.2), (1.0, 3.0), (1.0, 0.004), (30.0, 0.2)])
def test_while_it_is_off_scores_cost_one_percent(step, cost):
    found = switch(step, cost)
    scored = sum(found.scores() for _ in range(10_000))
    assert scored == 10_000 if cost <= 0.01 * step else scored * cost / (10_000 * step) == pytest.approx(0.01, rel=0.1)
    found.on = True
    assert all(found.scores() for _ in range(100))


def test_a_first_score_that_took_long_does_not_spoil_the_budget():
    found, scored = Switch(), 0
    for _ in range(1000):
        if take := found.scores():
            scored += 1
        found.timed(1.0, (50.0 if scored == 1 else 0.2) if take else None)
    assert found.cost_seconds == 0.2
    assert scored == pytest.approx(50 + 5, abs=3)


def test_the_cost_while_it_is_on_is_remembered_so_that_it_does_not_turn_back_and_forth():
    found = switch(1.0, 0.1)
    assert after(found, 2.0)
    for _ in range(40):
        found.timed(1.0, 1.2)
    assert not after(found, 2.0)
    for _ in range(40):
        found.timed(1.0, 0.1)
    assert found.cost_seconds == 1.2
    assert not after(found, 2.0, 500)


class Clock:
    """A clock that the loop moves."""

    now = 1.0

    def __call__(self):
        self.now += 1e-6
        return self.now


def run(selection, clock, epochs, losses, step=0.01):
    states = []
    for _ in range(epochs):
        for batch in selection:
            clock.now += step
            found = torch.from_numpy(losses[batch])
            selection.mean(batch, found)
            selection.observe(batch, losses=found)
            states.append(selection.selecting)
    return states


def test_a_run_selects_from_the_second_epoch_where_it_pays_and_not_where_it_does_not():
    clock = Clock()
    uneven = np.where(np.arange(2000) % 10 == 0, 3.0, 0.01).astype(np.float32)
    selection = Selection(2000, 20, clock=clock)
    states = run(selection, clock, 4, uneven)
    assert not any(states[:99])
    assert states[-1]
    assert selection.kept < 0.4
    assert selection.gain > 2
    assert selection.net_gain > 1.1
    assert selection.skipped > 2000
    assert selection.step_seconds == pytest.approx(0.01, rel=0.01)
    assert 0 < selection.cost_seconds < 1e-4
    assert selection.seconds_saved == pytest.approx(selection.skipped / 20 * 0.01, rel=0.01)
    assert 0 < selection.seconds_spent < 0.02

    even = Selection(2000, 20, clock=clock)
    assert not any(run(even, clock, 4, np.ones(2000, np.float32)))
    assert even.gain == pytest.approx(1)
    assert "does not pay" in even.why
    assert even.skipped == 0


def test_uniform_sampling_takes_few_scores_and_is_never_switched():
    clock, uneven = Clock(), np.where(np.arange(2000) % 10 == 0, 3.0, 0.01).astype(np.float32)
    looks = []

    def losses_of(outputs, targets):
        looks.append(len(outputs))
        clock.now += 1e-3  # a tenth of a step
        return outputs

    selection = Selection(2000, 20, "uniform", clock=clock, loss=losses_of)
    for _ in range(3):
        for batch in selection:
            clock.now += 0.01
            selection.observe(batch, logits=torch.from_numpy(uneven[batch]), targets=torch.zeros(20))
    assert 20 < len(looks) < 40
    assert selection.skipped == 0
    assert not selection.selecting
    assert selection.why == "all are drawn alike"


def test_most_steps_are_only_counted_while_it_is_off():
    clock, uneven = Clock(), np.where(np.arange(2000) % 10 == 0, 3.0, 0.01).astype(np.float32)
    readings = []
    idle, busy = (
        Selection(2000, 20, "uniform", switch="off", clock=lambda: readings.append(1) or clock(), loss=slow)
        for slow in (lambda outputs, targets: setattr(clock, "now", clock.now + 1e-3) or outputs, "mse")
    )
    logits, targets = torch.from_numpy(uneven), torch.zeros(20)
    for selection in (idle, busy):
        for epoch in range(2):
            for at, batch in enumerate(selection):
                clock.now += 0.01
                if selection is idle and at == 50:
                    selection.observe(torch.tensor(batch[:15]), logits=logits[batch[:15]], targets=targets[:15])
                    selection.observe(torch.tensor(batch[15:]), logits=logits[batch[15:]], targets=targets[:5])
                else:
                    selection.observe(torch.tensor(batch), logits=logits[batch], targets=targets)
            if epoch == 0:
                readings.clear()
        assert (len(readings) < 100) == (selection is idle)
        assert selection.epoch == 2
        assert (selection.table.seen == 2).all()
        assert selection.step_seconds == pytest.approx(0.01, rel=0.01)
    assert (idle.steps, busy.steps) == (202, 200)
    assert idle.ages.max() < 101


def test_turned_on_by_hand_it_selects_at_the_next_step_also_from_idling():
    clock, uneven = Clock(), np.where(np.arange(2000) % 10 == 0, 3.0, 0.01).astype(np.float32)
    selection = Selection(2000, 20, switch="off", clock=clock, loss=lambda outputs, targets: outputs)
    run(selection, clock, 2, uneven)
    for name, wanted in (("on", True), ("off", False), ("on", True)):
        selection.switch = name
        batch = next(iter(selection))
        selection.observe(batch, losses=torch.from_numpy(uneven[batch]))
        assert selection.selecting == wanted
        assert selection.why == f"turned {name} by hand"


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_nan_turns_it_off_until_the_next_test_and_it_turns_on_again():
    clock, uneven = Clock(), np.where(np.arange(2000) % 10 == 0, 3.0, 0.01).astype(np.float32)
    selection = Selection(2000, 20, clock=clock)
    run(selection, clock, 3, uneven)
    assert selection.selecting
    batch = next(iter(selection))
    selection.observe(batch, losses=torch.full((20,), torch.nan))
    assert not selection.selecting
    assert "not finite" in selection.why
    states = run(selection, clock, 2, uneven)
    assert not any(states[:24])
    assert states[-1]


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0])
def test_the_gain_is_that_of_its_definition(exponent):
    rng, gain = np.random.default_rng(0), HonestGain()
    sums = np.zeros(6)
    for _ in range(20):
        drawn, wanted = rng.uniform(0.2, 1, (2, 8)).astype(np.float32)
        scores = rng.exponential(1, 8).astype(np.float32)
        weights = 3 * wanted**-exponent if exponent else None
        gain.add(drawn=drawn, wanted=wanted, weights=weights, scores=scores)
        w = wanted**-exponent
        new = [1 / drawn, wanted / drawn, scores / drawn, scores**2 / drawn, wanted * w * scores / drawn,
               wanted * w**2 * scores**2 / drawn]  # fmt: skip
        sums = 0.98 * sums + np.sum(new, 1)
    offered, kept, mean, squares, led, noise = sums
    wanted = led**2 / (kept * noise) / (mean**2 / (offered * squares))
    assert gain.value == pytest.approx(wanted, rel=1e-5)
    if exponent == 1.0:  # the reduction of variance
        assert gain.value == pytest.approx(squares / (noise * kept / offered), rel=1e-5)
    assert gain.kept == pytest.approx(kept / offered, rel=1e-5)


def test_few_scores_while_it_is_off_do_not_make_the_gain_look_low():
    """A score of the last epoch says much, one of ten epochs ago nothing."""
    gains = []
    for cost in (0.0, 1e-3):  # seconds of a score; a tenth of a step
        clock = Clock()

        def losses_of(outputs, targets, clock=clock, cost=cost):
            clock.now += cost
            return outputs

        selection = Selection(10_000, 100, switch="off", clock=clock, loss=losses_of)
        found = []
        for epoch in range(40):
            for batch in selection:
                clock.now += 0.01
                hard = np.array(batch) // 1000 == selection.steps // 150 % 10
                losses = torch.from_numpy(np.where(hard, 3.0, 0.05).astype(np.float32))
                selection.observe(batch, logits=losses, targets=torch.zeros(100))
            if epoch > 10:
                found.append(selection.gain)
        gains.append(np.median(found))
    assert gains[0] > 1.1
    assert gains[1] == pytest.approx(gains[0], rel=0.15)


# ------------------------------------------------------------ scores that are computed together


def observed(selection, clock, epochs, logits, targets, refill=False):
    """Train on nothing: show a selection the outputs of a model that stays as it is."""
    outputs, wanted = torch.zeros(20, logits.shape[1]), torch.zeros(20, dtype=torch.long)
    for _ in range(epochs):
        for batch in selection:
            clock.now += 0.01
            if refill:  # as a CUDA graph does
                outputs.copy_(logits[batch]), wanted.copy_(targets[batch])
                selection.observe(batch, logits=outputs, targets=wanted)
            else:
                selection.observe(batch, logits=logits[batch], targets=targets[batch])


def outputs_of(size=2000, classes=5):
    generator = torch.Generator().manual_seed(0)
    easy = torch.where(torch.arange(size) % 10 == 0, 0.5, 8.0)[:, None]
    targets = torch.randint(0, classes, (size,), generator=generator)
    return torch.nn.functional.one_hot(targets, classes) * easy, targets


def test_one_percent_of_a_step_scores_nearly_all_instances_of_the_first_epoch(monkeypatch):
    """Scores of 16 steps together cost little more than those of one."""
    clock, small = Clock(), CrossEntropy.small

    def charged(self, outputs, targets):
        clock.now += 1e-3  # a tenth of a step, however many instances there are
        return small(self, outputs, targets)

    monkeypatch.setattr(CrossEntropy, "small", charged)
    logits, targets = outputs_of()
    selection = Selection(2000, 20, clock=clock)
    observed(selection, clock, 1, logits, targets)
    known = selection.table.loss == selection.table.loss
    assert known.mean() > 0.5
    begun = clock.now
    observed(selection, clock, 1, logits, targets)
    assert selection.gain > 1.3
    assert selection.selecting
    assert clock.now > begun


@pytest.mark.parametrize("refill", [False, True])
def test_scores_that_are_computed_together_are_those_of_each_step(refill):
    clock, (logits, targets) = Clock(), outputs_of()
    selection = Selection(2000, 20, switch="off", clock=clock)
    observed(selection, clock, 2, logits, targets, refill)
    selection.state_dict()  # computes what is left
    wanted = CrossEntropy()(logits, targets)
    np.testing.assert_allclose(selection.table.loss, wanted.losses, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(selection.table.score, wanted.scores, atol=1e-4)
    assert (selection.table.label == targets.numpy()).all()
    assert selection.steps == 200
    assert (selection.table.seen == 2).all()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_what_is_wrong_in_one_of_them_costs_only_that():
    clock, (logits, targets) = Clock(), outputs_of()
    logits[7], targets[11] = torch.nan, -100
    selection = Selection(2000, 20, switch="off", clock=clock)
    observed(selection, clock, 1, logits, targets)
    selection.state_dict()
    known = np.isfinite(selection.table.loss)
    assert "not finite" in selection.note
    assert not known[7]
    assert known.sum() == 1999


def test_outputs_that_cannot_be_held_are_scored_at_once():
    clock, (logits, targets) = Clock(), outputs_of()
    selection = Selection(2000, 20, switch="off", clock=clock)
    observed(selection, clock, 1, logits, targets)
    for batch in selection:
        clock.now += 0.01
        selection.observe(batch, losses=torch.full((20,), 3.0))
    assert (selection.table.loss == 3.0).mean() > 0.9


def test_several_steps_in_one_addition_age_the_gain_as_several():
    gain, sums = HonestGain(), np.zeros(2)
    for steps in (1, 16, 3):
        drawn = np.full(8, 0.5, np.float32)
        gain.add(drawn=drawn, wanted=drawn * steps / 16, weights=None, scores=np.ones(8, np.float32), steps=steps)
        sums = 0.98**steps * sums + (16, steps / 2)
    assert gain.kept == pytest.approx(sums[1] / sums[0])


# ------------------------------------------------------------ recalibration


def with_norms():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2), nn.BatchNorm1d(2))


def test_the_statistics_are_those_of_torch_and_nothing_else_changes():
    model, other = with_norms(), with_norms()
    for dropout in (model[2], other[2]):
        dropout.p = 0.0
    batches = [(torch.randn(8, 3), None) for _ in range(5)]
    model(batches[0][0]).sum().backward()
    gradients = [one.grad.clone() for one in model.parameters()]
    model[1].eval().train()
    model[3].eval()
    numbers = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    assert recalibrate(model, batches) == 2
    torch.optim.swa_utils.update_bn(batches, other)
    for place in (1, 4):
        torch.testing.assert_close(model[place].running_mean, other[place].running_mean)
        torch.testing.assert_close(model[place].running_var, other[place].running_var)
        assert model[place].momentum == 0.1
    assert [one.training for one in model] == [True, True, True, False, True]
    assert all(torch.equal(one.grad, old) for one, old in zip(model.parameters(), gradients, strict=True))
    assert torch.equal(torch.get_rng_state(), numbers[0])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == numbers[1:]


def test_dropout_draws_nothing_and_shuffling_leaves_the_random_numbers_alone():
    model, data = with_norms().eval(), torch.utils.data.TensorDataset(torch.randn(40, 3))
    state = torch.get_rng_state()
    assert recalibrate(model, torch.utils.data.DataLoader(data, 8, shuffle=True)) == 2
    assert torch.equal(torch.get_rng_state(), state)
    assert not model[1].training


def test_frozen_layers_and_a_failing_or_empty_loader_keep_the_statistics():
    model = with_norms()
    model(torch.randn(8, 3))
    model[1].eval()
    frozen, mean = model[1].running_mean.clone(), model[4].running_mean.clone()
    assert recalibrate(model, []) == 1
    assert torch.equal(model[4].running_mean, mean)

    def failing():
        yield torch.randn(8, 3)
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="disk"):
        recalibrate(model, failing())
    assert torch.equal(model[4].running_mean, mean)
    assert model[4].momentum == 0.1
    recalibrate(model, [torch.randn(8, 3)])
    assert torch.equal(model[1].running_mean, frozen)
    assert not torch.equal(model[4].running_mean, mean)
    assert recalibrate(nn.Linear(3, 2), [torch.randn(8, 3)]) == 0
