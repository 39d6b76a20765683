"""Steering is safe to the hand: questions before large changes, and undo."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import threading
import time

import pytest
import torch
from agreeing import job as ranks_job
from steering import SCHEDULES, done, optimizer_of, rates, to
from terminals import answered
from torch import nn
from training_loop import training
from waiting import freeze, soon

import looptap
from looptap import Control, ControlConflict, ControlError
from looptap.protocol.errors import NoSuchRun
from looptap.streams.control import leap
from looptap.testing import pair


class Echo:
    factor = Control(int, default=2, minimum=1, maximum=100, doc="how often a batch is used", at="batch")
    rate = Control(float, default=0.01, minimum=0.0)


@pytest.fixture
def job(directory):
    """Run a loop with real sockets."""
    with looptap.Agent("small", limits=looptap.Limits(commands_per_second=1000)) as agent:
        echo, settings = Echo(), {"rate": 0.5, "name": "a", "deep": [1.0, 2.0]}
        agent.expose(echo=echo, settings=settings)
        with training(agent, step=1):
            yield agent, echo, settings


@pytest.fixture
def still():
    """Yield an agent whose loop is the test, and a run."""
    agent, run = pair("still")
    echo = Echo()
    agent.expose(echo=echo, settings={"rate": 0.5})
    yield agent, run, echo
    run.close()
    agent.close()


# ---------------------------------------------------------------- what a leap is


@pytest.mark.parametrize(
    ("old", "new", "large"),
    [
        (0.1, 1.0, False), (0.003, 0.0003, False), (3e-4, 3e-3, False), (0.1, 1.0001, True), (1, 11, True),
        (11, 1, True), (5, 5, False), (0, 0.0, False), (0, 1e-9, True), (2.0, 0, True), (-1, 1, False), (-1, -9, False),
        (-1, 11, True), (1.0, float("inf"), True), (float("inf"), 1.0, True), (float("inf"), float("inf"), False),
        (float("nan"), 1.0, False), ([0.1, 0.01], 0.1, False), ([0.1, 0.001], 0.1, True), (0.1, [0.1, 0.001], True),
        (True, False, False), (None, 5.0, False), ("a", "b", False), (3, "auto", False), (10**400, 1, True),
        ([], 5.0, False), ([1.0, "a"], 5.0, False),
    ],
)  # fmt: skip
def test_a_leap_is_a_factor_above_ten_or_none_at_all(old, new, large):
    assert bool(leap(old, new)) == large
    assert bool(leap(new, old)) == large


def test_set_in_python_never_asks_and_returns_a_warning(still):
    agent, run, *_ = still
    outcome = done(agent, run, run.set, "settings['rate']", 5000.0)
    assert outcome.warning == "a change by a factor of 10,000; undo reverts it"
    assert "factor of 10,000" in repr(outcome)
    assert "factor of 10,000" in str(outcome)
    assert run.commands[-1]["warning"] == outcome.warning
    assert done(agent, run, run.set, "settings['rate']", 4000.0).warning == ""


# ---------------------------------------------------------------- undo


def test_the_last_change_is_taken_back_as_a_change_of_its_own(still):
    agent, run, *_ = still
    with pytest.raises(ControlError, match="nothing to undo"):
        run.undo()
    done(agent, run, run.set, "echo.factor", 3)
    done(agent, run, run.set, "echo.rate", 5.0)
    outcome = done(agent, run, run.undo)
    assert (outcome.what, outcome.name, outcome.old, outcome.new, outcome.version) == (
        "undo",
        "echo.rate",
        5.0,
        0.01,
        2,
    )
    assert "reverts 0.01 → 5.0" in str(outcome)
    assert outcome.warning == ""  # it leads back to where the control was
    outcome = done(agent, run, run.undo)  # the undo was the last change
    assert (outcome.name, outcome.new) == ("echo.rate", 5.0)
    assert done(agent, run, run.undo, "echo.factor").new == 2
    assert [(one["what"], one["outcome"]) for one in run.commands] == [("set", "done")] * 2 + [("undo", "done")] * 3
    with pytest.raises(ControlError, match=r"has changed 'echo\.size'"):
        run.undo("echo.size")


def test_a_change_that_the_job_or_another_client_has_overtaken_is_not_taken_back(still):
    agent, run, echo = still
    meant = done(agent, run, run.set, "echo.factor", 3)
    echo.factor = 5
    with pytest.raises(ControlError, match="the job has changed it since: it is 5 now, and nothing is undone"):
        run.undo()
    done(agent, run, run.set, "echo.factor", 4)
    with pytest.raises(ControlConflict, match="was changed to 4 by"):
        run.undo(expected=meant.id)
    assert run.controls["echo.factor"].value == 4
    assert done(agent, run, run.undo).new == 5
    # Between the check and the event, too.
    done(agent, run, run.set, "echo.factor", 9)
    with pytest.raises(looptap.CommandPending) as pending:
        run.undo(timeout=0)
    echo.factor = 7
    agent.emit("batch", step=1)
    with pytest.raises(ControlError, match="it is 7 now"):
        run.outcome(pending.value.id)
    assert run.controls["echo.factor"].value == 7


def test_of_two_clients_that_take_the_same_change_back_one_is_refused(job):
    with looptap.attach("small") as one, looptap.attach("small") as two:
        change = one.set("echo.factor", 50)
        assert one.undo(expected=change.id).new == 2
        with pytest.raises(ControlConflict, match=r"was changed to 2 by .* after the change that you mean"):
            two.undo(expected=change.id)
        outcomes, clients = [], [one, two]
        for value in range(3, 23):
            change = one.set("echo.factor", value)

            def take_back(run, id=change.id):
                try:
                    outcomes.append(run.undo(expected=id).new)
                except ControlConflict:
                    outcomes.append(None)

            threads = [threading.Thread(target=take_back, args=(run,)) for run in clients]
            [thread.start() for thread in threads]
            [thread.join(300) for thread in threads]
        assert sorted(outcomes, key=str) == [2] * 20 + [None] * 20


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("groups", [1, 2])
def test_a_schedule_is_after_an_undo_as_it_would_have_been(name, groups):
    def undo(agent, run):
        done(agent, run, run.undo)

    bare = rates(SCHEDULES[name], groups)
    scaled = rates(SCHEDULES[name], groups, [(6, to(0.7, schedule="scale")), (11, undo)])
    assert scaled[:6] == pytest.approx(bare[:6])
    if groups == 1:  # with several, one rate for all is no common factor
        assert scaled[11:] == pytest.approx(bare[11:])
        frozen = rates(SCHEDULES[name], groups, [(6, to(0.7, schedule="freeze")), (11, undo)])
        assert set(frozen[6:11, 0]) == {0.7}
        assert frozen[11:] == pytest.approx(bare[11:])
        again = rates(SCHEDULES[name], groups, [(6, to(0.7, schedule="freeze")), (11, undo), (14, undo)])
        assert set(again[14:, 0]) == {0.7}


def test_a_schedule_that_was_scaled_to_nothing_or_from_a_frozen_one_is_left_alone(still):
    from torch.optim import lr_scheduler

    agent, run, *_ = still
    optimizer = optimizer_of()
    agent.expose(optimizer=optimizer, scheduler=lr_scheduler.StepLR(optimizer, 4, 0.5))
    done(agent, run, run.set, "optimizer.lr", 0.0, schedule="scale")
    with pytest.raises(ControlError, match="scaled to 0"):
        run.undo()
    done(agent, run, run.set, "optimizer.lr", 0.5, schedule="freeze")
    done(agent, run, run.set, "optimizer.lr", 0.7, schedule="freeze")
    assert done(agent, run, run.undo).new == 0.5
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_several_learning_rates_return_each_to_its_own(still):
    agent, run, *_ = still
    optimizer = optimizer_of(2)
    agent.expose(optimizer=optimizer)
    done(agent, run, run.set, "optimizer.lr", 5.0)
    assert done(agent, run, run.undo).new == [0.1, 0.2]
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.2]
    assert done(agent, run, run.undo).new == 5.0


def train(agent, steps, ready=None, pace=0.0):
    """Run a small job; return a checksum of its losses and weights, and its steps."""
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5000)
    agent.expose(model=model, optimizer=optimizer, scheduler=scheduler)
    checksum, taken = hashlib.sha256(), 0
    if ready is not None:
        ready.set()
    while taken < steps and not agent.stop_requested:
        loss = model(torch.randn(16, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        checksum.update(loss.detach().numpy().tobytes())
        taken += 1
        agent.emit("batch", step=taken, loss=loss)
        time.sleep(pace)
    for parameter in model.parameters():
        checksum.update(parameter.detach().numpy().tobytes())
    agent.close()
    return checksum.hexdigest(), taken


def test_a_replayed_undo_gives_the_same_run_bit_for_bit(directory):
    path, ready, failures = directory / "commands.yaml", threading.Event(), []

    def steer():
        try:
            assert ready.wait(300)
            with looptap.attach("steered") as run:
                run.set("optimizer.lr", 5.0, schedule="scale")
                run.undo()
                run.set("model[2].p", 0.5)
                run.undo()
                run.undo()
                run.set("optimizer.lr", 1e-5, schedule="freeze")
                run.undo()
                run.commands.save(path)
                run.stop()
        except BaseException as error:
            failures.append(error)

    client = threading.Thread(target=steer)
    client.start()
    steered, steps = train(looptap.Agent("steered"), steps=5000, ready=ready, pace=0.001)
    client.join(300)
    assert failures == []
    replayed, taken = train(looptap.Agent("again", replay=path), steps=steps)
    assert (replayed, taken) == (steered, steps)


# ---------------------------------------------------------------- ranks


@pytest.mark.promise("control")
@pytest.mark.usefixtures("processes")
def test_an_undo_is_done_on_all_ranks_or_on_none(directory, monkeypatch):
    with ranks_job(directory, PAUSE=0.001) as (children, run):
        run.set("lr", 0.5)
        outcome = run.undo()
        assert {rank: one.new for rank, one in outcome.ranks.items()} == {0: 0.05, 1: 0.05}
        assert len({one.number for one in outcome.ranks.values()}) == 1
        run.set("lr", 0.4)
        alone = run.set("lr", 0.9, ranks=1)  # what one rank did is taken back there
        outcome = run.undo()
        assert (outcome.old, outcome.new, outcome.ranks) == (0.9, 0.4, {})
        assert run.ranks[1].controls["lr"].value == 0.4
        change = run.set("lr", 0.3)
        run.ranks[1].call("1")
        run.set("lr", 0.2, ranks=1)
        with pytest.raises(ControlConflict, match=r"was changed to 0\.2"):
            run.undo(expected=change.id)
        assert {rank: run.ranks[rank].controls["lr"].value for rank in (0, 1)} == {0: 0.3, 1: 0.2}
        assert alone.id != change.id
        run.undo()
        freeze(children[1].pid)
        monkeypatch.setattr("looptap.client.control.undoing.REPLY_SECONDS", 1.0)
        with pytest.raises(NoSuchRun, match="nothing is undone"):
            run.undo()
        os.kill(children[1].pid, signal.SIGCONT)


# ---------------------------------------------------------------- the shell


def test_without_a_terminal_a_large_change_and_a_stop_need_yes(job, here):
    agent, echo, settings = job
    code, out, err = here("set", "small", "echo.rate", "5")
    assert (code, out) == (2, "")
    assert err == (
        "looptap: echo.rate of small: 0.01 → 5 is a change by a factor of 500. Set it? There is no terminal to ask at, "
        "so nothing was done: confirm it with --yes.\n"
    )
    assert here("set", "small", "settings['rate']", "0", "--json")[:2] == (2, "")
    assert here("set", "small", "settings.deep[1]", "2000")[0] == 2
    assert (echo.rate, settings["rate"], settings["deep"]) == (0.01, 0.5, [1.0, 2.0])
    assert here("commands", "small")[1] == "No commands so far.\n"
    assert here("set", "small", "echo.factor", "9")[0] == 0
    assert "must be a whole number from 1 to 100" in here("set", "small", "echo.factor", "900")[2]  # it asks in vain
    code, out, _ = here("set", "small", "echo.rate", "5", "--yes")
    assert (code, echo.rate) == (0, 5.0)
    assert out.endswith("; a change by a factor of 500; undo reverts it\n")
    assert here("undo", "small")[1].startswith("undo echo.rate: 5.0 → 0.01, at batch")
    assert here("undo", "small")[0] == 2
    assert here("undo", "small", "echo.factor")[0] == 0
    code, out, _ = here("undo", "small", "echo.rate", "--yes", "--json")
    outcome = json.loads(out)
    assert (code, outcome["what"], outcome["new"]) == (0, "undo", 5.0)
    assert here("undo", "small", "--id", outcome["id"])[0] == 0
    assert here("undo", "small", "settings['rate']")[0] == 1
    assert here("stop", "small", "--id", outcome["id"])[0] == 1
    code, _, err = here("stop", "small")
    assert (code, agent.stop_requested) == (2, False)
    assert f"Stop small ({agent.run.id}) at its next event? There is no terminal" in err
    assert here("stop", "small", "-y")[0] == 0
    assert agent.stop_requested


@pytest.mark.promise("control")
@pytest.mark.usefixtures("processes")
@pytest.mark.skipif(not hasattr(os, "openpty"), reason="there are no terminals here")
def test_at_a_terminal_a_question_is_asked_and_only_a_yes_is_one(job, directory):
    agent, echo, _ = job
    environment = {**os.environ, "LOOPTAP_DIR": str(directory)}
    code, shown = answered(["set", "small", "echo.rate", "5"], [("by a factor of 500. Set it?", "")], environment)
    assert (code, echo.rate) == (1, 0.01)
    assert "Nothing was done." in shown
    code, shown = answered(["set", "small", "echo.rate", "5"], [("by a factor of 500. Set it?", "y")], environment)
    assert (code, echo.rate) == (0, 5.0)
    code, shown = answered(["undo", "small"], [], environment)
    assert (code, echo.rate) == (0, 0.01), shown
    code, shown = answered(["undo", "small"], [("Undo the undo?", "no")], environment)
    assert (code, echo.rate) == (1, 0.01)
    code, _ = answered(["stop", "small"], [("at its next event?", "n")], environment)
    assert (code, agent.stop_requested) == (1, False)
    code, _ = answered(["stop", "small"], [("at its next event?", "yes")], environment)
    assert code == 0
    soon(lambda: agent.stop_requested)


@pytest.mark.usefixtures("processes")
@pytest.mark.skipif(not hasattr(os, "openpty"), reason="there are no terminals here")
def test_an_answer_is_about_the_value_that_was_shown(job, directory):
    _, echo, _ = job
    with looptap.attach("small") as run:
        environment = {**os.environ, "LOOPTAP_DIR": str(directory)}

        def meanwhile():
            run.set("echo.rate", 0.02)
            return "y"

        code, shown = answered(["set", "small", "echo.rate", "5"], [("Set it?", meanwhile)], environment)
        assert code == 1
        assert "'echo.rate' was set to 0.02 by" in shown
        assert echo.rate == 0.02
