"""Controls: declared, found, bounded, set once at a safe event, and recorded."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from steering import SCHEDULES, done, optimizer_of, rates, to
from torch import nn
from torch.optim import lr_scheduler as schedulers
from training_loop import training
from waiting import soon

import looptap
from looptap import CommandPending, Control, ControlConflict, ControlError, RemoteError
from looptap.agent.control.command import LoopCommand
from looptap.agent.control.command_log import CommandLog
from looptap.protocol.replies import CommandRecord, ControlReport
from looptap.testing import pair, parts_of


class Loader:
    factor = Control(int, default=2, minimum=1, maximum=16, unit="times", doc="how often a batch is used", at="batch")
    order = Control(choices=("random", "sorted"), default="random")
    drop = Control(float, minimum=0.0, at=("epoch", "batch"))
    verbose = Control(bool, default=False)


@pytest.fixture
def job():
    """Yield an agent and a run attached to it."""
    both = pair("job", may_pause=30.0)
    both.agent.expose(echo=Loader())
    yield both
    both.run.close()
    both.agent.close()


# ---------------------------------------------------------------- declarations


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("factor", 0, "factor = 0 must be a whole number from 1 to 16 times."),
        ("factor", 17, "factor = 17 must be a whole number from 1 to 16 times."),
        ("factor", 2.5, "factor = 2.5 must be a whole number"),
        ("factor", True, "factor = True must be a whole number"),
        ("factor", "3", "factor = '3' must be a whole number"),
        ("order", "up", "order = 'up' must be one of 'random', 'sorted'."),
        ("drop", float("nan"), "drop = nan must be a number, 0.0 or more."),
        ("drop", -1e-9, "drop = -1e-09 must be a number, 0.0 or more."),
        ("drop", None, "drop = None must be a number"),
        ("verbose", 1, "verbose = 1 must be True or False."),
    ],
)
def test_a_wrong_value_is_a_sentence_for_host_and_client_alike(job, name, value, sentence):
    _, run = job
    with pytest.raises(ControlError) as caught:
        setattr(Loader(), name, value)
    assert str(caught.value).startswith(sentence)
    with pytest.raises(ControlError) as caught:
        run.set(f"echo.{name}", value)
    assert str(caught.value).startswith(f"echo.{sentence}")
    assert run.commands[-1]["outcome"] == "refused"


def test_a_declaration_that_cannot_be_met_is_refused():
    for how in ({"type": list}, {"minimum": 2, "maximum": 1}, {"type": str, "minimum": 1}, {"choices": (1, "a")}):
        with pytest.raises(ControlError):
            Control(**how)
    with pytest.raises(ControlError, match=r"default = 9 must be a whole number"):
        Control(int, default=9, maximum=3)


def test_a_control_of_an_exposed_object_is_found_and_fully_described(job):
    _, run = job
    info = run.controls["echo.factor"]
    assert (info.value, info.minimum, info.maximum, info.unit, info.version) == (2, 1, 16, "times", 0)
    assert (info.doc, info.at, info.type) == ("how often a batch is used", ("batch",), "int")
    assert list(run.controls) == ["echo.factor", "echo.order", "echo.drop", "echo.verbose"]
    assert run.controls._ipython_key_completions_() == list(run.controls)
    assert "echo.factor = 2 times  (int; 1 to 16; how often a batch is used)" in repr(run.controls)
    assert "echo.drop = None  (float; 0.0 or more)" in repr(run.controls)
    with pytest.raises(KeyError, match=r"Did you mean 'echo.factor'"):
        run.controls["echo.facto"]


def test_a_change_is_made_at_the_next_safe_event_and_its_outcome_says_where(job):
    agent, run = job
    agent.emit("batch", step=0)
    before = time.time()
    outcome = done(agent, run, run.set, "echo.factor", 5)
    assert (outcome.old, outcome.new, outcome.event, outcome.number, outcome.version) == (2, 5, "batch", 2, 1)
    assert before <= outcome.time <= time.time()
    assert run.controls["echo.factor"].value == 5
    with pytest.raises(ControlError, match="may be done at 'batch' events only, not at 'epoch'"):
        run.set("echo.factor", 3, on="epoch")
    assert done(agent, run, run.set, "echo.drop", 1, event="epoch").event == "epoch"


def test_changes_happen_in_order_and_each_once(job):
    agent, run = job
    seen = []
    agent.control("knob", lambda: len(seen), seen.append, type=int)
    ids = [f"id{n}" for n in range(5)]
    for n, id in enumerate(ids):
        for _ in range(3):
            with pytest.raises(CommandPending, match=r"run\.outcome\('id"):
                run.set("knob", n, timeout=0, id=id)
    agent.emit("batch")
    for id in ids:
        assert run.set("knob", 99, id=id).id == id
    agent.emit("batch")
    assert seen == [0, 1, 2, 3, 4]
    assert [record["number"] for record in run.commands] == [1] * 5
    with pytest.raises(ControlError, match="the job remembers no command with the id 'other'"):
        run.outcome("other")


def test_a_setter_that_raises_leaves_the_value_as_it_was(job):
    agent, run = job
    held = {"a": 1.0, "b": 1.0}

    def halfway(value):
        held["a"] = value
        if value > 2:
            raise RuntimeError("no more of it")

    agent.control("half", lambda: held["a"], halfway)
    with pytest.raises(RemoteError, match=r"no more of it The value is as it was: 1\.0\.") as caught:
        done(agent, run, run.set, "half", 3.0)
    assert caught.value.kind == "RuntimeError"
    assert "held" in caught.value.traceback or "halfway" in caught.value.traceback
    assert held["a"] == 1.0
    record = run.commands[-1]
    assert (record["outcome"], record["old"], record["new"]) == ("failed", 1.0, None)
    agent.emit("batch")


def test_a_change_by_another_client_since_the_last_access_is_a_conflict(job):
    agent, run = job
    other = job.attach()
    assert run.controls["echo.factor"].value == 2
    done(agent, other, other.set, "echo.factor", 4)
    with pytest.raises(ControlConflict, match=r"'echo.factor' was set to 4 by .+ since you looked"):
        run.set("echo.factor", 5)
    assert done(agent, run, run.set, "echo.factor", 6, expected=None).new == 6
    assert done(agent, run, run.set, "echo.factor", 7).new == 7  # one's own changes are known
    seen = run.controls["echo.factor"]
    with pytest.raises(CommandPending) as late:  # both want the same event: the second finds what the first has done
        other.set("echo.factor", 8, expected=None, timeout=0)
    with pytest.raises(CommandPending) as later:
        run.set("echo.factor", 9, expected=seen, timeout=0)
    agent.emit("batch")
    assert other.outcome(late.value.id).new == 8
    with pytest.raises(ControlConflict):
        run.outcome(later.value.id)
    other.close()


def test_an_attribute_of_what_is_exposed_is_set_by_its_path(job):
    agent, run = job
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))
    agent.expose(model=model, settings={"clip": 1.0, "name": "a", "on": True, "none": None, "deep": [1, 2]})
    assert done(agent, run, run.set, "model[1].p", 0.2).old == 0.5
    assert done(agent, run, run.set, "model.1.p", 0.25).new == model[1].p == 0.25
    assert done(agent, run, run.set, "settings['clip']", 2).new == 2.0
    assert done(agent, run, run.set, "settings.deep[0]", 7).new == 7
    assert done(agent, run, run.set, "settings.none", "b").new == "b"
    for name, value, sentence in [
        ("model[1].q", 1, "Dropout has no 'q'"),
        ("model[7].p", 1, "Sequential has no 7"),
        ("model[0]", 1, "is of type Linear"),
        ("settings.on", 1, "True or False"),
        ("settings.name", 1, "must be text"),
        ("modl.p", 1, "no control 'modl.p'"),
        ("model..p", 1, "is neither the name of a control nor a path"),
        ("", 1, "there is no control ''"),
    ]:
        with pytest.raises(ControlError, match=sentence.replace("[", r"\[")):
            run.set(name, value)


def test_a_change_leaves_random_numbers_and_modes_alone(job):
    agent, run = job

    def unruly(value):
        random.random(), np.random.rand(), torch.rand(3)
        torch.set_grad_enabled(False)

    agent.control("unruly", lambda: 0.0, unruly)
    agent.trigger("evaluate", lambda: unruly(0) or 0.75)
    agent.checkpoint(lambda: unruly(0) or "now.pt")
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    done(agent, run, run.set, "unruly", 1.0, checkpoint=True)
    assert done(agent, run, run.trigger, "evaluate").result == 0.75
    assert done(agent, run, run.checkpoint).result == "now.pt"
    assert (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == states
    assert torch.is_grad_enabled()


# ---------------------------------------------------------------- optimizers and their schedules


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("groups", [1, 2])
def test_a_scaled_schedule_continues_from_the_new_value_by_the_same_factor(name, groups):
    bare = rates(SCHEDULES[name], groups)
    lr = "optimizer.lr" if groups == 1 else "optimizer.lr[1]"
    changed = rates(SCHEDULES[name], groups, [(6, to(0.7, lr, schedule="scale"))])
    factor = 0.7 / bare[6, -1]
    if name == "CosineAnnealingLR" and groups == 2:  # the floor is common to all groups: it stays, and is gone towards
        assert changed[6, 1] == 0.7
        assert changed[15, 1] == pytest.approx(0.01)
    else:
        assert changed[6:, -1] == pytest.approx(bare[6:, -1] * factor)
    assert np.array_equal(changed[:6], bare[:6])
    if groups == 2:
        assert np.array_equal(changed[:, 0], bare[:, 0])


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_frozen_rate_stays_and_the_schedule_resumes_where_it_would_be(name):
    bare = rates(SCHEDULES[name])
    changed = rates(SCHEDULES[name], 1, [(6, to(0.7, schedule="freeze")), (20, to(0.3, schedule="scale"))])
    assert set(changed[6:20, 0]) == {0.7}
    assert changed[20:] == pytest.approx(bare[20:] * (0.3 / bare[20]))


def test_without_a_scheduler_the_rate_is_set_and_both_words_mean_the_same():
    for schedule in ("", "scale", "freeze"):
        assert set(rates(None, 1, [(3, to(0.5, schedule=schedule))])[3:, 0]) == {0.5}


def test_setting_a_driven_rate_needs_a_choice_for_the_schedule(job):
    agent, run = job
    optimizer = optimizer_of()
    scheduler = schedulers.LambdaLR(optimizer, lambda epoch: float(epoch))
    agent.expose(optimizer=optimizer)
    with pytest.raises(ControlError, match="have the job expose it too"):
        run.set("optimizer.lr", 0.5)
    agent.expose(scheduler=scheduler)
    assert run.controls["optimizer.lr"].driven == "LambdaLR"
    with pytest.raises(ControlError, match="schedule='scale' continues it"):
        run.set("optimizer.lr", 0.5)
    with pytest.raises(ControlError, match="schedule='keep'"):
        run.set("optimizer.lr", 0.5, schedule="keep")
    with pytest.raises(ControlError, match="no schedule drives it"):
        run.set("optimizer.momentum", 0.5, schedule="scale")
    with pytest.raises(ControlError, match="at 0 now"):
        done(agent, run, run.set, "optimizer.lr", 0.5, schedule="scale")
    assert run.controls["optimizer.lr"].value == 0.0


def test_weight_decay_and_momentum_are_set_for_all_groups_or_one(job):
    agent, run = job
    sgd = optimizer_of(2)
    adam = torch.optim.AdamW([nn.Parameter(torch.ones(1))], lr=torch.tensor(0.1), capturable=False, foreach=False)
    agent.expose(optimizer=sgd, adam=adam)
    assert run.controls["optimizer.lr"].value == [0.1, 0.2]
    done(agent, run, run.set, "optimizer.momentum", 0.5)
    done(agent, run, run.set, "optimizer.weight_decay[1]", 0.01)
    assert [(g["momentum"], g["weight_decay"]) for g in sgd.param_groups] == [(0.5, 0), (0.5, 0.01)]
    done(agent, run, run.set, "adam.momentum", 0.8)
    assert adam.param_groups[0]["betas"] == (0.8, 0.999)
    rate = adam.param_groups[0]["lr"]
    done(agent, run, run.set, "adam.lr", 0.5)
    assert adam.param_groups[0]["lr"] is rate
    assert rate.item() == 0.5


# ---------------------------------------------------------------- triggers, checkpoints, stop


def test_a_trigger_and_a_checkpoint_run_once_in_the_loop(job):
    agent, run = job
    calls = []
    agent.trigger("evaluate", lambda: calls.append(threading.current_thread().name), at="epoch")
    agent.emit("batch")
    with pytest.raises(ControlError, match=r"no trigger 'evaluat'; there are: evaluate\. Did you mean 'evaluate'"):
        run.trigger("evaluat")
    with pytest.raises(ControlError, match="cannot save a checkpoint"):
        run.checkpoint()
    with pytest.raises(ControlError, match="cannot save a checkpoint"):
        run.set("echo.factor", 3, checkpoint=True)
    assert done(agent, run, run.trigger, "evaluate", event="epoch").event == "epoch"
    assert calls == ["MainThread"]


@pytest.mark.parametrize(
    ("ask", "declare"),
    [
        (lambda run: run.set("scale", 2.0), lambda agent: agent.control("scale", lambda: 1.0, lambda value: None)),
        (lambda run: run.set("settings.clip", 2.0), lambda agent: agent.expose(settings=SimpleNamespace(clip=1.0))),
        (lambda run: run.trigger("evaluate"), lambda agent: agent.trigger("evaluate", lambda: 0.5)),
        (lambda run: run.checkpoint(), lambda agent: agent.checkpoint(lambda: "1.pt")),
    ],
    ids=["control", "path", "trigger", "checkpoint"],
)
def test_a_command_waits_for_what_a_job_that_has_just_started_declares(ask, declare, directory, monkeypatch):
    monkeypatch.setattr("looptap.client.control.coming_declarations.DECLARATION_TIMEOUT_SECONDS", 60.0)
    with looptap.Agent("young") as agent, looptap.attach("young") as run, ThreadPoolExecutor(1) as pool:
        link = parts_of(agent).connection.link
        before = link.frames_in
        asked = pool.submit(ask, run)
        soon(lambda: asked.done() or link.frames_in > before + 4)
        declare(agent)
        soon(lambda: agent.emit("batch") or asked.done())
        assert asked.result().outcome == "done"


def test_a_name_that_is_still_unknown_at_the_first_event_is_refused(directory, monkeypatch):
    monkeypatch.setattr("looptap.client.control.coming_declarations.DECLARATION_TIMEOUT_SECONDS", 1e6)
    with looptap.Agent("young") as agent, looptap.attach("young") as run, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(run.set, "scale", 2.0, timeout=1e6)
        agent.emit("batch")
        with pytest.raises(ControlError, match="there is no control 'scale'"):
            asked.result(60)


def test_a_change_is_not_made_if_the_checkpoint_before_it_fails(job):
    agent, run = job
    saved = []

    def save():
        saved.append(parts_of(agent).sources.exposed["echo"].factor)
        if len(saved) == 2:
            raise OSError("disk full")
        return f"{len(saved)}.pt"

    agent.checkpoint(save)
    assert done(agent, run, run.set, "echo.factor", 3, checkpoint=True).saved == "1.pt"
    with pytest.raises(RemoteError, match="disk full This was the checkpoint before the change, which was not made"):
        done(agent, run, run.set, "echo.factor", 4, checkpoint=True)
    assert run.controls["echo.factor"].value == 3
    with pytest.raises(CommandPending):
        run.call("step", checkpoint=True, timeout=0)
    agent.emit("batch", step=1)
    assert saved == [2, 3, 3]


def test_a_change_with_a_checkpoint_before_it_waits_for_an_event_where_one_can_be_saved():
    agent, run = pair("saves")
    held = {"lr": 0.1, "clip": 1.0}
    agent.control("lr", lambda: held["lr"], lambda lr: held.update(lr=lr))
    agent.control("clip", lambda: held["clip"], lambda clip: held.update(clip=clip), at="batch")
    agent.checkpoint(lambda: f"lr={held['lr']}", at="epoch")
    with pytest.raises(CommandPending) as pending:
        run.set("lr", 0.5, checkpoint=True, timeout=0)
    agent.emit("batch")
    assert held["lr"] == 0.1
    agent.emit("epoch")
    outcome = run.outcome(pending.value.id)
    assert (outcome.event, outcome.saved, held["lr"]) == ("epoch", "lr=0.1", 0.5)
    with pytest.raises(looptap.ControlError, match="'batch' events only, and a checkpoint at 'epoch': save one first"):
        run.set("clip", 2.0, checkpoint=True, timeout=0)
    with pytest.raises(looptap.ControlError, match="lr may be done at 'epoch' events only, not at 'batch'"):
        run.set("lr", 2.0, checkpoint=True, on="batch", timeout=0)


def test_a_stop_sets_a_flag(job):
    agent, run = job
    assert not agent.stop_requested
    done(agent, run, run.stop)
    assert agent.stop_requested


class Enough(Exception):
    """The host's ``on_stop``."""


@pytest.mark.parametrize("kind", [Enough, KeyboardInterrupt])
def test_on_stop_is_raised_only_if_declared_and_after_the_queries(kind):
    agent, run = pair("stops", on_stop=kind)
    steps = run.stream("step", on="batch")
    with pytest.raises(CommandPending) as pending:
        run.stop(timeout=0)
    with pytest.raises(kind) as caught:
        agent.emit("batch", step=1)
    assert "During handling" not in "".join(traceback.format_exception(caught.value))
    assert run.outcome(pending.value.id).number == 1
    agent.emit("batch", step=2)
    assert steps.values == [1, 2]
    with pytest.raises(ValueError, match="class of exceptions"):
        looptap.Agent("x", on_stop=3)


# ---------------------------------------------------------------- pause


@pytest.fixture
def loop(directory):
    """Run a job with sockets and an I/O thread, and its loop on another thread."""
    agent = looptap.Agent("loop", may_pause=600.0, limits=looptap.Limits(heartbeat=0.05))
    agent.expose(echo=Loader())
    with training(agent, 0.002), looptap.attach("loop") as run:
        yield agent, run
    agent.close()


def test_a_paused_loop_waits_while_its_agent_answers_and_the_pause_is_no_step(loop):
    agent, run = loop
    steps = run.stream("step, event_dt", on="batch")
    steps.wait(5)
    paused = run.pause()
    assert (paused.event, paused.result) == ("batch", 600.0)
    soon(lambda: run.paused > 0.3)
    soon(lambda: run.silence < 5)
    assert run.stacks()["paused"] > 0
    assert "paused for" in repr(run)
    with pytest.raises(CommandPending, match=r"The loop is paused; run\.resume\(\) ends that"):
        run.set("echo.factor", 9, timeout=0.05)
    with pytest.raises(ControlError, match=r"paused already, for another (10|9\.\d+) min; run\.resume\(\) ends that"):
        run.pause(5)
    assert agent.stats()["events"]["batch"] == paused.number
    assert run.resume().result > 0.3
    assert run.paused == 0
    soon(lambda: run.controls["echo.factor"].value == 9)
    soon(lambda: agent.stats()["events"]["batch"] > paused.number + 3)
    soon(lambda: steps.records[-1].event > paused.number)
    assert agent.stats()["paused_before"] > 0.3
    records = steps.records
    assert (steps.dropped, records[-1].event - records[0].event) == (0, len(records) - 1)
    stood = records[-1].time - records[0].time - sum(record.value[1] for record in records[1:])
    assert stood == pytest.approx(agent.stats()["paused_before"], abs=1e-3)
    assert [r["what"] for r in run.commands] == ["pause", "set", "pause", "resume"]


def test_a_pause_ends_by_itself_and_is_refused_beyond_what_the_host_allows(loop):
    agent, run = loop
    for seconds in (601, 0, -1, "long", float("nan")):
        with pytest.raises(ControlError, match="allows more than 0 s, and up to 10 min"):
            run.pause(seconds)
    at = run.pause(0.1).number
    soon(lambda: agent.stats()["events"]["batch"] > at)
    strict, other = pair("strict")
    with pytest.raises(ControlError, match=r"does not allow pauses; to allow them, create it with looptap\.Agent"):
        other.pause()
    strict.close()


def test_a_stop_and_the_end_of_the_agent_end_a_pause(loop):
    agent, run = loop
    run.pause()
    run.stop()
    assert agent.stop_requested
    run.pause()
    agent.close()  # ten minutes earlier; the fixture sees that the loop has ended


def test_ctrl_c_works_in_a_pause():
    agent, run = pair("interrupted", may_pause=60.0)
    with pytest.raises(CommandPending):
        run.pause(timeout=0)

    def press():
        soon(lambda: agent.stats()["paused"] > 0)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    presser = threading.Thread(target=press)
    presser.start()
    with pytest.raises(KeyboardInterrupt):
        agent.emit("batch")
    presser.join(300)
    assert agent.stats()["paused"] == 0
    agent.emit("batch")
    assert agent.stats()["events"] == {"batch": 2}
    agent.close()


def test_a_disabled_agent_takes_every_declaration_and_does_nothing():
    agent = looptap.Agent("off", enabled=False, on_stop=Enough, may_pause=3.0)
    agent.control("lr", lambda: 1.0, lambda value: None)
    agent.trigger("evaluate", lambda: None)
    agent.checkpoint(lambda: None)
    assert not agent.stop_requested
    assert parts_of(agent).dispatcher.commands.job.describe() == ControlReport(may_pause=3.0)


def test_a_set_of_a_living_run_is_done_within_a_few_steps(loop):
    agent, run = loop
    took = []
    soon(lambda: agent.stats()["events"])
    for n in range(20):
        asked = agent.stats()["events"].get("batch", 0)
        took.append(run.set("echo.factor", 1 + n % 16).number - asked)
    assert sorted(took)[10] < 100  # one or two on a quiet machine


# ---------------------------------------------------------------- what must not reach the loop


RAISED = [MemoryError, RecursionError, SystemExit, GeneratorExit, StopIteration, looptap.QueryError, ControlError,
          AssertionError, BaseException, Enough, BaseExceptionGroup("several", [ValueError(1)])]  # fmt: skip


@pytest.mark.parametrize("raised", RAISED, ids=str)
@pytest.mark.parametrize("what", ["set", "get", "trigger", "checkpoint", "before"])
def test_no_exception_of_a_hosts_function_comes_out_of_emit(job, what, raised):
    agent, run = job

    def fail(*_):
        raise raised("no") if isinstance(raised, type) else raised

    agent.control("knob", fail if what == "get" else lambda: 1.0, fail if what == "set" else lambda value: None)
    agent.trigger("trigger", fail)
    agent.checkpoint(fail)
    ask = {
        "set": lambda **how: run.set("knob", 2, **how), "get": lambda **how: run.set("knob", 2, **how),
        "trigger": lambda **how: run.trigger("trigger", **how), "checkpoint": run.checkpoint,
        "before": lambda **how: run.set("knob", 2, checkpoint=True, **how),
    }[what]  # fmt: skip
    with pytest.raises(looptap.LooptapError) as caught:
        done(agent, run, ask)
    assert not isinstance(caught.value, CommandPending)
    assert run.commands[-1]["outcome"] in ("failed", "refused")
    assert done(agent, run, run.set, "echo.factor", 5).new == 5


@pytest.mark.usefixtures("processes")
def test_the_declaration_needs_neither_an_agent_nor_torch_nor_numpy():
    code = (
        "import sys; from looptap.streams.control import Control; import looptap; assert looptap.Control is Control\n"
        "print([m for m in ('torch', 'numpy', 'zmq', 'msgspec', 'looptap.agent') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


# ---------------------------------------------------------------- bounds


def test_names_and_values_beyond_their_bounds_are_refused_and_keep_no_memory(job):
    agent, run = job
    agent.emit("batch")
    for ask, sentence in (
        (lambda: run.set("n" * 201, 1), "names and ids have up to 200"),
        (lambda: run.set("echo.factor", "v" * 10_001), "a text of up to 10,000 characters"),
        (lambda: run.set("echo.factor", [1]), r"echo.factor = \[1\] must be a number, True, False or a text"),
        (lambda: run.set("echo.factor", 3, id="i" * 201), "names and ids have up to 200"),
    ):
        with pytest.raises(ControlError, match=sentence):
            ask()
    assert run.commands == []


def test_a_command_is_remembered_after_its_result_is_dropped(job, monkeypatch):
    agent, run = job
    monkeypatch.setattr("looptap.agent.control.command_log.MAX_RECORD_BYTES", 25_000)
    calls = []
    agent.expose(calls=calls)
    for n in range(4):
        with pytest.raises(CommandPending):
            run.call("calls.append(1) or b'0' * 10_000", timeout=0, id=f"id{n}")
        agent.emit("batch")
    with pytest.raises(looptap.LimitReached, match="This command has run; of all results 25,000 bytes are kept"):
        run.call("calls.append(1)", id="id0")
    assert len(run.call("calls.append(1)", id="id3")) == 10_000
    agent.emit("batch")
    assert len(calls) == 4


def test_a_result_that_has_not_been_sent_yet_is_kept(monkeypatch):
    monkeypatch.setattr("looptap.agent.control.command_log.MAX_RECORD_BYTES", 100)
    log, commands = CommandLog(10), []
    for n, requesters in enumerate(([object()], [], [])):
        command = LoopCommand(None, CommandRecord(id=f"id{n}", client="", what="call"), lambda command: None)
        command.over, command.size, command.requesters = True, 80, requesters
        log.accept(command)
        commands.append(command)
    assert [command.size for command in commands] == [80, 0, 0]


def test_as_many_commands_come_in_a_second_as_the_bound_says_and_no_more(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("looptap.agent.control.command_log.time", SimpleNamespace(monotonic=lambda: now[0]))
    log = CommandLog(3)
    for _ in range(2):
        for _ in range(3):
            log.count()
        with pytest.raises(looptap.LimitReached, match=r"^3 commands in a second, the bound"):
            log.count()
        now[0] += 1.01


def test_a_lost_answer_is_not_a_second_change(job):
    """The same frame comes twice, as over a link that was cut between the two."""
    agent, run = job
    seen = []
    agent.control("knob", lambda: len(seen), seen.append, type=int)
    send, frames = run.session.transport.send, []
    run.session.transport.send = lambda frame: (frames.append(frame), send(frame))
    with pytest.raises(CommandPending):
        run.set("knob", 1, timeout=0)
    send(frames[-1])
    agent.emit("batch")
    send(frames[-1])
    agent.emit("batch")
    assert seen == [1]
