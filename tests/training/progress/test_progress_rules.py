"""Early stopping: original trainers' decisions, and paths as single histories."""

from __future__ import annotations

import base64
import json
import math
import zlib

import numpy as np
import pytest
from histories import COUNT, case, ours
from hypothesis import given
from hypothesis import strategies as st
from places import TESTS

from looptap.training.progress import Function, Never, Paper, Patience, Progress, Threshold

DECISIONS = json.loads((TESTS / "trainers" / "decisions.json").read_text())
RULES = [
    Paper(3, 0.05), Patience(2, 0.05), Patience(2, 0.05, "lightning"), Patience(2, 0.05, "huggingface"),
    Patience(2, warm_up=3, baseline=0.4), Threshold(0.1), Never(), Function(lambda history: history[-1] < 0.2),
]  # fmt: skip
errors = st.floats(0, 1, width=16)


@pytest.mark.long
@pytest.mark.parametrize("like", ["keras", "lightning", "huggingface"])
def test_ten_thousand_random_histories_stop_where_the_trainer_itself_stopped(like):
    recorded = list(zlib.decompress(base64.b64decode(DECISIONS["stops"][like])))
    assert len(recorded) == COUNT
    different = [seed for seed in range(COUNT) if ours(case(seed), like) != recorded[seed]]
    assert different == []
    assert 0.2 < sum(map(bool, recorded)) / COUNT < 0.98  # of both sorts there are many


@pytest.mark.long
@given(history=st.lists(errors, max_size=6), paths=st.lists(st.lists(errors, min_size=5, max_size=5), min_size=1))
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_many_paths_stop_where_each_would_by_itself(rule, history, paths):
    if rule.stops(history):
        return
    found = rule.stops_after(history, np.array(paths))
    assert found.tolist() == [rule.stops(history + path) for path in paths[:60]] + found.tolist()[60:]


@given(st.lists(errors, min_size=1, max_size=30), st.integers(1, 6), st.sampled_from([0.0, 0.125]))
def test_the_paper_stops_where_patience_points_brought_less_than_delta(history, patience, delta):
    def stops(k: int) -> bool:
        return k > patience and all(history[k - patience - 1] - e < delta for e in history[k - patience : k])

    expected = next((k for k in range(1, len(history) + 1) if stops(k)), 0)
    assert Paper(patience, delta).stops(history) == expected


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Patience(-1), "patience=-1 must be a whole number"),
        (lambda: Patience(0, like="lightning"), "patience=0"),
        (lambda: Patience(2.5), "patience=2.5"),
        (lambda: Patience(2, -0.1), "min_delta=-0.1 must be a number, 0 or more"),
        (lambda: Patience(2, math.nan), "min_delta=nan"),
        (lambda: Patience(2, like="torch"), "like='torch' must be 'keras', 'lightning' or 'huggingface'"),
        (lambda: Patience(2, baseline=math.nan), "baseline=nan"),
        (lambda: Patience(2, like="lightning", good="0.9"), "good='0.9'"),
        (lambda: Paper(0), "patience=0"),
        (lambda: Threshold("0.1"), "error='0.1'"),
    ],
)
def test_bad_arguments_are_refused_at_once(make, said):
    with pytest.raises(ValueError, match=said):
        make()


def test_a_rule_is_asked_once_about_each_validation_however_many_there_are():
    asked = []
    progress = Progress(300, validate_every=1, epochs=1, rule=lambda errors: asked.append(len(errors)))
    progress.estimator.stopping.given_up = True  # a forecast also asks it about what may come
    for _ in progress.train(range(300)):
        assert progress.validated(1.0) is False
    assert asked == [*range(1, 301)]


@pytest.mark.parametrize("rule", [Patience(3), Patience(3, like="huggingface"), Paper(3, 0.1), Threshold(0.2)])
def test_a_rule_that_is_changed_in_mid_run_decides_as_if_it_had_seen_all(rule):
    rng = np.random.default_rng(5)
    for values in rng.random((40, 12)).round(1).tolist():
        progress = Progress(12, validate_every=1, epochs=1, rule=Patience(30))
        progress.estimator.stopping.given_up = True
        steps = progress.train(range(12))
        for point, value in enumerate(values, 1):
            next(steps)
            if point == 6:
                progress.rule = rule
            decided = progress.validated(value)
            assert decided == (point >= 6 and rule.stops(values[:point]) == point)
