"""What a failed training leaves behind: nothing."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import weakref

import pytest
import torch
import warm
from places import SUPPORT
from small_trainers import Examples, Net, accelerated

from looptap.agent.agent import is_open
from looptap.integrations import harmless
from looptap.integrations.accelerate import AccelerateTracker
from looptap.integrations.hugging_face import HuggingFaceCallback
from looptap.integrations.lightning import LightningCallback
from looptap.integrations.noted_method import NotedMethod
from looptap.testing import pair

accelerate = pytest.importorskip("accelerate")
lightning = pytest.importorskip("pytorch_lightning")
transformers = pytest.importorskip("transformers")

ERRORS = (RuntimeError, KeyboardInterrupt, SystemExit)
PARTS = 2  # batches of an update
FAILS_AT = 6  # the second batch of the third update has been forward, and not backward


@pytest.fixture(autouse=True)
def _start_alone():
    yield
    accelerate.state.AcceleratorState._reset_state(True)
    accelerate.state.GradientState._reset_state()


class FailingNet(Net):
    """A net that raises ``error`` once, at one of its calls."""

    def __init__(self, error=None):
        super().__init__()
        self.error, self.calls = error, 0

    def forward(self, x, labels=None):
        self.calls += 1
        if self.calls == FAILS_AT and self.error is not None:
            raise self.error("on purpose")
        return super().forward(x, labels)


class WithTransformers:
    """A trainer of transformers, which may train several times."""

    def __init__(self, folder, model, *, agent=None, before=(), after=(), **how):
        self.adapter = HuggingFaceCallback(agent=agent)
        arguments = transformers.TrainingArguments(
            output_dir=str(folder), use_cpu=True, per_device_train_batch_size=4, logging_steps=1, report_to=[],
            disable_tqdm=True, gradient_accumulation_steps=PARTS, num_train_epochs=2, **{"save_strategy": "no", **how},
        )  # fmt: skip
        self.trainer = transformers.Trainer(
            model=model, args=arguments, train_dataset=Examples(), eval_dataset=Examples(),
            callbacks=[*before, self.adapter, *after],
        )  # fmt: skip
        self.callbacks = self.trainer.callback_handler.callbacks

    def train(self):
        self.trainer.train()

    def hooked(self):
        assert self.trainer.callback_handler.callbacks == self.callbacks
        return [one for one in vars(self.trainer).values() if isinstance(one, NotedMethod)]


class Module(lightning.LightningModule):
    """A Lightning module around a net."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def training_step(self, batch, index):
        return self.net(*batch)["loss"]

    def validation_step(self, batch, index):
        self.log("val_loss", batch[0].sum())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


class WithLightning:
    """A callback of Lightning, with a new trainer for each training."""

    def __init__(self, folder, model, *, agent=None, before=(), after=()):
        self.adapter, self.folder, self.module = LightningCallback(agent=agent), str(folder), Module(model)
        self.callbacks = [*before, self.adapter, *after]

    def train(self):
        self.trainer = trainer = lightning.Trainer(
            accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False, max_epochs=2,
            default_root_dir=self.folder, callbacks=[*self.callbacks], accumulate_grad_batches=PARTS,
            enable_checkpointing=False, num_sanity_val_steps=0,
        )  # fmt: skip
        trainer.fit(self.module, *(torch.utils.data.DataLoader(Examples(pairs=True), 4) for _ in range(2)))

    def hooked(self):
        assert self.trainer.callbacks == self.callbacks
        return []


KINDS = {"transformers": WithTransformers, "lightning": WithLightning}
pytestmark = [pytest.mark.usefixtures("processes"), pytest.mark.filterwarnings("ignore")]


def failed(kind, folder, error, **how):
    """Return a training that has failed."""
    made = KINDS[kind](folder, FailingNet(error), **how)
    with pytest.raises(error):
        made.train()
    return made


@pytest.mark.promise("frameworks")
@pytest.mark.parametrize("kind", KINDS)
def test_the_losses_of_a_failed_update_are_not_those_of_the_next_training(kind, tmp_path):
    agent, run = pair("again", groups=("step", "epoch"))
    stream = run.stream("step, len(losses), len(batches), loss - sum(losses)", on="step")
    epochs = run.stream("len(events)", on="step")
    failed(kind, tmp_path, RuntimeError, agent=agent).train()
    assert [tuple(row) for row in stream.values] == [(n, PARTS, PARTS, 0) for n in (1, 2, *range(1, 7))]
    assert [*epochs.values] == [2, 3, 3]


def failing_once(base, name):
    """Return a callback whose method ``name`` raises at its second call."""
    calls = []

    def fail(self, *arguments, **keywords):
        calls.append(name)
        if len(calls) == 2:
            raise RuntimeError("on purpose")

    return type("Failing", (base,), {name: fail})()


HOOKS = {
    "transformers": ["on_optimizer_step", "on_step_end", "on_epoch_end", "on_log", "on_evaluate", "on_save"],
    "lightning": ["on_train_batch_end", "on_train_epoch_end", "on_validation_end"],
}


EVALUATES = ("on_evaluate", "on_validation_end")
EVENTS = "step", "step_end", "epoch", "evaluation", "log", "checkpoint"
BASES = {"transformers": transformers.TrainerCallback, "lightning": lightning.Callback}


@pytest.mark.promise("frameworks")
@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in HOOKS for name in HOOKS[kind]])
def test_a_callback_that_raises_before_ours_keeps_no_event_from_the_run(kind, name, tmp_path):
    how = {"eval_strategy": "epoch", "save_strategy": "epoch"} if kind == "transformers" else {}
    found = []
    for place in ("before", "after"):
        agent, run = pair("order", groups=("step", "epoch"))
        streams = [run.stream("event_number, step", on=event) for event in EVENTS]
        groups = run.stream("len(events)", on="step")
        made = KINDS[kind](tmp_path, Net(), agent=agent, **{place: [failing_once(BASES[kind], name)]}, **how)
        with pytest.raises(RuntimeError, match="on purpose"):
            made.train()
        assert not made.hooked()
        made.train()
        assert not made.hooked()
        found.append([[tuple(row) for row in stream.values] for stream in streams] + [[*groups.values]])
    assert found[0] == found[1]
    assert found[0][-1][-2:] == [3, 3]
    assert len(found[0][0]) == sum(found[0][-1])


def acting(kind, name, act, fails=False):
    """Return a callback whose method ``name`` acts at its second call."""
    calls = []

    def called(self, *arguments, **keywords):
        calls.append(name)
        if len(calls) == 2:
            act()
            if fails:
                raise RuntimeError("on purpose")

    return type("Acting", (BASES[kind],), {name: called})()


def evaluate(made):
    if isinstance(made, WithTransformers):
        made.trainer.evaluate()
    else:
        made.trainer.validate(made.module, torch.utils.data.DataLoader(Examples(pairs=True), 4), verbose=False)


@pytest.mark.promise("frameworks")
@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind in HOOKS for name in HOOKS[kind] if name not in EVALUATES]
)
def test_a_callback_that_evaluates_and_raises_before_ours_keeps_no_event_from_the_run(kind, name, tmp_path):
    def rows(place):
        agent, run = pair("order", groups=("step", "epoch"))
        streams = [run.stream("event_number, step", on=event) for event in EVENTS]
        how = {"save_strategy": "epoch"} if kind == "transformers" else {}
        callback = acting(kind, name, lambda: evaluate(made), fails=True)
        made = KINDS[kind](tmp_path, Net(), agent=agent, **{place: [callback]}, **how)
        with pytest.raises(RuntimeError, match="on purpose"):
            made.train()
        return [[tuple(row) for row in stream.values] for stream in streams]

    found = rows("before")
    assert found == rows("after")
    assert found[0]
    assert found[EVENTS.index("evaluation")]


def test_an_evaluation_of_which_a_callback_has_caught_the_error_has_its_event(tmp_path):
    def fail(*_, **__):
        raise RuntimeError("on purpose")

    def rows(place):
        def caught():
            with contextlib.suppress(RuntimeError):
                evaluate(made)

        agent, run = pair("caught", groups=("step", "epoch"))
        streams = [run.stream("event_number, step", on=event) for event in EVENTS]
        failing = type("Failing", (BASES["transformers"],), {"on_evaluate": fail})()
        callbacks = [acting("transformers", "on_step_end", caught), failing]
        made = WithTransformers(tmp_path, Net(), agent=agent, **{place: callbacks})
        made.train()
        return [[tuple(row) for row in stream.values] for stream in streams]

    found = rows("before")
    assert found == rows("after")
    assert found[EVENTS.index("evaluation")] == [(1, 2)]
    assert len(found[0]) == 6


@pytest.mark.parametrize("place", ["before", "after"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_training_within_a_callback_keeps_no_event_from_the_run(kind, place, tmp_path, caplog):
    agent, run = pair("outer", groups=("step", "epoch"))
    steps, epochs = run.stream("step", on="step"), run.stream("step", on="epoch")
    callback = acting(kind, HOOKS[kind][0], lambda: KINDS[kind](tmp_path, Net(), agent=pair("inner")[0]).train())
    KINDS[kind](tmp_path, Net(), agent=agent, **{place: [callback]}).train()
    assert (steps.values, epochs.values) == ([*range(1, 7)], [3, 6])
    assert "began within another one" not in caplog.text


@pytest.mark.parametrize("kind", KINDS)
def test_a_training_within_another_one_that_has_the_same_callback_says_what_it_ends(kind, tmp_path, caplog):
    monkey = pytest.MonkeyPatch()
    monkey.setattr(harmless, "_said", set())
    agent, run = pair("both", groups=("step", "epoch"))
    steps = run.stream("step", on="step")

    def train():
        inner = KINDS[kind](tmp_path, Net())
        if kind == "transformers":
            inner.trainer.remove_callback(inner.adapter)
            inner.trainer.add_callback(made.adapter)
        inner.callbacks = [made.adapter]
        inner.train()

    made = KINDS[kind](tmp_path, Net(), agent=agent, after=[acting(kind, "on_train_epoch_end", train)])
    if kind == "transformers":
        made.trainer.add_callback(acting(kind, "on_epoch_end", train))
    made.train()
    monkey.undo()
    assert steps.values == [*range(1, 7), *range(1, 7)]
    assert caplog.text.count("a training began within another one that has the same callback") == 1


@pytest.mark.parametrize("error", ERRORS, ids=lambda one: one.__name__)
@pytest.mark.parametrize("kind", KINDS)
def test_the_run_ends_with_what_ends_the_training(kind, error, directory):
    agents = []

    class Noticed(FailingNet):
        def forward(self, x, labels=None):
            agents.append(made.adapter.run.agent)
            return super().forward(x, labels)

    made = KINDS[kind](directory, Noticed(error))
    with pytest.raises((error, SystemExit)):  # which Lightning makes of Ctrl-C
        made.train()
    assert len({*map(id, agents)}) == 1
    assert not is_open(agents[0])
    assert made.adapter.run.agent is None
    assert not made.hooked()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("error", [None, RuntimeError], ids=["after the end", "after an error"])
def test_no_model_outlives_its_training(kind, error, tmp_path):
    agent, _ = pair("kept", groups=("step", "epoch"))
    model = FailingNet(error)
    dead = weakref.ref(model)
    made = KINDS[kind](tmp_path, model, agent=agent)
    with contextlib.suppress(RuntimeError):
        made.train()
    assert made.adapter.run.agent is None
    del model, made
    gc.collect()
    assert dead() is None
    assert is_open(agent)


def test_a_run_of_lightning_ends_though_another_callback_raises_where_it_would(directory):
    def fail(self, *arguments):
        raise RuntimeError("once more")

    failing = type("Failing", (lightning.Callback,), {"on_exception": fail})
    made = WithLightning(directory, FailingNet(RuntimeError), before=[failing()])
    with pytest.raises(RuntimeError, match="once more"):
        made.train()
    assert made.adapter.run.agent is None
    assert not made.hooked()


def test_a_retry_with_smaller_batches_counts_no_loss_twice(tmp_path):
    class TooLarge(Net):
        def forward(self, x, labels=None):
            if len(x) > 2 and torch.is_grad_enabled():
                self.calls = getattr(self, "calls", 0) + 1
                if self.calls == 2:
                    raise RuntimeError("CUDA out of memory.")
            return super().forward(x, labels)

    agent, run = pair("retry", groups=("step", "epoch"))
    stream = run.stream("step, len(losses), len(batch['x'])", on="step")
    WithTransformers(tmp_path, TooLarge(), agent=agent, auto_find_batch_size=True).train()
    rows = [tuple(row) for row in stream.values]
    assert rows == [(n, PARTS, rows[0][2]) for n in range(1, len(rows) + 1)]
    assert rows[0][2] < 4


def test_a_failed_backward_pass_adds_no_loss_to_the_next_step_of_an_accelerated_loop():
    agent, run = pair("loop", groups=("step", "epoch"))
    stream = run.stream("step, losses, loss", on="step")
    accelerator = accelerate.Accelerator(cpu=True, log_with=[AccelerateTracker(agent=agent)])
    model = Net()
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
    accelerator.init_trackers("loop")
    x, losses = torch.randn(4, 4), []
    for number in range(5):
        loss = model(x, torch.zeros(4, 1))["loss"]
        if number in (1, 2):
            with contextlib.suppress(RuntimeError):  # a loop that skips what fails, before or after the backward pass
                accelerator.backward(loss if number == 1 else loss.detach())
            optimizer.zero_grad()
            continue
        accelerator.backward(loss)
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    accelerator.end_training()
    assert [(row[0], row[2]) for row in stream.values] == [*enumerate(losses, 1)]


def test_an_accelerated_loop_that_fails_leaves_its_model_free(directory):
    with pytest.raises(ZeroDivisionError):
        accelerated([AccelerateTracker("failed")], at=lambda number, _: 1 // (3 - number))
    models, agents = [], []

    def unended():
        accelerator = accelerate.Accelerator(cpu=True, log_with=[AccelerateTracker("failed")])
        model = accelerator.prepare(Net())
        models.append(weakref.ref(model))
        accelerator.init_trackers("failed")
        agents.append(accelerator.get_tracker("looptap", unwrap=True))
        raise RuntimeError

    for _ in range(2):
        with contextlib.suppress(RuntimeError):
            unended()
    accelerate.state.AcceleratorState._reset_state(True)
    gc.collect()
    assert [one() for one in models] == [None, None]
    agents[-1].close()


def test_noted_methods_leave_the_object_as_it_was_in_any_order():
    class Trainer:
        def step(self):
            return "class"

    trainer, heard = Trainer(), []
    first, second = (NotedMethod(trainer, "step", lambda *_, n=n: heard.append(n)) for n in (1, 2))
    trainer.step()
    first.stop()
    trainer.step()
    third = NotedMethod(trainer, "step", lambda *_: heard.append(3))
    trainer.step()
    second.stop()
    third.stop()
    assert trainer.step() == "class"
    assert heard == [1, 2, 2, 2, 3]
    trainer.step = lambda: "own"
    fourth = NotedMethod(trainer, "step", lambda *_: heard.append(4))
    fourth.stop()
    assert trainer.step() == "own"


KERAS = """
import gc, sys, weakref
import keras, torch
from small_trainers import keras_fit, keras_model
from looptap.agent.agent import is_open
from looptap.integrations.keras import KerasCallback
from looptap.testing import pair

class Fail(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 2 and errors:
            raise errors.pop()("on purpose")

agent, run = pair("keras", groups=("step", "epoch"))
stream = run.stream("step, len(losses), len(batches)", on="step")
groups = run.stream("len(events)", on="step")
model, errors, callback = keras_model(), [SystemExit, KeyboardInterrupt, RuntimeError], KerasCallback(agent=agent)
for error in [*reversed(errors), None]:
    try:
        keras_fit(*[callback, Fail()][::ORDER], model=model, epochs=1)
    except BaseException as found:
        assert type(found) is error, found
    assert callback.run.agent is None
    assert "compute_loss" not in vars(model)
counts = [row[1:] for row in stream.values]
assert set(map(tuple, counts)) == {(1, 1)}, counts
assert [row[0] for row in stream.values] == [*range(1, 16)], stream.values  # three failed in the third batch, then six
assert [*groups.values] == [3, 3, 3, 6], groups.values
assert is_open(agent)
own, seen = KerasCallback("own"), []
class Look(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        seen.append(own.run.agent)
errors.append(RuntimeError)
try:
    keras_fit(*[Look(), own, Fail()][::ORDER], model=model, epochs=1)
except RuntimeError:
    pass
assert not is_open(seen[0]) and own.run.agent is None
dead = weakref.ref(model)
del model, callback, own, seen, stream
gc.collect()
assert dead() is None
"""


@pytest.mark.parametrize("order", [1, -1], ids=["ours first", "ours last"])
def test_keras_leaves_nothing_of_a_failed_training(order, place):
    paths = os.pathsep.join([str(SUPPORT), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-c", KERAS.replace("ORDER", str(order))]
    done = warm.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": paths})
    assert done.returncode == 0, done.stderr
