"""A training that dies and resumes has the events of one that does not.

Each kind trains three times: to its end, until it dies at a random step, and from its newest checkpoint on. What the
last two say of a step is what the first one says of it. A failed test has printed the step: `DIES=7 pytest` repeats it.
"""

from __future__ import annotations

import json
import os
import random
import sys

import pytest
import torch
import warm
from observing import SCRIPTS, Observed
from places import SUPPORT, TESTS
from small_trainers import Examples, Net

from looptap.testing import pair
from looptap.training.echoing import AFTER, BATCH, BEFORE, SHUFFLED, Echo
from looptap.training.prioritized import Prioritized
from looptap.training.progress import Progress
from looptap.training.selection import Selection, WithIndex

pytestmark = [pytest.mark.usefixtures("processes"), pytest.mark.filterwarnings("ignore")]


class Died(BaseException):
    """In place of the death of the process."""


def rows_of(values):
    """Return the values of a query as plain lists, by the step that each begins with."""
    return [[one.tolist() if hasattr(one, "tolist") else one for one in row] for row in values]


def step_of_death(steps):
    """Return a random step of ``steps``, or that of the variable DIES; print it."""
    step = int(os.environ.get("DIES", 0)) or random.choice(steps)
    print(f"DIES={step}")
    return step


def compared(train, queries, *, last, every, folder, apart_from=()):
    """Train in all three ways, and compare ``queries``, which begin with the step."""
    dies_at = step_of_death([step for step in range(every + 1, last + 1) if step not in apart_from])

    def run(**how):
        agent, client = pair("resumed", groups=("step", "epoch"))
        streams = [client.stream(text, on=on, budget=float("inf")) for text, on in queries]
        try:
            train(agent, **how)
        except Died:
            assert how.get("dies_at")
        else:
            assert not how.get("dies_at")
        return [rows_of(stream.values) for stream in streams]

    whole = run(folder=folder / "whole")
    killed = run(folder=folder / "killed", dies_at=dies_at)
    resumed = run(folder=folder / "killed", resume=True)
    saved_at = (dies_at - 1) // every * every
    for (text, on), all_rows, before, after in zip(queries, whole, killed, resumed, strict=True):
        about = f"{text} at {on}, dead at {dies_at}, resumed from {saved_at}"
        assert before == all_rows[: len(before)], about
        missing = [row for row in all_rows if row[0] > saved_at]
        again = after[: max(0, len(after) - len(missing))]  # what followed the checkpoint in its own step
        assert {row[0] for row in again} <= {saved_at}, about
        assert after == all_rows[len(all_rows) - len(after) :], about
        assert len(after) >= len(missing), about
    assert whole[0][-1][0] == last


# ------------------------------------------------------------ frameworks

NUMBERED = "step, event_number, epoch, loss, len(losses), len(batches)"


def with_transformers(agent, folder, dies_at=None, resume=False):
    transformers = pytest.importorskip("transformers")
    from looptap.integrations.hugging_face import HuggingFaceCallback

    class Dies(transformers.TrainerCallback):
        def on_step_begin(self, args, state, control, **what):
            if state.global_step + 1 == dies_at:
                raise Died

    torch.manual_seed(1)
    arguments = transformers.TrainingArguments(
        output_dir=str(folder), use_cpu=True, per_device_train_batch_size=4, logging_steps=1, report_to=[],
        disable_tqdm=True, gradient_accumulation_steps=2, num_train_epochs=4, save_steps=2, eval_strategy="steps",
        eval_steps=2,
    )  # fmt: skip
    trainer = transformers.Trainer(
        model=Net(), args=arguments, train_dataset=Examples(), eval_dataset=Examples(),
        callbacks=[HuggingFaceCallback(agent=agent), Dies()],
    )  # fmt: skip
    trainer.train(resume_from_checkpoint=resume or None)


def test_transformers(tmp_path):
    queries = [
        (NUMBERED, "step"), ("step, event_number", "step_end"), ("step, event_number, logs.get('loss', 0)", "log"),
        ("step, event_number, eval_loss", "evaluation"), ("step, event_number", "checkpoint"),
        ("step, event_number, epoch", "epoch"), ("step, len(events)", "epoch"),
    ]  # fmt: skip
    compared(with_transformers, queries[:-1], last=12, every=2, folder=tmp_path)


def with_lightning(agent, folder, dies_at=None, resume=False):
    lightning = pytest.importorskip("pytorch_lightning")
    stateful = pytest.importorskip("torchdata.stateful_dataloader")
    from looptap.integrations.lightning import LightningCallback

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = Net()
            self.net.layers[2].p = 0.0  # Lightning saves no random numbers

        def training_step(self, batch, index):
            if self.trainer.global_step + 1 == dies_at:
                raise Died
            loss = self.net(*batch)["loss"]
            self.log("train/loss", loss)
            return loss

        def validation_step(self, batch, index):
            self.log("val_loss", self.net(*batch)["loss"])

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=0.01)

    torch.manual_seed(1)
    saves = lightning.callbacks.ModelCheckpoint(folder, "{step}", save_top_k=-1, every_n_train_steps=2)
    trainer = lightning.Trainer(
        accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False, max_epochs=4,
        default_root_dir=str(folder), callbacks=[LightningCallback(agent=agent), saves], accumulate_grad_batches=2,
    )  # fmt: skip
    loaders = [stateful.StatefulDataLoader(Examples(pairs=True), 4) for _ in range(2)]
    found = sorted(folder.glob("*.ckpt"), key=lambda one: int(one.stem.partition("=")[2])) if resume else [None]
    trainer.fit(Module(), *loaders, ckpt_path=found[-1], **({"weights_only": False} if resume else {}))


def test_lightning(tmp_path):
    queries = [
        (NUMBERED, "step"), ("step, event_number, logs.get('train/loss', 0)", "log"),
        ("step, epoch", "checkpoint"),  # one more: Lightning saves again at the step from which it resumes
        ("step, event_number, epoch", "epoch"),
        ("step, event_number, val_loss", "evaluation"),
    ]  # fmt: skip
    leaves_out_an_epoch = (
        7,
        8,
    )  # Lightning itself, after a checkpoint in the middle that is one of the end of an epoch
    compared(with_lightning, queries, last=12, every=2, folder=tmp_path, apart_from=leaves_out_an_epoch)


def with_accelerate(agent, folder, dies_at=None, resume=False):
    accelerate = pytest.importorskip("accelerate")
    from looptap.integrations.accelerate import AccelerateTracker

    accelerate.state.AcceleratorState._reset_state(True)
    accelerate.state.GradientState._reset_state()
    torch.manual_seed(1)
    accelerator = accelerate.Accelerator(
        cpu=True, gradient_accumulation_steps=2, log_with=[AccelerateTracker(agent=agent)]
    )
    model = Net()
    model.layers[2].p = 0.0  # a loader draws random numbers again
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loader = torch.utils.data.DataLoader(Examples(pairs=True), 4)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    accelerator.init_trackers("resumed")
    step = int((folder / "step").read_text()) if resume else 0
    if resume:
        accelerator.load_state(str(folder / "state"))
    for epoch in range(step // 3, 4):
        skipped = step % 3 * 2 if epoch == step // 3 else 0
        for x, y in accelerate.skip_first_batches(loader, skipped) if skipped else loader:
            if step + 1 == dies_at:
                raise Died
            with accelerator.accumulate(model):
                loss = model(x, y)["loss"]
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                step += 1
                accelerator.log({"train": loss.item()}, step=step)
                if step % 2 == 0:
                    accelerator.save_state(str(folder / "state"))
                    (folder / "step").write_text(str(step))
    accelerator.end_training()


def test_accelerate(tmp_path):
    queries = [
        ("step, event_number, loss, len(losses)", "step"), ("step, event_number, e['train']", "log"),
        ("step, event_number", "checkpoint"),
    ]  # fmt: skip
    compared(with_accelerate, queries, last=12, every=2, folder=tmp_path)


KERAS = """
import json, os, sys
import keras
from small_trainers import keras_fit
from looptap.integrations.keras import KerasCallback
from looptap.testing import pair

folder, dies_at, way = sys.argv[1], int(sys.argv[2]), sys.argv[3]

class Dies(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if int(self.model.optimizer.iterations) + 1 == dies_at:
            print(json.dumps(rows()), flush=True)
            os.kill(os.getpid(), 9)

def rows():
    return [[[float(one) for one in row] for row in stream.values] for stream in streams]

agent, run = pair("keras", groups=("step", "epoch"))
queries = [("step, event_number, epoch, batch_idx, loss, len(losses)", "step"), ("step, event_number, loss", "log"),
           ("step, event_number, epoch, loss", "epoch"), ("step, event_number, loss", "evaluation")]
streams = [run.stream(text, on=on, budget=float("inf")) for text, on in queries]
keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)])
model.compile(optimizer=keras.optimizers.Adam(0.01), loss="mse")
path, begins = folder + "/saved.keras", 0
saves = keras.callbacks.BackupAndRestore(folder)
if way == "initial_epoch":
    saves = keras.callbacks.ModelCheckpoint(path)
    if os.path.exists(path):
        model = keras.models.load_model(path)
        begins = int(model.optimizer.iterations) // 6
how = {"epochs": 4, "initial_epoch": begins, "shuffle": False, "validation_freq": 2}
keras_fit(saves, KerasCallback(agent=agent), Dies(), model=model, **how)
print(json.dumps(rows()))
"""


@pytest.mark.parametrize("way", ["BackupAndRestore", "initial_epoch"])
def test_keras(tmp_path, way):
    pytest.importorskip("h5py")
    dies_at = step_of_death(range(8, 24))
    paths = os.pathsep.join([str(SUPPORT), os.environ.get("PYTHONPATH", "")])

    def run(folder, dies_at=0):
        done = warm.run(
            [sys.executable, "-c", KERAS, str(tmp_path / folder), str(dies_at), way], capture_output=True, text=True,
            env={**os.environ, "PYTHONPATH": paths},
        )  # fmt: skip
        assert done.returncode in (0, -9), done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    whole, killed, resumed = run("whole"), run("killed", dies_at), run("killed")
    saved_at = (dies_at - 1) // 6 * 6
    for all_rows, before, after in zip(whole, killed, resumed, strict=True):
        assert before == all_rows[: len(before)], dies_at
        assert after == [row for row in all_rows if row[0] > saved_at], dies_at


# ------------------------------------------------------------ a script without a line of looptap


@pytest.mark.promise("resume")
def test_a_script(tmp_path, monkeypatch):
    killed_and_resumed("resumed", "step, loss, losses, epoch, x.sum()", 3, 5, tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("package", "script", "every", "epoch"),
    [("ignite", "resumed_ignite", 3, 5), ("skorch", "resumed_skorch", 4, 4), ("fastai", "resumed_fastai", 5, 5),
     ("stable_baselines3", "resumed_policy", 4, 20)],
)  # fmt: skip
def test_a_script_with_a_framework(package, script, every, epoch, tmp_path, monkeypatch):
    pytest.importorskip(package)
    killed_and_resumed(script, "loss, losses", every, epoch, tmp_path, monkeypatch)


def killed_and_resumed(script, at_steps, every, epoch, folder, monkeypatch):
    """Compare 20 updates with those of a script that is killed and resumed.

    It saves ``every`` so many.
    """
    queries = [at_steps, ("epoch", "epoch"), ("event_number", "evaluation")]
    dies_at = step_of_death(range(every + 1, 21))
    monkeypatch.setenv("SAVED", str(folder / "whole"))
    whole = Observed(script, queries)
    monkeypatch.setenv("SAVED", str(folder / "killed"))
    monkeypatch.setenv("DIES_AT", str(dies_at))
    command = [sys.executable, str(TESTS / "support" / "observed.py"), str(SCRIPTS / f"{script}.py"), "[]"]
    assert warm.run(command, capture_output=True, text=True, cwd=TESTS).returncode == -9
    monkeypatch.delenv("DIES_AT")
    resumed, saved_at = Observed(script, queries), (dies_at - 1) // every * every
    assert resumed.lines == whole.lines
    assert len(whole.values[0]) >= 19  # the first may come before its names are known
    assert resumed.values[0] == whole.values[0][saved_at:], dies_at
    assert resumed.values[1] == whole.values[1][saved_at // epoch :], dies_at
    before = {"step": saved_at, "epoch": saved_at // epoch, "evaluation": saved_at // epoch}
    assert resumed.events == {name: count - before.get(name, 0) for name, count in whole.events.items()}


# ------------------------------------------------------------ training systems


def shown(thing, names):
    """Return the query for the numbers of an exposed object."""
    return "step, event_number, loss, " + ", ".join(f"{thing}.{name}" for name in names.split())


class Loop:
    """A loop with an agent; its checkpoint holds the state of ``parts``."""

    def __init__(self, make):
        self.make = make

    def __call__(self, agent, folder, dies_at=None, resume=False):
        torch.manual_seed(1)
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        batches, parts = self.make(model)
        agent.expose(**parts)
        held = {"model": model, "optimizer": optimizer, "agent": agent, **parts}
        step = 0
        if resume:
            saved = torch.load(folder / "saved.pt", weights_only=False)
            step = saved.pop("step")
            torch.set_rng_state(saved.pop("random"))
            for name, state in saved.items():
                held[name].load_state_dict(state)
        folder.mkdir(exist_ok=True)
        while step < 40:
            for indices, (x, y) in batches():
                if step + 1 == dies_at:
                    raise Died
                optimizer.zero_grad()
                losses = ((model(x) - y) ** 2).mean(1)
                losses.mean().backward()
                optimizer.step()
                step += 1
                for part in parts.values():
                    if hasattr(part, "observe"):
                        part.observe(indices, losses=losses.detach())
                agent.emit("step", step=step, loss=losses.mean().item(), indices=indices.tolist())
                if step % 3 == 0:
                    state = {name: part.state_dict() for name, part in held.items()}
                    torch.save({"step": step, "random": torch.get_rng_state(), **state}, folder / "saved.pt")
                if step == 40:
                    break


def dataset():
    return WithIndex(Examples(pairs=True))


def echoed(mode):
    def make(model):
        order = torch.Generator().manual_seed(3)
        loader = torch.utils.data.DataLoader(dataset(), 4, shuffle=True, generator=order)
        echo = Echo(loader, 1.5, mode, augment=None if mode != BEFORE else noised, buffer=8)
        return lambda: echo, {"echo": echo}

    return make


def noised(pair):
    x, y = pair
    return x + torch.randn(4), y


def selected(method):
    def make(model):
        selection = Selection(24, 4, method, loss="mse", switch="on", epochs=8)
        loader = torch.utils.data.DataLoader(dataset(), batch_sampler=selection)
        return lambda: loader, {"selection": selection}

    return make


def prioritized(model):
    sampler = Prioritized(24, model, 4, "loss", loss="mse", switch="on")
    loader = torch.utils.data.DataLoader(dataset(), batch_sampler=sampler)
    return lambda: loader, {"selection": sampler}


def estimated(model):
    progress = Progress(6, max_steps=40)
    loader = torch.utils.data.DataLoader(dataset(), 4)
    place = iter(())

    def batches():
        nonlocal place
        inside = progress.steps - progress.epoch * 6
        place = (batch for number, batch in enumerate(loader) if number >= inside)
        return progress.train(place)

    return batches, {"progress": progress}


def all_together(model):
    selection = Selection(24, 4, loss="mse", switch="on", epochs=8)
    echo = Echo(torch.utils.data.DataLoader(dataset(), batch_sampler=selection), 2, BATCH)
    progress = Progress(echo, max_steps=40)
    return lambda: progress.train(echo), {"echo": echo, "selection": selection, "progress": progress}


ECHO, SELECTION = "steps epoch fresh seen dropped fill factor", "steps epoch taken given table.trained_instances"
SYSTEMS = {
    **{f"echo {mode}": (echoed(mode), [shown("echo", ECHO)]) for mode in (BEFORE, AFTER, BATCH, SHUFFLED)},
    **{f"selection {method}": (selected(method), [shown("selection", SELECTION)]) for method in ("norm", "uniform")},
    "prioritized": (prioritized, [shown("selection", SELECTION)]),
    "progress": (estimated, [shown("progress", "steps epoch")]),
    "all": (all_together, [shown("echo", ECHO), shown("selection", SELECTION), shown("progress", "steps epoch")]),
}


@pytest.mark.parametrize("system", SYSTEMS)
def test_training_systems(system, tmp_path):
    make, queries = SYSTEMS[system]
    queries = [("step, indices", "step"), *((text, "step") for text in queries)]
    compared(Loop(make), queries, last=40, every=3, folder=tmp_path)
