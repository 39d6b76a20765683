"""Progress estimates: fake clocks, real loaders, a real kill and resume."""

from __future__ import annotations

import contextlib
import itertools
import math
import random
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
import warm
from clocks import Clock, trained
from judge import judge
from published_methods import FormerEstimator
from simulated import DELTA, PATIENCE, make, stretches
from torch.utils.data import DataLoader, TensorDataset

from looptap.training.progress import Inserting, Never, Paper, Patience, Progress
from looptap.training.progress import validation_subsets as inserting_module
from looptap.training.progress.clock_ledger import OTHER, TRAIN, VALIDATION, Ledger
from looptap.training.progress.estimate import Estimator
from looptap.training.progress.plan import TrainingPlan, insertion


def test_without_early_stopping_on_a_steady_machine_the_estimate_is_exact():
    clock = Clock()
    progress = Progress(10, epochs=100, validation=20, clock=clock)
    trained(progress, clock, 40)
    clock.now += 1.5
    remaining = progress.remaining
    assert remaining.median == pytest.approx(60 * 12, rel=0.01)
    assert remaining.low < 60 * 12 < remaining.high
    assert progress.fraction == pytest.approx(0.4, abs=0.01)
    assert progress.stop_at == (100.0, 100.0, 100.0)
    assert progress.train_speed == pytest.approx(4)
    assert progress.validation_speed == pytest.approx(10)
    assert (progress.train_cost, progress.validation_cost) == (60 * 40, 60 * 20)


def test_a_run_of_unknown_length_has_a_speed_until_the_first_epoch_has_ended():
    clock = Clock()
    progress = Progress(None, epochs=10, clock=clock)
    batches = progress.train(iter([torch.zeros(4)] * 10))
    for _ in range(5):
        next(batches)
        clock.now += 1.0
    assert math.isnan(progress.remaining.median)
    assert progress.train_speed == pytest.approx(4)
    assert "not known yet" in repr(progress)
    for _ in batches:
        clock.now += 1.0
    progress.validated(0.5)
    clock.now += 1.1
    assert progress.remaining.median == pytest.approx(90 + 8 * 1.1, rel=0.02)  # that time counts in each epoch


@pytest.mark.parametrize("bound", [{"max_steps": 50}, {"budget": 200}, {"max_steps": 50, "epochs": 100}])
def test_steps_and_tokens_bound_a_run(bound):
    clock = Clock()
    progress = Progress(10, clock=clock, **bound)
    trained(progress, clock, 2, check=0.0)
    assert progress.remaining.median == pytest.approx(30, rel=0.05)


def test_time_bounds_a_run():
    clock = Clock()
    progress = Progress(10, epochs=1000, max_time=100, clock=clock)
    trained(progress, clock, 2, check=0.0)
    assert progress.remaining.median == pytest.approx(80)
    alone = Progress(10, max_time=100, clock=clock)
    trained(alone, clock, 2, check=0.0)
    assert alone.remaining.median == pytest.approx(80)


def test_a_change_of_the_epochs_or_the_patience_is_seen_at_once():
    clock = Clock()
    progress = Progress(10, epochs=100, validation=20, rule=Patience(3), clock=clock)
    trained(progress, clock, 10, error=lambda epoch: 0.9 - 0.01 * epoch)
    clock.now += 1.1
    before = progress.remaining
    progress.epochs = 12
    clock.now += 1.1
    assert progress.remaining.median <= 2 * 12 + 1 < before.median
    progress.epochs = 100
    progress.patience = 50
    clock.now += 1.1
    assert progress.rule == Patience(50)
    assert progress.remaining.median > before.median


def test_a_validation_that_yields_no_number_is_no_improvement_and_says_so():
    clock = Clock()
    progress = Progress(10, epochs=20, rule=Patience(3), clock=clock)
    trained(progress, clock, 4, error=lambda epoch: 0.5 - 0.01 * epoch)
    clock.now += 600.0  # however long a forecast takes here, it is time for the next
    with pytest.warns(RuntimeWarning, match="nan"):
        progress.validated(math.nan)
    clock.now += 600.0
    assert "no improvement" in progress.note
    assert progress.unless_better == 2
    assert progress.stop_at.low == 7
    with pytest.warns(RuntimeWarning, match="'best'"):
        progress.validated("best")


def test_a_process_that_stood_still_is_not_slow():
    clock = Clock()
    ledger = Ledger(clock)
    ledger.phase(TRAIN)
    for step in range(100):
        clock.now += 3600.0 if step == 50 else 0.1
        ledger.count(4)
    assert ledger.rate(TRAIN, 1e9) == pytest.approx(40, rel=0.2)
    assert ledger.suspended == pytest.approx(3598, rel=0.01)


def test_time_is_charged_to_its_cause():
    clock = Clock()
    ledger = Ledger(clock)
    for phase, seconds in ((TRAIN, 3.0), (VALIDATION, 2.0), (OTHER, 1.0)) * 3:
        ledger.phase(phase)
        clock.now += seconds
        ledger.count(6)
    ledger.phase(OTHER)
    assert ledger.seconds == [9.0, 6.0, 3.0]
    assert ledger.counts == [18, 18]
    assert ledger.rate(TRAIN, 5.0) == 2.0
    assert ledger.rate(VALIDATION, 5.0) == 3.0


def test_a_fast_loop_is_counted_exactly_although_it_is_sampled():
    clock, looks = Clock(), []
    progress = Progress(200, epochs=9, clock=clock)
    look = progress._trained
    progress._trained = lambda batch: looks.append(progress.steps) or look(batch)
    for _ in range(3):
        before = progress.steps
        for step, _ in enumerate(progress.train([[0] * 4] * 199 + [[0] * 3])):
            assert progress.steps == before + step
            clock.now += 0.001
        assert progress.ledger.counts[TRAIN] == progress.steps // 200 * (199 * 4 + 3)
    assert len(looks) < 600 / 2
    for _ in range(2):  # in the first it turns out that sizes differ
        before = progress.ledger.counts[TRAIN]
        for _ in progress.train([[0] * 4, [0] * 2] * 100):
            clock.now += 0.001
    assert progress.ledger.counts[TRAIN] - before == 600


def test_a_loader_that_becomes_longer_has_more_to_do():
    class Echo(list):
        factor = 1

        def __len__(self):
            return 10 * self.factor

    clock, loader = Clock(), Echo([torch.zeros(4)] * 10)
    progress = Progress(loader, epochs=10, clock=clock)
    for _ in range(5):
        for _ in progress.train():
            clock.now += 1
        progress.validated(0.5)
    clock.now += 1.1
    before = progress.train_cost
    loader.factor = 2
    clock.now += 1.1
    assert (before, progress.train_cost) == (200, 400)


class Turned:
    """An epoch of ten batches times a factor, with ``reported`` as its speed."""

    def __init__(self, reported):
        self.factor = 1
        if reported:
            self.speed_up = lambda factor: min(factor, reported)

    def __len__(self):
        return 10 * self.factor

    def __iter__(self):
        done = 0
        while done < len(self):
            done += 1
            yield [0] * 4


@pytest.mark.parametrize("reported", [5, 2, None])
def test_after_a_change_of_the_loader_the_estimate_is_stated_then_measured(reported):
    clock, loader, looked = Clock(), Turned(reported), []
    progress = Progress(loader, epochs=60, clock=clock)
    for epoch in range(60):
        for _ in progress.train():
            clock.now += 2.0 / loader.factor  # so the time of an epoch stays as it is
            if epoch >= 30:
                looked.append((clock.now, *progress.remaining))
        loader.factor = 4 if epoch >= 29 else 1
    truth = [(at - 600.0, (clock.now - at) / median, low <= clock.now - at <= high)
             for at, median, low, high in looked if at < 720.0]  # fmt: skip
    assert truth[0][1] == pytest.approx({5: 1.0, 2: 0.5, None: 0.5}[reported], rel=0.1)
    assert all(within for _, _, within in truth if reported != 2)
    assert all(right == pytest.approx(1, rel=0.1) for after, right, _ in truth if after > 12)
    assert looked[0][3] - looked[0][2] > 2 * (looked[-100][3] - looked[-100][2])


def test_a_loader_whose_factor_raises_does_not_end_the_loop():
    class Failing(list):
        factor = property(lambda self: 1 / 0)

    clock = Clock()
    progress = Progress(Failing([[0] * 4] * 10), epochs=10, clock=clock)
    for _ in progress.train():
        clock.now += 1.0
    assert progress.remaining.median == pytest.approx(90)


@pytest.mark.parametrize("others", [(), (6,), range(10)])
def test_soon_after_a_command_that_slows_training_the_old_speed_is_forgotten(others):
    """Also if ``others`` came just before, after these steps of the epoch."""
    clock, looked = Clock(), []
    progress = Progress(10, epochs=60, clock=clock)
    for epoch in range(60):
        for step, _ in enumerate(progress.train([torch.zeros(4)] * 10)):
            clock.now += 3.0 if epoch >= 30 else 1.0
            if epoch >= 30:
                looked.append((clock.now, *progress.remaining))
            elif epoch == 29 and step in others:
                progress.on_command()
        if epoch == 29:
            progress.on_command()
    for at, median, low, high in looked:
        left = clock.now - at
        if 312 < at < 420:
            assert low <= left <= high
        if 330 < at < 420:
            assert median == pytest.approx(left, rel=0.1)


def test_on_update_reports_progress_and_cannot_stop_the_loop():
    clock, reported = Clock(), []
    progress = Progress(10, epochs=4, on_update=lambda p: reported.append(p.fraction), every=5, clock=clock)
    trained(progress, clock, 4)
    progress.finished()
    assert 8 <= len(reported) <= 12
    assert reported[-1] == 1.0
    assert reported == sorted(reported)
    hurt = Progress(10, epochs=4, on_update=lambda p: 1 / 0, every=5, clock=clock)
    with pytest.warns(RuntimeWarning, match="ZeroDivisionError"):
        trained(hurt, clock, 4)


def _inserting(**arguments):
    model, check = torch.nn.Linear(1, 1), DataLoader(TensorDataset(torch.zeros(8, 1)), 4)
    return Inserting(**{"evaluate": lambda loader: 0.5, "model": model, "validation": check, **arguments})


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"epochs": 0}, "epochs=0 must be a whole number"),
        ({"epochs": 2.5}, "epochs=2.5"),
        ({}, "Nothing says when training ends"),
        ({"epochs": 3, "train": []}, "The training loader is empty"),
        ({"epochs": 3, "train": -1}, "train=-1"),
        ({"epochs": 3, "train": "loader"}, "'loader'"),
        ({"epochs": 3, "validation": []}, "The validation set is empty"),
        ({"epochs": 3, "metric": "f-score"}, "metric='f-score' must be one of 'error'"),
        ({"epochs": 3, "rule": 5}, "rule=5"),
        ({"epochs": 3, "max_time": -1}, "max_time=-1 must be a number above 0"),
        ({"epochs": 3, "validate_every": 0}, "validate_every=0"),
        ({"epochs": 3, "rule": Patience}, "rule=<class"),
        ({"epochs": 3, "rates": [0.1, math.nan]}, "rates="),
        ({"epochs": 3, "rates": [0.0, 0.1]}, "the first is above 0"),
        ({"epochs": 3, "rates": 0.1}, "rates=0.1"),
        ({"epochs": 3, "history": [0.5, 0.4]}, "a list of curves"),
        ({"epochs": 3, "size": 64}, "size=64 must be a function"),
        ({"epochs": 3, "on_update": "print"}, "on_update='print'"),
        ({"epochs": 3, "seed": -1}, "seed=-1"),
        ({"epochs": 3, "insert": True}, "insert=True"),
        ({"epochs": 3, "train": iter(()), "insert": _inserting()}, "pass validate_every="),
    ],
)
def test_bad_input_is_refused_at_construction(arguments, said):
    with pytest.raises((ValueError, TypeError), match=said):
        Progress(**{"train": 10, **arguments})


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"evaluate": 0.5}, "evaluate=0.5"),
        ({"model": "cnn"}, "model='cnn'"),
        ({"processors": 0}, "processors=0"),
        ({"seed": 0.5}, "seed=0.5"),
        ({"validation": DataLoader(TensorDataset(torch.zeros(0, 1)), 4)}, "validation set is empty"),
    ],
)
def test_bad_input_of_inserted_validations_is_refused_at_construction(arguments, said):
    with pytest.raises((ValueError, TypeError), match=said):
        _inserting(**arguments)


@pytest.mark.parametrize("state", [{}, {"epoch": 1}, None, [1, 2]])
def test_a_state_of_something_else_is_refused_and_nothing_changes(state):
    progress = Progress([0] * 4, epochs=2)
    before = progress.state_dict()
    with pytest.raises(ValueError, match=r"is not what the state_dict\(\) of a Progress returned"):
        progress.load_state_dict(state)
    assert {name: value for name, value in progress.state_dict().items() if name != "elapsed"} == {
        name: value for name, value in before.items() if name != "elapsed"
    }


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, -5.0, "raises", None])
def test_a_clock_that_gives_no_time_ends_nothing(bad):
    calls = itertools.count(1)

    def clock():
        call = next(calls)
        if call % 3 == 0:
            if bad == "raises":
                raise OSError("no clock")
            return bad
        return call / 10

    progress = Progress([0] * 40, validation=[0] * 4, epochs=3, clock=clock)
    for _ in range(3):
        for _ in progress.train():
            pass
        for _ in progress.validate([0] * 4):
            pass
        progress.validated(0.5)
    assert progress.steps == 120
    assert math.isfinite(progress.elapsed)


def test_between_two_forecasts_the_estimate_counts_down():
    clock = Clock()
    progress = Progress(10, epochs=100, validation=20, rule=Patience(3), clock=clock)
    trained(progress, clock, 10, error=lambda epoch: 0.3 + 0.5 / (epoch + 1))
    progress.set_up()  # a forecast now, however long the last took on this machine
    before = progress.remaining.median
    progress.estimator.took = 1.0  # so the next is made after 500 s
    trained(progress, clock, 4, error=lambda epoch: 0.3 + 0.5 / (epoch + 11))
    stop = progress.stop_at[0]
    assert progress.remaining.median == pytest.approx(before - 4 * 12, rel=0.01)
    trained(progress, clock, 45, error=lambda epoch: 0.3 + 0.5 / (epoch + 15))
    assert progress.stop_at[0] > max(stop, 59)


def test_a_rule_that_fails_on_drawn_futures_ends_the_forecast_and_not_the_loop():
    def rule(errors):
        return 1 / (len(errors) < 9) < 0

    clock = Clock()
    progress = Progress(10, epochs=100, rule=rule, clock=clock)
    with pytest.warns(RuntimeWarning, match="ZeroDivisionError"):
        trained(progress, clock, 4)
    assert progress.estimate()
    assert progress.stop_at == (100, 100, 100)
    assert "no longer forecast" in progress.note


# ---------------------------------------------------------------- inserted validations


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_with_inserted_validations_ends_bit_identical(workers, monkeypatch):
    monkeypatch.setattr(
        inserting_module, "MAX_PART", math.inf
    )  # however busy this machine is, they are not switched off

    def job(insert: bool) -> tuple[bytes, Progress]:
        torch.manual_seed(0)
        np.random.seed(0)
        random.seed(0)
        x = torch.randn(600, 8)
        data = TensorDataset(x, (x[:, 0] > 0).long())
        fit, check = DataLoader(data, 20, shuffle=True, num_workers=workers), DataLoader(data, 50)
        model = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Dropout(0.3), torch.nn.BatchNorm1d(16),
            torch.nn.Linear(16, 2),
        )  # fmt: skip
        model[3].eval()  # a frozen one stays frozen
        steps = torch.optim.SGD(model.parameters(), 0.1)

        def evaluate(loader):
            model.eval()
            with torch.no_grad():
                wrong = sum((model(a).argmax(1) != b).sum().item() for a, b in loader)
            model.train()  # unfreezes the frozen one, as many loops do
            return wrong / len(loader.dataset)

        inserting = Inserting(evaluate, model, check, processors=1) if insert else None
        if inserting is not None:
            inserting.cost = 300.0  # so that there are some in a run as short as this
        progress = Progress(fit, epochs=3, validation=check, rule=Patience(5), insert=inserting)
        for _ in range(3):
            for a, b in progress.train(fit):
                steps.zero_grad()
                torch.nn.functional.cross_entropy(model(a), b).backward()
                steps.step()
            progress.validated(0.5)
        weights = b"".join(tensor.detach().numpy().tobytes() for tensor in model.state_dict().values())
        return weights + torch.get_rng_state().numpy().tobytes() + repr(random.random()).encode(), progress

    bare, _ = job(False)
    with_them, progress = job(True)
    assert bare == with_them
    inserted = [x for x, _, _ in progress.estimator.stopping.seen if x != int(x)]
    assert inserted, "none was inserted"


def test_the_plan_of_inserted_validations_keeps_its_share_and_its_floor():
    n, subset = insertion(50_000, 128, 10_000, 200, 40_000)
    assert (n, subset) == (5, 1600)
    assert n * subset / 3 <= 0.05 * (50_000 + 10_000 / 3)
    assert insertion(50_000, 128, 10_000, 200, 1e9) == (0, 0)  # four points come early enough by themselves
    assert insertion(300, 100, 1000, 100, 1.0) == (0, 0)  # three batches have no room
    assert insertion(50_000, 128, 0, 200, 1.0) == (0, 0)


def test_inserted_validations_that_fail_or_cost_too_much_are_switched_off():
    data = TensorDataset(torch.zeros(4000, 2))
    model = torch.nn.Linear(2, 2)
    inserting = Inserting(lambda loader: 1 / 0, model, DataLoader(data, 50), processors=1)
    inserting.cost = 1.0
    progress = Progress(DataLoader(data, 40), epochs=2, validation=4000, rule=Patience(3), insert=inserting)
    with pytest.warns(RuntimeWarning, match="ZeroDivisionError"):
        for _ in progress.train():
            pass
    assert "turned off" in progress.note
    assert not inserting.due()


def test_data_that_cannot_be_indexed_cannot_be_sampled():
    class Endless(torch.utils.data.IterableDataset):
        def __iter__(self):
            yield from range(3)

    with pytest.raises(TypeError, match="map-style"):
        Inserting(lambda loader: 0.5, torch.nn.Linear(1, 1), [1, 2])
    with pytest.raises(TypeError, match="map-style"):
        Inserting(lambda loader: 0.5, torch.nn.Linear(1, 1), DataLoader(Endless()))


# ---------------------------------------------------------------- a resumed run

RESUMED = """
    import json, os, sys, time, torch
    from looptap.training.progress import Patience, Progress
    path, now = sys.argv[1], time.monotonic()  # from where the clock is turned by hand
    progress = Progress(20, epochs=12, validation=20, clock=lambda: now)
    if os.path.exists(path):
        progress.load_state_dict(json.load(open(path)))
    for epoch in range(progress.epoch, 12):
        for step, _ in enumerate(progress.train([torch.zeros(4)] * 20)):
            now += 5.0
            if os.path.exists(path) and epoch == 6 and step == 10:
                now += 1.1  # an estimate is kept for a second
                print(progress.train_cost, progress.remaining.median, progress.fraction, flush=True)
                sys.exit()
        for _ in progress.validate([torch.zeros(10)] * 2):
            now += 10.0
        progress.validated(0.5)
        if epoch == 4:
            json.dump(progress.state_dict(), open(path + ".new", "w"))
            os.replace(path + ".new", path)
            print("saved", flush=True)
            time.sleep(600)
"""


@pytest.mark.usefixtures("processes")
@pytest.mark.promise("progress")
def test_a_job_that_was_killed_and_resumed_knows_how_long_it_still_takes(tmp_path):
    command = [sys.executable, "-c", textwrap.dedent(RESUMED), str(tmp_path / "state.json")]
    with warm.Popen(command, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout.readline() == "saved\n"
        first.send_signal(signal.SIGKILL)
    again = warm.run(command, capture_output=True, text=True, timeout=300)
    cost, remaining, fraction = map(float, again.stdout.split())
    assert cost == 5.5 * 20 * 4
    assert remaining == pytest.approx(5.5 * 120, rel=0.05)
    assert fraction == pytest.approx(6.5 / 12, abs=0.1)


# ---------------------------------------------------------------- accuracy on made-up runs


def test_a_few_synthetic_runs_are_forecast_better_than_by_the_old_method():
    rule, errors = Paper(PATIENCE, DELTA), {"former": [], "ours": []}
    for kind in ("power", "overfit", "exponential"):
        run = make(1, kind, "steady")
        stop = rule.stops(run.errors) or run.last
        happened = stretches(run, stop)
        for name, found in errors.items():

            def estimator(ledger, name=name, run=run):
                plan = TrainingPlan(run.point, run.point * run.last, run.validation)
                given = (plan, rule, ledger)
                return Estimator(*given, rates=run.rates) if name == "ours" else FormerEstimator(*given)

            found.append(judge(happened, estimator, looks=60).error)
    assert np.mean(errors["ours"]) < 0.7 * np.mean(errors["former"])


def test_a_synthetic_run_without_early_stopping_is_within_three_percent():
    run = make(3, "power", "steady")
    happened = stretches(run, run.last)

    def estimator(ledger):
        return Estimator(TrainingPlan(run.point, run.point * run.last, run.validation), Never(), ledger)

    assert judge(happened, estimator).error < 0.03


@pytest.mark.parametrize("length", [100, None])
def test_epochs_that_the_loop_leaves_early_count_as_epochs(length):
    clock = Clock()
    progress = Progress(length, epochs=10, clock=clock)
    found = []
    for _ in range(10):
        for done, _ in enumerate(progress.train(iter(range(100)) if length is None else range(100))):
            clock.now += 1.0
            if done == 29:
                break
        clock.now += 0.1
        found.append(progress.remaining.median)
    assert progress.epoch == 9
    assert found[1:] == pytest.approx([240.0 - 30 * epoch for epoch in range(9)], rel=0.05, abs=0.1)


def test_an_epoch_that_was_left_early_says_nothing_after_one_that_was_not():
    clock = Clock()
    progress = Progress(100, epochs=4, clock=clock)
    for last in (29, 99, 99):
        for done, _ in enumerate(progress.train(range(100))):
            clock.now += 1.0
            if done == last == 29:
                break
    clock.now += 0.1
    assert progress.epoch == 3
    assert progress.remaining.median == pytest.approx(100.0, rel=0.02)


def test_a_run_that_has_finished_is_all_done_at_once():
    clock = Clock()
    progress = Progress(10, epochs=2, clock=clock)
    trained(progress, clock, 2)
    assert progress.fraction < 1
    progress.finished()
    assert progress.fraction == progress.report["fraction"] == 1.0
    assert progress.report["over"] is True


# ---------------------------------------------------------------- iterators that overlap


def test_iterators_within_the_loop_of_another_or_beside_it_are_part_of_its_steps():
    clock = Clock()
    progress = Progress(10, epochs=4, clock=clock)
    for _ in range(2):
        for done, _ in enumerate(progress.train(range(10))):
            for _ in range(2 * (done == 3)):  # two within one step
                for _ in progress.train(range(7)):
                    clock.now += 0.5
            for _ in progress.train(range(7)):
                break
            clock.now += 1.0
    assert (progress.steps, progress.epoch) == (20, 2)
    for _ in zip(progress.train(range(10)), progress.train(range(10)), strict=True):
        clock.now += 1.0
    assert (progress.steps, progress.epoch) == (30, 3)
    assert progress.report["train_cost"] == 10
    for _ in progress.train(range(10)):
        clock.now += 1.0
    assert progress.fraction == pytest.approx(1.0, abs=0.01)


def test_an_iterator_of_a_loop_that_failed_holds_up_nothing_while_a_traceback_keeps_it():
    clock = Clock()
    progress, kept = Progress(10, epochs=4, clock=clock), []

    def train(fails_at=None):
        batches = progress.train(range(10))
        for number, _ in enumerate(batches):
            if number == fails_at:
                raise RuntimeError
            clock.now += 1.0

    train()
    try:
        train(fails_at=7)
    except RuntimeError as error:
        kept.append(error)
    clock.now += 1000.0
    for done, _ in enumerate(progress.train(range(10))):
        assert (progress.steps, progress.epoch) == (17 + done, 2)
        clock.now += 1.0
    train()
    assert (progress.steps, progress.epoch) == (37, 4)
    assert progress.ledger.seconds[0] == 37.0


@pytest.mark.parametrize("error", [None, RuntimeError])
def test_an_iterator_of_a_loop_that_was_left_holds_up_no_other_loop_of_its_function(error):
    clock = Clock()
    progress = Progress(10, epochs=4, clock=clock)
    kept = enumerate(progress.train(range(10)))
    with contextlib.suppress(RuntimeError):
        for number, _ in kept:
            if number == 6:
                if error:
                    raise error
                break
            clock.now += 1.0
    for epoch in range(1, 4):
        for done, _ in enumerate(progress.train(range(10))):
            assert (progress.steps, progress.epoch) == (10 * epoch - 4 + done, epoch)
            clock.now += 1.0
    assert (progress.steps, progress.epoch, progress.ledger.seconds[0]) == (36, 4, 36.0)


def test_a_loop_that_fetches_with_next_and_was_left_holds_up_no_other_one():
    clock = Clock()
    progress = Progress(10, epochs=4, clock=clock)
    kept = iter(progress.train(range(10)))
    while next(kept) < 6:
        clock.now += 1.0
    for epoch in range(1, 4):
        for done, _ in enumerate(progress.train(range(10))):
            assert (progress.steps, progress.epoch) == (10 * epoch - 4 + done, epoch)
            clock.now += 1.0
    assert (progress.steps, progress.epoch, progress.ledger.seconds[0]) == (36, 4, 36.0)


def test_an_iterator_that_is_abandoned_but_kept_holds_up_nothing():
    clock = Clock()
    progress = Progress(10, epochs=4, clock=clock)
    kept = iter(progress.train(range(10)))
    next(kept)  # a look at the first batch
    for epoch in range(4):
        for _ in progress.train(range(10)):
            clock.now += 1.0
        assert progress.epoch == epoch + bool(epoch)  # the first counts once the second has begun
    assert (progress.steps, progress.epoch) == (40, 4)
