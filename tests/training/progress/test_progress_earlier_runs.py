"""Progress learns from the stored runs of the same name and config."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import looptap
from looptap.streams.loop.loop_observer import LoopObserver
from looptap.training.progress import Patience, Progress
from looptap.training.progress.forecast.earlier_runs import MAX_EARLIER_RUNS, newest_curves, stops_of
from looptap.training.progress.forecast.metrics import Metric
from looptap.training.progress.forecast.stop_forecast import StopForecast

CURVE = [0.9, 0.7, 0.55, 0.45, 0.4, 0.37, 0.36, 0.36, 0.36, 0.36]


def trained(progress, values=CURVE, until=None):
    """Train and validate; True if the rule stopped it."""
    for value in values[:until]:
        for _ in progress.train(range(4)):
            pass
        if progress.validated(value):
            return True
    return False


def reading_over():
    for thread in threading.enumerate():
        if thread.name == "looptap-earlier":
            thread.join(30)
            assert not thread.is_alive()


@pytest.fixture
def job(tmp_path):
    """Start a job whose file is in a folder of this test, and expose its progress."""
    agents = []

    def start(config, metric="error", name="digits", history=()):
        progress = Progress(4, epochs=30, rule=Patience(3), metric=metric, history=history)
        agent = looptap.Agent(name, config=config, store=tmp_path)
        agents.append(agent)
        agent.expose(progress=progress)
        reading_over()
        return agent, progress

    yield start
    for agent in agents:
        agent.close()


@pytest.mark.usefixtures("processes")
def test_a_finished_run_of_the_same_name_and_config_is_known_to_the_next(job):
    agent, progress = job({"lr": 0.1, "seed": 1})
    assert trained(progress)
    agent.close()
    agent, progress = job({"lr": 0.1, "seed": 2})
    trained(progress, until=2)
    assert (progress.earlier_runs, progress.report["earlier_runs"]) == (1, 1)
    assert progress.stop_at.low > 2
    agent.close()
    _, progress = job({"lr": 0.1, "seed": 3})
    trained(progress, until=1)
    assert progress.earlier_runs == 1  # the second was not finished


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize(
    "other",
    [{"config": {"lr": 0.2}}, {"config": {"lr": 0.1}, "name": "digits-cnn"}, {"config": {"lr": 0.1}, "metric": "loss"},
     {"config": None}],
)  # fmt: skip
def test_runs_of_another_config_name_or_metric_are_not_known(job, other):
    agent, progress = job({"lr": 0.1})
    assert trained(progress)
    agent.close()
    _, progress = job(**other)
    trained(progress, until=2)
    assert progress.earlier_runs == 0


@pytest.mark.usefixtures("processes")
def test_a_run_that_ends_at_its_limit_is_finished_and_a_given_history_counts_for_more(job):
    agent, progress = job({"lr": 0.1})
    assert not trained(progress, [0.9 - 0.01 * place for place in range(30)])
    agent.close()
    agent, progress = job({"lr": 0.1})
    trained(progress, until=1)
    assert progress.earlier_runs == 1
    agent.close()
    _, progress = job({"lr": 0.1}, history=[CURVE, CURVE])
    trained(progress, until=1)
    assert progress.earlier_runs == 2


@pytest.mark.usefixtures("processes")
def test_files_that_are_damaged_or_lie_harm_nothing(job, tmp_path, caplog):
    (tmp_path / "digits-1.looptap").write_bytes(b"SQLite format 3\0" + bytes(100))

    class Liar(LoopObserver):
        def facts_to_keep(self):
            return {"metric": "error", "finished": True, "values": [1.0, "x", None]}

    agent = looptap.Agent("digits", config={"lr": 0.1}, store=tmp_path)
    agent.expose(progress=Liar())
    agent.close()
    _, progress = job({"lr": 0.1})
    trained(progress, until=1)
    assert progress.earlier_runs == 0
    assert not caplog.records


def falling(count, seed, until=None):
    """Return errors that fall for ``until`` validations, and then stay, with noise."""
    rng = np.random.default_rng(seed)
    return [0.1 + 0.5 * max(0.0, 1 - k / (until or count)) + 0.002 * rng.standard_normal() for k in range(count)]


def forecast(values, earlier=(), patience=5, last=200):
    made = StopForecast(Patience(patience), Metric("error"), earlier=[np.array(one) for one in earlier])
    for place, value in enumerate(values):
        made.see(float(place + 1), value, 0.0)
    return made.make(last)


def test_a_run_is_expected_to_stop_where_earlier_ones_did():
    earlier = [falling(120, seed, until=40) for seed in range(4)]
    stops = [Patience(5).stops(one) for one in earlier]
    begun = falling(120, 9, until=40)[:6]
    alone, known = forecast(begun), forecast(begun, earlier)
    assert 0.8 * min(stops) < known.median < 1.2 * max(stops)
    assert known.high - known.low < 0.7 * (alone.high - alone.low)


def test_a_run_that_outlives_the_earlier_ones_is_forecast_by_itself():
    earlier = [falling(120, seed, until=12) for seed in range(4)]
    values = falling(120, 9, until=100)[:60]
    alone, known = forecast(values), forecast(values, earlier)
    assert known.high > 66  # the last of them stopped 40 validations ago
    assert known.median > alone.low


def test_earlier_runs_are_stopped_by_the_rule_of_now_or_left_out():
    curve = falling(60, 0, until=20)
    short, long = (Patience(patience).stops(curve) for patience in (3, 8))
    curves = [np.array(curve), np.array(curve[: short + 1]), np.full(200, 0.5)]
    assert stops_of(curves, Patience(8), Metric("error"), 200) == [long, 9]
    assert stops_of(curves[:2], Patience(100), Metric("error"), 60) == [60]
    assert forecast(curve[:5], [curve[:6]]) == forecast(curve[:5])  # it was ended by something else


def test_earlier_runs_with_values_that_are_no_numbers_are_left_out():
    assert newest_curves([np.array([0.5, np.nan]), np.array([]), np.array([0.5])]) == [np.array([0.5])]
    assert len(newest_curves([np.ones(3)] * 20)) == MAX_EARLIER_RUNS
