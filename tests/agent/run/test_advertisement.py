"""Advertisement of runs: shared, private and vanishing directories, other hosts."""

import logging
import os
import re
import shutil
import socket
import stat
import sys
import time
from pathlib import Path

import msgspec
import pytest
from waiting import soon

import looptap
from looptap.agent.io import endpoints, reactor
from looptap.agent.io.endpoints import place_for_sockets
from looptap.client.attach import attach, runs
from looptap.protocol.errors import NoAnswer, RunEnded, WrongServer
from looptap.protocol.files.connection import private_dir, publish, read_connection_file, runtime_dir, sweep

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="sockets in directories")


def file_of(place):
    (path,) = place.glob("*.json")
    return path


def socket_of(path):
    return Path(read_connection_file(path).endpoints[0].removeprefix("ipc://"))


def moved(path, **process):
    """Rewrite the connection file as if its process were on another host."""
    file = read_connection_file(path)
    path.unlink()
    return publish(msgspec.structs.replace(file, process=msgspec.structs.replace(file.process, **process)), path.parent)


# ---------------------------------------------------------------- where the socket is


def test_the_socket_is_beside_the_file_so_that_a_private_tmp_hides_neither(place):
    with looptap.Agent("digits"):
        assert socket_of(file_of(place)).parent == place
        attach("digits").close()
    assert [path.name for path in place.iterdir()] == ["ended.jsonl"]


@pytest.mark.parametrize("why", ["too long", "others look"])
def test_sockets_move_to_the_private_directory_where_needed(place, monkeypatch, why):
    other = place / ("d" * 90 if why == "too long" else "open")
    other.mkdir()
    other.chmod(0o755 if why == "others look" else 0o700)
    monkeypatch.setenv("LOOPTAP_DIR", str(other))
    with looptap.Agent("digits"):
        assert socket_of(file_of(other)).parent == private_dir()
        attach("digits").close()


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="wants a file system that takes no sockets")
def test_a_file_system_without_sockets_is_reported_with_the_way_out(caplog):
    refusing = Path("/proc/self/fd")  # ours, closed to others, and nothing can be made there
    with caplog.at_level(logging.WARNING, "looptap"):
        assert place_for_sockets(refusing) == private_dir()
    assert re.search(r"A socket cannot be created in /proc/self/fd \(.+\).*listen='tcp://.+:\*'", caplog.text)


def test_sockets_of_other_machines_are_not_removed(place):
    ours, theirs = place / f"{endpoints.socket_mark()}-dead.sock", place / "ffffff-alive.sock"
    for path in (ours, theirs):
        with socket.socket(socket.AF_UNIX) as deserted:
            deserted.bind(str(path))
        os.utime(path, (1.0, 1.0))
    with looptap.Agent("digits"):
        assert theirs.exists()
        assert not ours.exists()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the place is Linux's")
def test_without_a_runtime_directory_of_the_session_there_is_a_private_one(monkeypatch):
    for name in ("LOOPTAP_DIR", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    assert runtime_dir() == Path(f"/tmp/looptap-{os.getuid()}")
    with looptap.Agent("without-a-session") as agent:
        attach(agent.run.id).close()


# ---------------------------------------------------------------- other hosts


def test_a_run_of_another_host_is_listed_and_never_considered_dead(place):
    with looptap.Agent("digits"):
        path = moved(file_of(place), host="node7", boot="another", start="1", pid=2**22 + 1)
        (found,) = runs()
        assert (found.alive, found.file.process.host) == (None, "node7")
        assert sweep(place) == 0
        assert path.exists()
        attach("digits").close()  # its socket can be reached nevertheless: a container on this machine


def test_a_socket_of_another_host_says_how_to_get_there(place):
    with looptap.Agent("digits") as agent:
        path = moved(file_of(place), host="node7")
        run = agent.run.id
    assert path.exists()  # the agent removes its own file only
    said = rf"{run} is on host node7.*ssh://node7/{run}.*listen='tcp://node7:\*'"
    with pytest.raises(NoAnswer, match=said):
        attach("digits")


def test_a_port_of_another_host_that_is_taken_here_says_how_to_connect(place):
    with looptap.Agent("digits", listen="tcp"), looptap.Agent("other", listen="tcp"):
        (path,) = place.glob("digits*.json")
        (taken,) = read_connection_file(next(place.glob("other*.json"))).endpoints
        path.write_text(path.read_text().replace(read_connection_file(path).endpoints[0], taken))
        moved_path = moved(path, host="node7")
        with pytest.raises(NoAnswer, match="is on host node7"):
            attach("digits")
        moved_path.unlink()


def test_a_hidden_socket_of_a_living_process_says_why(place):
    with looptap.Agent("digits"):
        hidden = socket_of(file_of(place))
        hidden.rename(place / "elsewhere")
        with pytest.raises(RunEnded, match=r"private to the job.*LOOPTAP_DIR.*listen='tcp'"):
            attach("digits")
        (place / "elsewhere").rename(hidden)


# ---------------------------------------------------------------- keys end with the run


@pytest.mark.parametrize("listen", [None, "tcp"])
def test_a_copied_file_of_an_ended_run_is_known_to_have_ended(place, listen):
    with looptap.Agent("digits", listen=listen):
        copy = file_of(place).rename(place / "copy.json")
    with pytest.raises(RunEnded, match="has ended"):
        attach(copy, timeout=600)


@pytest.mark.promise("S2", "S35")
def test_the_keys_of_an_ended_run_open_no_later_run_at_its_port(place, tmp_path):
    with looptap.Agent("digits", listen="tcp"):
        copy = Path(shutil.copy2(file_of(place), tmp_path / "copy.json"))
    (endpoint,) = read_connection_file(copy).endpoints
    with looptap.Agent("digits", listen=endpoint), pytest.raises(WrongServer, match="another run took its place"):
        attach(copy, timeout=600)


# ---------------------------------------------------------------- what vanishes, what is left behind


def test_a_directory_that_vanishes_comes_back_and_clients_stay_attached(place, monkeypatch):
    monkeypatch.setattr(reactor, "FILE_CHECK_INTERVAL_SECONDS", 0.02)
    with looptap.Agent("digits") as agent:
        path = file_of(place)
        content = path.read_bytes()
        with attach("digits") as first:
            stream = first.stream("step", on="batch")
            shutil.rmtree(place)
            soon(lambda: path.exists() and socket_of(path).exists())
            assert path.read_bytes() == content
            assert stat.S_IMODE(place.stat().st_mode) == 0o700
            for step in range(3):
                agent.emit("batch", step=step)
            assert stream.wait(n=3, timeout=300)
            assert stream.values == [0, 1, 2]
            assert first.state == "live"
            with attach("digits") as second:
                assert second.id == first.id
    assert [path.name for path in place.iterdir()] == ["ended.jsonl"]


def test_a_directory_that_cannot_be_recreated_is_logged_once_and_the_loop_continues(place, monkeypatch, caplog):
    monkeypatch.setattr(reactor, "FILE_CHECK_INTERVAL_SECONDS", 0.02)
    inner = place / "a" / "b"
    inner.mkdir(parents=True)
    inner.chmod(0o700)
    monkeypatch.setenv("LOOPTAP_DIR", str(inner))
    with caplog.at_level(logging.WARNING, "looptap"), looptap.Agent("digits") as agent, attach("digits") as run:
        path = file_of(inner)
        stream = run.stream("step", on="batch")
        shutil.rmtree(place / "a")
        soon(lambda: "cannot be recreated" in caplog.text)
        agent.emit("batch", step=1)
        assert stream.wait(n=1, timeout=300)
        (place / "a").mkdir(0o700)
        soon(path.exists)
        assert caplog.text.count("cannot be recreated") == 1


def test_a_directory_created_meanwhile_by_another_user_gets_no_socket(place, monkeypatch, caplog):
    monkeypatch.setattr(reactor, "FILE_CHECK_INTERVAL_SECONDS", 0.02)
    with caplog.at_level(logging.WARNING, "looptap"), looptap.Agent("digits"):
        away = place.with_name(place.name + "-away")
        made = place.with_name(place.name + "-made")
        made.mkdir()
        made.chmod(0o777)
        place.rename(away)
        made.rename(place)
        soon(lambda: "cannot be recreated" in caplog.text)
        assert list(place.iterdir()) == []
        away.rename(place)  # in place of the empty one, before the agent can make another


def test_an_agent_removes_what_long_dead_runs_left_and_nothing_else(place):
    with looptap.Agent("living"):
        living = file_of(place)
        file = read_connection_file(living)
        ages = {}
        for name, age, process in [
            ("old", 7200, {"start": "1"}),
            ("fresh", 60, {"start": "1"}),
            ("away", 7200, {"start": "1", "host": "node7"}),
        ]:
            dead = msgspec.structs.replace(
                file,
                run=msgspec.structs.replace(file.run, id=name),
                process=msgspec.structs.replace(file.process, **process),
                endpoints=(),
            )
            ages[name] = publish(dead, place)
            os.utime(ages[name], (time.time() - age,) * 2)
        os.utime(living, (1.0, 1.0))
        with looptap.Agent("newcomer"):
            soon(lambda: not ages["old"].exists())
        assert ages["fresh"].exists()
        assert ages["away"].exists()
        assert living.exists()


def test_a_sweep_checks_a_bounded_number_of_files(place):
    with looptap.Agent("living"):
        file = read_connection_file(file_of(place))
    for n in range(5):
        dead = msgspec.structs.replace(
            file,
            run=msgspec.structs.replace(file.run, id=f"dead-{n}"),
            process=msgspec.structs.replace(file.process, start="1"),
            endpoints=(),
        )
        publish(dead, place)
    assert sweep(place, at_most=2) == 2
    assert sweep(place) == 3
