"""`looptap progress` of a job without `Progress`: a guess from its events."""

from __future__ import annotations

import io
import json
import math
import os
import sys
from functools import partial

import pytest
import warm
from tqdm import tqdm

import looptap
from looptap.cli import main
from looptap.cli.commands.watching.guess import ONE_PASS, Guess, Passed, bar_place, counted, guess_of
from looptap.client.estimates import said
from looptap.integrations.tee.bars import outer_bar
from looptap.testing import pair, parts_of

JOB = """
import sys, threading, looptap
agent = looptap.Agent("plain", config={"trainer": {"max_steps": 100_000}})
over, step = threading.Event(), 0
threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
while not over.wait(0.005):
    agent.emit("batch", step=step, loss=1.0 / (step + 1))
    step += 1
    if step == 400:
        print("here", flush=True)
agent.close()
"""


SCRIPT = """
import sys, threading, types, torch
from torch.utils.data import DataLoader, TensorDataset
over = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
loader = DataLoader(TensorDataset(torch.randn(16, 4), torch.randint(2, (16,))), 4)
TOTAL
for epoch in range(100_000):
    for x, y in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        over.wait(0.005)
    if epoch == 20:
        print("here", flush=True)
    if over.is_set():
        break
"""

ROWS = "for x, y in [(torch.randn(4, 4), torch.zeros(4, dtype=torch.long))]:"

BARS = """
import sys, threading, torch
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm, trange
over, steps = threading.Event(), []
threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
loader = DataLoader(TensorDataset(torch.randn(16, 4), torch.randint(2, (16,))), 4)
def step(x, y):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    steps.append(len(steps))
    if len(steps) == 20:
        print("here", flush=True)
    if over.wait(0.02):
        sys.exit()
"""
LOOPS = [
    """for turn in tqdm(range(5000), desc="all"):
    for x, y in loader:
        step(x, y)""",
    """for turn in trange(5000, desc="all"):
    for x, y in tqdm(loader, leave=False):
        step(x, y)""",
    """bar = tqdm(total=20_000, desc="all")
for turn in range(5000):
    for x, y in loader:
        step(x, y)
        bar.update()""",
    """for turn in range(500):
    for x, y in tqdm(loader):
        step(x, y)""",
    """for turn in range(500):
    for i, (x, y) in tqdm(enumerate(loader), total=4):
        step(x, y)""",
]


def printed(capsys, *options, name="plain"):
    """Return what `looptap progress` prints once the speed is known."""
    while True:
        with pytest.raises(SystemExit) as ended:
            main(["progress", name, "--count", "1", *options])
        assert ended.value.code == 0
        out = capsys.readouterr().out
        if "is not known yet" not in out and '"remaining":null' not in out.replace(" ", ""):
            return out


@pytest.mark.usefixtures("processes")
@pytest.mark.promise("progress")
def test_a_job_without_progress_has_a_guess(directory, capsys):
    environment = {**os.environ, "LOOPTAP_DIR": str(directory), "LOOPTAP_STORE": str(directory / "runs")}
    pipes = {"stdin": warm.PIPE, "stdout": warm.PIPE}
    with warm.Popen([sys.executable, "-c", JOB], env=environment, text=True, **pipes) as job:
        assert job.stdout.readline() == "here\n"
        out = printed(capsys)
        assert "a guess: " in out
        assert " to go (" in out
        report = json.loads(printed(capsys, "--json"))
        assert "max_steps of the config, 100,000" in report["guess"]
        assert report["remaining"][0] > 60
        assert 0 < report["fraction"] < 0.2
        job.stdin.close()


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize(
    ("number", "total", "source"),
    [
        ("epoch", "EPOCHS = 100_000; args = types.SimpleNamespace(epochs=3)", "EPOCHS of the job"),
        ("ep", "args = types.SimpleNamespace(epochs=100_000)", "args.epochs of the job"),
    ],
)
def test_a_script_without_a_line_of_looptap_has_a_guess(directory, tmp_path, capsys, number, total, source):
    (tmp_path / "train.py").write_text(SCRIPT.replace("TOTAL", total).replace("epoch ", f"{number} "))
    environment = {**os.environ, "LOOPTAP_DIR": str(directory), "LOOPTAP_STORE": str(directory / "runs")}
    command = [sys.executable, "-m", "looptap", "run", "train.py"]
    pipes = {"stdin": warm.PIPE, "stdout": warm.PIPE}
    with warm.Popen(command, env=environment, text=True, cwd=tmp_path, **pipes) as job:
        assert job.stdout.readline() == "here\n"
        with pytest.raises(SystemExit):
            main(["progress", "train", "--count", "20", "--throttle", "0.05", "--json"])
        report = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert report["guess"] == f"{number} of 'step' and {source}, 100,000"
        assert report["remaining"][0] > 60
        assert 20 / 100_000 < report["fraction"] < 0.1
        assert report["overhead"] == 0
        job.stdin.close()


@pytest.mark.usefixtures("processes")
def test_the_error_for_a_script_without_a_known_end_says_what_a_guess_needs(directory, tmp_path, capsys):
    (tmp_path / "train.py").write_text(SCRIPT.replace("TOTAL", "").replace("epoch ", "turn "))
    environment = {**os.environ, "LOOPTAP_DIR": str(directory), "LOOPTAP_STORE": str(directory / "runs")}
    command = [sys.executable, "-m", "looptap", "run", "train.py"]
    pipes = {"stdin": warm.PIPE, "stdout": warm.PIPE}
    with warm.Popen(command, env=environment, text=True, cwd=tmp_path, **pipes) as job:
        assert job.stdout.readline() == "here\n"
        with pytest.raises(SystemExit) as ended:
            main(["progress", "train"])
        assert ended.value.code == 1
        assert "The end can be guessed from max_steps or epochs in its config, from" in capsys.readouterr().err
        job.stdin.close()


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize(("number", "total"), [("episode", "NUM_EPISODES"), ("iter_num", "MAX_ITERS")])
def test_a_loop_of_episodes_or_iterations_has_a_guess(directory, tmp_path, number, total):
    text = SCRIPT.replace("TOTAL", f"{total} = 100_000").replace("epoch", number).replace("for x, y in loader:", ROWS)
    (tmp_path / "train.py").write_text(text)
    environment = {**os.environ, "LOOPTAP_DIR": str(directory), "LOOPTAP_STORE": str(directory / "runs")}
    command = [sys.executable, "-m", "looptap", "run", "train.py"]
    pipes = {"stdin": warm.PIPE, "stdout": warm.PIPE}
    with warm.Popen(command, env=environment, text=True, cwd=tmp_path, **pipes) as job:
        assert job.stdout.readline() == "here\n"
        with looptap.attach("train") as run:
            found = counted(run)
        job.stdin.close()
    assert (found.name, found.total, found.source) == (number, 100_000, f"{total} of the job")


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("loop", LOOPS)
def test_the_bar_of_tqdm_around_a_loop_is_a_guess(directory, tmp_path, capsys, loop):
    one_pass = ONE_PASS if loop.startswith("for turn in range") else ""
    (tmp_path / "train.py").write_text(BARS + loop + "\n")
    environment = {**os.environ, "LOOPTAP_DIR": str(directory), "LOOPTAP_STORE": str(directory / "runs")}
    command = [sys.executable, "-m", "looptap", "run", "train.py"]
    pipes = {"stdin": warm.PIPE, "stdout": warm.PIPE, "stderr": warm.DEVNULL}
    with warm.Popen(command, env=environment, text=True, cwd=tmp_path, **pipes) as job:
        assert job.stdout.readline() == "here\n"
        with pytest.raises(SystemExit):
            main(["progress", "train", "--count", "4", "--throttle", "0.05", "--json"])
        report = json.loads(capsys.readouterr().out.splitlines()[-1])
        job.stdin.close()
    assert report["guess"].startswith("the bar 'all' of tqdm, " if not one_pass else "the bar of tqdm, ")
    assert report["note"] == one_pass
    assert said(report)[0].startswith("a guess: ")
    if not one_pass:
        assert report["elapsed"] > 0
        assert report["remaining"][0] > 60
        assert 16 / 20_000 <= report["fraction"] < 0.1


def test_a_bar_that_began_before_counts_from_its_beginning():
    agent, run = pair("bar")
    bar = tqdm(total=1000, initial=100, file=io.StringIO(), mininterval=0)
    stream = run.stream(outer_bar, on="batch", throttle=0.5)
    reports = Guess(stream, "batch", partial(bar_place, first_event=math.inf), 0.0)
    bar.start_t -= 100.0  # so long ago
    bar.update(100)
    agent.emit("batch")
    report = reports.records_after(0)[0].value
    bar.close()
    agent.emit("batch")
    assert reports.records_after(1) == []
    assert report["remaining"][0] == pytest.approx(800.0, rel=0.05)
    assert report["fraction"] == 0.2
    assert report["guess"] == "the bar of tqdm, 200 of 1,000"
    run.close()
    agent.close()


@pytest.mark.usefixtures("processes")
def test_epochs_whose_history_begins_late_are_taken_for_done_as_far_as_they_count():
    now = [0.0]
    agent, run = pair("late", clock=lambda: now[0], history=True, config={"Max_Epochs": 20})
    for _ in range(699):
        agent.emit("batch")
    parts_of(agent).dispatcher.mark_scalars(now[0])
    agent.emit("batch", **{"trainer/epoch": 14})
    what = counted(run)
    assert what.name == "e['trainer/epoch']"
    reports = guess_of(run, 0.0)
    report = None
    for step in range(700, 820):
        now[0] += 2.0
        agent.emit("batch", **{"trainer/epoch": step // 50})
        for record in reports.records_after(0):
            report = record.value
    assert report["fraction"] == pytest.approx(0.82, abs=0.03)
    assert report["remaining"][0] == pytest.approx(180 * 2.0, rel=0.15)
    run.close()
    agent.close()


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize(
    ("config", "carried"),
    [
        ({"max_steps": 1000}, lambda step: {"step": step}),
        ({"epochs": 20}, lambda step: {"step": step, "epoch": step // 50}),
        ({"epochs": 20}, lambda step: {"step": step % 50, "epoch": step // 50}),
    ],
)
def test_a_guess_uses_the_estimator_with_the_times_of_the_events(config, carried):
    now = [0.0]
    agent, run = pair("guessed", clock=lambda: now[0], history=True, config=config)
    agent.emit("batch", **carried(0))
    what = counted(run)
    assert what is not None
    reports = guess_of(run, 0.0)
    report = None
    for step in range(1, 400):
        now[0] += 2.0
        agent.emit("batch", **carried(step))
        for record in reports.records_after(0):
            report = record.value
    assert report["remaining"][0] == pytest.approx(600 * 2.0, rel=0.06)
    assert said(report)[0].startswith("a guess: ")
    run.close()
    agent.close()


def test_a_run_that_does_not_say_where_it_ends_has_no_guess():
    agent, run = pair("endless", history=True)
    agent.emit("batch", step=0)
    assert counted(run) is None
    run.close()
    agent.close()


def test_parts_of_an_epoch_count_once_its_events_are_known():
    epochs = Passed()
    assert [epochs.at(1 + event // 4, event) for event in range(9)] == [0, 0, 0, 0, 1, 1.25, 1.5, 1.75, 2]
