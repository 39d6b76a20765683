"""Parts of `make bench-prioritized`: what is counted, and the page."""

from __future__ import annotations

import math

import pgd_page
import pytest
import ranks
from pgd_paper import PGD_A, SGD, Paper, Run, trained
from pgd_runs import VARIANTS, PrioritizedResults, train
from selection_runs import PLAIN, Curve, Job
from selection_stages import Protocol, Results


@pytest.mark.parametrize("method", ["PGD-A", "loss, unbiased"])
def test_a_training_ends_at_its_budget_with_all_gradients_counted(method):
    curve = train(Job("imbalanced", method, 0.03, 0, 0.05), math.inf)
    assert 7600 * 0.6 <= curve.cost[-1] < 7600 * 0.6 + 200
    if method == "PGD-A":  # it is in its first initial pass
        assert max(curve.loss) == min(curve.loss)


def test_a_logistic_regression_counts_the_initial_passes():
    found = trained(Run(PGD_A, 0.05, 0.05, 0.1, 0), 2.75)
    assert found.loss[:7] == [0.6931] * 7
    assert found.loss[-1] < 0.69
    assert found.cost[-1] >= 2.75
    assert trained(Run(SGD, 0.05, 0.05, 0.1, 0), 0.5).loss[-1] < 0.69


def test_the_page_says_first_what_is_not_held_and_shared_runs_are_not_written_again(tmp_path):
    protocol = Protocol(tuned=(100,), judged=(0, 1), budget=0.25)

    def curve(speed):
        at = [2400.0 * step for step in range(1, 13)]
        return Curve([min(0.9, speed * cost / 3e4) for cost in at], [math.exp(-speed * cost / 1e4) for cost in at], at,
                     at, [], 1.0, 1.0)  # fmt: skip

    shared = Results(tmp_path / "shared.json", protocol)
    for rate in (0.05, 0.07, 0.1):
        shared.found[Job("easy-heavy", PLAIN, rate, 100, protocol.longest)] = curve(1.0)
    shared.write()
    results = PrioritizedResults(tmp_path / "own.json", protocol, tmp_path / "shared.json")
    for method, speed in ((PLAIN, 1.0), ("norm", 1.1), *((one, 0.5) for one in VARIANTS)):
        for seed in (100, 0, 1):
            budget = protocol.longest if seed == 100 else protocol.budget
            for rate in (0.05, 0.07, 0.1):
                results.found[Job("easy-heavy", method, rate, seed, budget)] = curve(speed)
    results.write()
    again = PrioritizedResults(tmp_path / "own.json", protocol, tmp_path / "shared.json")
    assert again.found == results.found
    assert len(Results(tmp_path / "own.json", protocol).found) == len(results.found) - 3
    pgd_page.write(again, Paper(tmp_path / "paper.json"), tmp_path, ["easy-heavy"])
    page = (tmp_path / "prioritized-benchmarks.md").read_text()
    assert page.index("**no**") < page.index("## Gradients to equal")
    assert "| PGD-A | 0.05, at an edge | " in page
    assert "| norm | 0.05, at an edge | -" in page
    assert "2 of 2 not reached" in page
    assert (tmp_path / "prioritized-work.png").stat().st_size > 1000


def test_the_model_of_many_ranks_is_the_sum_of_what_was_measured():
    computing = [[0.010, 0.012], [0.012, 0.010]]
    link = ranks.fitted({str(values): 2 * (0.001 + 4 * values / 2 / 1e9) for values in (1_000, 1_000_000)}, 2)
    assert link == pytest.approx((0.001, 1e9))
    factor = ranks.in_step_factor(computing, link, 0.009, 2e6)
    assert factor == pytest.approx((0.009 - 0.001) / link.seconds(2, 2e6))
    two = ranks.step_seconds(computing, factor * link.seconds(2, 2e6), 2)
    assert two == pytest.approx({"computing": 0.011, "waiting": 0.001, "reducing": 0.008, "step": 0.020})
    many = ranks.step_seconds(computing, 0.0, 64)
    assert many["step"] == pytest.approx(0.012)
