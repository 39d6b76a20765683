"""The tracker for Accelerate: events, controls, and a loop that it leaves alone."""

from __future__ import annotations

import sys

import pytest
import torch
from rank_jobs import printed
from small_trainers import accelerated, asked, last_lines

from looptap.testing import pair

accelerate = pytest.importorskip("accelerate")
from looptap.integrations.accelerate import AccelerateTracker  # noqa: E402 - it is there

SETTINGS = {"plainly": {}, "with accumulation": {"accumulate": 4}, "in bfloat16": {"bf16": True}}


@pytest.fixture(autouse=True)
def _a_state_of_its_own():
    """Let each accelerator choose its precision: they share one state."""
    yield
    accelerate.state.AcceleratorState._reset_state(True)
    accelerate.state.GradientState._reset_state()


def watched(*queries, before=(), **how):
    """Train with a client that asks ``queries``, (text, event); return all that came."""
    agent, run = pair("loop", groups=("step", "epoch"), on_stop=how.pop("on_stop", None))
    streams = [run.stream(text, on=on) for text, on in queries]
    asks = dict(before)
    losses, ended = accelerated(
        [AccelerateTracker(agent=agent)], at=lambda number, _: asks[number](run) if number in asks else None, **how
    )
    return losses, ended, [stream.values for stream in streams], run


@pytest.mark.parametrize("settings", SETTINGS)
def test_a_training_is_the_same_to_the_last_bit(settings):
    how = SETTINGS[settings]
    bare, ended = accelerated(**how)
    accelerate.state.AcceleratorState._reset_state(True)
    losses, same, (steps, parts, norms), _ = watched(
        ("step, loss", "step"), ("losses", "step"), ("layer_norms(model, 'grad')", "step"), **how
    )
    assert same == ended
    assert losses == bare
    assert [loss for row in parts for loss in row] == bare
    count = how.get("accumulate", 1)
    assert len(steps) == {1: 12, 4: 4}[count]  # the last batch of an epoch is a step, too
    assert [row[0] for row in steps] == [*range(1, len(steps) + 1)]
    assert [row[1] for row in steps] == pytest.approx([sum(row) / count for row in parts])
    assert all(norms)


@pytest.mark.parametrize("settings", SETTINGS)
def test_a_resumed_training_is_the_same(settings, tmp_path):
    how, folder = SETTINGS[settings], str(tmp_path / "saved")

    def at(number, accelerator):
        if number == 0:
            accelerator.load_state(folder)

    accelerated(at=lambda number, accelerator: accelerator.save_state(folder) if number == 5 else None, **how)
    trained, streams = [], []
    for watched_too in (False, True):
        accelerate.state.AcceleratorState._reset_state(True)
        accelerate.state.GradientState._reset_state()
        agent, run = pair("resumed", groups=("step", "epoch"))
        streams.append(run.stream("losses", on="step"))
        trackers = [AccelerateTracker(agent=agent)] if watched_too else []
        trained.append(accelerated(trackers, at=at, epochs=1, **how))
    assert trained[0] == trained[1]
    assert [loss for row in streams[1].values for loss in row] == trained[0][0]


def test_what_is_logged_is_an_event_and_a_stream_by_its_tag():
    losses, _, (logged, settings), run = watched(
        ("e['train/loss'], step, source", "log"), ("config['lr'], scheduler.step_size", "step")
    )
    assert [tuple(row) for row in logged] == [(loss, n, "accelerate") for n, loss in enumerate(losses, 1)]
    assert [tuple(row) for row in run.stream("train/loss").values] == [*enumerate(losses, 1)]
    assert [tuple(row) for row in settings] == [(0.01, 3)] * 12


def test_clients_set_the_learning_rate_under_its_schedule():
    change = asked(lambda run: run.set("optimizer.lr", 0.5, schedule="freeze", timeout=0))
    _, _, (rates,), run = watched(("optimizer.param_groups[0]['lr']", "step"), before=[(3, change)])
    assert run.outcome(change.id).new == 0.5
    assert rates[3:] == [0.5] * 9


def test_a_stop_ends_the_loop_like_ctrl_c():
    with pytest.raises(KeyboardInterrupt):
        watched(before=[(3, asked(lambda run: run.stop(timeout=0)))], on_stop=KeyboardInterrupt)


def test_a_saved_state_is_an_event(tmp_path):
    agent, run = pair("loop", groups=("step", "epoch"))
    seen = run.stream("step, path", on="checkpoint")

    def save(number, accelerator):
        if number == 5:
            accelerator.save_state(str(tmp_path / "saved"))

    accelerated([AccelerateTracker(agent=agent)], at=save)
    assert [tuple(row) for row in seen.values] == [(5, str(tmp_path / "saved"))]


def test_accelerator_and_optimizer_are_left_as_they_were():
    seen = []
    agent, _ = pair("loop", groups=("step", "epoch"))
    tracker = AccelerateTracker(agent=agent)
    accelerated([tracker], at=lambda number, accelerator: seen.append(accelerator))
    assert "backward" not in vars(seen[0])
    assert tracker.tracker is None
    inner = seen[0]._optimizers[0].optimizer
    assert isinstance(inner, torch.optim.Optimizer)
    assert not inner._optimizer_step_post_hooks


def test_its_own_agent_is_called_after_the_project(tmp_path, monkeypatch):
    monkeypatch.setenv("LOOPTAP_DIR", str(tmp_path))
    tracker, seen = AccelerateTracker(), []
    accelerated([tracker], at=lambda number, _: seen.append(tracker.tracker.name))
    assert set(seen) == {"my project"}


RANKS = """
import os, sys, torch
torch.set_num_threads(1)
from small_trainers import accelerated
trackers = []
if sys.argv[1] == "watched":
    from looptap.integrations.accelerate import AccelerateTracker
    trackers = [AccelerateTracker("ranks")]
losses, ended = accelerated(trackers, accumulate=2, bf16=sys.argv[2] == "bf16")
print(losses, ended, flush=True)
os._exit(0)  # see MODELS
"""


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_two_ranks_train_the_same(precision, tmp_path):
    command = [sys.executable, "-c", RANKS]
    bare, same = (printed(tmp_path, [*command, kind, precision], 2) for kind in ("bare", "watched"))
    assert last_lines(bare) == last_lines(same)
