"""The writer of a stored run: exact values, plain SQL; full and failing disks."""

from __future__ import annotations

import json
import os
import resource
import sqlite3
import subprocess
import sys
import threading
import time
from array import array
from pathlib import Path

import numpy as np
import pytest
import warm
from places import SUPPORT
from waiting import soon

import looptap
from looptap.store import writer
from looptap.store.layout import run_path, written_file
from looptap.store.queue import QueuedCommand
from looptap.store.writer import Writer
from looptap.streams.flags import ERROR
from looptap.streams.stream.buffer import Batch

NAN = float("nan")
VALUES = [
    0, 1, -1, 2**63 - 1, -(2**63), 2**63, 2**70, 0.5, -0.0, 1e300, 5e-324, NAN, float("inf"), float("-inf"), True,
    False, None, "", "text", "null", "\ud800", b"\x00\xff", 1 + 2j, (), (1,), (1, 2.0), (1.0, "a", True), (1, None),
    (1, NAN), (2**70, 1), ("null", 1), (1, (2, 3)), [], [1, [2]], {}, {"a": 1, 2: (3,)}, {1, 2},
    np.arange(6).reshape(2, 3),
]  # fmt: skip


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(writer, "RETRY_DELAY_SECONDS", 0.02)
    monkeypatch.setattr(writer, "FLUSH_INTERVAL_SECONDS", 0.01)


@pytest.fixture
def made(tmp_path):
    """Return a function that makes writers, which are closed at the end."""
    writers = []

    def make(path=tmp_path / "run.looptap", **options):
        writers.append(Writer(path, {"id": "run-1", "name": "run"}, **options))
        return writers[-1]

    make.folder = tmp_path
    yield make
    for one in writers:
        one.close(10)


def batch(first, values, flags=b"", nbytes=0):
    count = len(values)
    return Batch(first, array("q", range(count)), array("d", range(count)), list(values), 1e9, flags, nbytes=nbytes)


def same(a, b):
    if isinstance(a, np.ndarray):
        return type(b) is np.ndarray and a.dtype == b.dtype and np.array_equal(a, b)
    return type(a) is type(b) and repr(a) == repr(b)


def test_every_kind_of_value_comes_back_exactly(made):
    kept = made()
    kept.append(kept.stream("odd"), batch(1, VALUES))
    assert kept.close(10)
    with looptap.open(kept.path) as run:
        back = run.stream("odd").values
    assert [(a, b) for a, b in zip(VALUES, back, strict=True) if not same(a, b)] == []


def test_plain_sql_reads_numbers_and_rows(made):
    kept = made()
    kept.append(kept.stream("loss"), batch(1, [1.0, NAN, 3]))
    kept.append(kept.stream("rows"), batch(1, [(1, 0.5), (2, 0.25)]))
    assert kept.close(10)
    connection = sqlite3.connect(kept.path)
    assert connection.execute("SELECT avg(value), count(*) FROM series WHERE stream = 'loss'").fetchone() == (2.0, 3)
    rows = connection.execute("SELECT json_extract(packed, '$[1]') FROM series WHERE stream = 'rows'").fetchall()
    connection.close()
    assert rows == [(0.5,), (0.25,)]


def test_a_value_that_cannot_be_packed_is_kept_as_an_error_and_costs_no_other(made):
    kept = made()
    kept.append(kept.stream("s"), batch(1, [1, object(), 3]))
    assert kept.close(10)
    with looptap.open(kept.path) as run:
        assert run.stream("s").values == [1, 3]
        assert "builtins.object" in run.stream("s").errors[0].error


def test_a_value_that_sqlite_refuses_is_counted_and_reported_and_the_next_are_kept(made):
    kept = made()
    stream = kept.stream("s")
    for number in range(1, 10):
        kept.append(stream, batch(number, [number])._replace(rank=2**80 if number in (4, 5) else 0))
    soon(lambda: kept.stats().dropped + kept.stats().kept == 9, detail="it did not go on")
    assert kept.stats().dropped == 2
    assert "OverflowError" in kept.stats().reason
    assert not kept.close(10)
    with looptap.open(kept.path) as run:
        assert run.stream("s").values == [1, 2, 3, 6, 7, 8, 9]


def test_flags_numbers_and_times_come_back(made):
    kept = made()
    kept.append(kept.stream("s"), batch(5, ["broken", 7], bytes((ERROR, 1))))
    assert kept.close(10)
    with looptap.open(kept.path) as run:
        error, value = run.stream("s").records
        assert run.stream("s").gaps == [(0, 4)]
    assert (error.number, error.error, error.value) == (5, "broken", None)
    assert (value.number, value.event, value.time, value.wall, value.partial) == (6, 1, 1.0, 1e9 + 1, True)


def test_a_run_that_keeps_nothing_has_no_file(made):
    kept = made()
    kept.describe(exposed=("model",))
    assert kept.close()
    assert not kept.path.exists()
    assert not kept.append(kept.stream("late"), batch(1, [1]))
    assert not kept.path.exists()


def test_facts_and_commands_are_kept(made):
    kept = made()
    kept.describe(exposed=("model",), odd=object)
    first = QueuedCommand("c", 1.0, 2.0, "batch", 3, "me", "set lr", 0.1, "fast", "pending")
    kept.command(first)
    kept.command(first._replace(outcome="done"))
    kept.describe(steps=5)
    assert kept.close(10, farewell="stopped")
    with looptap.open(kept.path) as run:
        assert run.commands == [first._replace(outcome="done")]
        assert run.metadata["exposed"] == ("model",)
        assert run.metadata["odd"] == "<class 'object'>"
        assert (run.metadata["steps"], run.name, run.reason) == (5, "run", "stopped")
        assert run.metadata["pid"] == os.getpid()


def test_a_closed_file_is_one_ordinary_file(made):
    kept = made()
    kept.append(kept.stream("s"), batch(1, [1]))
    soon(lambda: kept.stats().kept, detail="nothing was kept")
    assert kept.close(10)
    assert os.listdir(kept.path.parent) == [kept.path.name]


def test_a_value_is_committed_without_more_to_come(made):
    kept = made()
    kept.append(kept.stream("s"), batch(1, [1]))
    soon(lambda: kept.stats().kept == 1, detail="one value alone was not committed")
    with looptap.open(kept.path) as run:
        assert run.stream("s").values == [1]
        assert run.alive


def test_another_runs_file_is_never_written_into(made, tmp_path):
    (tmp_path / "run.looptap").write_text("precious")
    kept = made()
    kept.append(kept.stream("s"), batch(1, [1]))
    soon(lambda: kept.stats().state == "paused", detail="it did not stop")
    assert "exists already" in kept.stats().reason
    assert not kept.close(10)
    assert (tmp_path / "run.looptap").read_text() == "precious"


# ---------------------------------------------------------------- a disk that is full, slow or fails


@pytest.fixture
def small(tmp_path):
    """Return a disk of 2 MB, and two functions: fill it up, and make room."""
    place, ballast = tmp_path / "disk", tmp_path / "disk" / "ballast"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(place)], capture_output=True).returncode:
        pytest.skip("only root can mount a small disk; the limit on file sizes is tested beside this")

    def fill():
        with ballast.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                pass

    yield place, fill, ballast.unlink
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.fixture
def limited(tmp_path):
    """Return functions that set the limit on file sizes to 64 kB, and lift it."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    place = tmp_path / "limited"
    place.mkdir()
    lift = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, before)  # noqa: E731 - beside what it undoes
    yield place, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (65_536, before[1])), lift
    lift()


@pytest.mark.usefixtures("processes")
@pytest.mark.promise("S28")
@pytest.mark.parametrize("disk", ["small", "limited"])
def test_a_full_disk_pauses_keeping_which_resumes_by_itself(disk, made, request):
    place, fill, free = request.getfixturevalue(disk)
    kept = made(place / "run.looptap", limit=200_000)
    stream = kept.stream("s")
    kept.append(stream, batch(1, range(100), nbytes=100))
    soon(lambda: kept.stats().kept == 100, detail="nothing was kept before the disk was full")
    fill()
    first, accepted = 101, 100
    while not kept.stats().dropped:
        accepted += 100 * kept.append(stream, batch(first, [float(n) for n in range(100)], nbytes=100))
        first += 100
    soon(lambda: kept.stats().state == "paused", detail="it did not pause")
    assert "disk" in kept.stats().reason
    assert kept.stats().waiting_bytes <= 200_000
    free()
    soon(lambda: kept.stats().kept == accepted, detail="it did not resume")
    assert kept.append(stream, batch(first, [7]))
    assert kept.close(10)
    stats = kept.stats()
    assert stats.kept + stats.dropped == first
    assert stats.pauses == 1
    with looptap.open(kept.path) as run:
        assert run.stream("s").arrived == stats.kept
        assert run.stream("s").dropped == stats.dropped


class Slow(written_file.OwnConnection):
    """A disk whose commits wait until `go` is set."""

    go = threading.Event()
    waits = threading.Event()

    def execute(self, sql, *parameters):
        if sql == "COMMIT":
            self.waits.set()
            self.go.wait(300)
        return super().execute(sql, *parameters)


@pytest.fixture
def slow(monkeypatch):
    monkeypatch.setattr(written_file, "OwnConnection", Slow)
    Slow.go.clear()
    Slow.waits.clear()
    yield Slow
    Slow.go.set()


def test_a_slow_commit_blocks_no_caller_and_dropped_values_are_counted(made, slow):
    kept = made(limit=1_000_000)
    stream = kept.stream("s")
    kept.append(stream, batch(1, [0.0]))
    assert slow.waits.wait(300)
    longest, handed = 0.0, 1
    for _ in range(5000):
        more = batch(handed + 1, [1.0] * 10, nbytes=100)
        begun = time.perf_counter()
        kept.append(stream, more)
        longest = max(longest, time.perf_counter() - begun)
        handed += 10
    assert longest < 1
    stats = kept.stats()
    assert stats.waiting_bytes <= 1_000_000
    assert stats.kept == 0
    slow.go.set()
    soon(lambda: kept.stats().kept + kept.stats().dropped == handed, detail="it did not go on")
    assert kept.stats().dropped == stats.dropped > 0


def test_values_beside_a_refused_one_keep_their_order(made, slow):
    """The later of two values of a name wins, wherever in a commit one is refused."""
    for place in range(4):
        kept = made(Path(f"{made.folder}/order-{place}.looptap"))
        stream = kept.stream("s")
        kept.append(stream, batch(1, [1]))
        assert slow.waits.wait(300)
        for number in range(4):  # all of these are one commit
            if number == place:
                kept.append(stream, batch(2, [2])._replace(rank=2**80))
            kept.describe(step=number)
            kept.command(QueuedCommand("c", 1.0, 2.0, "batch", 3, "me", "set lr", 0.1, 0.2, f"outcome {number}"))
        slow.go.set()
        assert not kept.close(60)
        with looptap.open(kept.path) as run:
            assert run.metadata["step"] == 3
            assert [command.outcome for command in run.commands] == ["outcome 3"]
        assert (kept.stats().kept, kept.stats().dropped) == (1, 1)
        slow.go.clear()
        slow.waits.clear()


def test_pending_items_count_with_their_stated_bytes(made, slow):
    kept = made(limit=20_000)
    stream = kept.stream("s")
    kept.append(stream, batch(1, [0.0]))
    assert slow.waits.wait(300)
    before = kept.stats().waiting_bytes
    assert kept.append(stream, batch(2, [1.0], nbytes=5000))
    assert kept.stats().waiting_bytes == before + 5000 + 64
    assert kept.stats().waiting_peak == before + 5000 + 64
    assert not kept.append(stream, batch(3, [1.0], nbytes=50_000))
    slow.go.set()


def test_values_gather_for_a_while_or_until_they_are_many(made, slow, monkeypatch):
    monkeypatch.setattr(writer, "FLUSH_INTERVAL_SECONDS", 3600.0)
    slow.go.set()
    kept, many = made(), writer.FLUSH_EVERY_ITEMS
    stream = kept.stream("s")
    kept.append(stream, batch(1, [0.0] * many))
    soon(lambda: kept.stats().kept == many, detail="many values were not committed")
    slow.waits.clear()
    kept.append(stream, batch(many + 1, [0.0]))
    assert not slow.waits.wait(0.1)
    kept.append(stream, batch(many + 2, [0.0] * many))
    assert slow.waits.wait(300)


def test_close_leaves_a_stuck_disk_behind_in_time(made, slow):
    kept = made()
    kept.append(kept.stream("s"), batch(1, [1]))
    assert slow.waits.wait(300)
    assert not kept.close(0.1)  # the disk is stuck until the test is over


def test_an_unwritable_path_is_reported_and_retried(made, tmp_path):
    (tmp_path / "runs").write_text("in the way")
    kept = made(tmp_path / "runs" / "run.looptap")
    kept.append(kept.stream("s"), batch(1, [1]))
    soon(lambda: kept.stats().state == "paused", detail="it did not pause")
    assert "runs" in kept.stats().reason
    (tmp_path / "runs").unlink()
    soon(lambda: kept.stats().kept == 1, detail="it did not resume")
    assert (kept.stats().state, kept.stats().reason) == ("keeping", "")


def test_values_that_were_never_written_are_counted_at_the_end(made, tmp_path):
    (tmp_path / "runs").write_text("in the way")
    kept = made(tmp_path / "runs" / "run.looptap")
    kept.append(kept.stream("s"), batch(1, [1, 2]))
    soon(lambda: kept.stats().state == "paused", detail="it did not pause")
    assert not kept.close(10)
    assert kept.stats().dropped == 2
    assert kept.stats().state == "closed"


# ---------------------------------------------------------------- kill -9, fork, network


@pytest.mark.usefixtures("processes")
@pytest.mark.promise("S27")
def test_kill_9_loses_nothing_that_was_committed(tmp_path):
    command = [sys.executable, str(SUPPORT / "killing.py"), str(tmp_path), "5", "0.4"]
    done = warm.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["killed"] == 50
    assert seen["with_values"] > 10


FORKED = """
import os, sys
from array import array
from pathlib import Path
from looptap.store.writer import Writer
from looptap.streams.stream.buffer import Batch
batch = lambda n: Batch(n, array("q", [n]), array("d", [0.0]), [n])
kept = Writer(Path(sys.argv[1]))
stream = kept.stream("s")
kept.append(stream, batch(1))
while not kept.stats().kept: pass
if len(sys.argv) > 2: kept._lock.acquire()  # as its thread may have
if (child := os.fork()) == 0:
    assert not kept.append(stream, batch(99))
    assert kept.stream("late")
    kept.close()
    assert kept.stats().state == "closed"
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
if len(sys.argv) > 2: kept._lock.release()
kept.append(stream, batch(2))
assert kept.close(10)
"""


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("arguments", [[], ["locked"]])
def test_a_forked_child_writes_and_closes_nothing(tmp_path, arguments):
    command = [sys.executable, "-c", FORKED, str(tmp_path / "run.looptap"), *arguments]
    warm.run(command, check=True, timeout=300)
    with looptap.open(tmp_path / "run.looptap") as run:
        assert run.stream("s").values == [1, 2]


def test_on_a_network_file_system_there_is_no_log_that_needs_shared_memory(made, monkeypatch):
    monkeypatch.setattr(written_file, "is_on_local_disk", lambda path: False)
    kept = made()
    stream = kept.stream("s")
    kept.append(stream, batch(1, [1]))
    soon(lambda: kept.stats().kept == 1, detail="nothing was kept")
    assert not [name for name in os.listdir(kept.path.parent) if name.endswith(("-wal", "-shm"))]
    with looptap.open(kept.path) as run:
        kept.append(stream, batch(2, [2]))
        assert run.stream("s").wait(2, timeout=300) == [1, 2]


MOUNTS = "/dev/sda1 / ext4 rw 0 0\nnas:/home /net/my\\040home nfs4 rw 0 0\n//win/c /net/my\\040home/c cifs rw 0 0\n"
MOUNTS += "tmpfs /net/my\\040home/fast tmpfs rw 0 0\nlustre /scratch lustre rw 0 0\nme@far: /far fuse.sshfs rw 0 0\n"


@pytest.mark.parametrize(
    ("path", "local"),
    [
        ("/var/run.looptap", True),
        ("/net/my home/run.looptap", False),
        ("/net/my home/c/run.looptap", False),
        ("/net/my home/fast/run.looptap", True),
        ("/net/my home else/run.looptap", True),
        ("/scratch/run.looptap", False),
        ("/far/run.looptap", False),
    ],
)
def test_a_network_file_system_is_known_by_its_mount(path, local):
    assert run_path.is_on_local_disk(Path(path), MOUNTS) is local


def test_the_store_is_that_of_the_argument_then_the_environment_then_the_directory(monkeypatch):
    monkeypatch.delenv("LOOPTAP_STORE", raising=False)
    assert run_path.store_path("a/b").as_posix() == "looptap-runs/a_b.looptap"
    monkeypatch.setenv("LOOPTAP_STORE", "/data")
    assert run_path.store_path("a").as_posix() == "/data/a.looptap"
    assert run_path.store_path("a", "here").as_posix() == "here/a.looptap"
    assert run_path.store_path("a", "here/mine.looptap", rank=3).as_posix() == "here/mine-rank3.looptap"
