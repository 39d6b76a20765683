"""The linear SVM of the AutoAssist paper: Theorem 1's rate, and what breaks it."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import warm

from looptap.examples.linear_svm import STRATEGIES, train, two_clouds

STEPS, RUNS = 4096, 64
PROBLEM = two_clouds()
BEST = PROBLEM.best()
SHRINKING = [name for name in STRATEGIES if name.startswith("shrink")]


def errors(strategy, **how):
    """Return the instances looked at, E |w - w*|**2 then, and the last updates."""
    courses = train(PROBLEM, strategy, STEPS, runs=RUNS, seed=1, **how)
    looked_at = np.array([one.looked_at for one in courses])
    return looked_at, np.array([((one.w - BEST) ** 2).sum(1).mean() for one in courses]), courses[-1].updates


def slope(looked_at, found):
    """Return the exponent of the decrease from 128 instances on."""
    late = looked_at >= 128
    return np.polyfit(np.log(looked_at[late]), np.log(found[late]), 1)[0]


def test_the_optimum_is_one():
    rng = np.random.default_rng(0)
    around = BEST + 0.01 * rng.standard_normal((200, len(BEST)))
    assert (PROBLEM.value(around) > PROBLEM.value(BEST)).all()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_distance_to_the_optimum_is_o_of_1_over_k(strategy):
    looked_at, found, updates = errors(strategy)
    assert slope(looked_at, found) < -0.85
    steepest = np.linalg.norm(PROBLEM.signed, axis=1).max() + np.sqrt(PROBLEM.decay)
    assert (looked_at * found < 6 * (steepest / PROBLEM.decay) ** 2).all()  # C = 1 + 2 sqrt(C) of the theorem's proof
    assert (updates < STEPS) == (strategy in SHRINKING)


@pytest.mark.parametrize("strategy", SHRINKING)
def test_shrinking_with_a_falling_threshold_ends_where_plain_sgd_does(strategy):
    _, plain, _ = errors("pegasos")
    _, found, updates = errors(strategy, scale=20.0)
    assert updates < STEPS - 50
    assert found[-1] == pytest.approx(plain[-1], rel=0.5)


@pytest.mark.parametrize("strategy", SHRINKING)
def test_shrinking_with_a_constant_threshold_stays_away_from_the_optimum(strategy):
    looked_at, found, updates = errors(strategy, threshold=lambda k: 0.2)
    assert slope(looked_at, found) > -0.5
    assert found[-1] > 30 * errors("pegasos")[1][-1]
    assert updates < STEPS / 4


def test_importance_sampling_has_a_lower_variance_and_looks_at_all_instances_for_it():
    assert errors("importance")[1][-1] < 0.6 * errors("pegasos")[1][-1]


def test_another_strategy_is_refused():
    with pytest.raises(ValueError, match="strategy='random' must be one of pegasos, "):
        train(PROBLEM, "random", 1)


@pytest.mark.usefixtures("processes")
def test_the_example_runs():
    command = [sys.executable, "-m", "looptap.examples.linear_svm", "--steps", "256", "--runs", "4"]
    done = warm.run(command, capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.count("pegasos") == 2
