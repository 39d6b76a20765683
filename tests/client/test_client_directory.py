"""Run discovery: names resolve to runs, and errors explain why none matches."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import msgspec
import pytest
import warm
from waiting import soon

import looptap
from looptap.agent import connection as opening
from looptap.client.attach import attach, runs
from looptap.protocol.errors import (
    NoDirectory,
    NoSuchRun,
    RunEnded,
    SeveralRuns,
    UnsafeFile,
    VersionMismatch,
    WrongServer,
)
from looptap.protocol.files.connection import ConnectionFile, publish, read_connection_file
from looptap.protocol.files.ended_runs import Ended, note_ended_run
from looptap.protocol.files.ended_runs import ended as ended_runs
from looptap.protocol.keys import KeyPair, RoleKeys
from looptap.protocol.messages import RunInfo
from looptap.protocol.process.identity import Process


def test_a_stored_run_in_place_of_a_live_one_is_reported_as_stored(directory, monkeypatch):
    monkeypatch.setenv("LOOPTAP_STORE", "kept runs")
    monkeypatch.chdir(directory)
    with looptap.Agent("fl") as agent:
        agent.stream("loss", "loss", keep=True)
        agent.emit("batch", loss=1.0)
    (path,) = directory.glob("kept runs/*.looptap")
    path.rename(directory / "x.looptap")
    for name in ("x.looptap", "./x.looptap", directory / "x.looptap"):
        for mode in (0o600, 0o644):
            (directory / "x.looptap").chmod(mode)
            with pytest.raises(NoSuchRun, match=r"x\.looptap is a stored run.*looptap open, watch, plot, commands"):
                attach(name)
    day = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"
    ran = rf"The run {agent.run.id} ran from {day} to {day} and has ended\."
    with pytest.raises(RunEnded, match=rf"{ran}$"):
        attach("fl")
    (directory / "x.looptap").rename(path)
    for name in ("fl", agent.run.id, "fl-*", None):
        with pytest.raises(RunEnded, match=rf"{ran} To see what it stored: looptap open, or looptap plot '{path}'$"):
            attach(name)
    with looptap.Agent("other"), pytest.raises(RunEnded, match=r"has ended.* Alive: other-"):
        attach("fl")
    (directory / "ended.jsonl").unlink()  # of a long time ago
    with pytest.raises(NoSuchRun, match=rf"has ended; see: looptap open 'kept runs/{path.name}'"):
        attach("fl")
    with pytest.raises(NoSuchRun, match="is listed while"):
        attach("f")


@pytest.fixture
def start(directory):
    """Return a function that starts agents, which end with the test."""
    agents = []

    def begin(name):
        agents.append(looptap.Agent(name))
        return agents[-1].run

    yield begin
    for agent in agents:
        agent.close()


def announced(directory, name="gone", rank=0, role="operator", **process):
    """Write the connection file of a run that does not exist."""
    info = RunInfo(id=f"{name}-1", name=name, host="host", pid=1, started=1.0, rank=rank, ranks=2)
    file = ConnectionFile.of(info, RoleKeys.fresh(role), ("ipc:///nowhere/socket",))
    if process:
        file = msgspec.structs.replace(file, process=msgspec.structs.replace(file.process, **process))
    return publish(file, directory)


def ended(directory, name="gone", **about):
    return announced(directory, name, start="0", **about)


def named(name, **options):
    """Return the id of the run that a name leads to."""
    with attach(name, **options) as run:
        return run.id


# ---------------------------------------------------------------- the list


def test_runs_are_listed_with_what_they_say_of_themselves(start, directory):
    run = start("digits")
    (found,) = runs()
    assert (found.name, found.id, found.pid, found.alive) == ("digits", run.id, os.getpid(), True)
    assert "alive" in str(found)
    with found.attach() as attached:
        assert attached.id == run.id


def test_the_newest_run_comes_first_and_ended_ones_are_marked(start, directory):
    start("new")
    ended(directory, "old")
    assert [(run.name, run.alive) for run in runs()] == [("new", True), ("old", False)]


def test_a_run_of_another_machine_may_be_alive(directory):
    announced(directory, host="far-away")
    (found,) = runs()
    assert found.alive is None
    assert "on another machine" in str(found)


def test_a_file_that_others_can_read_is_listed_with_its_problem(start, directory):
    start("digits")
    (path,) = directory.glob("*.json")
    path.chmod(0o644)
    (found,) = runs()
    assert "chmod 600" in found.problem
    assert "chmod 600" in str(found)
    path.chmod(0o600)


def test_no_secret_is_shown(start):
    start("digits")
    (found,) = runs()
    assert found.file.secret not in repr(found) + str(found)


def test_a_directory_that_does_not_exist_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("LOOPTAP_DIR", str(tmp_path / "none"))
    with pytest.raises(NoDirectory, match="mkdir"):
        runs()


# ---------------------------------------------------------------- the one that is meant


def test_no_name_means_the_newest_run(start):
    start("first")
    newest = start("second")
    assert named(None) == newest.id


@pytest.mark.parametrize("how", ["digits", "digi", "dig*", "*cnn*", "{id}", "{path}"])
def test_a_run_is_found_by_name_beginning_pattern_id_and_path(start, directory, how):
    start("other")
    run = start("digits") if "cnn" not in how else start("a-cnn-b")
    (path,) = [p for p in directory.glob("*.json") if p.name.startswith(run.name)]
    assert named(how.format(id=run.id, path=path)) == run.id


def test_the_exact_name_wins_over_longer_ones(start):
    start("digits-long")
    run = start("digits")
    assert named("digits") == run.id


def test_an_ended_run_of_the_name_hides_no_living_one(start, directory):
    ended(directory, "digits")
    run = start("digits")
    assert named("digits") == run.id
    longer = start("gone-but-not-quite")
    ended(directory, "gone")
    assert named("gone") == longer.id


def test_several_runs_of_a_name_are_listed_by_id(start):
    ids = []
    for _ in range(2):
        ids.append(start("digits").id)
        opening.agents_by_place.clear()  # as if it was of another process
    with pytest.raises(SeveralRuns, match="2 runs match 'digits'") as caught:
        attach("digits")
    assert all(id in str(caught.value) for id in ids)


def test_an_unknown_name_lists_the_runs(start):
    run = start("digits")
    with pytest.raises(NoSuchRun, match=f"'mnist'. Alive: {run.id}"):
        attach("mnist")


def test_a_misspelt_name_is_answered_by_the_nearest(start):
    start("digits-cnn")
    with pytest.raises(NoSuchRun, match=r"'digit-cnn'. Did you mean 'digits-cnn'\? Alive: "):
        attach("digit-cnn")


def test_an_empty_directory_says_how_a_run_announces_itself(directory):
    with pytest.raises(NoSuchRun, match=r"looptap\.Agent.*LOOPTAP_DIR"):
        attach()


def test_a_run_whose_process_has_died_has_ended(start, directory):
    ended(directory)
    with pytest.raises(RunEnded, match="gone-1 has ended: its process 1 is gone"):
        attach("gone")
    start("here")
    with pytest.raises(RunEnded, match="Alive: here"):
        attach("gone")


def test_the_path_of_an_ended_run_says_so_too(directory):
    path = ended(directory)
    with pytest.raises(RunEnded):
        attach(path)
    path.unlink()
    with pytest.raises(NoSuchRun, match="no connection file"):
        attach(path)


def test_a_rank_without_an_agent_is_named(directory):
    announced(directory, "many", rank=1)
    with pytest.raises(NoSuchRun, match="no agent on rank 0; there is one on: rank 1"):
        attach("many", rank=0)


def test_the_operators_file_is_preferred(start, directory):
    run = start("digits")
    (path,) = directory.glob("*.json")
    viewer = msgspec.structs.replace(read_connection_file(path), role="viewer", endpoints=("ipc:///nowhere/socket",))
    publish(viewer, directory)
    assert named("digits") == run.id


# ---------------------------------------------------------------- what is wrong


def test_a_file_that_others_can_read_is_not_used(start, directory):
    start("digits")
    (path,) = directory.glob("*.json")
    path.chmod(0o640)
    for how in (path, None):
        with pytest.raises(UnsafeFile, match="chmod 600"):
            attach(how)
    path.chmod(0o600)


def test_a_file_of_another_major_version_says_what_to_install(start, directory):
    start("digits")
    (path,) = directory.glob("*.json")
    content = msgspec.json.decode(path.read_bytes())
    path.write_bytes(msgspec.json.encode(content | {"version": [7, 0]}))
    with pytest.raises(VersionMismatch, match=r"7\.0"):
        attach(path)
    path.write_bytes(msgspec.json.encode(content))


def test_a_run_at_the_address_of_another_is_a_wrong_server(start, directory):
    start("digits")
    (path,) = directory.glob("*.json")
    content = msgspec.json.decode(path.read_bytes())
    other = content | {"server_public": KeyPair.fresh().public.decode()}
    path.write_bytes(msgspec.json.encode(other))
    with pytest.raises(WrongServer):
        attach(path)
    path.write_bytes(msgspec.json.encode(content))


def test_a_run_without_a_listener_has_ended(directory):
    with pytest.raises(RunEnded, match="Nothing listens"):
        attach(announced(directory))


def test_following_a_name_waits_for_its_first_run_and_logs_that(directory, caplog):
    with pytest.raises(NoSuchRun):
        attach("late", follow=True, timeout=1)
    assert "No run matches 'late'" in caplog.text
    assert "Waiting for it to start, for 1 s; Ctrl-C ends that." in caplog.text
    agents = []
    starter = threading.Timer(0.1, lambda: agents.append(looptap.Agent("late")))
    starter.start()
    with attach("late", follow=True, timeout=math.inf) as run:
        assert run.name == "late"
        run.close()
    starter.join()
    id = agents[0].run.id
    agents[0].close()
    for hopeless in (directory / "none.json", id + ".looptap"):
        with pytest.raises(looptap.LooptapError):
            attach(hopeless, follow=True, timeout=math.inf)


AGENT = "import looptap, time; a = looptap.Agent('killed'); print('ready', flush=True); time.sleep(60)"


@pytest.mark.usefixtures("processes")
def test_twenty_killed_agents_are_listed_as_dead_without_asking_them(directory, monkeypatch):
    jobs = [warm.Popen([sys.executable, "-c", AGENT], stdout=subprocess.PIPE) for _ in range(4)]
    for job in jobs:
        assert job.stdout.readline() == b"ready\n"
    for job in jobs:
        job.kill()
        job.communicate()
    for n in range(16):
        ended(directory, f"dead-{n}")
    monkeypatch.delattr("looptap.client.transport.zmq_client.ZmqTransport.start")
    listed = runs()
    assert [run.alive for run in listed] == [False] * 20
    assert Process.this().alive()


def test_a_live_run_stored_here_and_announced_elsewhere_has_not_ended(directory, monkeypatch):
    elsewhere = directory / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    monkeypatch.setenv("LOOPTAP_STORE", str(directory / "kept"))
    monkeypatch.setenv("LOOPTAP_DIR", str(elsewhere))
    with looptap.Agent("far") as agent:
        agent.stream("loss", "loss", keep=True)
        agent.emit("batch", loss=1.0)
        soon(lambda: list(directory.glob("kept/*.looptap")), 60)
        monkeypatch.setenv("LOOPTAP_DIR", str(directory))
        with pytest.raises(NoSuchRun) as raised:
            attach("far")
        said = str(raised.value)
        assert f"Looked in {directory}, which LOOPTAP_DIR names." in said
        assert f"{agent.run.id}, process {os.getpid()} on " in said
        assert f"is alive and writes to {directory}/kept/" in said
        assert said.endswith(f"export LOOPTAP_DIR={elsewhere}")
        with attach("far", directory=elsewhere) as run:
            assert run.id == agent.run.id
    with pytest.raises(NoSuchRun, match="has ended; see: looptap open"):
        attach("far")


def test_attach_waits_as_long_as_asked_and_logs_that_it_waits(directory, caplog, monkeypatch):
    monkeypatch.setattr("looptap.client.directory.wait_for_run.SAY_AGAIN_SECONDS", 0.1)
    began = time.monotonic()
    with pytest.raises(NoSuchRun):
        attach("late", wait=0.5)
    assert time.monotonic() - began >= 0.5
    assert "Waiting for it to start, for 0.5 s; Ctrl-C ends that." in caplog.text
    for wrong in (-1, True, "5", math.nan):
        with pytest.raises(looptap.QueryError, match="number of seconds"):
            attach("late", wait=wrong)
    agents = []

    def start():
        soon(lambda: "Still waiting for it to start, " in caplog.text)
        agents.append(looptap.Agent("late"))

    starter = threading.Thread(target=start)
    starter.start()
    with attach("late", wait=300, timeout=300) as run:
        assert run.name == "late"
    starter.join()
    agents[0].close()


def test_a_job_that_ends_while_it_is_waited_for_is_reported_as_ended(directory, monkeypatch):
    def live(seconds):
        with looptap.Agent("short") as agent:
            agent.emit("batch")

    with looptap.Agent("short"):
        pass
    with pytest.raises(RunEnded, match="short-"):  # of before: not the one that is waited for
        attach("short", wait=0.05)
    between_two_looks = SimpleNamespace(monotonic=time.monotonic, time=time.time, sleep=live)
    monkeypatch.setattr("looptap.client.directory.wait_for_run.time", between_two_looks)
    with pytest.raises(RunEnded, match=r"The run short-.* ran from .* to .* and has ended\."):
        attach("short", wait=math.inf)


def test_the_list_of_ended_runs_is_bounded_private_and_ignores_garbage(directory):
    run = Ended("x-1", "x", 0, 1.0, 2.0, "y" * 1000)
    for _ in range(300):
        note_ended_run(run, directory)
    path = directory / "ended.jsonl"
    assert 30_000 < path.stat().st_size <= 65_536
    assert path.stat().st_mode & 0o777 == 0o600
    assert {one.name for one in ended_runs(directory)} == {"x"}
    with path.open("ab") as file:
        file.write(b"\xff{]\n" + b"[" * 5000 + b'\n{"id": 3}\n')
    assert {one.name for one in ended_runs(directory)} == {"x"}
    path.unlink()
    path.symlink_to("/etc/passwd")
    assert ended_runs(directory) == []
    with pytest.raises(OSError, match="symbolic"):
        note_ended_run(run, directory)
    path.unlink()
    os.mkfifo(path)
    assert ended_runs(directory) == []
