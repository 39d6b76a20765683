"""The callback for transformers: events, controls, a training left alone."""

from __future__ import annotations

import sys
import threading

import pytest
import torch
from rank_jobs import printed, started
from small_trainers import Examples, Net, asked, hugging_face, last_lines, losses_of

import looptap
from looptap.integrations.hugging_face import HuggingFaceCallback
from looptap.testing import pair
from looptap.training.echoing import Echo

transformers = pytest.importorskip("transformers")

SETTINGS = {
    "plainly": {},
    "with accumulation": {"gradient_accumulation_steps": 4},
    "in bfloat16": {"bf16": True},
    "with evaluations": {"eval_strategy": "steps", "eval_steps": 2},
}


class At(transformers.TrainerCallback):
    """Calls a function when a step begins."""

    def __init__(self, step, function):
        self.step, self.function = step, function

    def on_step_begin(self, args, state, control, **what):
        if state.global_step == self.step:
            self.function()


def watched(*queries, before=(), callbacks=(), **how):
    """Train with a client that asks ``queries``, (text, event); return all that came."""
    agent, run = pair("hf", groups=("step", "epoch"))
    streams = [run.stream(text, on=on) for text, on in queries]
    trainer, ended = hugging_face(*[At(step, lambda do=do: do(run)) for step, do in before],
                                  HuggingFaceCallback(agent=agent), *callbacks, **how)  # fmt: skip
    return trainer, ended, [stream.values for stream in streams], run


@pytest.mark.parametrize("settings", SETTINGS)
def test_a_training_is_the_same_to_the_last_bit(settings):
    how = SETTINGS[settings]
    bare, ended = hugging_face(**how)
    trainer, same, (steps, norms), _ = watched(("step, loss", "step"), ("layer_norms(model, 'grad')", "step"), **how)
    assert same == ended
    assert losses_of(trainer) == losses_of(bare)
    assert [loss for _, loss in steps] == losses_of(bare)
    assert [step for step, _ in steps] == [*range(1, trainer.state.global_step + 1)]
    assert all(norms)


def test_the_last_accumulation_of_an_epoch_may_be_shorter():
    trainer, _, (steps,), _ = watched(("len(batches), len(losses), loss", "step"), gradient_accumulation_steps=4)
    assert [tuple(row)[:2] for row in steps] == [(4, 4), (2, 2)] * 2
    assert [row[2] for row in steps] == losses_of(trainer)


def test_each_event_has_what_the_trainer_knows_of_it():
    _, _, (batches, epochs, evaluations, logs, checkpoints), _ = watched(
        ("batch['x'].shape, optimizer.param_groups[0]['lr'], state.max_steps, type(model).__name__", "step"),
        ("epoch, step", "epoch"), ("eval_loss, metrics['eval_loss'], step", "evaluation"),
        ("logs.get('grad_norm', 0) > 0, source", "log"), ("path, step", "checkpoint"),
        eval_strategy="epoch", save_strategy="epoch",
    )  # fmt: skip
    assert [(tuple(row[0]), *row[2:]) for row in batches] == [((4, 4), 12, "Net")] * 12
    assert [tuple(row) for row in epochs] == [(1.0, 6), (2.0, 12)]
    assert [row[2] for row in evaluations] == [6, 12]
    assert all(row[0] == row[1] > 0 for row in evaluations)
    assert sum(row[0] for row in logs) == 12
    assert {row[1] for row in logs} == {"transformers"}
    assert [row[0].rpartition("/")[2] for row in checkpoints] == ["checkpoint-6", "checkpoint-12"]


def test_what_the_trainer_logs_is_a_stream_by_its_tag():
    trainer, _, _, run = watched()
    rows = run.stream("loss").values
    assert [tuple(row) for row in rows] == [*enumerate(losses_of(trainer), 1)]


def test_a_step_is_also_a_batch_unless_the_agent_has_such_events():
    agent, run = pair("named", groups=("step", "epoch"))
    callback = HuggingFaceCallback(agent=agent)
    named, unnamed = run.stream("step, loss", on="batch"), run.stream("step, loss")
    trainer, _ = hugging_face(callback)
    assert [row.loss for row in named.values] == [row.loss for row in unnamed.values] == losses_of(trainer)


def test_an_agent_that_has_events_batch_of_its_own_keeps_them():
    agent, run = pair("own", groups=("batch", "epoch"))
    callback, stream = HuggingFaceCallback(agent=agent), run.stream("n", on="batch")
    hugging_face(At(2, lambda: agent.emit("batch", n=1)), callback)
    assert stream.values == [1]


@pytest.mark.usefixtures("processes")
def test_its_own_agent_names_its_steps_so(tmp_path, monkeypatch):
    monkeypatch.setenv("LOOPTAP_DIR", str(tmp_path))
    callback, seen = HuggingFaceCallback("own"), []

    def look():
        with looptap.attach("own") as run:
            stream = run.stream("step", budget=float("inf"))
            seen.append(stream)
            callback.run.emit("step", {"step": 99})
            stream.wait(1, timeout=300)

    hugging_face(At(2, look), callback)
    assert seen[0].values == [99]


def test_its_end_is_estimated():
    _, _, (steps, checks), _ = watched(
        ("progress.steps, progress.stop_at.median", "step"), ("progress.report", "evaluation"),
        num_train_epochs=4, gradient_accumulation_steps=2, eval_strategy="epoch",
    )  # fmt: skip
    assert [tuple(row) for row in steps] == [(n + 1, 4) for n in range(12)]
    assert [report["train_cost"] for report in checks] == [9, 6, 3, 0]
    assert [report["validation_cost"] for report in checks] == [9, 6, 3, 0]  # of 3 batches each
    assert checks[-1]["validation_speed"] > 0


def test_early_stopping_is_part_of_the_estimate_and_decides_as_the_trainer_does():
    trainer, _, (checks,), _ = watched(
        ("progress.stop_at, progress.unless_better, progress.note", "evaluation"), num_train_epochs=50,
        callbacks=[transformers.EarlyStoppingCallback(2)], eval_strategy="steps", eval_steps=2,
        metric_for_best_model="loss", load_best_model_at_end=True, save_strategy="steps", save_steps=2,
    )  # fmt: skip
    assert trainer.state.global_step == 2 * len(checks) < 300
    assert tuple(checks[-1][0]) == (len(checks),) * 3
    assert checks[-2][1] == 1  # in one, unless it is better
    assert {row[2] for row in checks} == {""}


def test_a_job_that_shows_a_progress_of_its_own_keeps_it():
    agent, run = pair("own", groups=("step", "epoch"))
    agent.expose(progress=7)
    stream = run.stream("progress", on="step")
    hugging_face(HuggingFaceCallback(agent=agent))
    assert set(stream.values) == {7}


def test_the_next_training_of_an_agent_has_its_own_estimate():
    agent, run = pair("twice", groups=("step", "epoch"))
    stream = run.stream("progress.steps", on="step")
    for _ in range(2):
        hugging_face(HuggingFaceCallback(agent=agent))
    assert stream.values == [*range(1, 13)] * 2


def test_clients_set_the_patience_of_its_early_stopping():
    early = transformers.EarlyStoppingCallback(2, 1e6)
    trainer, _, _, _ = watched(
        before=[(7, asked(lambda run: run.set("progress.patience", 5, timeout=0)))], callbacks=[early],
        num_train_epochs=50, eval_strategy="epoch", metric_for_best_model="loss",
        load_best_model_at_end=True, save_strategy="epoch",
    )  # fmt: skip
    assert early.early_stopping_patience == 5
    assert trainer.state.epoch == 6


def test_clients_stop_it_after_a_step():
    trainer, _, _, _ = watched(before=[(3, asked(lambda run: run.stop(timeout=0)))])
    assert trainer.state.global_step == 4


def test_clients_set_the_learning_rate_under_its_schedule():
    change = asked(lambda run: run.set("optimizer.lr", 0.001, schedule="freeze", timeout=0))
    _, _, (rates,), run = watched(("optimizer.param_groups[0]['lr']", "step"), before=[(3, change)])
    assert run.outcome(change.id).new == 0.001
    assert rates[:2] == pytest.approx([0.05, 0.05 * 11 / 12])
    assert rates[4:] == [0.001] * 8


def test_a_checkpoint_of_a_client_resumes_as_one_of_the_trainer(tmp_path):
    bare, ended = hugging_face()
    save = asked(lambda run: run.checkpoint(timeout=0))
    _, same, (saved,), run = watched(("path", "checkpoint"), before=[(7, save)], folder=str(tmp_path))
    assert same == ended
    assert saved == [run.outcome(save.id).result] == [f"{tmp_path}/checkpoint-8"]
    _, again, (steps, numbers), _ = watched(
        ("step, loss", "step"), ("event_number", "step"), folder=str(tmp_path), resume=f"{tmp_path}/checkpoint-8"
    )
    assert again == ended
    assert [step for step, _ in steps] == numbers == [9, 10, 11, 12]
    assert [loss for _, loss in steps] == losses_of(bare)[8:]


def test_a_checkpoint_before_a_change_holds_what_was_before_it(tmp_path):
    change = asked(lambda run: run.set("optimizer.lr", 9.0, schedule="freeze", checkpoint=True, timeout=0))
    _, _, _, run = watched(before=[(3, change)], folder=str(tmp_path))
    assert run.outcome(change.id).new == 9.0
    state = torch.load(tmp_path / "checkpoint-4" / "optimizer.pt", weights_only=True)
    assert state["param_groups"][0]["lr"] < 0.05


def test_an_echo_that_feeds_it_is_turned(tmp_path):
    class Echoing(transformers.Trainer):
        def get_train_dataloader(self):
            return Echo(super().get_train_dataloader(), factor=2)

    agent, run = pair("hf", groups=("step", "epoch"))
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), use_cpu=True, report_to=[], disable_tqdm=True, max_steps=4, save_strategy="no"
    )
    callbacks = [HuggingFaceCallback(agent=agent)]
    trainer = Echoing(model=Net(), args=arguments, train_dataset=Examples(), callbacks=callbacks)
    seen = run.stream("echo.factor", on="step")
    trainer.train()
    assert seen.values == [2] * 4


def test_the_trainer_is_left_as_it_was():
    trainer, _, _, _ = watched()
    assert "training_step" not in vars(trainer)


def test_its_own_agent_has_the_name_and_the_settings_and_ends_with_the_training(tmp_path, monkeypatch):
    monkeypatch.setenv("LOOPTAP_DIR", str(tmp_path / "runs"))
    callback = HuggingFaceCallback(store=tmp_path / "run.looptap")
    seen = []
    look = At(2, lambda: seen.append(callback.run.agent.name))
    hugging_face(callback, look, folder=str(tmp_path / "bert-tiny"))
    assert seen == ["bert-tiny"]
    assert callback.run.agent is None


def test_nothing_of_it_raises_into_the_training(monkeypatch, caplog):
    _, ended = hugging_face()
    agent, _ = pair("hf", groups=("step", "epoch"))
    callback = HuggingFaceCallback(agent=agent)
    monkeypatch.setattr(type(callback.run), "emit", lambda *_: 1 / 0)
    _, same = hugging_face(callback)
    assert same == ended
    assert "ZeroDivisionError" in caplog.text


class Enough(Exception):
    """What the user asked to be raised."""


def test_what_the_user_asked_to_be_raised_is():
    agent, run = pair("hf", groups=("step", "epoch"), on_stop=Enough)
    stop = asked(lambda run: run.stop(timeout=0))
    with pytest.raises(Enough):
        hugging_face(At(2, lambda: stop(run)), HuggingFaceCallback(agent=agent))


def test_wrong_arguments_raise_at_once():
    with pytest.raises(TypeError, match="budgte"):
        HuggingFaceCallback("a", budgte=1)
    with pytest.raises(ValueError, match="a/b"):
        HuggingFaceCallback("a/b")
    with pytest.raises(TypeError, match="not both"):
        HuggingFaceCallback("a", agent=pair("b").agent)


RANKS = """
import sys, tempfile, torch, warnings
warnings.simplefilter("ignore")
torch.set_num_threads(1)
from small_trainers import hugging_face, losses_of
callbacks, how = [], {"max_steps": 4}
if sys.argv[1] != "bare":
    from looptap.integrations.hugging_face import HuggingFaceCallback
    callbacks = [HuggingFaceCallback("ranks")]
if sys.argv[1] == "stopped":
    how = {"max_steps": 1_000_000, "folder": sys.argv[2]}
trainer, ended = hugging_face(*callbacks, ddp_backend="gloo", gradient_accumulation_steps=2, bf16=True, **how)
print("ended", ended, losses_of(trainer) if sys.argv[1] != "stopped" else trainer.state.global_step, flush=True)
"""


@pytest.mark.usefixtures("processes")
def test_two_ranks_train_the_same_with_accumulation_in_bfloat16(tmp_path):
    bare, same = (printed(tmp_path, [sys.executable, "-c", RANKS, kind], 2) for kind in ("bare", "watched"))
    assert last_lines(bare) == last_lines(same)
    assert len({line.rpartition(" [")[0] for line in last_lines(bare)}) == 1


@pytest.mark.usefixtures("processes")
@pytest.mark.promise("frameworks")
def test_two_ranks_save_and_stop_together_or_not_at_all(tmp_path):
    texts = []
    command = [sys.executable, "-c", RANKS, "stopped", str(tmp_path / "saved")]
    job = threading.Thread(target=lambda: texts.extend(printed(tmp_path, command, 2)))
    job.start()
    run = started(tmp_path, 2, "ranks").attach()
    with pytest.raises(looptap.ControlError, match="all ranks of this job together"):
        run.checkpoint(ranks=0)
    saved = run.checkpoint(timeout=300)
    assert {one.result for one in saved.ranks.values()} == {f"{tmp_path}/saved/checkpoint-{saved.number}"}
    assert (tmp_path / "saved" / f"checkpoint-{saved.number}" / "rng_state_1.pth").exists()
    stopped = run.stop(timeout=300)
    job.join(300)
    lines = last_lines(texts)
    assert lines[0] == lines[1]
    assert lines[0].endswith(f" {stopped.number}")
