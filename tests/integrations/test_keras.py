"""The callback for Keras on torch: events, controls, a training left alone.

Keras chooses its backend when it is imported, so these trainings run in a process of their own.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import warm
from places import SUPPORT
from rank_jobs import printed

pytest.importorskip("h5py")  # which Keras imports; Keras itself would choose a backend here

PRELUDE = """
import os, sys, pytest, torch
torch.set_num_threads(1)
from small_trainers import asked, keras_fit, keras_model
from looptap.integrations.keras import KerasCallback
from looptap.testing import pair
import keras

class At(keras.callbacks.Callback):
    def __init__(self, step, function):
        super().__init__()
        self.step, self.function, self.number = step, function, 0
    def on_train_batch_begin(self, batch, logs=None):
        if self.number == self.step:
            self.function()
        self.number += 1

def watched(*queries, before=(), checkpoints=None, **how):
    agent, run = pair("keras", groups=("step", "epoch"))
    streams = [run.stream(text, on=on) for text, on in queries]
    at = [At(step, lambda do=do: do(run)) for step, do in before]
    model, history, ended = keras_fit(*at, KerasCallback(agent=agent, checkpoints=checkpoints), **how)
    return model, history, ended, [stream.values for stream in streams], run
"""


def run(code, backend="torch"):
    """Run a program on a backend of Keras; return what it prints."""
    paths = os.pathsep.join([str(SUPPORT), os.environ.get("PYTHONPATH", "")])
    start = warm if backend == "torch" else subprocess  # Keras chooses its backend when it is imported
    done = start.run(
        [sys.executable, "-c", PRELUDE + code], capture_output=True, text=True,
        env={**os.environ, "KERAS_BACKEND": backend, "PYTHONPATH": paths},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.usefixtures("processes")
def test_the_learning_rate_is_asked_for_as_of_any_optimizer():
    run("""
model, *_, (rates,), agent = watched(("lr(optimizer)", "step"))
assert len(rates) > 2 and {*rates} == {float(model.optimizer.learning_rate)}, rates
""")


@pytest.mark.usefixtures("processes")
@pytest.mark.promise("frameworks")
def test_a_training_is_the_same_to_the_last_bit_and_has_the_loss_of_each_step():
    run("""
bare_model, bare, ended = keras_fit()
model, history, same, (steps, norms, means, shapes), agent = watched(
    ("step, loss, logs['loss'], epoch, batch_idx, x.shape[0]", "step"), ("layer_norms(model, 'grad')", "step"),
    ("mean(e.loss for e in events)", "step"), ("activations('dense*', shape)", "step"))
assert same == ended and history == bare
assert shapes == [{"dense_2": (4, 8), "dense_3": (4, 1)}] * 11, shapes
assert [row[0] for row in steps] == [*range(1, 13)]
assert [tuple(row)[3:] for row in steps] == [(n // 6, n % 6, 4) for n in range(12)]
assert len(norms) == 12 and all(norms), norms
assert len(means) == 2, means
running = 0.0
for n, row in enumerate(steps[:6], 1):  # what Keras calls the loss is the mean of the epoch so far
    running += row[1]
    assert abs(row[2] - running / n) < 1e-4 * row[2], row
assert "compute_loss" not in vars(model)
""")


@pytest.mark.usefixtures("processes")
def test_its_number_of_steps_is_shown_for_a_guess_of_its_end():
    run("""
from looptap.cli.commands.watching.guess import counted
_, _, _, (limits,), agent = watched(("step, max_steps", "step"), epochs=3)
assert [tuple(row) for row in limits] == [(n, 18) for n in range(1, 19)]
agent, client = pair("guess", groups=("step", "epoch"), history=True)
found = []
keras_fit(KerasCallback(agent=agent), At(3, lambda: found.append(counted(client))), epochs=3)
assert (found[0].name, found[0].total) == ("step", 18.0), found
""")


@pytest.mark.usefixtures("processes")
def test_its_end_is_estimated():
    run("""
_, _, _, (steps, checks), _ = watched(
    ("progress.steps, progress.stop_at.median", "step"), ("progress.report", "epoch"), epochs=4)
assert [tuple(row) for row in steps] == [(n, 4) for n in range(1, 25)], steps
assert [report["train_cost"] for report in checks] == [18, 12, 6, 0], checks
assert [report["validation_cost"] for report in checks] == [18, 12, 6, 0], checks  # of 6 batches each
assert checks[-1]["validation_speed"] > 0
""")


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize(
    ("rule", "how"),
    [
        ("patience=2", ""),
        ("patience=2, min_delta=0.5, start_from_epoch=3", ""),
        ("patience=3, mode='max'", "validation_freq=2"),
        ("monitor='val_r2', patience=3, baseline=2.0", ""),
        ("monitor='loss', patience=2, min_delta=0.5", ""),
    ],
)
def test_early_stopping_is_part_of_the_estimate_and_decides_as_keras_does(rule, how):
    run(f"""
def model():
    made = keras_model()
    made.compile(optimizer=keras.optimizers.Adam(0.5), loss="mse", metrics=[keras.metrics.R2Score(name="r2")])
    return made
early = dict({rule})
bare, history, ended = keras_fit(
    keras.callbacks.EarlyStopping(**early), model=model(), epochs=60, **dict({how}))
agent, client = pair("early", groups=("step", "epoch"))
checks = client.stream("progress.stop_at, progress.unless_better, progress.note", on="epoch")
_, watched_history, same = keras_fit(
    keras.callbacks.EarlyStopping(**early), KerasCallback(agent=agent), model=model(), epochs=60, **dict({how}))
assert same == ended and watched_history == history
assert len(history["loss"]) < 60
count = len(history[early.get("monitor", "val_loss")])
assert tuple(checks.values[-1][0]) == (count,) * 3, (count, checks.values)
assert {{row[2] for row in checks.values}} == {{""}}, checks.values
""")


@pytest.mark.usefixtures("processes")
def test_clients_set_the_patience_of_its_early_stopping():
    run("""
early = keras.callbacks.EarlyStopping(patience=2, min_delta=1e6)
agent, client = pair("patient", groups=("step", "epoch"))
change = asked(lambda run: run.set("progress.patience", 5, timeout=0))
_, history, _ = keras_fit(early, At(7, lambda: change(client)), KerasCallback(agent=agent), epochs=50)
assert early.patience == 5 and len(history["loss"]) == 6
""")


ACCUMULATING = """
def model():
    made = keras_model()
    made.compile(optimizer=keras.optimizers.Adam(0.01, gradient_accumulation_steps=3), loss="mse", metrics=["mae"])
    return made
"""


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_a_training_with_accumulation_is_the_same_and_a_step_is_an_update(policy):
    run(f"""
keras.mixed_precision.set_global_policy({policy!r})
{ACCUMULATING}
bare, history, ended = keras_fit(model=model())
_, watched_history, same, (steps, losses, before), _ = watched(
    ("step, loss, batch_idx, epoch", "step"), ("losses", "step"), ("len(batches), x.shape[0]", "step"), model=model())
assert same == ended and watched_history == history
assert [row[0] for row in steps] == [1, 2, 3, 4] and [row[2] for row in steps] == [2, 5, 2, 5]
assert [len(row) for row in losses] == [3] * 4 and [tuple(row) for row in before] == [(3, 4)] * 4
assert all(abs(row[1] - sum(parts) / 3) < 1e-6 * row[1] for row, parts in zip(steps, losses))
""")


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_a_training_that_another_callback_restores_is_the_same_and_continues_its_steps(tmp_path, policy):
    run(f"""
keras.mixed_precision.set_global_policy({policy!r})
{ACCUMULATING}
def interrupted_and_restored(fit, folder):
    backup = lambda: keras.callbacks.BackupAndRestore(os.path.join({str(tmp_path)!r}, folder))
    def fail():
        raise KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt):
        fit(At(14, fail), backup(), model=model(), epochs=4)
    return fit(backup(), model=model(), epochs=4)
ended = interrupted_and_restored(keras_fit, "bare")[1:]
agent, client = pair("keras", groups=("step", "epoch"))
stream = client.stream("step, epoch, loss", on="step")
same = interrupted_and_restored(
    lambda *callbacks, **how: keras_fit(KerasCallback(agent=agent), *callbacks, **how), "watched")[1:]
assert same == ended
assert [tuple(row)[:2] for row in stream.values] == [(n + 1, n // 2) for n in range(8)]
""")


RANKS = """
import sys, torch, keras
torch.set_num_threads(1)
torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
keras.utils.set_random_seed(1)
if sys.argv[1] == "bfloat16":
    keras.mixed_precision.set_global_policy("mixed_bfloat16")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)])
data = torch.randn(48, 4, generator=torch.Generator().manual_seed(2))
sampler = torch.utils.data.DistributedSampler(data, 2, rank)
loader = torch.utils.data.DataLoader(data, 4, sampler=sampler)
parallel = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
for epoch in range(3):
    for number, x in enumerate(loader):
        with parallel.no_sync() if number % 2 == 0 else torch.enable_grad():
            loss = (parallel(x).float() - x.sum(1, keepdim=True)).pow(2).mean() / 2
            loss.backward()
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()
            print("step", rank, loss.item().hex(), flush=True)
print("ended", rank, " ".join(float(value.sum()).hex() for value in model.get_weights()), flush=True)
torch.distributed.destroy_process_group()
"""
"""As in Keras' guide to several processes on torch: a loop around DistributedDataParallel, since `fit` has one."""


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_two_ranks_of_a_loop_around_a_keras_model_train_the_same_with_accumulation(tmp_path, place, precision):
    script = tmp_path / "ranks.py"
    script.write_text(RANKS)
    plain = [sys.executable, str(script), precision]
    watching = [sys.executable, "-m", "looptap", "run", "--name", "keras", str(script), precision]
    bare, same = (printed(tmp_path, command, 2) for command in (plain, watching))
    assert bare == same
    assert all(text.count("step") == 9 for text in bare)


@pytest.mark.usefixtures("processes")
def test_mixed_precision_and_a_resumed_training_are_the_same(tmp_path):
    run(f"""
keras.mixed_precision.set_global_policy("mixed_bfloat16")
assert keras_fit()[1:] == watched(("loss", "step"))[1:3]
keras.mixed_precision.set_global_policy("float32")
folder = {str(tmp_path)!r}
save = asked(lambda run: run.checkpoint(timeout=0))
_, _, ended, (saved,), agent = watched(("path, step", "checkpoint"), before=[(4, save)], checkpoints=folder)
path = agent.outcome(save.id).result
assert [tuple(row) for row in saved] == [(path, 5)] and path == os.path.join(folder, "step=5.keras")
resumed = [keras.models.load_model(path) for _ in range(2)]
assert keras_fit(model=resumed[0])[1:] == watched(("loss", "step"), model=resumed[1])[1:3]
_, _, _, (steps,), _ = watched(("step", "step"), model=keras.models.load_model(path), epochs=1)
assert steps == [6, 7, 8, 9, 10, 11]
""")


@pytest.mark.usefixtures("processes")
def test_events_controls_and_streams():
    run("""
change, stop = asked(lambda run: run.set("optimizer.lr", 0.5, timeout=0)), asked(lambda run: run.stop(timeout=0))
_, history, _, (epochs, evaluations, rates, logs), agent = watched(
    ("epoch, val_loss, step", "epoch"), ("loss, mae, step", "evaluation"),
    ("lr(optimizer)", "step"), ("loss, source", "log"), before=[(3, change), (8, stop)])
assert [tuple(row) for row in epochs] == [(n, history["val_loss"][n], step) for n, step in enumerate((6, 9))]
assert [row[0] for row in evaluations] == history["val_loss"]
assert agent.outcome(change.id).new == 0.5 and abs(rates[0] - 0.01) < 1e-6 and rates[3:] == [0.5] * 6
assert {row[1] for row in logs} == {"keras"} and len(agent.stream("mae").values) == 9
""")


@pytest.mark.usefixtures("processes")
def test_another_backend_is_refused_with_the_way_out():
    pytest.importorskip("jax")
    assert "KERAS_BACKEND=torch" in run("""
with pytest.raises(RuntimeError) as refused:
    KerasCallback("a")
print(refused.value)
""", "jax")  # fmt: skip
