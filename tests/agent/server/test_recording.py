"""Recording: kept streams and commands are stored, also after kill -9."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap

import pytest
import torch
import warm
from waiting import soon

import looptap
from looptap.cli import main

JOB = """
    import sys, time, looptap
    agent = looptap.Agent("kept")
    agent.stream("loss", "step, loss", on="batch", keep=True, unit="nats")
    agent.stream("unkept", "step", on="batch")
    agent.control("lr", lambda: lr[0], lambda value: lr.__setitem__(0, value))
    lr = [0.1]
    print(agent.run.id, flush=True)
    step = 0
    while True:
        agent.emit("batch", step=step, loss=1 / (step + 1))
        step += 1
        time.sleep(0.001)
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    """Return the path at which the only run of this test is stored."""
    monkeypatch.setenv("LOOPTAP_STORE", str(tmp_path / "stored"))
    return lambda: next((tmp_path / "stored").glob("*.looptap"), None)


def test_a_kept_stream_is_in_the_file_value_by_value(directory, file):
    with looptap.Agent("kept") as agent:
        agent.stream("loss", "step, loss", on="batch", keep=True, unit="nats")
        agent.stream("mean", "mean(e.loss for e in events)", on="batch", keep=True)
        agent.stream("tensor", "x", on="batch", every=10, keep=True)
        for step in range(100):
            agent.emit("batch", step=step, loss=step / 4, x=torch.full((2,), float(step)))
        agent.emit("epoch")
    stored = looptap.open(file())
    assert list(stored.stream("loss").values) == [(step, step / 4) for step in range(100)]
    assert stored.stream("mean").values == [sum(range(100)) / 400]
    assert [int(x[0]) for x in stored.stream("tensor").values] == list(range(9, 100, 10))
    assert stored.metadata["name"] == "kept"


def test_without_a_kept_stream_or_a_command_there_is_no_file(directory, file):
    with looptap.Agent("kept") as agent, looptap.attach("kept") as run:
        agent.stream("loss", "loss", on="batch")
        stream = run.stream("step", on="batch")
        agent.emit("batch", step=0, loss=0.5)
        stream.wait(1)
    assert file() is None


@pytest.mark.usefixtures("processes")
def test_values_and_commands_stored_before_kill_9_survive(directory, file):
    child = warm.Popen([sys.executable, "-c", textwrap.dedent(JOB)], stdout=subprocess.PIPE, text=True)
    with child:
        child.stdout.readline()
        with looptap.attach("kept") as run:
            run.set("lr", 0.5)
            with pytest.raises(looptap.LooptapError):
                run.set("lr", "much")
            live = run.stream("loss")
            live.wait(200)
            soon(lambda: run.stats()["store"]["kept"] >= 200)
            kept = run.stats()["store"]["kept"]
        child.send_signal(signal.SIGKILL)
    stored = looptap.open(file())
    values = stored.stream("loss").values
    assert len(values) >= kept
    assert [step for step, _ in values] == list(range(len(values)))
    assert [(c.what, c.old, c.new) for c in stored.commands if c.outcome == "done"] == [("set lr", 0.1, 0.5)]
    with pytest.raises(looptap.LooptapError, match="unkept"):
        stored.stream("unkept")


@pytest.mark.usefixtures("processes")
def test_the_shell_shows_stored_streams(directory, file):
    with looptap.Agent("kept") as agent:
        agent.stream("loss", "step, loss", on="batch", keep=True)
        agent.emit("batch", step=1, loss=0.5)
    done = warm.run(
        [sys.executable, "-m", "looptap.cli", "open", str(file()), "--json"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "loss" in json.dumps(json.loads(done.stdout))


FAILING = """
    import sys, time, looptap
    agent = looptap.Agent("failing")
    agent.stream("typo", "step, los", on="batch", keep=True)
    agent.stream("now_and_then", "1 / (step % 3)", on="batch", keep=True)
    step = 0
    while True:
        agent.emit("batch", step=step, loss=1 / (step + 1))
        step += 1
        if step == 500:
            print("there", flush=True)
        time.sleep(0.001)
"""


@pytest.mark.promise("S27")
@pytest.mark.usefixtures("processes")
def test_the_failure_of_a_kept_query_is_known_after_kill_9(directory, file, tmp_path, capsys):
    with warm.Popen([sys.executable, "-c", textwrap.dedent(FAILING)], stdout=subprocess.PIPE, text=True) as job:
        assert job.stdout.readline() == "there\n"
        live = looptap.open(soon(file))
        soon(lambda: len(live.streams) == 2)
        now_and_then = live.stream("now_and_then")
        soon(lambda: now_and_then.error_count > 100)  # also while it is being written
        live.close()
        job.kill()
    old = looptap.open(file())
    typo, divided = old.stream("typo"), old.stream("now_and_then")
    assert (typo.arrived, typo.error_count) == (0, 1)  # no event has ever had the name
    assert "no observable 'los' at this 'batch' event" in typo.traceback
    assert "Did you mean 'loss'?" in typo.notes[0]
    assert "1 error (" in repr(typo)
    assert "ZeroDivisionError" in divided.traceback
    assert divided.notes == []
    assert divided.error_count > 100

    def said(*words):
        with pytest.raises(SystemExit, match="0"):
            main(words)
        return capsys.readouterr()

    out = said("open", str(file())).out
    assert "0 values, 1 error; it was ended by no observable" in out
    assert "ZeroDivisionError" in out
    described = {one["name"]: one for one in json.loads(said("open", str(file()), "--json").out)["streams"]}
    assert described["typo"]["errors"] == 1
    assert "los" in described["typo"]["error"]
    warned = said("export", str(file()), "typo", "-o", str(tmp_path / "a.csv")).err
    assert "has 1 error; it was ended by no observable" in warned


def test_the_errors_of_a_kept_query_are_counted_to_the_last_when_the_job_ends(directory, file):
    with looptap.Agent("failing") as agent:
        agent.stream("now_and_then", "1 / (step % 3)", on="batch", keep=True)
        agent.stream("mean", "mean(1 / (e.step % 3) for e in events)", on="batch", keep=True)
        for step in range(100):
            agent.emit("batch", step=step)
            if step % 10 == 0:
                agent.emit("epoch")
    old = looptap.open(file())
    assert old.stream("now_and_then").error_count == 34
    assert old.stream("mean").error_count == 11  # the end of the run ends a window, too
    assert old.stream("now_and_then").arrived == 66


def test_a_file_that_is_not_complete_when_the_run_ends_is_named(directory, file, monkeypatch, caplog):
    monkeypatch.setattr("looptap.store.layout.written_file.BUSY_TIMEOUT_SECONDS", 0.01)
    with looptap.Agent("kept") as agent:
        agent.stream("loss", "loss", on="batch", keep=True)
        agent.emit("batch", loss=0.5)
        soon(lambda: agent.stats()["store"]["commits"])
        assert caplog.text == ""
        other = sqlite3.connect(file(), isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        agent.emit("batch", loss=0.25)
    other.close()
    assert f"{file()} is not complete: database is locked." in caplog.text


def test_a_slow_disk_that_outlasts_the_run_is_named(directory, file, monkeypatch, caplog):
    monkeypatch.setattr("looptap.agent.server.recording.CLOSE_TIMEOUT_SECONDS", 0.01)
    monkeypatch.setattr("looptap.store.layout.written_file.BUSY_TIMEOUT_SECONDS", 60.0)

    def written():
        with looptap.open(file()) as stored:
            return stored.ended

    with looptap.Agent("kept") as agent:
        agent.stream("loss", "loss", on="batch", keep=True)
        agent.emit("batch", loss=0.5)
        soon(lambda: agent.stats()["store"]["commits"])
        other = sqlite3.connect(file(), isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        agent.emit("batch", loss=0.25)
    assert f"{file()} is not complete: the disk took longer than 0.01 s at the end of the run." in caplog.text
    other.close()
    soon(written)  # all the same, as long as the process lives


def test_without_a_file_the_shell_lists_the_stored_runs(directory, file, capsys):
    def said(*more):
        with pytest.raises(SystemExit, match="0"):
            main(["open", *more])
        return capsys.readouterr().out

    assert "No run is stored in" in said()
    assert json.loads(said("--json")) == []
    with looptap.Agent("first") as agent:
        agent.stream("loss", "loss", on="batch", keep=True)
        agent.emit("batch", loss=0.5)
    with looptap.Agent("second") as agent:
        agent.stream("error", "error", on="batch", keep=True)
        soon(lambda: agent.stats()["store"]["commits"])
        file().with_name("broken.looptap").write_text("nothing")
        found = {run.get("name", "broken"): run for run in json.loads(said("--json"))}
        assert (found["first"]["state"], found["first"]["streams"]) == ("ended", ["loss"])
        assert found["second"]["state"] == "live"
        assert "is not a run that looptap has stored" in found["broken"]["problem"]
        lines = said().splitlines()
        assert len(lines) == 3
        assert any("live" in line and "; error" in line for line in lines)


def test_a_disk_that_cannot_be_written_is_harmless(directory, tmp_path, monkeypatch):
    (tmp_path / "taken").write_text("a file where the folder should be")
    monkeypatch.setenv("LOOPTAP_STORE", str(tmp_path / "taken"))
    with looptap.Agent("kept") as agent:
        agent.stream("loss", "loss", on="batch", keep=True)
        for _ in range(100):
            agent.emit("batch", loss=0.5)
        soon(lambda: agent.stats()["store"]["state"] == "paused")
        assert agent.stats()["store"]["reason"]


REMOVED = """
    import os, shutil, looptap
    agent = looptap.Agent("kept", history=True)
    agent.stream("loss", "step, loss", on="batch", keep=True)
    for step in range(1000):
        agent.emit("batch", step=step, loss=1 / (step + 1))
    while not (stats := agent.stats()["store"])["kept"] == 1000: pass
    while os.path.exists("looptap-runs"):  # a file may go or come meanwhile
        shutil.rmtree("looptap-runs", ignore_errors=True)
    for step in range(1000, 2000):
        agent.emit("batch", step=step, loss=1 / (step + 1))
    agent.close()
"""


@pytest.mark.usefixtures("processes")
@pytest.mark.promise("S28")
def test_a_job_whose_folder_of_runs_is_removed_keeps_all_its_values(directory, tmp_path, monkeypatch):
    monkeypatch.delenv("LOOPTAP_STORE", raising=False)
    command = [sys.executable, "-c", textwrap.dedent(REMOVED)]
    done = warm.run(command, check=True, timeout=300, cwd=tmp_path, capture_output=True, text=True)
    (path,) = (tmp_path / "looptap-runs").glob("*.looptap")
    assert "was removed or moved; all that the run has stored was written again" in done.stderr
    assert "this lost" not in done.stderr
    with looptap.open(path) as stored:
        assert [step for step, _ in stored.stream("loss").values] == list(range(2000))
        assert stored.history("loss", on="batch") is not None


def test_the_list_of_runs_says_what_was_lost_with_a_file(directory, file, capsys):
    with looptap.Agent("kept") as agent:
        agent.stream("loss", "loss", on="batch", keep=True)
        agent.emit("batch", loss=0.5)
        soon(lambda: agent.stats()["store"]["kept"] == 1)
        os.truncate(file(), 0)
        agent.emit("batch", loss=0.25)
        soon(lambda: agent.stats()["store"]["dropped"] == 1)
        for arguments in (["ls"], ["ls", "kept"]):
            with pytest.raises(SystemExit, match="0"):
                main(arguments)
            said = " ".join(capsys.readouterr().out.split())
            assert "1 value dropped" in said
            assert "was changed by another program, and is damaged; this lost 1 value" in said
    with looptap.open(file()) as stored:
        assert stored.history("loss", on="batch").values == [0.5, 0.25]
