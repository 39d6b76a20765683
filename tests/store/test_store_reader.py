"""Stored runs: read like live ones, while written too; bad files give a sentence."""

from __future__ import annotations

import contextlib
import importlib.util
import math
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from array import array
from pathlib import Path

import numpy as np
import pytest
import warm
from places import TESTS
from waiting import soon

import looptap
from looptap.store.layout import schema
from looptap.store.layout.database import connect
from looptap.store.paged_buffer import ITEMS_PER_PAGE
from looptap.store.writer import Writer
from looptap.streams.stream.buffer import Batch

STORES = TESTS / "store" / "versions"
ROWS = [(step, 1 / (step + 1)) for step in range(10_000)]


def recorder():
    spec = importlib.util.spec_from_file_location("record", STORES / "record.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def batch(first, values):
    count = len(values)
    return Batch(first, array("q", range(first, first + count)), array("d", range(count)), list(values), 1e9)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """Return a run with 10,000 rows, more than are read at a time."""
    writer = Writer(tmp_path_factory.mktemp("runs") / "digits.looptap", {"id": "digits-1", "name": "digits"})
    loss = writer.stream("loss", query="step, loss", on="batch", fields=("step", "loss"))
    for first in range(0, len(ROWS), 100):
        writer.append(loss, batch(first + 1, ROWS[first : first + 100]))
    assert writer.close(30)
    assert len(ROWS) > 2 * ITEMS_PER_PAGE
    return writer.path


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """Return a run with 100 values in rows of their own, which are no columns."""
    writer = Writer(tmp_path_factory.mktemp("runs") / "rows.looptap")
    writer.append(writer.stream("loss", fields=("step", "loss")), batch(1, [(step, None) for step in range(100)]))
    assert writer.close(30)
    return writer.path


@pytest.fixture
def run(file):
    with looptap.open(file) as run:
        yield run


# ---------------------------------------------------------------- what is stored


def test_a_stored_stream_has_what_a_live_one_has(run):
    loss = run.stream("loss")
    assert loss.values == ROWS
    assert loss.latest.loss == ROWS[-1][1]
    assert (len(loss), loss.arrived, loss.dropped, loss.forgotten, loss.state) == (10_000, 10_000, 0, 0, "ended")
    assert [row.step for row in loss] == list(range(10_000))
    assert list(loss.follow(timeout=300)) == ROWS
    assert loss.wait(10_000, timeout=300) == ROWS
    assert [record.number for record in loss.records_after(9_998)] == [9_999, 10_000]
    assert loss.to_numpy().shape == (10_000, 2)
    assert list(loss.to_pandas()["loss"]) == [loss for _, loss in ROWS]
    seen = []
    loss.on_value(seen.append, replay=True)
    assert seen == ROWS
    with pytest.raises(looptap.StreamEnded, match=r"10000 of 10001 values"):
        loss.wait(10_001, timeout=300)


def test_a_stream_is_found_by_its_name_or_its_query(run):
    assert run.stream("loss") is run.stream("step, loss") is run.streams[0]
    with pytest.raises(looptap.StoreError, match=r"no stream 'los' in .*there are 'loss'\. Did you mean 'loss'\?"):
        run.stream("los")


def test_the_query_language_runs_over_stored_values(run):
    loss = run.stream("loss")
    assert loss.query("max(v.loss for v in values)").values == [1.0]
    assert loss.query("(v.step for v in values if v.loss > 0.3)").values == [0, 1, 2]
    means = loss.query("mean(v.loss for v in values)", window=5000).values
    assert means == pytest.approx([np.mean([r[1] for r in ROWS[:5000]]), np.mean([r[1] for r in ROWS[5000:]])])


def test_a_gap_cuts_the_window_of_a_query(tmp_path):
    writer = Writer(tmp_path / "gap.looptap")
    stream = writer.stream("n")
    writer.append(stream, batch(1, [1, 2]))
    writer.append(stream, batch(10, [10, 11]))
    assert writer.close(30)
    with looptap.open(writer.path) as run:
        assert run.stream("n").gaps == [looptap.Gap(2, 7)]
        assert run.stream("n").dropped == 7
        (record,) = run.stream("n").query("sum(v for v in values)").records
        assert (record.value, record.partial) == (24, True)


def is_open(path):
    """Return True if this process has the file open, as `/proc` says."""
    return any(Path(f"/proc/self/fd/{number}").resolve() == path for number in os.listdir("/proc/self/fd"))


def test_a_run_says_what_it_was_and_a_closed_one_that_it_is_closed(file):
    run = looptap.open(file)
    assert (run.id, run.name, run.state, run.reason) == ("digits-1", "digits", "ended", "the run ended")
    assert run.started <= run.ended <= time.time()
    assert "1 stream;" in repr(run)
    loss = run.stream("loss")
    assert is_open(file)
    run.close()
    run.close()
    assert "closed" in repr(loss) or loss.state == "ended"
    assert not is_open(file)
    with pytest.raises(looptap.StoreError, match="is closed"):
        _ = loss.values


@pytest.mark.parametrize("version", range(1, schema.SCHEMA_VERSION + 1))
def test_a_file_of_every_version_opens_for_ever(version, tmp_path):
    recorded = recorder()
    path = shutil.copy(STORES / f"version-{version}.looptap", tmp_path)
    with looptap.open(path) as run:
        assert (run.id, run.name, run.reason, run.started) == ("recorded-1", "recorded", "the run ended", 1.7e9)
        loss, odd, *_ = run.streams
        assert loss.values == [*((step, 1 / (step + 1)) for step in range(20)), (30, 0.25)]
        assert (loss.text, loss.on, loss.fields, loss.dropped) == ("step, loss", "batch", ("step", "loss"), 10)
        assert loss.records[1][:5] == (2, 20, 0, 0.5, 1.7e9 + 0.5)
        assert repr(odd.values[:-2]) == repr(recorded.ODD)
        assert odd.values[-2].tolist() == recorded.ARRAY.tolist()
        assert odd.values[-2].dtype == recorded.ARRAY.dtype
        assert (odd.window, odd.unit, odd.errors[0].error) == ("100 events", "s", "ZeroDivisionError")
        assert odd.records[-1].partial
        assert [command.what for command in run.commands] == ["echo.factor"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("DROP TABLE items", "is damaged: no such table: items"),
        ("ALTER TABLE commands RENAME COLUMN outcome TO became", "its table commands lacks the column outcome"),
    ],
)
def test_a_file_of_the_first_version_may_lack_only_what_came_later(change, says, tmp_path):
    with pytest.raises(looptap.StoreError, match=says):
        looptap.open(changed(STORES / "version-1.looptap", tmp_path, change))


# ---------------------------------------------------------------- while it is written

KEEPING = """
import sys, time
from array import array
from pathlib import Path
from looptap.store.writer import Writer
from looptap.streams.stream.buffer import Batch
writer = Writer(Path(sys.argv[1]), {"id": "live", "name": "live"})
stream = writer.stream("n")
for n in range(1, 301):
    writer.append(stream, Batch(n, array("q", [n]), array("d", [time.monotonic()]), [n], 0.0))
    if n == 100:
        print("ready", flush=True)
    if n == 200 and len(sys.argv) > 2:
        while not writer.stats().kept == 200: pass
        print("kept", flush=True)
        time.sleep(600)
    while n == 200 and not Path(sys.argv[1] + ".opened").exists(): time.sleep(0.01)
    time.sleep(0.003)
assert writer.close(30)
"""


@contextlib.contextmanager
def keeping(path, *arguments):
    """Run a process that records values, the last 100 when its run was opened."""
    command = [sys.executable, "-c", KEEPING, str(path), *arguments]
    with warm.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        soon(path.exists)
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.usefixtures("processes")
def test_a_run_that_is_being_written_is_followed_to_its_end(tmp_path):
    path = tmp_path / "live.looptap"
    with keeping(path), looptap.open(path) as run:
        assert run.alive
        Path(f"{path}.opened").touch()
        soon(lambda: run.streams)
        stream, seen = run.stream("n"), []
        doubled = stream.query("(2 * v for v in values)")
        last = stream.query("max(v for v in values)")
        stream.on_value(seen.append, replay=True)
        assert list(stream.follow(timeout=300)) == list(range(1, 301))
        assert doubled.wait(300, timeout=300) == list(range(2, 601, 2))
        assert last.wait(1, timeout=300) == [300]
        assert seen == list(range(1, 301))
        assert (stream.dropped, run.state, run.reason) == (0, "ended", "the run ended")


@pytest.mark.usefixtures("processes")
def test_a_run_whose_process_was_killed_ends_and_keeps_what_it_had(tmp_path):
    path = tmp_path / "killed.looptap"
    with keeping(path, "and wait") as process:
        assert process.stdout.readline() == "kept\n"
        with looptap.open(path) as run:
            assert run.alive
            process.kill()
            process.wait()
            assert list(run.stream("n").follow(timeout=300)) == list(range(1, 201))
            assert (run.state, run.reason) == ("ended", "its process was killed, or ended without closing the file")
        with looptap.open(path) as again:
            assert again.state == "ended"
            assert len(again.stream("n")) == 200


@pytest.mark.usefixtures("processes")
def test_a_copy_without_the_log_of_an_unfinished_run_says_what_it_lacks(tmp_path):
    path, bare, whole = (tmp_path / f"{name}.looptap" for name in ("killed", "bare", "whole"))
    with keeping(path, "and wait") as process:
        assert process.stdout.readline() == "kept\n"
        for copy in (bare, whole):
            shutil.copy(path, copy)
        shutil.copy(f"{path}-wal", f"{whole}-wal")
        with looptap.open(bare) as run, pytest.raises(looptap.StoreError, match=r"the second one as bare\.looptap-wal"):
            run.stream("n")
        with looptap.open(bare) as run:
            soon(lambda: not run.alive)  # its process writes to the original
            assert run.reason.startswith("it is not complete. It looks like a copy")
        with looptap.open(path) as run:
            assert (run.alive, len(run.stream("n"))) == (True, 200)
        process.kill()
        process.wait()
    with looptap.open(bare) as run:
        assert "closing the file. It looks like a copy without the original's -wal file" in run.reason
    with looptap.open(whole) as run:
        assert (run.lacks, len(run.stream("n"))) == ("", 200)
    shutil.copy(f"{path}-wal", f"{bare}-wal")
    with looptap.open(bare) as run:
        assert (run.lacks, len(run.stream("n"))) == ("", 200)


@pytest.mark.usefixtures("processes")
def test_a_copy_without_its_log_on_another_machine_has_ended(tmp_path):
    path, bare = tmp_path / "far.looptap", tmp_path / "bare.looptap"
    with keeping(path, "and wait") as process:
        assert process.stdout.readline() == "kept\n"
        shutil.copy(path, bare)
        process.kill()
    with sqlite3.connect(bare) as connection:
        connection.execute("DELETE FROM run WHERE key = 'process'")
    connection.close()
    with looptap.open(bare) as run:
        assert (run.state, "-wal file" in run.reason) == ("ended", True)


def test_an_unfinished_file_of_another_machine_is_live_for_an_hour(file, tmp_path):
    path = changed(file, tmp_path, "DELETE FROM run WHERE key IN ('ended', 'process')")
    with looptap.open(path) as run:
        assert run.alive
        assert len(run.stream("loss")) == 10_000
    hours_ago = time.time() - 2 * 3600
    os.utime(path, (hours_ago, hours_ago))
    with looptap.open(path) as run:
        assert (run.state, "for an hour" in run.reason) == ("ended", True)
        assert (run.ended, run.until) == (None, pytest.approx(run.stream("loss").records[-1].wall))


# ---------------------------------------------------------------- what cannot be opened


def changed(file, tmp_path, statement):
    path = Path(shutil.copy(file, tmp_path / "changed.looptap"))
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(statement)
    return path


def written(content):
    def make(file, tmp_path):
        path = tmp_path / "odd.looptap"
        path.write_bytes(content(file.read_bytes()))
        return path

    return make


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda file, tmp: tmp / "absent.looptap", "cannot be opened: No such file or directory"),
        (lambda file, tmp: tmp, "is a directory without TensorBoard's event files"),
        (written(lambda good: b""), "is empty"),
        (written(lambda good: b"step,loss\n1,2\n"), "is not a run that looptap has stored"),
        (written(lambda good: good[:5000]), "damaged"),
        (written(lambda good: good[:100] + b"\xaa" * (len(good) - 100)), "damaged"),
        (lambda file, tmp: changed(file, tmp, "PRAGMA user_version = 99"), r"newer looptap \(version 99"),
        (lambda file, tmp: changed(file, tmp, "PRAGMA user_version = 0"), "version 0.*never existed"),
        (lambda file, tmp: changed(file, tmp, "PRAGMA application_id = 1"), "not a run that looptap has stored"),
        (lambda file, tmp: changed(file, tmp, "DROP TABLE run"), "no such table: run"),
    ],
)
def test_a_file_that_cannot_be_opened_is_one_sentence(make, says, file, tmp_path):
    with pytest.raises(looptap.StoreError, match=says) as caught:
        looptap.open(make(file, tmp_path))
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE items SET packed = x'c1'", "UPDATE items SET packed = '[1,'", "UPDATE items SET packed = NULL",
        "UPDATE items SET packed = '{\"a\": [[]]}'", "UPDATE streams SET fields = '7'", "UPDATE items SET time = 'x'",
        "UPDATE items SET flags = 1000", "UPDATE items SET rank = NULL", "UPDATE items SET packed = x'c70201ff'",
        "UPDATE items SET event = 'x'",
    ],
)  # fmt: skip
def test_a_value_that_was_never_stored_is_a_store_error(change, rows, tmp_path):
    path = Path(shutil.copy(rows, tmp_path / "changed.looptap"))
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        with contextlib.suppress(sqlite3.IntegrityError), connection:
            connection.execute(change)
            change = ""
    if change:
        return  # the tables refuse it themselves
    with pytest.raises(looptap.StoreError), looptap.open(path) as run:
        _ = run.stream("loss").values


def test_a_file_is_read_only_to_its_readers(run):
    with pytest.raises(looptap.StoreError, match=r"readonly|read-only"):
        run._select("DELETE FROM items")


def test_a_file_in_the_place_of_the_one_that_was_opened_is_noticed(file, tmp_path):
    path, other = Path(shutil.copy(file, tmp_path / "a")), Path(shutil.copy(file, tmp_path / "b"))
    with contextlib.closing(connect(path)) as database:
        assert not database.is_replaced()
        other.replace(path)
        assert database.is_replaced()
        path.unlink()
        assert not database.is_replaced()  # what is open is all that there is


@pytest.mark.usefixtures("processes")
@pytest.mark.promise("read-only")
@pytest.mark.parametrize("journal", ["DELETE", "WAL"])
def test_a_file_on_read_only_media_is_read(journal, file, tmp_path):
    """A killed run leaves it in WAL mode, which needs a log that SQLite may write."""
    path = changed(file, tmp_path, f"PRAGMA journal_mode = {journal}")
    folder = tmp_path / "medium"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "none", str(folder)], capture_output=True).returncode:
        pytest.skip("only root can mount a disk")
    try:
        shutil.copy(path, folder)
        subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
        with looptap.open(folder / path.name) as run:
            assert run.stream("loss").values == ROWS
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


KILLED_IN_A_COMMIT = """
import os, signal, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("PRAGMA journal_mode = TRUNCATE")
connection.execute("PRAGMA cache_size = 1")
connection.execute("BEGIN")
connection.execute("UPDATE pages SET columns = zeroblob(200000)")
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.usefixtures("processes")
def test_a_half_written_file_on_a_network_file_system_is_undone_by_the_next_reader(file, tmp_path):
    path = Path(shutil.copy(file, tmp_path))
    warm.run([sys.executable, "-c", KILLED_IN_A_COMMIT, str(path)])
    assert path.with_name(path.name + "-journal").stat().st_size
    assert path.read_bytes() != file.read_bytes()
    with looptap.open(path) as run:
        assert run.stream("loss").values == ROWS


def test_nan_is_nan_again(tmp_path):
    writer = Writer(tmp_path / "nan.looptap")
    writer.append(writer.stream("n"), batch(1, [math.nan, (1, math.nan)]))
    assert writer.close(30)
    with looptap.open(writer.path) as run:
        first, second = run.stream("n").values
    assert math.isnan(first)
    assert math.isnan(second[1])


def test_a_name_in_place_of_a_path_is_answered_by_the_file(tmp_path, monkeypatch):
    monkeypatch.setenv("LOOPTAP_STORE", str(tmp_path))
    (tmp_path / "digits-20260102.looptap").touch()
    with pytest.raises(looptap.StoreError, match=r"Did you mean .*digits-20260102\.looptap\?"):
        looptap.open("digits")


def test_a_name_or_an_id_opens_the_newest_run_that_is_stored_under_it(file, tmp_path, monkeypatch):
    monkeypatch.setenv("LOOPTAP_STORE", str(tmp_path))
    ids = ["digits-20260101-000000-aaaaaa", "digits-20260102-000000-bbbbbb", "digits-cnn-20260103-000000-cccccc"]
    for age, id in enumerate(reversed(ids)):
        path = tmp_path / f"{id}.looptap"
        shutil.copy(file, path)
        os.utime(path, (time.time() - 60 * age,) * 2)
    assert looptap.open("digits").path.stem == ids[1]
    assert looptap.open("digits-cnn").path.stem == ids[2]
    assert looptap.open(ids[0]).path.stem == ids[0]


def test_a_run_without_a_config_has_the_version_of_python_as_people_write_it(tmp_path):
    writer = Writer(tmp_path / "plain.looptap", {"id": "plain-1", "name": "plain", "python": (3, 13)})
    writer.append(writer.stream("loss"), batch(1, [0.5]))
    assert writer.close(30)
    assert looptap.open(writer.path).config.versions["python"] == "3.13"


def test_a_file_that_is_locked_is_refused_and_not_read_as_one_that_nothing_changes(file, tmp_path, monkeypatch):
    monkeypatch.setattr("looptap.store.layout.database._BUSY_TIMEOUT_SECONDS", 0.01)
    path = Path(shutil.copy(file, tmp_path))
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(looptap.StoreError, match=r"locked for 0\.01 s by the process that writes it; try again"):
            looptap.open(path)
    looptap.open(path).close()
