"""Agent start-up: a failure never stops the job; one agent for each name."""

from __future__ import annotations

import errno
import gc
import logging
import os
import socket
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
from interrupts import interrupted
from waiting import soon

import looptap
from looptap.agent import connection as opening
from looptap.agent.agent import Agent
from looptap.protocol.files.connection import listing
from looptap.testing import parts_of

RERUNS = 10


_earlier: set[threading.Thread] = set()


@pytest.fixture(autouse=True)
def _know_earlier_threads():
    """Record the threads that other tests of the same process have left running."""
    _earlier.update(threading.enumerate())
    yield
    _earlier.clear()


def threads() -> list[str]:
    """Return names of looptap's threads that this test has started."""
    running = set(threading.enumerate()) - _earlier
    return sorted(thread.name for thread in running if thread.name.startswith(("looptap", "Dummy")))


def descriptors() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0


# ---------------------------------------------------------------- one for each name


def test_a_cell_that_makes_the_agent_can_be_run_again(directory, caplog):
    first = Agent("cell")
    soon(lambda: len(threads()) == 1)
    open_before = descriptors()
    with looptap.attach("cell") as run:
        for _ in range(RERUNS):
            agent = Agent("cell")
            agent.emit("batch", step=1)
        soon(lambda: run.state == "ended")
        assert "replaced by a newer agent of the same name" in run.reason
    assert "inert" in repr(first)
    first.close()  # which has no effect any more
    del first
    soon(lambda: threads() == ["looptap-io"], detail=threads)
    soon(lambda: descriptors() <= open_before, detail=descriptors)
    assert len(listing(directory)) == 1
    with looptap.attach("cell") as run:
        assert run.id == agent.run.id
    words = [record.getMessage() for record in caplog.records if "replaces an older one" in record.getMessage()]
    assert len(words) == RERUNS
    agent.close()
    assert listing(directory) == []


def test_a_following_client_continues_with_the_newer_agent(directory):
    Agent("followed").stream("step", "step", on="batch")
    with looptap.attach("followed", follow=True) as run:
        newer = Agent("followed")
        soon(lambda: run.id == newer.run.id and run.state == "live", 60.0)
        newer.close()


def test_other_ranks_other_names_and_other_directories_stay(directory, monkeypatch):
    first = Agent("job")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("MASTER_PORT", "29500")
    monkeypatch.setenv("RANK", "1")
    others = [Agent("job"), Agent("other")]
    monkeypatch.delenv("RANK")
    elsewhere = directory / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    monkeypatch.setenv("LOOPTAP_DIR", str(elsewhere))
    others.append(Agent("job"))
    assert not any("inert" in repr(agent) for agent in (first, *others))
    for agent in (first, *others):
        agent.close()
    assert not opening.agents_by_place


def test_a_fixed_port_passes_on_to_the_newer_agent(directory):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for _ in range(3):
        agent = Agent("port", listen=f"tcp://127.0.0.1:{port}", strict=True)
    agent.close()


# ---------------------------------------------------------------- where there can be none


def of_others(directory: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    directory.chmod(0o777)
    return {}


def no_directory(directory: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    monkeypatch.setenv("LOOPTAP_DIR", str(directory / "missing"))
    return {}


def no_home(directory: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    monkeypatch.setenv("LOOPTAP_DIR", "~no-such-user/x")
    return {}


def no_home_of_the_store(directory: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    return {"store": "~no-such-user/x"}


def busy_port(directory: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    server = socket.create_server(("127.0.0.1", 0))
    monkeypatch.setattr(sys.modules[__name__], "_server", server, raising=False)
    return {"listen": f"tcp://127.0.0.1:{server.getsockname()[1]}"}


def other_machine(directory: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    return {"listen": "tcp://192.0.2.1:5555"}


def taken_path(directory: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    (directory / "x").write_text("")
    return {"listen": f"ipc://{directory}/x"}


def long_path(directory: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    return {"listen": f"ipc://{directory}/{'x' * 150}"}


def full_disk(directory: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(opening, "announce", full)
    return {}


def no_thread(directory: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    def refused(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    return {}


WHYS = (
    of_others, no_directory, no_home, no_home_of_the_store, busy_port, other_machine, taken_path, long_path, full_disk,
    no_thread,
)  # fmt: skip


@pytest.mark.parametrize("why", WHYS, ids=lambda why: why.__name__)
def test_a_machine_that_allows_no_agent_is_a_warning_and_the_job_continues(why, directory, monkeypatch, caplog):
    before, there = descriptors(), set(directory.iterdir())
    with monkeypatch.context() as patch:
        how = why(directory, patch)
        with caplog.at_level(logging.WARNING):
            agent = Agent("job", **how)
        assert "inert" in repr(agent)
        with agent:
            agent.emit("batch", step=1)
            agent.stream("loss", "loss")
            agent.log(lr=0.1)
            agent.emit("batch", step=2)
        with pytest.raises(Exception) as raised:  # noqa: PT011 - each has an error of its own
            Agent("job", strict=True, **how)
        assert not isinstance(raised.value, AssertionError)
        if why is busy_port:
            sys.modules[__name__]._server.close()
    directory.chmod(0o700)
    (word,) = {record.getMessage() for record in caplog.records}
    assert word.startswith("looptap: ")
    assert word.endswith(" This run continues without an agent (strict=True would end it).")
    del agent, raised
    soon(lambda: threads() == [], detail=threads)
    soon(lambda: descriptors() <= before, detail=descriptors)
    assert {path.name for path in set(directory.iterdir()) - there} <= {"x"}
    assert not opening.agents_by_place
    with Agent("job", strict=True), looptap.attach("job") as run:  # nothing of it is in the way
        assert run.state == "live"


@pytest.mark.promise("S18")
@pytest.mark.usefixtures("processes")
def test_too_many_open_files_are_a_warning():
    code = """
        import resource, os, looptap
        agent = looptap.Agent("warm-up")
        agent.close()
        low = max(map(int, os.listdir("/proc/self/fd"))) + 1
        resource.setrlimit(resource.RLIMIT_NOFILE, (low, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        agent = looptap.Agent("job")
        agent.emit("batch", step=1)
        print(repr(agent))
        agent.close()
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "inert" in done.stdout, done.stderr
    assert "continues without an agent" in done.stderr


@pytest.mark.parametrize(
    "how",
    [
        {"name": ""}, {"name": "a/b"}, {"name": "a\nb"}, {"name": "a\0b"}, {"name": "\ud800"}, {"name": 3},
        {"budget": -1}, {"budget": "much"}, {"groups": "batch"}, {"may_pause": 0}, {"on_stop": 3},
        {"listen": "nowhere"}, {"listen": "tcp://*:5555"}, {"listen": "tcp://0.0.0.0:5555"},
        {"listen": "ipc://relative"}, {"listen": 5555}, {"listen": "tcp://localhost:99999"},
        {"listen": "everywhere:x"}, {"replay": "missing.yaml"},
    ],
    ids=str,
)  # fmt: skip
def test_a_mistake_in_the_arguments_is_an_error_at_once(how, directory):
    with pytest.raises((ValueError, looptap.BadEndpoint, looptap.ControlError, OSError)):
        Agent(**{"name": "job", **how})
    assert threads() == []


def test_a_replay_that_the_environment_names_is_no_reason_not_to_start(directory, monkeypatch, caplog):
    monkeypatch.setenv("LOOPTAP_REPLAY", str(directory / "missing.yaml"))
    with Agent("job") as agent:
        assert "inert" not in repr(agent)
    assert "LOOPTAP_REPLAY is ignored" in caplog.text


NAMES = (
    "ж" * 100, "語" * 100, "🚂" * 100, "é" * 100, "CON", "nul.json", "a" * 100, "..", ".hidden", "~x", "a b", "%2E",
    'quo"te', "back\\slash", "star*", "$HOME", "-rf", "Job", "job",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_any_name_makes_a_run_that_is_found_kept_and_shared(name, directory, tmp_path):
    with Agent(name, strict=True, store=str(tmp_path / "kept")) as agent:
        agent.stream("loss", "loss", on="batch", keep=True)
        agent.emit("batch", loss=0.5)
        with looptap.attach(agent.run.id) as run:
            assert run.name == name
            share = run.share(path=str(tmp_path))
            assert Path(share.path).exists()
            share.revoke()
        path = parts_of(agent).recorder.writer.path
    soon(lambda: "looptap-store" not in threads(), detail=threads)
    assert len(os.fsencode(path.name)) < 255
    with looptap.open(path) as stored:
        assert stored.name == name
        assert stored.stream("loss").values == [0.5]


# ---------------------------------------------------------------- Ctrl-C


@pytest.mark.parametrize("fraction", [41, pytest.param(1, marks=pytest.mark.soak)])
def test_ctrl_c_anywhere_while_an_agent_is_made_or_closed_leaves_nothing_behind(directory, fraction):
    made: list[Agent] = []

    def make_and_close() -> None:
        agent = Agent("job")
        made.append(agent)
        agent.emit("batch", step=1)
        agent.close()

    count, pressed = interrupted(make_and_close, 0)
    assert pressed is None
    first = int.from_bytes(os.urandom(2)) % fraction + 1
    print(f"{count} instructions, each {fraction}th from {first} on")
    for at in range(first, count + 1, fraction):
        made.clear()
        reached, pressed = interrupted(make_and_close, at)
        assert type(pressed) is KeyboardInterrupt or reached < at, at
        for agent in (*made, *opening.agents_by_place.values()):  # as at the exit, or for the next one of the name
            agent.close()
        # What was begun on another thread may be seen only now, and is undone.
        soon(
            lambda: not (threads() or listing(directory) or list(directory.glob("*.sock"))), 60.0,
            detail=lambda at=at: f"{at}: {threads()}",
        )  # fmt: skip
        assert not opening.agents_by_place, at


@pytest.mark.usefixtures("processes")
def test_an_agent_starts_without_modules_that_take_long_to_load(directory):
    """Those that other packages load are theirs: numpy and zmq have some of them."""
    code = """
    import sys
    import numpy, zmq, msgspec
    before = set(sys.modules)
    import looptap
    with looptap.Agent("light") as agent:
        agent.emit("batch", step=1)
    slow = {"importlib.metadata", "email", "asyncio", "torch", "rich", "typer", "cryptography", "http", "difflib"}
    slow |= {"hashlib", "tempfile", "platformdirs", "looptap.streams.stream.stream", "looptap.client"}
    print(sorted(slow & (set(sys.modules) - before)))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.usefixtures("processes")
def test_an_agent_loads_no_module_of_looptap_later_whatever_it_is_asked(directory, tmp_path):
    """Meanwhile another version may have been installed, or the files be gone."""
    code = """
    import sys, threading, looptap, numpy
    settings = {"lr": 0.1}
    agent = looptap.Agent("whole")
    loaded = set(sys.modules)
    agent.control("lr", lambda: settings["lr"], lambda lr: settings.update(lr=lr))
    agent.expose(weights=numpy.ones(3))
    over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    while not over.wait(0.01):
        agent.emit("batch", loss=0.5, x=numpy.ones(4))
    agent.close()
    print(sorted(name for name in set(sys.modules) - loaded if name.startswith("looptap")))
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    with subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as job:
        with looptap.attach("whole", wait=300.0) as run:
            queries = ["loss", "x, weights", "{'a': x, 'b': (1, x.sum())}", lambda e: e.x * 2]
            streams = [run.stream(query, on="batch") for query in queries]
            streams.append(run.stream("mean(e.loss for e in events)", on="batch", window=looptap.sliding(5)))
            streams.append(run.stream("histogram(e.loss for e in events)", on="batch", window=5))
            for stream in streams:
                stream.wait(1, 300.0)
            assert (run.set("lr", 0.2).new, run.call("weights.sum()")) == (0.2, 3.0)
            run.undo("lr")
            run.keep("loss")
            assert run.share(streams="loss", path=tmp_path).path.exists()
            for answer in (run.stacks(), run.stats(), run.scalars, run.commands, run.streams):
                assert answer
        found, _ = job.communicate("", timeout=300.0)
    assert found == "[]\n"
