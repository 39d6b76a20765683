"""Parts of `make bench-progress`: recorded runs, how they are played, the tables."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
from clocks import Clock, trained
from judge_kinds import judged
from kind_cases import LOOKS, PATIENCES, PLAYED_SECONDS, KindCase, KindVerdict, cases, follow, judge, methods, seconds
from kind_curves import (
    DEVELOPMENT_FILE,
    DEVELOPMENT_SEEDS,
    KEPT_SEEDS,
    PARTS,
    KindCurve,
    read,
    write,
)
from kind_tables import Row, held, promises, section, share, to_paper
from published_methods import FormerProgress, PaperProgress, fit

from looptap.training.progress import Patience
from looptap.training.progress.forecast.observations import Observations


def made(points: int = 20, seed: int = 0) -> KindCurve:
    return KindCurve(
        "made", seed, "loss", "loss", "step", 0.01, [1 / (point + 1) for point in range(points)], 100, [100] * points,
        [32] * points * PARTS, [1000] * points * PARTS, [500] * points, [1.0] * 10 + [0.1] * (points - 10),
    )  # fmt: skip


def verdict(error: float, *, inside: int = 100) -> KindVerdict:
    return KindVerdict(error, [0.1] * 3, [0.1] * 5, [20] * 5, [100 - inside, 0, 0, 0, 0], [0] * 5, [0] * 5, 0, 0, 0.0)


def row(kind: str, seed: int, ours: float, paper: float, *, inside: int = 80) -> Row:
    errors = {"linear": 4.0, "former": 2.0, "paper": paper, "stop known": 0.1}
    verdicts = {name: verdict(error) for name, error in errors.items()} | {"ours": verdict(ours, inside=inside)}
    return Row(kind, seed, "loss", "step", 10, 0.0, 12, 20, verdicts)


def test_runs_of_many_kinds_are_recorded_beyond_any_stop():
    curves = read(DEVELOPMENT_FILE)
    assert len({curve.kind for curve in curves}) >= 20
    assert not set(DEVELOPMENT_SEEDS) & set(KEPT_SEEDS)
    for curve in curves:
        points = len(curve.values)
        assert curve.seed in DEVELOPMENT_SEEDS
        assert points == len(curve.steps) == len(curve.check) == len(curve.train) / PARTS == len(curve.sizes) / PARTS
        assert curve.rates is None or (len(curve.rates) == points and curve.rates[0] > 0)


def test_the_recorded_runs_cover_what_people_do():
    curves = read(DEVELOPMENT_FILE)
    assert {"accuracy", "loss", "log-loss", "perplexity", "MSE", "F1", "reward"} <= {one.reports for one in curves}
    assert {"constant", "step", "cosine", "one-cycle", "warm restarts", "reduce on plateau"} <= {
        one.schedule for one in curves
    }
    rules = {(case.rule.patience, case.rule.min_delta > 0) for case in cases(curves)}
    assert {patience for patience, _ in rules} >= {3, 40}
    assert {positive for _, positive in rules} == {False, True}


def test_a_file_of_recorded_runs_returns_what_was_written(tmp_path: Path):
    curve = dataclasses.replace(made(), values=[0.5, math.nan, *[0.25] * 18], steps=[100] * 19 + [4])
    write(tmp_path / "some.json", [curve])
    (found,) = read(tmp_path / "some.json")
    assert math.isnan(found.values[1])
    assert dataclasses.replace(found, values=[]) == dataclasses.replace(curve, values=[])
    assert isinstance(json.loads((tmp_path / "some.json").read_text())[0]["sizes"], int)


def test_the_rules_of_a_curve_do_not_depend_on_the_other_curves():
    other = dataclasses.replace(made(), kind="another")
    assert cases([made()]) == cases([other, made()])[3:]
    assert [case.rule.patience in group for case, group in zip(cases([made()]), PATIENCES, strict=True)] == [True] * 3


def test_a_run_is_played_in_the_time_that_was_recorded():
    curve = made()
    late = dataclasses.replace(curve, train=[1000] * 50 + [3000] * 50)
    case = KindCase(curve, Patience(20))
    assert seconds(case) == pytest.approx(PLAYED_SECONDS)
    assert seconds(KindCase(late, Patience(1, 0.05))) < 0.3 * PLAYED_SECONDS
    looks = list(follow(case, "linear"))
    assert LOOKS / 2 < len(looks) <= LOOKS
    assert all(abs(look.at + look.remaining - PLAYED_SECONDS) < 0.02 * PLAYED_SECONDS for look in looks[10:])


def test_a_run_ends_where_its_rule_stops_it_or_at_its_last_validation():
    flat = dataclasses.replace(made(), values=[0.5] * 20)
    assert (KindCase(flat, Patience(4)).fired, KindCase(flat, Patience(4)).stop) == (5, 5)
    assert (KindCase(made(), Patience(4)).fired, KindCase(made(), Patience(4)).stop) == (0, 20)
    assert judge(KindCase(flat, Patience(4)), "linear").error > 3
    assert judge(KindCase(flat, Patience(4)), "stop known").error < 0.5


def test_the_learning_rates_are_given_only_where_they_change():
    assert "ours, rates" in methods(KindCase(made(), Patience(8)))
    constant = dataclasses.replace(made(), rates=[1.0] * 20)
    assert "ours, rates" not in methods(KindCase(constant, Patience(8)))
    unknown = dataclasses.replace(made(), rates=None)
    assert "ours, rates" not in methods(KindCase(unknown, Patience(8)))


@pytest.mark.usefixtures("processes")
def test_verdicts_on_rivals_are_kept_for_the_next_try():
    known: dict[str, list[object]] = {}
    some = [KindCase(made(12), Patience(3, 0.05))]
    (first,) = judged(some, known=known, jobs=1)
    assert len(known) == 4
    for one in known.values():
        one[0] = 7.0
    (second,) = judged(some, known=known, jobs=1)
    assert (first.error("ours"), second.error("paper")) == (second.error("ours"), 7.0)
    assert "Some: 1 runs" in "\n".join(section([first], "Some"))


def test_a_quotient_has_an_interval_over_curves():
    rows = [row("a", 0, 1.0, 2.0), row("a", 0, 2.0, 2.0), row("b", 1, 3.0, 2.0)]
    found = to_paper(rows)
    assert found.value == pytest.approx(1.0)
    assert (found.low, found.high) == pytest.approx((0.75, 1.5))
    assert held(rows).value == pytest.approx(0.8)
    assert share(rows, lambda one: one.error("best of"), lambda one: 1.0).value == pytest.approx(2.0)


def test_a_promise_that_does_not_hold_is_reported():
    good = promises([row(kind, seed, 0.5, 1.0) for kind in "ab" for seed in range(4)])
    assert all("**not held**" not in line for line in good if "30%" in line or "65%" in line or "75 to" in line)
    bad = promises([row(kind, seed, 0.5 if kind == "a" else 1.3, 1.0, inside=40) for kind in "ab" for seed in range(4)])
    reported = [line.partition("|")[2].partition("|")[0].strip() for line in bad if "not held" in line]
    assert [one.split(" ")[0] for one in reported] == ["mean", "no", "the", "and", "it"]
    assert "b 1.30" in next(line for line in bad if "no kind" in line)


@pytest.mark.parametrize("kind", [FormerProgress, PaperProgress])
def test_nothing_remains_by_a_published_method_once_the_rule_has_fired(kind):
    clock = Clock()
    progress = kind(10, epochs=300, validation=32500.0, rule=Patience(3), clock=clock)
    trained(progress, clock, 4, error=lambda epoch: 0.5)
    assert progress.stop_at == (4, 4, 4)
    assert progress.unless_better is None
    assert progress.remaining.high < 1e-6


def test_the_method_of_the_paper_has_a_speed_of_the_last_ten_seconds_for_each_phase():
    clock = Clock()
    progress = PaperProgress(10, epochs=10, validation=30, clock=clock)
    trained(progress, clock, 5)
    batches = progress.train([np.zeros(4)] * 10)
    for _ in range(6):
        next(batches)
        clock.now += 2.0
    assert progress.train_speed == pytest.approx(2.0)
    assert progress.validation_speed is None
    checks = progress.validate([np.zeros(10)] * 5)
    for _ in range(4):
        next(checks)
        clock.now += 2.0
    assert progress.train_speed is None
    assert progress.validation_speed == pytest.approx(5.0)


def test_the_power_law_of_the_published_methods_is_found_again():
    x = np.arange(1.0, 31.0)
    a, b, c, variance = fit(Observations(x, 0.1 + 0.5 * x**-0.7, np.zeros(30)))
    assert (a, b, c) == pytest.approx((0.5, 0.7, 0.1), abs=0.02)
    assert variance < 1e-5
