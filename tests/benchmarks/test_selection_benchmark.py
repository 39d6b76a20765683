"""Parts of `make bench-assistant`: arithmetic, kept runs, missed promises."""

from __future__ import annotations

import math

import pytest
import selection_page
import selection_runs
import selection_stages as stages
from selection_arithmetic import Paired, change, crossing, difference, smooth, targets
from selection_promises import Figures, promises
from selection_runs import COUNTED, DECAYING, DEFAULT, PLAIN, TIMED, Clock, Curve, Job, Training
from selection_stages import QUICK, Results, Tuned

from looptap.training.selection import Selection


def test_a_target_is_what_uniform_sampling_reaches_at_a_third_and_two_thirds():
    rising = [at / 100 for at in range(1, 13)]
    assert smooth([3.0, 0.0, 6.0, 9.0]) == [3.0, 1.5, 3.0, 5.0]
    assert targets([rising, rising], 12) == pytest.approx((0.03, 0.07))


def test_a_crossing_is_interpolated_between_evaluations():
    costs, accuracy = [100.0, 200.0, 300.0, 400.0], [0.1, 0.2, 0.3, 0.4]
    assert smooth(accuracy) == pytest.approx([0.1, 0.15, 0.2, 0.3])
    assert crossing(costs, accuracy, 0.05) == 100.0
    assert crossing(costs, accuracy, 0.175) == pytest.approx(250.0)
    assert crossing(costs, accuracy, 0.31) == math.inf


def test_the_interval_over_paired_seeds_is_that_of_t():
    found = difference([1.0, 2.0, 3.0, 4.0])
    half = 3.182 * math.sqrt(5 / 3) / 2
    assert found[:3] == pytest.approx((2.5, 2.5 - half, 2.5 + half))
    assert math.isinf(difference([1.0]).high)


def test_a_change_is_that_of_pairs_and_what_was_not_reached_counts_as_the_end():
    assert change([100.0, 1000.0], [80.0, 800.0], 2000.0)[:4] == pytest.approx((-0.2, -0.2, -0.2, 2))
    worse = change([100.0, 100.0], [50.0, math.inf], 400.0)
    assert worse.missed == 1
    assert worse.median == pytest.approx(math.exp(math.log(0.5 * 4) / 2) - 1)


def test_a_stopped_clock_stands_still():
    clock = Clock()
    clock.stop()
    before = clock.now()
    while clock.now() < before + 0.002:
        pass
    clock.start()
    assert clock.now() - before < 0.002


@pytest.mark.parametrize("method", [PLAIN, DEFAULT, "autoassist", "oracle"])
def test_a_training_ends_at_its_budget_and_is_judged_at_equal_steps_of_cost(method):
    curve = Training(Job("imbalanced", method, 0.07, 0, 0.1)).run()
    size, every = len(selection_runs.TASKS["imbalanced"].split(0).inputs), 4
    assert curve.cost[:4] == pytest.approx([size / every * (1 + at) for at in range(4)], abs=64)
    assert curve.cost[4:] == pytest.approx([0.1 * 12 * size], abs=64)
    assert all(len(values) == 5 for values in curve[:4])
    assert curve.accuracy[-1] > curve.accuracy[0]
    assert curve.seconds == sorted(curve.seconds)
    assert Training(Job("imbalanced", method, 0.07, 0, 0.1)).run().accuracy == curve.accuracy


def test_uniform_sampling_on_the_clock_draws_as_a_selection_that_is_off():
    selection = Selection(100, 8, switch="off", seed=3)
    plain = selection_runs.alike(100, 8, 3, Clock())
    for _ in range(3):
        assert all(next(plain) == batch for batch in selection)


def made_up(speed, *, end=0.9, selected=0.0):
    accuracy = [min(end, 0.01 * speed * at) for at in range(1, 201)]
    costs = [100.0 * at for at in range(1, 201)]
    seconds = [cost / 1e4 for cost in costs]
    return Curve(accuracy, [1 / at for at in range(1, 201)], costs, seconds, [0.9, 0.95], 0.5, selected)


def filled(path, ratio):
    """Results in which the default needs ``ratio`` as many instances."""
    results = Results(path, QUICK)
    task = "easy-heavy"
    for seed in (*QUICK.tuned, *QUICK.judged):
        for rate in (0.05, 0.07, 0.1):
            fit = 1 - abs(rate - 0.07)
            for kind in (COUNTED, TIMED):
                results.found[Job(task, PLAIN, rate, seed, QUICK.longest, kind)] = made_up(fit)
                results.found[Job(task, DEFAULT, rate, seed, QUICK.longest, kind)] = made_up(fit / ratio)
            for budget, end in ((1.0, 0.9), (0.85, 0.898), (0.7, 0.88)):
                method = PLAIN if budget == 1.0 else DEFAULT
                job = Job(task, method, rate, seed, Tuned(results, task).share(budget), DECAYING)
                results.found[job] = made_up(fit, end=end - abs(rate - 0.07))
    return results


def test_what_does_not_hold_is_said_and_comes_first(tmp_path):
    good = filled(tmp_path / "good.json", 0.6)
    found = promises(Figures(good))
    assert all(promise.firm for promise in found)
    assert len(found) == 4
    bad = filled(tmp_path / "bad.json", 1.2)
    bad.costs = {DEFAULT: 0.4}
    found = promises(Figures(bad))
    assert [promise.firm for promise in found] == [False, False, False, True, True]
    text = "\n".join([*selection_page.kept(found), *selection_page.tables(Figures(bad), [PLAIN, DEFAULT])])
    assert text.count("**no**") >= 3
    assert "+17%" in text


def test_rates_are_chosen_by_the_cost_to_both_targets_and_no_edge_counts_as_chosen(tmp_path):
    tuned = Tuned(filled(tmp_path / "some.json", 0.8), "easy-heavy")
    assert (tuned.rate(DEFAULT), tuned.inside(DEFAULT)) == (0.07, True)
    for job in [job for job in tuned.results.found if job.rate == 0.1]:
        del tuned.results.found[job]
    assert (tuned.rate(DEFAULT), tuned.inside(DEFAULT)) == (0.07, False)
    assert tuned.peak(DEFAULT, 0.85) == (0.07, False)


def test_a_method_that_reaches_no_target_is_left_at_its_best_end(tmp_path):
    tuned = Tuned(filled(tmp_path / "some.json", 0.8), "easy-heavy")
    for at in range(stages.MAX_RATES):
        assert not at or not tuned.settled("spl")
        for seed in QUICK.tuned:
            job = Job("easy-heavy", "spl", 0.07 / 2**at, seed, QUICK.longest)
            tuned.results.found[job] = made_up(1.0, end=0.01 / (at + 1))
    assert (tuned.rate("spl"), tuned.inside("spl"), tuned.settled("spl")) == (0.07, False, True)


def test_what_was_done_is_not_done_again(tmp_path, monkeypatch):
    results = Results(tmp_path / "kept.json", QUICK)
    job = Job("imbalanced", PLAIN, 0.07, 0, 0.05)
    results.timed([(job, math.inf)], "once")
    results.costs = {"norm": 0.1}
    results.write()
    monkeypatch.setattr(stages, "Training", None)
    again = Results(tmp_path / "kept.json", QUICK)
    again.timed([(job, math.inf)], "twice")
    assert again.found == results.found
    assert again.costs == {"norm": 0.1}


def test_the_default_is_timed_with_the_rate_of_uniform_sampling(tmp_path):
    trained = []
    results = Results(tmp_path / "kept.json", QUICK, lambda job, target: trained.append(job) or made_up(1.0))
    for seed in QUICK.tuned:
        for rate in (0.05, 0.07, 0.1):
            results.found[Job("wide-cnn", PLAIN, rate, seed, QUICK.longest)] = made_up(1 - abs(rate - 0.07))
    stages.timed(results, ["characters", "wide-cnn"])
    assert [(job.task, job.method, job.rate, job.kind) for job in trained] == [
        ("wide-cnn", method, 0.07, TIMED) for method in (DEFAULT, PLAIN, PLAIN, DEFAULT)
    ]
    assert len(Figures(results).judged("wide-cnn", DEFAULT, TIMED)) == 2
    stages.timed(results, ["wide-cnn"])
    assert len(trained) == 4
    stages.timed(results, ["wide-cnn"], again=True)
    assert trained[4:] == trained[:4]


def test_a_change_is_shown_with_its_interval_and_what_was_missed():
    from selection_promises import shown

    assert shown(Paired(-0.2, -0.3, -0.1, 8)) == "−20% (−30 to −10)"
    assert shown(Paired(-0.2, -0.3, 0.1, 8, 2)) == "−20% (−30 to +10, 2 of 8 not reached)"
