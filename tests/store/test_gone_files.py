"""Files that are removed, replaced or damaged while a run writes to them."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import subprocess
import threading
from array import array
from itertools import permutations

import pytest
from waiting import soon

import looptap
from looptap.store import run as stored_run
from looptap.store import writer
from looptap.store.layout import written_file
from looptap.store.layout.page_writer import PageWriter
from looptap.store.queue import QueuedCommand
from looptap.store.writer import Writer
from looptap.streams.stream.buffer import Batch

COMMAND = QueuedCommand("c", 1.0, 2.0, "batch", 3, "me", "set lr", 0.1, 0.2, "done")


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(writer, "RETRY_DELAY_SECONDS", 0.02)
    monkeypatch.setattr(writer, "FLUSH_INTERVAL_SECONDS", 0.01)


class Keeping:
    """A writer that keeps the numbers from 1 on as values of a stream."""

    def __init__(self, path, **options):
        self.writer = Writer(path, {"id": "run-1", "name": "run"}, **options)
        self.stream, self.handed = self.writer.stream("n"), 0
        self.writer.command(COMMAND)
        self.writer.describe(later="fact")

    @property
    def path(self):
        return self.writer.path

    def hand(self, count=100):
        """Hand values to the writer."""
        numbers = range(self.handed + 1, self.handed + count + 1)
        values = [float(number) for number in numbers]
        self.handed += count
        self.writer.append(self.stream, Batch(numbers[0], array("q", numbers), array("d", values), values, 0.0))

    def keep(self, count=100):
        """Keep values, and wait until they are committed or counted."""
        self.hand(count)
        soon(self.is_settled, detail=self.writer.stats)

    def is_settled(self):
        stats = self.writer.stats()
        return stats.kept + stats.dropped == self.handed and stats.state == "keeping"


@pytest.fixture
def keeping(tmp_path):
    made = Keeping(tmp_path / "runs" / "run.looptap")
    made.keep()
    yield made
    made.writer.close(10)


def check(path, first, last, commands=(COMMAND,), dropped=0):
    """Check what a file has, and that nothing but the file is there."""
    with looptap.open(path) as run:
        assert run.stream("n").values == list(range(first, last + 1))
        assert run.stream("n").dropped == dropped
        assert run.commands == list(commands)
        assert (run.name, run.metadata["later"], run.ended is not None) == ("run", "fact", True)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not [name for name in os.listdir(path.parent) if name.endswith(("-wal", "-shm", "-journal"))]


def removed(path):
    while path.parent.exists():  # SQLite may remove one of its files meanwhile
        shutil.rmtree(path.parent, ignore_errors=True)


def file_removed(path):
    path.unlink()


def all_files_removed(path):
    for one in path.parent.iterdir():
        one.unlink()


def renamed(path):
    path.parent.rename(path.parent.with_name("elsewhere"))


def moved(path):
    path.rename(path.with_name("moved"))


def logs_removed(path):
    path.with_name(f"{path.name}-wal").unlink()
    path.with_name(f"{path.name}-shm").unlink()


def index_removed(path):
    path.with_name(f"{path.name}-shm").unlink()


def log_removed(path):
    path.with_name(f"{path.name}-wal").unlink()


def checkpointed(path):
    other = sqlite3.connect(path)
    other.execute("PRAGMA wal_checkpoint")
    other.close()


def touched(path):
    os.utime(path)


HARMLESS = [logs_removed, index_removed, log_removed, checkpointed, touched]


@pytest.mark.promise("S28")
@pytest.mark.parametrize("happens", [removed, file_removed, all_files_removed, renamed, moved, *HARMLESS])
@pytest.mark.parametrize("local", [True, False])
def test_nothing_is_lost_if_a_file_goes_while_it_is_written(tmp_path, monkeypatch, caplog, happens, local):
    if not local and happens in (logs_removed, index_removed, log_removed, checkpointed):
        pytest.skip("a network file system has no logs")
    monkeypatch.setattr(written_file, "is_on_local_disk", lambda path: local)
    keeping = Keeping(tmp_path / "runs" / "run.looptap")
    keeping.keep()
    for _ in range(2):
        happens(keeping.path)
        keeping.keep()
        keeping.keep()
        with looptap.open(keeping.path) as run:
            assert len(run.stream("n")) == keeping.handed
        if happens is renamed:
            shutil.rmtree(tmp_path / "elsewhere")
    happens(keeping.path)
    assert keeping.writer.close(10)
    stats = keeping.writer.stats()
    assert (stats.kept, stats.dropped, stats.file) == (keeping.handed, 0, str(keeping.path))
    check(keeping.path, 1, keeping.handed)
    assert caplog.text.count("all that the run has stored was written again") == 3 * (happens not in HARMLESS)
    assert stats.reason == "" if happens in HARMLESS else str(keeping.path) in stats.reason


def by_a_file(path):
    path.unlink()
    path.write_text("precious")


def by_a_rename(path):
    other = path.with_name("other")
    other.write_text("precious")
    other.replace(path)


def by_a_directory(path):
    path.unlink()
    path.mkdir()
    (path / "precious").write_text("precious")


def by_a_link(path):
    path.unlink()
    (path.parent / "target").write_text("precious")
    path.symlink_to("target")


def by_a_broken_link(path):
    path.unlink()
    path.symlink_to("nowhere")


def by_a_former_copy(path):
    former = path.with_name("former")
    shutil.copy(path, former)
    former.replace(path)


def contents(path):
    """Return what is at a path, links not followed."""
    if path.is_symlink():
        return os.readlink(path), path.parent.joinpath("target").exists()
    return [one.read_text() for one in path.iterdir()] if path.is_dir() else path.read_bytes()


@pytest.mark.parametrize(
    "replaced", [by_a_file, by_a_rename, by_a_directory, by_a_link, by_a_broken_link, by_a_former_copy]
)
def test_a_run_continues_under_another_name_if_something_takes_the_place_of_its_file(keeping, replaced, caplog):
    former = keeping.path
    replaced(former)
    theirs = contents(former)
    keeping.keep()
    keeping.keep()
    assert keeping.writer.close(10)
    assert keeping.path == former.with_name("run-2.looptap")
    check(keeping.path, 1, 300)
    assert contents(former) == theirs
    assert f"{former} was replaced; all that the run has stored was written again, to {keeping.path}" in caplog.text


def emptied(path):
    os.truncate(path, 0)


def truncated(path):
    os.truncate(path, path.stat().st_size - 4096)


def overwritten(path):
    """Overwrite it with a larger file of another kind, as cp does."""
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.truncate(0)
        file.write(b"precious" * size)


def overwritten_by_a_former_copy(path):
    with path.open("r+b") as file:
        file.truncate(0)
        file.write(path.with_name("former").read_bytes())


@pytest.mark.parametrize("damaged", [emptied, truncated, overwritten, overwritten_by_a_former_copy])
def test_what_is_lost_with_a_damaged_file_is_counted_and_said(keeping, damaged, caplog):
    path = keeping.path
    shutil.copy(path, path.with_name("former"))
    for _ in range(3):
        keeping.keep()
    checkpointed(path)
    keeping.keep()
    assert keeping.writer.stats().dropped == 0
    damaged(path)
    keeping.keep()
    stats = keeping.writer.stats()
    assert (stats.state, stats.kept, stats.dropped) == ("keeping", 100, 500)
    said = f"{path} was changed by another program, and is damaged; this lost 500 values and 1 command"
    assert said in stats.reason
    assert said in caplog.text
    keeping.keep()
    assert not keeping.writer.close(10)
    check(path, 501, 700, commands=(), dropped=500)
    assert path.with_name("run.looptap.damaged").exists()


def test_where_no_command_is_lost_none_is_named(tmp_path):
    kept = Writer(tmp_path / "run.looptap")
    kept.append(kept.stream("n"), Batch(1, array("q", [1]), array("d", [1.0]), [1.0], 0.0))
    soon(lambda: kept.stats().kept == 1)
    emptied(kept.path)
    kept.append(1, Batch(2, array("q", [2]), array("d", [2.0]), [2.0], 0.0))
    soon(lambda: kept.stats().dropped == kept.stats().kept == 1)
    assert "this lost 1 value; later ones are in " in kept.stats().reason
    assert not kept.close(10)


def test_a_file_that_goes_while_keeping_is_paused_is_made_again_with_everything(keeping, monkeypatch, caplog):
    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as failing:
        failing.setattr(PageWriter, "write", full)
        keeping.hand()
        soon(lambda: keeping.writer.stats().state == "paused")
        removed(keeping.path)
    soon(keeping.is_settled, detail=keeping.writer.stats)
    assert (keeping.writer.stats().kept, keeping.writer.stats().dropped) == (200, 0)
    assert "was removed or moved; all that the run has stored was written again" in caplog.text
    assert keeping.writer.close(10)
    check(keeping.path, 1, 200)


PARTS = ["", "-wal", "-shm"]


@pytest.mark.parametrize("between", [True, False])
@pytest.mark.parametrize("order", list(permutations(PARTS)), ids=lambda order: "".join(order))
def test_nothing_is_lost_in_whatever_order_the_files_of_a_run_are_removed(keeping, order, between):
    path = keeping.path
    for part in order:
        path.with_name(path.name + part).unlink(missing_ok=True)
        if between:
            keeping.keep()
    removed(path)
    keeping.keep()
    assert keeping.writer.close(10)
    check(path, 1, keeping.handed)


class AtLine:
    """Calls ``act`` once, before a thread runs this ``line`` of `written_file`."""

    def __init__(self):
        self.passed = set()
        self.act, self.line, self.watching = None, None, False

    def __call__(self, frame, event, _):
        if frame.f_code.co_filename != written_file.__file__:
            return None
        if event == "line" and self.watching:
            self.passed.add(frame.f_lineno)
            if frame.f_lineno == self.line:
                self.line = None
                self.act()
        return self


def lines_passed(path, happens, line=None, ends=False):
    """Remove a folder before a line; return the lines that ran, and the path."""
    trace = AtLine()
    trace.act, trace.line = (lambda: removed(path)), line
    threading.settrace(trace)
    try:
        keeping = Keeping(path)
        keeping.keep()
    finally:
        threading.settrace(None)
    happens(path)
    trace.watching = True
    if ends:
        keeping.hand()
    else:
        keeping.keep()
        trace.watching = False
    assert keeping.writer.close(10), (line, keeping.writer.stats())
    return trace.passed, keeping.path


@pytest.mark.long
@pytest.mark.parametrize("happens", [log_removed, removed, touched, by_a_former_copy])
def test_nothing_is_lost_if_a_folder_goes_before_any_line_that_mends_a_file(tmp_path, happens, caplog):
    lines, _ = lines_passed(tmp_path / "0" / "run.looptap", happens)
    assert len(lines) > 20
    for line in sorted(lines):
        _, path = lines_passed(tmp_path / str(line) / "run.looptap", happens, line)
        check(path, 1, 200)
    assert "this lost" not in caplog.text


@pytest.mark.long
@pytest.mark.parametrize("happens", [touched, log_removed, removed])
def test_nothing_is_lost_if_a_folder_goes_before_any_line_that_ends_a_file(tmp_path, happens, caplog):
    """Unless it goes after the last commit, with the file as it should be."""
    lines, _ = lines_passed(tmp_path / "0" / "run.looptap", happens, ends=True)
    assert len(lines) > 20
    written = 0
    for line in sorted(lines):
        _, path = lines_passed(tmp_path / str(line) / "run.looptap", happens, line, ends=True)
        if path.exists():
            written += 1
            check(path, 1, 200)
    assert "this lost" not in caplog.text
    assert written > len(lines) // 2


def log_emptied(path):
    os.truncate(path.with_name(f"{path.name}-wal"), 0)


def log_overwritten(path):
    log = path.with_name(f"{path.name}-wal")
    with log.open("r+b") as file:
        file.write(b"precious" * (log.stat().st_size // 8))


@pytest.mark.parametrize("damaged", [log_emptied, log_overwritten])
def test_what_is_lost_with_a_damaged_log_is_counted_and_said(keeping, damaged):
    path = keeping.path
    damaged(path)
    keeping.keep()
    keeping.keep()
    assert (keeping.writer.stats().kept, keeping.writer.stats().dropped) == (200, 100)
    assert "is damaged; this lost 100 values and 1 command" in keeping.writer.stats().reason
    assert not keeping.writer.close(10)
    check(path, 101, 300, commands=(), dropped=100)


def test_a_log_that_goes_during_a_commit_is_noticed(keeping, monkeypatch):
    """Else later values are in a log without a name, which goes with the process."""
    write, path = PageWriter.write, keeping.path

    def removing(self, connection, items):
        log_removed(path)
        return write(self, connection, items)

    with monkeypatch.context() as during:
        during.setattr(PageWriter, "write", removing)
        keeping.keep()
    keeping.keep()
    shutil.copytree(path.parent, path.parent.with_name("killed"))
    with looptap.open(path.parent.with_name("killed") / path.name) as run:
        assert len(run.stream("n")) == 300


def test_what_went_with_a_file_that_cannot_be_made_again_is_counted_at_the_end(keeping):
    folder = keeping.path.parent
    removed(keeping.path)
    folder.write_text("in the way")
    keeping.hand()
    soon(lambda: keeping.writer.stats().state == "paused")
    assert "runs" in keeping.writer.stats().reason
    assert keeping.writer.stats().kept == 100
    assert not keeping.writer.close(10)
    assert (keeping.writer.stats().kept, keeping.writer.stats().dropped) == (0, 200)
    assert folder.read_text() == "in the way"


def test_a_file_is_made_again_with_everything_once_its_folder_can_be(keeping):
    folder = keeping.path.parent
    removed(keeping.path)
    folder.write_text("in the way")
    keeping.hand()
    soon(lambda: keeping.writer.stats().state == "paused")
    folder.unlink()
    soon(keeping.is_settled, detail=keeping.writer.stats)
    assert keeping.writer.close(10)
    check(keeping.path, 1, 200)


@pytest.mark.usefixtures("processes")
def test_a_file_that_has_no_room_to_be_written_again_begins_again(tmp_path):
    place = tmp_path / "disk"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(place)], capture_output=True).returncode:
        pytest.skip("only root can mount a small disk")
    try:
        keeping = Keeping(place / "runs" / "run.looptap")
        keeping.keep(30_000)
        removed(keeping.path)
        keeping.keep()
        assert (keeping.writer.stats().kept, keeping.writer.stats().dropped) == (100, 30_000)
        assert not keeping.writer.close(10)
        check(keeping.path, 30_001, 30_100, commands=(), dropped=30_000)
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def test_files_that_are_replaced_again_and_again_end_in_a_pause(keeping, monkeypatch):
    monkeypatch.setattr(written_file, "MAX_FILES", 3)
    for _ in range(2):
        by_a_file(keeping.path)
        keeping.keep()
    by_a_file(keeping.path)
    keeping.hand()
    soon(lambda: keeping.writer.stats().state == "paused")
    assert "was replaced 3 times" in keeping.writer.stats().reason


@pytest.mark.parametrize("happens", [removed, file_removed])
def test_a_reader_continues_in_the_file_that_is_made_again(keeping, happens, monkeypatch):
    monkeypatch.setattr(stored_run, "LIVENESS_CHECK_AFTER_SECONDS", 0.05)
    with looptap.open(keeping.path) as run:
        seen = run.stream("n")
        assert len(seen) == 100
        happens(keeping.path)
        keeping.keep()
        assert seen.wait(200, timeout=300) == list(range(1, 201))
        keeping.keep()
        keeping.writer.close(10)
        assert list(seen.follow(timeout=300)) == list(range(1, 301))
        assert run.reason == "the run ended"


def test_the_folder_of_runs_is_its_owners(tmp_path):
    before = os.umask(0)
    try:
        keeping = Keeping(tmp_path / "runs" / "run.looptap")
        keeping.keep()
        keeping.writer.close(10)
    finally:
        os.umask(before)
    assert stat.S_IMODE(keeping.path.parent.stat().st_mode) == 0o700
