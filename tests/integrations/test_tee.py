"""The tee: what a job says to real trackers becomes events and streams."""

from __future__ import annotations

import gc
import io
import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

from looptap.integrations import tee
from looptap.testing import pair


@pytest.fixture
def job():
    """Return an agent with a tee, and its client."""
    agent, run = pair("tee", groups=("step", "epoch"))
    with tee.start(agent):
        yield agent, run


def rows(run, tag):
    return [tuple(row) for row in run.stream(tag).values]


def logged(run, *queries):
    return [run.stream(query, on="log") for query in queries]


# ---------------------------------------------------------------- each tracker


def test_what_tensorboard_gets(job, tmp_path):
    _, run = job
    (seen,) = logged(run, "tuple(sorted(logs)), step, source")
    histogram = run.stream("e['weights'].sum()", on="log", when="'weights' in logs")
    with SummaryWriter(str(tmp_path)) as writer:
        for step in range(3):
            writer.add_scalar("train/loss", torch.tensor(1.0 / (step + 1)), step)
        writer.add_scalar(tag="train/loss", scalar_value=0.25, global_step=3)
        writer.add_scalars("lr", {"head": 0.1, "body": 0.01}, 3)
        writer.add_histogram("weights", torch.ones(8), 3)
        writer.add_text("note", "hello", 3)
    assert rows(run, "train/loss") == [(0, 1.0), (1, 0.5), (2, pytest.approx(1 / 3)), (3, 0.25)]
    assert rows(run, "lr/head") == [(3, 0.1)]
    assert [tuple(row) for row in seen.values] == [
        *[(("train/loss",), step, "tensorboard") for step in range(4)],
        (("lr/body", "lr/head"), 3, "tensorboard"), (("weights",), 3, "tensorboard"), (("note",), 3, "tensorboard"),
    ]  # fmt: skip
    assert histogram.values == [8.0]
    assert "weights" not in [stream.name for stream in run.streams]


def test_what_a_progress_bar_shows(job):
    _, run = job
    bar = tqdm(range(3), file=io.StringIO())
    for step in bar:
        bar.set_postfix(loss=f"{1 / (step + 1):.3f}", acc=0.5, phase="train")
    assert rows(run, "loss") == [(0, 1.0), (1, 0.5), (2, 0.333)]
    assert rows(run, "acc") == [(0, 0.5), (1, 0.5), (2, 0.5)]
    assert "phase" not in [stream.name for stream in run.streams]


@pytest.mark.usefixtures("processes")
def test_what_wandb_gets_has_the_step_that_wandb_gives_it(job, tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    for name, value in (("WANDB_MODE", "offline"), ("WANDB_DIR", str(tmp_path)), ("WANDB_SILENT", "true")):
        monkeypatch.setenv(name, value)
    _, run = job
    steps = []
    with wandb.init(project="tee") as there:
        for number in range(3):
            steps.append(there.step)
            wandb.log({"loss": 1.0 / (number + 1), "val": {"acc": 0.5, "deep": {"f1": number}}})
        there.log({"loss": 7.0}, step=10)
        there.log({"late": 8.0}, commit=False)
        steps.append(there.step)
        there.log({"later": 9.0})
        steps.append(there.step)
        wandb.log({"last": 1})
    assert steps == [0, 1, 2, 10, 11]
    assert rows(run, "loss") == [(0, 1.0), (1, 0.5), (2, pytest.approx(1 / 3)), (10, 7.0)]
    assert rows(run, "val/deep/f1") == [(0, 0), (1, 1), (2, 2)]
    assert (rows(run, "late"), rows(run, "later"), rows(run, "last")) == ([(10, 8.0)], [(10, 9.0)], [(11, 1)])


@pytest.mark.usefixtures("processes")
def test_what_wandb_gets_is_seen_if_its_run_began_before(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    for name, value in (("WANDB_MODE", "offline"), ("WANDB_DIR", str(tmp_path)), ("WANDB_SILENT", "true")):
        monkeypatch.setenv(name, value)
    agent, run = pair("tee")
    with wandb.init(project="tee"):
        log = wandb.log
        with tee.start(agent):
            log({"loss": 1.0})
        log({"loss": 2.0})
    assert rows(run, "loss") == [(0, 1.0)]


@pytest.mark.usefixtures("processes")
def test_what_mlflow_gets(job, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    _, run = job
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    from mlflow import log_metric

    with mlflow.start_run():
        log_metric("loss", 0.5, step=3)
        mlflow.log_metrics({"acc": 0.9, "f1": 0.8}, step=4)
        mlflow.log_param("lr", 0.1)
    assert (rows(run, "loss"), rows(run, "acc"), rows(run, "f1")) == ([(3, 0.5)], [(4, 0.9)], [(4, 0.8)])


def test_what_trackio_gets(job, tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))
    trackio = pytest.importorskip("trackio")
    _, run = job
    trackio.init(project="tee", embed=False)
    trackio.log({"loss": 0.5, "val": {"acc": 0.25}})
    trackio.log({"loss": 0.25}, step=7)
    trackio.log({"loss": 0.125})
    trackio.finish()
    assert rows(run, "loss") == [(0, 0.5), (7, 0.25), (8, 0.125)]
    assert rows(run, "val/acc") == [(0, 0.25)]


# ---------------------------------------------------------------- what it leaves alone


def test_a_tag_of_two_trackers_is_in_the_stream_of_the_first(job, tmp_path):
    _, run = job
    (sources,) = logged(run, "source")
    bar = tqdm([0], file=io.StringIO())
    with SummaryWriter(str(tmp_path)) as writer:
        for step in range(3):
            writer.add_scalar("loss", step, step)
            bar.set_postfix(loss=step)
    assert rows(run, "loss") == [(step, step) for step in range(3)]
    assert sources.values == ["tensorboard", "tqdm"] * 3


def test_a_stream_of_the_job_keeps_its_name(job, tmp_path, caplog):
    agent, run = job
    agent.log(mine=1.0)
    agent.stream("asked", "step", on="step")
    with SummaryWriter(str(tmp_path)) as writer:
        for name in ("mine", "asked", "looptap.commands", "a" * 200, "fine"):
            writer.add_scalar(name, 2.0, 0)
            writer.add_scalar(name, 3.0, 1)
    assert run.stream("mine").values == [1.0]
    assert rows(run, "fine") == [(0, 2.0), (1, 3.0)]
    assert run.stream("asked").values == []


def test_tags_are_bounded(job, tmp_path):
    _, run = job
    (seen,) = logged(run, "len(logs)")
    with SummaryWriter(str(tmp_path)) as writer:
        for number in range(300):
            writer.add_scalar(f"tag{number}", 1.0, 0)
    assert len(seen.values) == 300
    assert len(run.streams) == 200


def test_values_that_are_no_numbers_are_only_passed_on(job, tmp_path):
    _, run = job
    kinds = (np.float32(1.5), np.int64(2), torch.tensor([3.0]), True)
    odd = ("text", None, torch.ones(2), object(), 1j, torch.tensor(1j), {})
    bar = tqdm([0], file=io.StringIO())
    for value in (*kinds, *odd):
        bar.set_postfix({"value": value})
    assert [float(np.ravel(row[1])[0]) for row in rows(run, "value")] == [1.5, 2.0, 3.0, 1.0]


class Strange(dict):
    """A dict that fails when the tee reads it, and not for the tracker."""

    def items(self):
        raise OSError("not now")


def test_nothing_of_it_raises_into_the_job(job, tmp_path, caplog):
    _, run = job
    with SummaryWriter(str(tmp_path)) as writer:
        with pytest.raises(OSError, match="not now"):
            writer.add_scalars("main", Strange(loss=1.0), 0)  # what the method itself raises, and once
        with pytest.raises(TypeError, match="tag"):
            writer.add_scalar(scalar_value=1)
        writer.add_scalar("after", 1.0, 0)
    assert caplog.text.count("not now") == 1
    assert rows(run, "after") == [(0, 1.0)]


def test_the_last_one_puts_the_methods_back():
    before = vars(SummaryWriter)["add_scalar"], vars(tqdm)["set_postfix"]
    pairs = [pair(name) for name in "ab"]
    first, second = (tee.start(one.agent) for one in pairs)
    agent, _ = pair("c")
    third = tee.start(agent, ["tqdm"])
    assert vars(SummaryWriter)["add_scalar"] is not before[0]
    assert vars(SummaryWriter)["add_scalar"].__wrapped__ is before[0]
    for one in (first, second, third):
        one.stop()
    assert (vars(SummaryWriter)["add_scalar"], vars(tqdm)["set_postfix"]) == before


@pytest.mark.parametrize("end", ["closed", "dropped", "closed before"])
def test_it_stops_with_its_agent(end):
    agent, run = pair("ends")
    if end == "closed before":
        agent.close()
    started = tee.start(agent)
    if end == "closed":
        assert hasattr(tqdm.set_postfix, "__wrapped__")
        agent.close()
    elif end == "dropped":
        run.close()
        del agent, run
        gc.collect()
    assert started.agent is None
    assert not hasattr(tqdm.set_postfix, "__wrapped__")


def test_two_agents_and_chosen_sources(tmp_path):
    (one, first), (two, second) = pair("one"), pair("two")
    with tee.start(one), tee.start(two, ["tensorboard"]), SummaryWriter(str(tmp_path)) as writer:
        writer.add_scalar("both", 1.0, 0)
        tqdm([0], file=io.StringIO()).set_postfix(bar=1)
    assert rows(first, "both") == rows(second, "both") == [(0, 1.0)]
    assert ["bar" in [stream.name for stream in run.streams] for run in (first, second)] == [True, False]
    with pytest.raises(ValueError, match=r"'neptune'.*tensorboard"):
        tee.start(one, ["neptune"])


def python(code):
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, env=os.environ)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.usefixtures("processes")
def test_a_tracker_that_is_imported_later_is_seen_and_none_is_imported_for_it():
    printed = python("""
        import sys
        from looptap.integrations import tee
        from looptap.testing import pair
        agent, run = pair("later")
        noted = tee.start(agent)
        assert [m for m in sys.modules if m.split(".")[0] in ("wandb", "mlflow", "trackio", "tqdm", "torch")] == []
        import io, tqdm, importlib.util, inspect
        tqdm.tqdm([0], file=io.StringIO()).set_postfix(loss=2)
        print([tuple(row) for row in run.stream("loss").values])
        print(type(tqdm.std.__loader__).__name__, type(tqdm.std.__spec__.loader).__name__)
        assert len(inspect.getsource(tqdm.std)) > 1000
        noted.stop()
        import torch.utils.tensorboard  # after the end of the tee
        print(hasattr(torch.utils.tensorboard.SummaryWriter.add_scalar, "__wrapped__"))
    """)
    assert printed.splitlines() == ["[(0, 2)]", "SourceFileLoader SourceFileLoader", "False"]


def test_a_call_inside_a_compiled_function_is_left_to_the_tracker(job):
    bar = tqdm([0], file=io.StringIO())

    @torch.compile(backend="eager")
    def step(x):
        bar.set_postfix(loss=1)
        return x + 1

    assert step(torch.ones(1)).item() == 2.0


@pytest.mark.usefixtures("processes")
@pytest.mark.promise("tee")
def test_a_forked_child_says_nothing_and_unwraps(tmp_path):
    agent, run = pair("parent")
    with tee.start(agent), SummaryWriter(str(tmp_path)) as writer:
        writer.add_scalar("loss", 1.0, 0)
        child = os.fork()
        if not child:
            code = 1
            try:
                # a writer of its own: TensorBoard's thread may have held the lock of the other at the fork
                SummaryWriter(str(tmp_path / "child")).add_scalar("loss", 2.0, 1)
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        writer.add_scalar("loss", 3.0, 2)
    assert rows(run, "loss") == [(0, 1.0), (2, 3.0)]


def test_a_logged_tensor_keeps_no_graph_alive(job):
    _, run = job
    weight = torch.ones(1, requires_grad=True)
    loss = (weight * 2).sum()
    bar = tqdm([0], file=io.StringIO())
    bar.set_postfix(loss=loss)
    reference = torch.utils.weak.WeakTensorKeyDictionary()
    reference[loss] = 1
    del loss
    assert len(reference) == 0
    assert rows(run, "loss") == [(0, 2.0)]
