"""Progress with an agent: queried, changed, paused, drawn; and on two ranks."""

from __future__ import annotations

import contextlib
import doctest
import json
import os
import subprocess
import sys
import textwrap
import time

import pytest
import warm
from clocks import Clock, trained
from places import ROOT
from programs import need
from waiting import soon

import looptap
from looptap.cli import main
from looptap.cli.top.model import Watcher
from looptap.cli.top.views import vitals
from looptap.client.estimates import Estimates, banded, said
from looptap.streams.loop.loop_observer import LoopObserver
from looptap.testing import pair
from looptap.training.progress import Patience, Progress
from looptap.training.progress.clock_ledger import TRAIN, VALIDATION
from looptap.visualizers.charts.choice import choose


@pytest.fixture
def job():
    """Yield an agent, a run and a `Progress` of 100 epochs of 10 s, after ten."""
    agent, run = pair("job", may_pause=30.0)
    clock = Clock()
    progress = Progress(10, epochs=100, validation=20, rule=Patience(3), clock=clock)
    agent.expose(progress=progress)
    trained(progress, clock, 10, error=lambda epoch: 0.3 + 0.5 / (epoch + 1))
    yield agent, run, progress
    run.close()
    agent.close()


def test_a_query_sees_what_remains_as_a_band_with_names(job):
    agent, run, progress = job
    band = run.stream("progress.remaining.low, progress.remaining.median, progress.remaining.high", on="batch")
    agent.emit("batch")
    low, median, high = band.values[0]
    assert (band.fields, progress.remaining._fields) == (("low", "median", "high"), ("median", "low", "high"))
    assert low < median < high
    assert progress.remaining == (median, low, high)
    assert choose(band.values[0], band.fields, band.on, band.name).kind == "band"


def test_a_change_by_a_client_is_seen_at_the_next_event(job):
    agent, run, progress = job
    seen = run.stream("progress.patience, progress.epochs, progress.stop_at[0], progress.remaining.median", on="batch")

    def turned(name, value):
        with pytest.raises(looptap.CommandPending) as pending:
            run.set(name, value, timeout=0)
        agent.emit("batch")  # here it is set
        agent.emit("batch")
        run.outcome(pending.value.id)
        return seen.values[-1]

    agent.emit("batch")
    before, heard = seen.values[-1], Heard()
    agent.expose(heard=heard)
    patient = turned("progress.patience", 60)
    assert (patient[0], progress.rule) == (60, Patience(60))
    assert patient[2] > before[2]
    assert patient[3] > before[3]
    shorter = turned("progress.epochs", 20)
    assert shorter[1:3] == (20, 20.0)
    assert shorter[3] < 10 * 12 + 1
    assert heard.commands == 2  # after which speeds may be others
    with pytest.raises(looptap.ControlError, match="1 or more"):
        run.set("progress.epochs", 0)


def test_clients_can_follow_progress_by_an_event_of_its_own():
    agent, run = pair("reported")
    clock = Clock()
    progress = Progress(
        10, epochs=4, clock=clock,
        on_update=lambda now: agent.emit("progress", fraction=now.fraction, remaining=now.remaining.median),
    )  # fmt: skip
    reported = run.stream("fraction, remaining", on="progress")
    trained(progress, clock, 4)
    progress.finished()
    assert len(reported.values) >= 8
    assert reported.values[-1] == (1.0, 0.0)
    agent.close()


def test_a_requested_pause_does_not_count_as_training_time():
    agent, run = pair("paused", may_pause=30.0)
    progress = Progress(40, epochs=2)
    agent.expose(progress=progress)
    begun = time.monotonic()
    for step, _ in enumerate(progress.train(range(40))):
        if step == 20:
            with pytest.raises(looptap.CommandPending):
                run.pause(0.4, timeout=0)
        agent.emit("batch", step=step)
    ledger, whole = progress.ledger, time.monotonic() - begun
    assert ledger.suspended >= 0.4
    assert sum(ledger.seconds) + ledger.suspended <= whole
    assert progress.elapsed <= whole - 0.39
    agent.close()


class Heard(LoopObserver):
    """A count of its notifications; a ``broken`` one raises as well."""

    def __init__(self, broken=False):
        self.commands, self.pauses, self.broken = 0, [], broken

    def on_command(self):
        self.commands += 1
        assert not self.broken

    def on_pause(self, seconds):
        self.pauses.append(seconds)
        assert not self.broken


class Doubled:
    """Ten batches times a factor that clients set."""

    factor = looptap.Control(int, default=1, minimum=1, maximum=8, doc="how often a batch is used")

    def __len__(self):
        return 10 * self.factor

    def __iter__(self):
        return iter(range(len(self)))


def test_a_factor_that_a_client_sets_is_seen_at_the_next_event():
    agent, run = pair("echoed", may_pause=30.0)
    clock, loader = Clock(), Doubled()
    progress = Progress(loader, epochs=100, clock=clock)
    agent.expose(progress=progress, echo=loader)
    left = run.stream("progress.train_cost", on="batch")
    for number, _ in enumerate(progress.train(loader)):
        clock.now += 0.5 if number < 6 else 0.001  # first until the speed is known, then less than an estimate holds
        if number == 8:
            with pytest.raises(looptap.CommandPending):
                run.set("echo.factor", 3, timeout=0)
        agent.emit("batch")
        if number == 8:
            break
    assert left.values[-1] == pytest.approx(3 * left.values[-2], rel=0.05)
    agent.close()


def test_two_agents_in_one_process_notify_their_own_progress_only():
    jobs = []
    for name in ("one", "other"):
        agent, run = pair(name, may_pause=30.0)
        clock, heard = Clock(), Heard()
        progress = Progress(10, epochs=100, clock=clock)
        agent.expose(progress=progress, again=progress, heard=heard)
        trained(progress, clock, 2)
        jobs.append((agent, run, progress, heard, clock))
    (agent, run, mine, heard, clock), (other, _, theirs, silent, other_clock) = jobs
    spreads = [progress.remaining.high - progress.remaining.low for progress in (mine, theirs)]
    with pytest.raises(looptap.CommandPending):
        run.set("progress.patience", 5, timeout=0)
    with pytest.raises(looptap.CommandPending):
        run.pause(0.01, timeout=0)
    for one in (agent, other):
        one.emit("batch")
    assert (heard.commands, silent.commands, len(heard.pauses), silent.pauses) == (2, 0, 1, [])
    for progress, its_clock in ((mine, clock), (theirs, other_clock)):
        its_clock.now += 1.0  # of which the pause was a part
        trained(progress, its_clock, 1)
    assert mine.ledger.suspended == pytest.approx(heard.pauses[0])
    assert theirs.ledger.suspended == 0
    wider = [progress.remaining.high - progress.remaining.low for progress in (mine, theirs)]
    assert wider[0] > spreads[0]
    assert wider[1] <= spreads[1]
    for one in (agent, other):
        one.close()


def test_an_error_of_an_exposed_observer_is_contained(caplog):
    agent, run = pair("broken", may_pause=30.0)
    broken, heard = Heard(broken=True), Heard()
    agent.expose(broken=broken, heard=heard)
    with pytest.raises(looptap.CommandPending):
        run.pause(0.01, timeout=0)
    agent.emit("batch")
    assert (broken.commands, heard.commands, len(broken.pauses), len(heard.pauses)) == (1, 1, 1, 1)
    assert len([r for r in caplog.records if "Heard" in r.getMessage()]) == 2
    assert run.commands[-1]["outcome"] == "done"
    agent.close()


def test_a_long_pause_leaves_the_speed_as_it_was():
    clock = Clock()
    progress = Progress(10, epochs=100, validation=20, clock=clock)
    trained(progress, clock, 20)
    clock.now += 3600.0
    progress.on_pause(3600.0)
    assert progress.elapsed == 20 * 12  # at the event of the pause, too
    for _ in progress.train(range(1)):
        clock.now += 1.0
    assert progress.ledger.rate(TRAIN, 60.0) == pytest.approx(4, rel=0.1)
    assert progress.elapsed == 20 * 12 + 1


def test_examples_on_the_page_run():
    page = ROOT / "docs" / "progress.md"
    assert doctest.testfile(str(page), module_relative=False) == (0, 8)


# ---------------------------------------------------------------- the command

JOB = """
import sys, threading, time, looptap
from looptap.training.progress import Patience, Progress

agent = looptap.Agent("shown")
progress = Progress(20, epochs=500, validation=50, rule=Patience(4))
agent.expose(progress=progress, other=3)
threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
over, step = threading.Event(), 0
for epoch in range(500):
    for batch in progress.train(range(20)):
        over.wait(0.004)
        agent.emit("batch", step=step)
    for batch in progress.validate([[0] * 25] * 2):
        over.wait(0.004)
    if epoch == 2:
        print("here", flush=True)
    progress.validated(0.9 / (epoch + 1) if epoch < 6 else float("nan") if epoch == 6 else 0.5)
    if over.is_set():
        break
progress.finished()
agent.emit("batch", step=-1)
agent.close("the job is done")
"""


@pytest.mark.usefixtures("processes")
def test_the_command_shows_a_bar_lines_or_json_and_says_what_is_missing(directory, capsys):
    environment = {**os.environ, "LOOPTAP_DIR": str(directory), "PYTHONWARNINGS": "ignore"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with warm.Popen([sys.executable, "-c", JOB], env=environment, text=True, **pipes) as job:

        def looptap_progress(*arguments, run="shown"):
            with pytest.raises(SystemExit) as ended:
                main(["progress", run, *arguments])
            return ended.value.code, capsys.readouterr()

        assert job.stdout.readline() == "here\n"
        code, shown = looptap_progress("--count", "2", "--throttle", "0.05")
        assert code == 0
        lines = shown.out.splitlines()
        assert len(lines) == 2
        assert all(" to go (" in line and "validation " in line and "/s" in line for line in lines)
        code, shown = looptap_progress("--count", "1", "--json")
        report = json.loads(shown.out)
        median, low, high = report["remaining"]
        assert code == 0
        assert low < median < high
        assert 0 < report["fraction"] < 1
        assert report["run"].startswith("shown-")
        code, shown = looptap_progress("--timeout", "0.5", "--throttle", "0.05")
        assert (code, shown.err) == (0, "")
        code, shown = looptap_progress("--count", "9999", "--timeout", "0.1")
        assert code == 1
        assert " of 9,999 reports of shown-" in shown.err
        assert looptap_progress("--name", "nothing", "--throttle", "0")[1].err.count("agent.expose(progress=") == 1
        code, shown = looptap_progress("--name", "other", "--throttle", "0")
        assert code == 1
        assert "shows no progress as 'other'" in shown.err
        assert "there are:" not in shown.err

        with looptap.attach("shown") as run:  # what the dashboards show
            watcher, estimates = Watcher(run), Estimates(run)
            soon(lambda: watcher.look().progress is not None)
            assert any(" to go (" in line.plain for line in vitals(watcher.look()))
            soon(estimates.describe)
            assert " to go (" in said(estimates.describe())[0]

        with looptap.attach("shown") as run:  # a viewer sees it when it is exported, and gets an error if it is not
            share = run.share(path=directory / "seen.json")
            code, shown = looptap_progress("--count", "1", run=str(share.path))
            assert code == 1
            assert "looptap share shown --stream progress.report --on batch" in shown.err
            run.export(run.stream("progress.report", on="batch"))
            code, shown = looptap_progress("--count", "2", "--throttle", "0.1", run=str(share.path))
            assert (code, shown.out.count(" to go (")) == (0, 2)
            with looptap.attach(share.path) as viewer:
                estimates = Estimates(viewer)
                soon(estimates.describe)

        deadline = time.monotonic() + 60
        while "early stopping is no longer forecast" not in looptap_progress("--count", "1")[1].out:
            assert time.monotonic() < deadline, "the note never came"

        view = environment | {"TERM": "xterm", "COLUMNS": "80"}
        shown_live = [sys.executable, "-m", "looptap.cli", "progress", "shown", "--throttle", "0.05"]
        command = [need("script", "A BAR IS"), "-qefc", " ".join(shown_live), "/dev/null"]
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "env": view}
        with subprocess.Popen(command, text=True, **quiet) as seen:
            missing = {"to go", "█"}
            while missing:
                line = seen.stdout.readline()
                assert line, f"the bar ended without {missing}"
                missing -= {part for part in missing if part in line}
            job.stdin.close()
            rest = seen.stdout.read()
        assert "the job is done" in rest
        assert seen.returncode == 0


def test_the_bar_shades_its_band_and_words_say_what_is_known():
    known = {
        "over": False, "fraction": 0.5, "elapsed": 50.0, "remaining": [50.0, 33.0, 116.0], "stop_at": [20, 15.0, 40.0],
        "steps": 10, "train_speed": 4.0, "validation_speed": None, "note": "",
    }  # fmt: skip
    assert banded(known, 10) == "███▒▒▒░░░░"
    assert said(known) == ["50%, 50 s to go (33 s to 1.9 min)", "stops after validation 20 (15 to 40), train 4.0/s"]
    unknown = {**known, "remaining": None, "stop_at": None, "note": "No speed yet."}
    assert banded(unknown, 4) == "░░░░"
    assert said(unknown) == ["10 steps in 50 s; what remains is not known yet", "train 4.0/s", "No speed yet."]
    assert said({**unknown, "steps": 1})[0] == "1 step in 50 s; what remains is not known yet"
    assert banded({**known, "over": True}, 4) == "████"
    assert said({**known, "over": True}) == ["100%, done after 50 s"]


# ---------------------------------------------------------------- ranks

RANK = """
    import json, signal, sys
    signal.alarm(300)
    import torch, torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
    from looptap.training.progress import Inserting, Patience, Progress, validation_subsets as rules

    rules.MAX_PART = float("inf")  # however busy this machine is, they are not switched off for taking long
    rank, store = int(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)

    def train(insert, fails=False):
        torch.manual_seed(0)
        x = torch.randn(800, 6)
        data = TensorDataset(x, (x[:, 0] > 0).long())
        fit = DataLoader(data, 10, sampler=DistributedSampler(data, shuffle=True))
        check = DataLoader(data, 50)
        model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 2))
        parallel = DistributedDataParallel(model)
        steps = torch.optim.SGD(parallel.parameters(), 0.1)
        asked = 0

        def evaluate(loader):
            nonlocal asked
            asked += loader is not check
            if fails and rank == 1 and asked == 2 and loader is not check:
                raise OSError("this rank alone")
            model.eval()
            with torch.no_grad():
                wrong = torch.tensor(float(sum((model(a).argmax(1) != b).sum() for a, b in loader)))
            model.train()
            return float(wrong) / len(loader.dataset)

        inserting = Inserting(evaluate, model, check, processors=1, accumulate=2) if insert else None
        if insert:
            inserting.cost = 800.0
        progress = Progress(fit, epochs=3, validation=check, rule=Patience(5), insert=inserting)
        losses = []
        for epoch in range(3):
            fit.sampler.set_epoch(epoch)
            for number, (a, b) in enumerate(progress.train(fit)):
                loss = torch.nn.functional.cross_entropy(parallel(a), b)
                (loss / 2).backward()
                if number % 2:
                    steps.step()
                    steps.zero_grad()
                losses.append(loss.item())
            progress.validated(evaluate(check))
        places = [x for x, _, _ in progress.estimator.stopping.seen if x != int(x)]
        return losses, places, progress.note

    bare, with_them = train(False), train(True)
    broken = train(True, fails=True)
    print(json.dumps({"equal": bare[0] == with_them[0] == broken[0], "places": with_them[1], "broken": broken[1:]}))
    dist.destroy_process_group()
"""


@pytest.mark.usefixtures("processes")
def test_two_ranks_insert_validations_in_step_and_train_as_without(tmp_path):
    command = [sys.executable, "-c", textwrap.dedent(RANK)]
    with contextlib.ExitStack() as stack:
        ranks = [
            stack.enter_context(warm.Popen([*command, str(n), str(tmp_path / "store")], stdout=subprocess.PIPE))
            for n in range(2)
        ]
        reported = [json.loads(rank.communicate(timeout=100)[0]) for rank in ranks]
    assert [one["equal"] for one in reported] == [True, True]
    assert reported[0]["places"] == reported[1]["places"] != []
    assert all((x % 1) * 40 % 2 == pytest.approx(0) for x in reported[0]["places"])  # where the optimizer has stepped
    (first, note), (second, why) = reported[0]["broken"], reported[1]["broken"]
    assert len(first) == len(second) + 1 == 2
    assert note == "Another rank has switched inserted validations off."
    assert "this rank alone" in why


# ---------------------------------------------------------------- what a loop can look like


def test_one_minute_after_a_resume_inside_an_epoch_the_estimate_is_right():
    clock = Clock()
    first = Progress(10, epochs=50, validation=20, clock=clock)
    trained(first, clock, 5, check=8.0)
    for _ in zip(range(4), first.train([[0] * 4] * 10), strict=False):
        clock.now += 1.0
    state = json.loads(json.dumps(first.state_dict()))
    kept = "epoch steps in_epoch elapsed length size validation done since checked trained seen shares"
    assert " ".join(state) == kept  # the keys of checkpoints that were written before
    later = Clock()
    second = Progress(10, epochs=50, validation=20, clock=later)
    second.load_state_dict(state)
    later.now += 30.0  # until the first batch
    rest = 10 - second.state_dict()["in_epoch"]
    for _ in second.train([[0] * 4] * rest):  # twice as slow on this machine
        later.now += 2.0
    assert second.epoch == 6
    truth = 44 * 20 + 45 * 16
    assert second.remaining.median == pytest.approx(truth, rel=0.05)
    trained(second, later, 4, seconds=2.0, check=16.0, first=6)
    later.now += 1.1
    assert second.remaining.median == pytest.approx(40 * 36, rel=0.05)


def test_validations_within_an_epoch_and_accumulated_gradients_are_counted():
    clock = Clock()
    progress = Progress(24, max_steps=60, accumulate=4, validation=20, validate_every=8, clock=clock)
    count = 0
    for _ in range(3):
        for _ in progress.train([[0] * 4] * 24):
            count += 1
            clock.now += 2.5 if count % 4 == 0 else 0.5  # every fourth one steps
            if count % 8 == 0:
                for _ in progress.validate([[0] * 10] * 2):
                    clock.now += 1.0
                progress.validated(0.5)
    clock.now += 0.001
    left = 240 - 72
    assert progress.remaining.median == pytest.approx(left + left / 8 * 2, rel=0.03)
    assert progress.stop_at[0] == pytest.approx(30, abs=1)
    assert progress.ledger.seconds[VALIDATION] == 18.0
