"""Where a run stops: ties, silence, certainty; and when forecasts are made."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch
from clocks import Clock, trained
from torch.utils.data import DataLoader, TensorDataset

from looptap.client.estimates import said
from looptap.training.progress import Inserting, Patience, Progress
from looptap.training.progress.clock_ledger import VALIDATION


def followed(values, rule, *, metric="accuracy", **arguments):
    """Return a `Progress` after these validations, each of ten batches of a second."""
    clock = Clock()
    arguments = {"epochs": 300, "validation": 20, **arguments}
    progress = Progress(10, rule=rule, metric=metric, clock=clock, **arguments)
    stopped = False
    for value in values:
        for _ in progress.train([[0] * 4] * 10):
            clock.now += 1.0
        for _ in progress.validate([[0] * 10] * 2):
            clock.now += 1.0
        clock.now += 600.0  # however long a forecast takes here, it is time for the next
        stopped = progress.validated(value)
    assert not stopped
    clock.now += 1.1
    return progress


@pytest.mark.parametrize(("metric", "sign"), [("loss", 1), ("max", -1), ("accuracy", -1)])
def test_limits_of_a_rule_are_metrics_also_if_larger_is_better(metric, sign):
    """Three values that get better, of which the last is the first to pass the limit."""

    def stop(limit, **how):
        rule = Patience(2, like=how.pop("like", "lightning"), **{limit: 0.5 + sign * 0.15})
        progress = Progress(max_steps=50, validate_every=1, rule=rule, metric=metric)
        steps, found = progress.train([0] for _ in range(50)), []
        for value in how["values"]:
            next(steps)
            found.append(progress.validated(0.5 + sign * value))
        return found

    assert stop("good", values=[0.3, 0.2, 0.1]) == [False, False, True]
    assert stop("diverged", values=[0.0, 0.1, 0.2]) == [False, False, True]
    assert stop("baseline", like="keras", values=[0.2, 0.18, 0.19]) == [False, False, True]
    assert stop("baseline", like="keras", values=[0.2, 0.1, 0.19]) == [False, False, False]


@pytest.mark.parametrize("late", [lambda x: x**-0.4, lambda x: 0.2 + 0.3 * np.exp(-x / 40), lambda x: 0.6 - x / 250])
def test_a_fall_that_no_curve_matches_is_not_noise(late):
    """A loss falls fast, then slowly, and never rises."""
    x = np.arange(20.0)
    stops = followed([*(0.7 * np.exp(-x / 1.5) + late(x + 1))], Patience(5), metric="loss", epochs=100).stop_at
    assert stops.median > 50


@pytest.mark.long
@pytest.mark.parametrize(
    ("metric", "value"), [("accuracy", 0.1), ("loss", 2.302585), ("log", 1e-3), ("max", -200.0), ("error", 0.0)]
)
def test_a_history_without_noise_has_futures_without_noise(metric, value):
    progress = followed([value] * 38, Patience(40), metric=metric)
    assert progress.stop_at.median == 41
    assert progress.stop_at.low == 41
    assert progress.stop_at.high <= 50
    assert progress.unless_better == 3
    assert "in 3 unless one improves" in "; ".join(said(progress.report))


def test_a_discrete_metric_ties_and_a_tie_is_no_improvement():
    rng = np.random.default_rng(0)
    values = (np.round(50 * (0.8 - 0.5 * np.exp(-np.arange(30) / 3))) / 50).tolist()
    values += [0.8 - 0.02 * rng.integers(0, 3) for _ in range(12)]
    last_best = int(np.argmax(values)) + 1
    rule = Patience(len(values) - last_best + 4)
    progress = followed(values, rule)
    assert progress.unless_better == 4
    assert progress.stop_at.median == last_best + rule.patience


def test_a_smooth_loss_that_still_falls_is_not_stopped_by_noise_it_does_not_have():
    progress = followed([2.0 / k**0.3 for k in range(1, 40)], Patience(5), metric="loss", epochs=60)
    assert progress.stop_at == (60, 60, 60)


def test_a_rule_that_must_fire_is_certain_whatever_the_forecast():
    progress = followed([0.5, 0.4, 0.41, 0.42], Patience(4), metric="loss")
    assert progress.unless_better == 2
    assert progress.estimate().unless_better == 2
    assert progress.report["unless_better"] == 2
    assert followed([0.5], None).unless_better is None


@pytest.mark.filterwarnings("ignore:The validation yielded")
def test_a_run_whose_validations_are_numbers_no_more_is_expected_to_stop_for_it():
    falling = [2.0, 1.5, 1.2, 1.1, 1.05, 1.04]
    progress = followed([*falling, math.nan, math.inf, math.nan], Patience(8), metric="loss")
    assert progress.unless_better == 5
    assert progress.stop_at.median == progress.stop_at.low == 14
    recovered = [*falling, math.nan, *(1.03 - 0.01 * k for k in range(10))]
    progress = followed(recovered, Patience(8), metric="loss")
    alike = followed([*falling, 1.035, *recovered[7:]], Patience(8), metric="loss")
    assert progress.stop_at.median == pytest.approx(alike.stop_at.median, rel=0.2)


@pytest.mark.long
@pytest.mark.parametrize(
    ("metric", "like", "factor", "shift"),
    [("accuracy", "accuracy", 100, 0), ("loss", "loss", 1, -5), ("loss", "max", -1, 0)],
)
def test_per_cent_and_losses_below_zero_are_forecast_like_others(metric, like, factor, shift):
    rng = np.random.default_rng(3)
    values = 0.9 - 0.8 * np.exp(-np.arange(25) / 6) + 0.01 * rng.standard_normal(25)
    if like == "loss":
        values = 1.0 - values
    usual = followed(values.tolist(), Patience(20), metric=like)
    other = followed((factor * values + shift).tolist(), Patience(20), metric=metric)
    assert other.stop_at == pytest.approx(usual.stop_at, rel=0.25)


def test_a_first_validation_before_anything_is_learned_leaves_the_forecast_as_it_is():
    rng = np.random.default_rng(4)
    values = (0.8 + 0.7 * np.exp(-np.arange(30) / 6) + 0.02 * rng.standard_normal(30)).tolist()
    usual = followed([1.8, *values], Patience(20), metric="loss")
    other = followed([500.0, *values], Patience(20), metric="loss")
    assert other.stop_at.median == pytest.approx(usual.stop_at.median, rel=0.35)
    assert other.stop_at.high == pytest.approx(usual.stop_at.high, rel=0.35)


def test_what_is_certain_follows_each_validation_though_forecasts_are_rarer():
    clock = Clock()
    progress = Progress(10, epochs=300, rule=Patience(3), metric="loss", clock=clock)
    certain = []
    for value in [0.9, 0.8, 0.7, 0.71, 0.72, 0.6, 0.61]:
        trained(progress, clock, 1, seconds=1e-6, check=1e-6, error=lambda epoch, value=value: value)
        certain.append(progress.unless_better)
    assert progress.estimator.forecasts < 3  # they would take too much of this time
    assert certain == [3, 3, 3, 2, 1, 3, 2]


def test_no_stop_is_shown_before_the_rule_can_fire_though_forecasts_are_rarer():
    clock = Clock()
    progress = Progress(10, epochs=300, rule=Patience(4), metric="loss", clock=clock)
    shown = []
    for value in [0.9, 0.9, 0.9, 0.9, 0.5, 0.4, 0.3]:
        trained(progress, clock, 1, seconds=1e-6, check=1e-6, error=lambda epoch, value=value: value)
        progress.estimator.took = 1e6  # no further forecast
        shown.append((progress.stop_at.low, progress.unless_better + progress.estimator.plan.done))
    assert progress.estimator.forecasts <= 2
    assert all(low >= earliest for low, earliest in shown)


def test_the_second_forecast_does_not_wait_for_what_the_first_one_took_once():
    clock = Clock()
    progress = Progress(10, epochs=300, rule=Patience(4), metric="loss", clock=clock)
    trained(progress, clock, 2, seconds=1e-6, check=1e-6, error=lambda epoch: 0.9 - 0.1 * epoch)
    assert progress.estimator.forecasts == 2
    trained(progress, clock, 2, seconds=1e-6, check=1e-6, error=lambda epoch: 0.7 - 0.1 * epoch)
    assert progress.estimator.forecasts == 2


def test_a_patience_that_the_rule_cannot_have_is_refused_and_never_reaches_the_loop():
    progress = followed([0.5, 0.4], Patience(3, like="huggingface"), metric="loss")
    with pytest.raises(ValueError, match="patience=0"):
        progress.patience = 0
    assert progress.patience == 3
    assert not progress.validated(0.3)


def test_nothing_remains_once_the_rule_has_fired_and_what_remained_is_back_if_the_loop_trains_on():
    clock = Clock()
    progress = Progress(10, epochs=300, validation=32500.0, rule=Patience(3), clock=clock)
    trained(progress, clock, 4, error=lambda epoch: 0.5)
    assert progress.stop_at == (4, 4, 4)
    assert progress.unless_better is None
    assert progress.remaining.high < 1e-6
    assert 0.9 < progress.fraction < 1.0
    with pytest.warns(RuntimeWarning, match="but the loop continues"):
        trained(progress, clock, 1, error=lambda epoch: 0.5)
    assert progress.stop_at == (300, 300, 300)
    assert progress.remaining.median > 1000
    assert progress.fraction < 0.99


def test_a_first_step_of_unknown_duration_is_not_taken_for_infinitely_fast():
    clock = Clock()
    progress = Progress(clock=clock, budget=4000.0)
    for _ in range(3):
        clock.now += 2.0
        progress.trained(4.0)
        assert progress.fraction < 0.01
    assert progress.remaining.median == pytest.approx(1994.0)


def test_looks_make_no_forecast():
    clock = Clock()
    progress = Progress(10, epochs=100, rule=Patience(3), clock=clock)
    trained(progress, clock, 4, error=lambda epoch: 0.5 - 0.01 * epoch)
    before = progress.estimator.forecasts
    for _ in range(50):
        clock.now += 100.0
        assert progress.report["stop_at"]
        assert progress.remaining
    assert progress.estimator.forecasts == before


def test_a_length_that_jitters_asks_for_no_forecast():
    class Fractional(list):
        rng = random.Random(0)

        def __len__(self):
            return 40 + self.rng.randint(-6, 6)

    clock = Clock()
    progress = Progress(Fractional([[0] * 4] * 40), epochs=10, rule=Patience(3), clock=clock)
    for epoch in range(10):
        for _ in progress.train():
            clock.now += 30.0
            assert progress.remaining
        progress.validated(0.5 - 0.01 * epoch)
    assert progress.steps == 400
    assert progress.estimator.forecasts <= 11


def test_a_loop_that_ignores_its_rule_is_reported_and_has_no_forecast():
    clock = Clock()
    progress = Progress(10, epochs=20, rule=Patience(2), clock=clock)
    with pytest.warns(RuntimeWarning, match="Patience stopped the run at validation 3, but the loop continues"):
        trained(progress, clock, 5, error=lambda epoch: 0.5)
    assert "continues" in progress.note
    clock.now += 1.1
    assert progress.stop_at == (20, 20, 20)
    heeded = Progress(10, epochs=20, rule=Patience(2), clock=clock)
    trained(heeded, clock, 3, error=lambda epoch: 0.5)
    heeded.finished()
    assert heeded.note == ""


@pytest.mark.parametrize("number", [32500.0, 32500, np.float64(32500), np.int64(32500)])
def test_a_number_is_a_number_of_instances_of_any_type(number):
    progress = Progress(10, epochs=2, validation=number)
    assert progress.estimator.plan.validation == 32500
    with pytest.raises(ValueError, match="must be a loader, or a number above 0"):
        Progress(10, epochs=2, validation=float("nan"))


@pytest.mark.parametrize("growth", [3.0, 1 / 3])
def test_steps_that_grow_or_shrink_have_a_trend(growth):
    clock, looked = Clock(), []
    progress = Progress(20, epochs=40, clock=clock)
    for _epoch in range(40):
        for _ in progress.train([[0] * 4] * 20):
            clock.now += 60 * growth ** (progress.steps / 800)
        progress.validated(0.5)
        clock.now += 0.01
        looked.append((clock.now, progress.remaining.median))
    for at, said_then in looked[15:30]:
        assert said_then == pytest.approx(clock.now - at, rel=0.12)


def test_a_machine_that_slows_down_at_once_has_no_trend():
    clock = Clock()
    progress = Progress(20, epochs=40, clock=clock)
    for epoch in range(30):
        for _ in progress.train([[0] * 4] * 20):
            clock.now += 60 if epoch < 15 else 90
        progress.validated(0.5)
    clock.now += 1.1
    assert progress.remaining.median < 1.05 * 200 * 90


def test_progress_never_runs_back_by_more_than_two_percent():
    rng = np.random.default_rng(1)
    clock, shown = Clock(), []
    progress = Progress(10, epochs=200, rule=Patience(15), metric="loss", clock=clock)
    value = 2.0
    for epoch in range(120):
        for _ in progress.train([[0] * 4] * 10):
            clock.now += 30.0
            shown.append(progress.fraction)
        value = 0.5 + 1.5 / (1 + epoch) + 0.05 * rng.standard_normal()
        if progress.validated(value):
            break
    assert (np.maximum.accumulate(shown) - shown).max() <= 0.02 + 1e-9
    assert shown[-1] > shown[0]


def test_a_leap_of_the_estimate_has_a_reason():
    clock, leaps = Clock(), []
    progress = Progress(10, epochs=200, rule=Patience(10), clock=clock)
    stop = None
    curve = [0.9 - 0.05 * k for k in range(10)] + [0.46] * 8 + [0.3, 0.2, 0.15, 0.12] + [0.15] * 9
    for value in curve:
        for _ in progress.train([[0] * 4] * 10):
            clock.now += 60.0
        progress.validated(value)
        clock.now += 1.1
        now = progress.stop_at.median
        if stop is not None and abs(now - stop) > 0.1 * max(now, stop):
            leaps.append(progress.reason)
        stop = now
    assert any("best so far" in reason for reason in leaps)
    assert leaps.count("") <= 1


@pytest.mark.long
@pytest.mark.parametrize("seed", range(8))
def test_a_stop_that_is_likelier_than_an_improvement_is_shown_at_once(seed):
    values = (1.0 + 0.05 * np.random.default_rng(seed).standard_normal(200)).tolist()
    rule = Patience(8)
    stop = next(done for done in range(1, 200) if rule.stops(values[:done]))
    progress = followed(values[: stop - 1], rule, metric="error")
    assert progress.stop_at.median == stop


@pytest.mark.usefixtures("processes")
def test_five_batches_are_validated_first_if_asked_and_the_workers_are_kept():
    seen = []

    def evaluate(loader):
        seen.append((loader.num_workers, len(loader.dataset), len(list(loader))))
        return 0.5

    check = DataLoader(TensorDataset(torch.zeros(400, 2)), 20, num_workers=1)
    inserting = Inserting(evaluate, torch.nn.Linear(2, 2), check, processors=1, speed_batches=5)
    progress = Progress(10, epochs=3, validation=check, rule=Patience(3), insert=inserting)
    for _ in progress.train([torch.zeros(4)] * 10):
        pass
    assert seen == [(1, 100, 5)]
    assert progress.estimator.first_speed > 0
    assert progress.ledger.counts[VALIDATION] == 0  # that pass never counts as progress


@pytest.mark.parametrize("bound", [{"budget": 4000.0}, {"train": 50, "epochs": 20}, {"train": 50, "max_steps": 1000}])
def test_a_loop_that_counts_its_own_steps_is_estimated_too(bound):
    clock = Clock()
    progress = Progress(clock=clock, validation=20, **bound)
    for step in range(1, 401):
        clock.now += 1.0
        progress.trained(4.0)
        if step % 50 == 0:
            for _ in progress.validate([[0] * 10] * 2):
                clock.now += 1.0
            progress.validated(0.5)
    clock.now += 1.1
    assert progress.remaining.median == pytest.approx(600 + 24 * ("train" in bound), rel=0.05)
    assert progress.fraction == pytest.approx(0.4, abs=0.02)
    assert progress.epoch == (8 if "train" in bound else 0)


@pytest.mark.long
@pytest.mark.parametrize("values", [[1e300 * 0.1**k for k in range(12)], [0.9**k for k in range(12)], [0.5] * 12])
@pytest.mark.parametrize("metric", ["loss", "log", "accuracy", "max"])
def test_a_process_that_raises_on_overflow_and_underflow_has_a_forecast_too(metric, values):
    with np.errstate(all="raise"):
        progress = followed(values, Patience(40), metric=metric, rates=[1.0, 0.1], history=[[0.5] * 60])
        assert not progress.note
        assert progress.stop_at.low < 300


def test_what_has_stopped_names_no_later_stop():
    clock = Clock()
    progress = Progress(10, epochs=30, rule=Patience(3), metric="loss", clock=clock)
    stopped = []
    for _ in range(4):
        stopped.append(trained(progress, clock, 1, seconds=1.0, error=lambda epoch: 0.5))
    assert progress.estimator.stopping.fired == 4
    assert (progress.reason, progress.unless_better) == ("", None)
    assert progress.remaining.median == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize(("metric", "sign"), [("loss", 1), ("max", -1)])
@pytest.mark.parametrize("origin", [1e2, 1e4, 1e5])
def test_how_far_a_metric_without_a_bound_is_from_zero_says_nothing(metric, sign, origin):
    values = [sign * (-1.0 - origin - 0.5 * point) for point in range(20)]
    assert followed(values, Patience(5), metric=metric, epochs=50).stop_at.median == 50


def test_the_first_step_alone_says_nothing_about_the_speed():
    clock = Clock()
    progress = Progress(100, epochs=3, clock=clock)
    steps = progress.train(range(100))
    next(steps)
    clock.now += 40.0  # it compiles
    next(steps)
    assert math.isnan(progress.remaining.median)
    assert progress.train_speed is None
    clock.now += 1.0
    next(steps)
    assert progress.remaining.median == pytest.approx(298.0, rel=0.01)


def test_an_epoch_of_one_step_says_something_about_the_speed():
    clock = Clock()
    progress = Progress(1, epochs=10, clock=clock)
    for _ in progress.train(range(1)):
        clock.now += 2.0
    clock.now += 0.1
    assert progress.remaining.median == pytest.approx(18.0, rel=0.1)


def test_a_change_of_the_speed_is_named_to_readers_that_look_a_hundred_times_a_run():
    clock = Clock()
    progress = Progress(2000, epochs=1, clock=clock)
    named, ends = [], []
    for step, _ in enumerate(progress.train(range(2000))):
        clock.now += 200.0 if step == 3 else 1.0
        if step % 20 == 19:  # between two readings the estimate is made many times
            named.append(progress.reason)
            ends.append(clock.now + progress.remaining.median)
    leaps = [why for move, why in zip(np.diff(ends), named[1:], strict=True) if abs(move) > 0.1 * clock.now]
    assert leaps
    assert set(leaps) == {"the speed changed"}
    assert "" in named


def test_a_short_run_that_is_about_to_stop_is_forecast_again():
    clock = Clock()
    progress = Progress(10, epochs=300, rule=Patience(20), metric="loss", validation=20, clock=clock)
    shown = []
    for _ in range(21):
        trained(progress, clock, 1, seconds=0.02, check=0.02, error=lambda epoch: 0.5)
        progress.estimator.took = 0.02  # so that the usual time between two forecasts is longer than this run
        shown.append(progress.stop_at.median)
    assert progress.estimator.stopping.fired == 21
    assert shown[5] > 30
    assert shown[19] == 21
    assert progress.estimator.forecasts <= 4
