"""The callback for Lightning: events, controls, a training left alone."""

from __future__ import annotations

import sys
import threading

import pytest
import torch
from rank_jobs import printed, started
from small_trainers import Examples, Net, asked, last_lines, lightning

import looptap
from looptap.integrations import harmless
from looptap.testing import pair
from looptap.training.echoing import Echo

pytorch_lightning = pytest.importorskip("pytorch_lightning")
from looptap.integrations.lightning import LightningCallback  # noqa: E402 - which Lightning it is for is known by now

SETTINGS = {
    "plainly": {},
    "with accumulation": {"accumulate_grad_batches": 4},
    "in bfloat16": {"precision": "bf16-mixed"},
    "with clipping and evaluations": {"gradient_clip_val": 0.5, "limit_val_batches": 1.0, "val_check_interval": 2},
}


class At(pytorch_lightning.Callback):
    """Calls a function before the batch that follows ``step`` updates."""

    def __init__(self, step, function):
        self.step, self.function = step, function

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if trainer.global_step == self.step:
            self.function()


def watched(*queries, before=(), callbacks=(), **how):
    """Train with a client that asks ``queries``, (text, event); return all that came."""
    agent, run = pair("pl", groups=("step", "epoch"))
    streams = [run.stream(text, on=on) for text, on in queries]
    at = [At(step, lambda do=do: do(run)) for step, do in before]
    callback = LightningCallback(agent=agent, dirpath=how.pop("dirpath", None))
    trainer, module, ended = lightning(*at, callback, *callbacks, **how)
    return trainer, module, ended, [stream.values for stream in streams], run


@pytest.mark.parametrize("settings", SETTINGS)
def test_a_training_is_the_same_to_the_last_bit(settings):
    how = SETTINGS[settings]
    _, bare, ended = lightning(**how)
    trainer, module, same, (steps, losses, norms), _ = watched(
        ("step, loss", "step"), ("losses", "step"), ("layer_norms(model, 'grad')", "step"), **how
    )
    assert same == ended
    assert [one.item() for one in module.seen] == [one.item() for one in bare.seen]
    parts = how.get("accumulate_grad_batches", 1)
    assert [loss for row in losses for loss in row] == [(one / parts).item() for one in bare.seen]
    assert [row[0] for row in steps] == [*range(1, trainer.global_step + 1)]
    assert all(norms)
    if parts == 1:
        assert [row[1] for row in steps] == [one.item() for one in bare.seen]


def test_each_event_has_what_the_trainer_knows_of_it():
    _, _, _, (steps, epochs, evaluations), _ = watched(
        ("batch[0].shape, optimizer.param_groups[0]['lr'], batch_idx, epoch, model.training", "step"),
        ("epoch, step", "epoch"), ("val_loss, metrics['val_loss'], step", "evaluation"), limit_val_batches=1.0,
    )  # fmt: skip
    assert [(tuple(row[0]), *row[2:]) for row in steps] == [((4, 4), n % 6, n // 6, True) for n in range(12)]
    assert [row[1] for row in steps] == pytest.approx([0.01 * 0.5 ** ((n + 1) // 3) for n in range(12)])
    assert [tuple(row) for row in epochs] == [(0, 6), (1, 12)]
    assert [row[2] for row in evaluations] == [6, 12]
    assert all(row[0] == row[1] > 0 for row in evaluations)


def test_what_self_log_says_is_an_event_and_a_stream_by_its_tag():
    _, module, _, (logged,), run = watched(("e['train/loss'], step, source", "log"))
    assert [row[0] for row in logged] == [one.item() for one in module.seen]
    assert [tuple(row)[1:] for row in logged] == [(n, "lightning") for n in range(12)]
    assert [tuple(row) for row in run.stream("train/loss").values] == [*enumerate(one.item() for one in module.seen)]
    assert pytorch_lightning.LightningModule.log.__code__.co_filename.endswith("core/module.py")


def test_its_end_is_estimated():
    _, _, _, (steps, checks), _ = watched(
        ("progress.steps, progress.stop_at.median", "step"),
        ("progress.train_cost, progress.validation_cost", "evaluation"), max_epochs=4, accumulate_grad_batches=2,
        limit_val_batches=1.0,
    )  # fmt: skip
    assert [tuple(row) for row in steps] == [(n + 1, 4) for n in range(12)]
    assert [tuple(row) for row in checks] == [(9, 18), (6, 12), (3, 6), (0, 0)]  # of 6 batches each


@pytest.mark.parametrize(("event", "how"), [("epoch", {}), ("evaluation", {"val_check_interval": 2})])
def test_early_stopping_is_part_of_the_estimate_and_decides_as_the_trainer_does(event, how):
    early = pytorch_lightning.callbacks.EarlyStopping("val_loss", min_delta=0.5, patience=2)
    trainer, _, _, (checks,), _ = watched(
        ("progress.stop_at, progress.note", event), callbacks=[early], max_epochs=50, limit_val_batches=1.0, **how
    )
    assert trainer.current_epoch < 50
    assert tuple(checks[-1][0]) == (len(checks),) * 3
    assert {row[1] for row in checks} == {""}


def test_clients_set_the_patience_of_its_early_stopping():
    early = pytorch_lightning.callbacks.EarlyStopping("val_loss", min_delta=1e6, patience=2)
    trainer, _, _, _, _ = watched(
        before=[(7, asked(lambda run: run.set("progress.patience", 5, timeout=0)))], callbacks=[early], max_epochs=50,
        limit_val_batches=1.0,
    )  # fmt: skip
    assert early.patience == 5
    assert trainer.current_epoch == 6


def test_clients_stop_it_after_a_step():
    trainer, _, _, _, _ = watched(before=[(3, asked(lambda run: run.stop(timeout=0)))])
    assert trainer.global_step == 4


def test_clients_set_the_learning_rate_under_its_schedule():
    change = asked(lambda run: run.set("optimizer.lr", 0.5, schedule="scale", timeout=0))
    _, _, _, (rates,), run = watched(("optimizer.param_groups[0]['lr']", "step"), before=[(3, change)])
    assert run.outcome(change.id).new == 0.5
    assert rates[3:] == pytest.approx([0.5, 0.5] + [0.25] * 3 + [0.125] * 3 + [0.0625])


def test_a_checkpoint_of_a_client_resumes_in_the_middle_of_an_epoch(tmp_path):
    _, _, ended = lightning()
    save = asked(lambda run: run.checkpoint(timeout=0))
    _, _, same, (saved,), run = watched(("step", "checkpoint"), before=[(5, save)], dirpath=str(tmp_path))
    assert same == ended
    assert saved == [6]
    assert run.outcome(save.id).result == str(tmp_path / "looptap-step=6.ckpt")
    _, _, again, (steps, numbers), _ = watched(
        ("step, loss", "step"), ("event_number", "step"), resume=str(tmp_path / "looptap-step=6.ckpt")
    )
    _, plain, plainly = lightning(resume=str(tmp_path / "looptap-step=6.ckpt"))
    assert again == plainly
    assert [row[1] for row in steps] == [one.item() for one in plain.seen]
    assert [row[0] for row in steps] == numbers == [*range(7, 13)]


def test_a_manual_optimization_of_two_models_has_the_losses_of_both():
    class Two(pytorch_lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False
            self.a, self.b, self.seen = Net(), Net(), []

        def training_step(self, batch, index):
            for optimizer, net in zip(self.optimizers(), (self.a, self.b), strict=True):
                optimizer.zero_grad()
                loss = net(*batch)["loss"]
                self.seen.append(loss.item())
                self.manual_backward(loss)
                optimizer.step()

        def configure_optimizers(self):
            return [torch.optim.SGD(net.parameters(), lr=0.01) for net in (self.a, self.b)]

    _, _, ended = lightning(make=Two)
    _, module, same, (losses, rates, ends), _ = watched(
        ("losses, step", "step"), ("optimizer1.param_groups[0]['lr']", "step"),
        ("progress.steps", "step"), make=Two
    )  # fmt: skip
    assert same == ended
    assert ends == [*range(1, 13)]  # batches, of two updates each
    assert [loss for row in losses for loss in row[0]] == module.seen
    assert [row[1] for row in losses] == [*range(2, 25, 2)]
    assert rates == [0.01] * 12


class Seldom(pytorch_lightning.LightningModule):
    """Updates its weights at each second batch, by its own hand."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.net = Net()

    def training_step(self, batch, index):
        self.manual_backward(self.net(*batch)["loss"])
        if index % 2:
            self.optimizers().step()
            self.optimizers().zero_grad()

    def validation_step(self, batch, index):
        self.log("val_loss", self.net(*batch)["loss"])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def test_the_end_of_a_manual_optimization_is_estimated_in_batches(tmp_path):
    def rest(**how):
        how = {"make": Seldom, "limit_val_batches": 1.0, **how}
        costs = "progress.steps, progress.train_cost, progress.validation_cost"
        return watched((costs, "evaluation"), **how)

    _, _, ended = lightning(make=Seldom, limit_val_batches=1.0)
    trainer, _, same, (rows,), _ = rest()
    assert same == ended
    assert [tuple(row) for row in rows] == [(6, 6, 6), (12, 0, 0)]
    trainer.save_checkpoint(tmp_path / "end.ckpt")
    rows = rest(resume=tmp_path / "end.ckpt", max_epochs=3)[3][0]
    assert [tuple(row)[:2] for row in rows] == [(6, 0)]
    early = pytorch_lightning.callbacks.EarlyStopping("val_loss", min_delta=1e6, patience=2)
    trainer, _, _, (stops,), _ = watched(
        ("progress.stop_at", "epoch"), callbacks=[early], make=Seldom, max_epochs=50, limit_val_batches=1.0
    )
    assert trainer.current_epoch == 3
    assert tuple(stops[-1]) == (3, 3, 3)
    values = rest(max_epochs=2, max_steps=5)[3][0]
    assert values == []  # how many batches are five updates is not known


def test_an_echo_that_feeds_it_is_turned():
    loader = Echo(torch.utils.data.DataLoader(Examples(pairs=True), 4), factor=2)
    turn = asked(lambda run: run.set("echo.factor", 3, timeout=0))
    _, _, _, (factors,), run = watched(("echo.factor", "step"), before=[(4, turn)], loader=loader, max_epochs=1)
    assert factors[:4] == [2] * 4
    assert factors[-1] == 3
    assert run.outcome(turn.id).new == 3


def test_its_own_agent_ends_with_an_exception_of_the_training(tmp_path, monkeypatch):
    monkeypatch.setenv("LOOPTAP_DIR", str(tmp_path))
    callback, seen = LightningCallback(), []

    def fail():
        seen.append(callback.run.agent.name)
        raise OSError("the disk")

    with pytest.raises(OSError, match="the disk"):
        lightning(At(2, fail), callback)
    assert seen == ["Module"]
    assert callback.run.agent is None


def test_nothing_of_it_raises_into_the_training(monkeypatch, caplog):
    _, _, ended = lightning()
    callback = LightningCallback(agent=pair("pl", groups=("step", "epoch")).agent)
    monkeypatch.setattr(harmless, "_said", set())  # each kind is logged once in a process
    monkeypatch.setattr(type(callback.run), "emit", lambda *_: 1 / 0)
    _, _, same = lightning(callback)
    assert same == ended
    assert "ZeroDivisionError" in caplog.text


RANKS = """
import sys, torch, warnings
warnings.simplefilter("ignore")
torch.set_num_threads(1)
from small_trainers import lightning
callbacks, how = [], {}
if sys.argv[1] != "bare":
    from looptap.integrations.lightning import LightningCallback
    callbacks = [LightningCallback("ranks", dirpath=sys.argv[2])]
if sys.argv[1] == "stopped":
    how = {"max_epochs": 100_000}
how |= {"accumulate_grad_batches": 2, "precision": "bf16-mixed"}
trainer, module, ended = lightning(*callbacks, strategy="ddp", devices=2, **how)
shown = trainer.global_step if sys.argv[1] == "stopped" else [one.item() for one in module.seen]
print("ended", ended, shown, flush=True)
"""


@pytest.mark.usefixtures("processes")
def test_two_ranks_train_the_same_with_accumulation_in_bfloat16(tmp_path):
    command = [sys.executable, "-c", RANKS]
    bare, same = (printed(tmp_path, [*command, kind, str(tmp_path)], 2) for kind in ("bare", "watched"))
    assert last_lines(bare) == last_lines(same)


@pytest.mark.usefixtures("processes")
def test_two_ranks_save_and_stop_together_or_not_at_all(tmp_path):
    texts = []
    command = [sys.executable, "-c", RANKS, "stopped", str(tmp_path / "saved")]
    job = threading.Thread(target=lambda: texts.extend(printed(tmp_path, command, 2)))
    job.start()
    run = started(tmp_path, 2, "ranks").attach()
    with pytest.raises(looptap.ControlError, match="all ranks of this job together"):
        run.checkpoint(ranks=0)
    saved = run.checkpoint(timeout=300)
    assert (tmp_path / "saved" / f"looptap-step={saved.number}.ckpt").exists()
    stopped = run.stop(timeout=300)
    job.join(300)
    lines = last_lines(texts)
    assert lines[0] == lines[1]
    assert lines[0].endswith(f" {stopped.number}")
