"""Hostile files: each is refused in a sentence, and none hangs its reader."""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import shutil
import socket
import sqlite3
import struct
import threading
import tracemalloc
from array import array
from pathlib import Path

import pytest

import looptap
from looptap.cli.commands.runs import export
from looptap.cli.commands.runs import open as open_run
from looptap.protocol.errors import UnsafeFile
from looptap.protocol.files import command_file, documents
from looptap.protocol.files import connection as connections
from looptap.store import reader
from looptap.store.environment import git_commit
from looptap.store.errors import StoreError
from looptap.store.exchange import tensorboard_events
from looptap.store.exchange.tensorboard_run import MAX_CURVES
from looptap.store.layout.database import Database, bytes_on_disk
from looptap.store.layout.run_path import kept
from looptap.store.run import MAX_STREAMS
from looptap.store.writer import Writer
from looptap.streams.errors import ControlError
from looptap.streams.stream.buffer import Batch

DOUBLING = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 30))
ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT"


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """Return a stored run of 20,000 values that no page of columns can hold."""
    writer = Writer(tmp_path_factory.mktemp("good") / "good.looptap", {"id": "good", "name": "good"})
    loss = writer.stream("loss", fields=("step", "loss"))
    for first in range(1, 20_001, 1000):
        events, times = array("q", range(first, first + 1000)), array("d", range(1000))
        writer.append(loss, Batch(first, events, times, [(n, None) for n in range(1000)], 1e9))
    assert writer.close(60)
    return writer.path


@pytest.fixture
def changed(good, tmp_path):
    """Return a function that runs statements in a copy of the good file."""

    def change(*statements):
        path = Path(shutil.copy(good, tmp_path / "changed.looptap"))
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
            for statement in statements:
                connection.execute(statement)
        return path

    return change


def read(path):
    with looptap.open(path) as run:
        return [stream.values for stream in run.streams], list(run.commands), run.events(), repr(run)


# ---------------------------------------------------------------- stored runs


@pytest.mark.parametrize(
    ("statements", "says"),
    [
        (["DROP TABLE run", f"CREATE VIEW run AS {ENDLESS} x AS key, x AS value FROM c"], "a view in place of .* run"),
        (
            ["DROP VIEW series", "DROP TABLE items", f"CREATE VIEW items AS {ENDLESS} 1 AS stream, x AS number FROM c"],
            "a view in place of the table items",
        ),
        (["DROP TABLE run", "CREATE VIEW rUn AS SELECT 1 AS key, 2 AS value"], "a view in place of the table run"),
        (["CREATE TRIGGER t AFTER INSERT ON run BEGIN SELECT 1; END"], "has a trigger, 't'"),
        (["DROP TABLE run", "CREATE VIRTUAL TABLE run USING fts5(key, value)"], "has a virtual table, 'run"),
        (["CREATE VIRTUAL TABLE other USING fts5(a)"], "has a virtual table, 'other"),
        (
            ["DROP TABLE run", "CREATE TABLE run (key TEXT, value AS (zeroblob(900000000)))"],
            "table run computes the column 'value'",
        ),
        (["ALTER TABLE run RENAME COLUMN value TO worth"], "its table run lacks the column value"),
        (["DROP TABLE commands"], "no such table: commands"),
        (["DROP TABLE pages"], "no such table: pages"),
    ],
)
def test_only_plain_tables_of_a_stored_run_are_read(changed, statements, says):
    with pytest.raises(StoreError, match=says):
        looptap.open(changed(*statements))


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE streams SET name = x'00'", "UPDATE streams SET first = -9223372036854775808",
        "UPDATE items SET number = 'x' WHERE number = 20000", "UPDATE streams SET first = 'x'",
        "UPDATE items SET number = 9223372036854775807 WHERE number = 20000",
        "UPDATE items SET wall = 'x'", "INSERT INTO commands VALUES ('a', 'x', 1, '', 0, '', '', 0, 0, '', NULL)",
        "INSERT INTO commands VALUES (x'00', 1, 1, '', 0, '', '', 0, 0, '', NULL)",
        "UPDATE items SET packed = zeroblob(10000000) WHERE number = 7",
        "UPDATE items SET packed = CAST(x'ff' AS TEXT)", "UPDATE run SET value = CAST(x'ff' AS TEXT)",
    ],
)  # fmt: skip
def test_a_cell_that_cannot_come_from_a_run_is_a_store_error(changed, statement):
    with pytest.raises(StoreError):
        read(changed(statement))


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE run SET value = 1e300 WHERE key = 'started'", "UPDATE run SET value = 'x' WHERE key = 'process'",
        "INSERT INTO run VALUES ('rewound', x'81a17805')", "INSERT INTO run VALUES ('errors', x'81a13193010203')",
        "DELETE FROM run WHERE key = 'ended'",
    ],
)  # fmt: skip
def test_a_fact_that_no_run_states_changes_nothing_else(changed, statement, capsys):
    path = changed(statement)
    assert len(read(path)[0][0]) == 20_000
    assert open_run.open_command(str(path), as_json=False) == 0
    assert open_run.open_command(str(path), as_json=True) == 0
    capsys.readouterr()


def test_a_tree_of_pages_that_leads_in_circles_ends(good, tmp_path):
    """Each page is a copy of the root whose only child is the next one, in a circle."""
    data = bytearray(good.read_bytes())
    with contextlib.closing(sqlite3.connect(good)) as connection:
        ((root,),) = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'items'")
        ((size,),) = connection.execute("PRAGMA page_size")

    def page(number):
        return data[(number - 1) * size : number * size]

    def child(number, place):
        return struct.unpack(">I", page(number)[place : place + 4])[0]

    top = page(root)
    assert top[0] == 2, "the root has no children"
    (cells,) = struct.unpack(">H", top[3:5])
    places = [8, *struct.unpack(f">{cells}H", top[12 : 12 + 2 * cells])]
    leaf, found = child(root, 8), []
    while page(leaf)[0] == 2:
        leaf = child(leaf, 8)
    for number in range(root + 1, len(data) // size):
        if page(number)[0] in (2, 10) and number != leaf:
            found.append(number)
    chain = [root, *found[:17], leaf]
    for number, below in itertools.pairwise(chain):
        copy = bytearray(top)
        for place in places:
            copy[place : place + 4] = struct.pack(">I", below)
        data[(number - 1) * size : number * size] = copy
    path = tmp_path / "circles.looptap"
    path.write_bytes(data)
    with pytest.raises(StoreError, match="leads in circles"):
        read(path)


def test_pages_damaged_anywhere_are_reported_in_a_sentence(good, tmp_path):
    data, path = good.read_bytes(), tmp_path / "damaged.looptap"
    for at in range(0, len(data), 4096 * 19 + 50):
        path.write_bytes(data[:at] + b"\xff" * 64 + data[at + 64 :])
        with contextlib.suppress(StoreError):
            read(path)


def test_long_values_take_no_more_memory_than_the_file_can_need(good, tmp_path):
    """Rows share a long value by an index, each returned as a copy of its own."""
    path = Path(shutil.copy(good, tmp_path / "long.looptap"))
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE items SET packed = hex(zeroblob(1000)) WHERE number % 10 = 0")
    tracemalloc.start()
    try:
        with contextlib.suppress(StoreError):
            read(path)
        assert tracemalloc.get_traced_memory()[1] < 30 * path.stat().st_size
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ("SELECT x FROM c WHERE x < 0", "leads in circles"),
        ("SELECT zeroblob(900000) FROM c LIMIT 4000", "more bytes than the file"),
        ("SELECT zeroblob(240) FROM c LIMIT 1000000", "more bytes than the file"),
        ("SELECT hex(zeroblob(120)) FROM c LIMIT 1000000", "more bytes than the file"),
        ("SELECT zeroblob(5000000) FROM c LIMIT 1", "too big"),
    ],
)
def test_a_query_of_a_small_file_has_small_results_whatever_the_file_does(rows, says, tmp_path):
    """SQL makes what a hostile tree of pages could make of a plain table."""
    (tmp_path / "small").touch()
    connection = sqlite3.connect(":memory:", isolation_level=None)
    small = Database(connection, tmp_path / "small")
    tracemalloc.start()
    try:
        with pytest.raises(StoreError, match=says):
            small.select(f"WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) {rows}")
        assert tracemalloc.get_traced_memory()[1] < 25_000_000
    finally:
        tracemalloc.stop()
        small.close()


def test_the_size_of_a_file_counts_its_log_and_leaves_holes_out(tmp_path):
    path = tmp_path / "a.looptap"
    path.write_bytes(b"x" * 100_000)
    assert bytes_on_disk(path) == 100_000
    path.with_name("a.looptap-wal").write_bytes(b"x" * 50_000)
    assert bytes_on_disk(path) == 150_000
    with path.open("ab") as file:
        file.truncate(1 << 40)
    assert bytes_on_disk(path) < 100 * 150_000
    assert bytes_on_disk(tmp_path / "absent") == 0


def test_a_file_of_more_streams_than_a_run_has_is_refused(changed):
    rows = f"WITH RECURSIVE c(x) AS (SELECT 2 UNION ALL SELECT x + 1 FROM c LIMIT {MAX_STREAMS + 1}) SELECT x"
    path = changed(f"INSERT INTO streams {rows}, 'n' || x, '', '', '', NULL, '', 1 FROM c")
    with looptap.open(path) as run, pytest.raises(StoreError, match="more than 10,000 streams"):
        _ = run.streams


def test_reading_values_with_many_gaps_reads_each_page_once(changed):
    path = changed("DELETE FROM items WHERE number % 2 = 0")
    with looptap.open(path) as run:
        stream, asked = run.stream("loss"), []
        select, pages = run._select, stream.feed.pages
        pages._select = lambda *query: asked.append(1) or select(*query)
        assert len(stream.values) == 10_000
        assert stream.dropped == 9_999
        assert len(asked) <= 5


def test_the_schema_of_a_stored_file_is_not_trusted(good):
    """A hostile file's view must not call what SQLite counts as harmful in a schema."""
    with looptap.open(good) as run:
        assert run._select("PRAGMA trusted_schema") == [(0,)]
        assert run._select("PRAGMA query_only") == [(1,)]
        assert run._select("PRAGMA cell_size_check") == [(1,)]


# ---------------------------------------------------------------- what is no file


def fifo(path):
    os.mkfifo(path)


def directory(path):
    path.mkdir()


def listening(path):
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as found:
        found.bind(str(path))


def device(path):
    path.symlink_to("/dev/zero")


def link_to_fifo(path):
    fifo(path.with_name("behind"))
    path.symlink_to(path.with_name("behind"))


def circle(path):
    path.symlink_to(path)


ODD = [fifo, directory, listening, device, link_to_fifo, circle]


@pytest.fixture
def short(tmp_path_factory, monkeypatch):
    """Change to a directory in which names are short enough for a socket."""
    monkeypatch.chdir(tmp_path_factory.mktemp("odd"))
    return Path()


@pytest.mark.parametrize("make", ODD)
def test_a_special_file_is_neither_a_stored_run_nor_a_list_of_commands(make, short):
    make(path := short / "odd.looptap")
    assert not reader.is_stored(path)
    with pytest.raises(StoreError, match=r"odd\.looptap"):
        looptap.open(path)
    with pytest.raises(ControlError, match=r"odd\.looptap"):
        command_file.load_commands(path)
    with pytest.raises((looptap.LooptapError, OSError)):
        looptap.attach("./odd.looptap", timeout=1)


@pytest.mark.parametrize("make", ODD)
@pytest.mark.parametrize("suffix", ["-journal", "-wal", "-shm"])
def test_files_beside_a_stored_run_must_be_regular(good, make, suffix, short):
    path = Path(shutil.copy(good, short / "a.looptap"))
    make(path.with_name(path.name + suffix))
    with pytest.raises(StoreError, match=f"a.looptap{suffix} is not a regular file"):
        looptap.open(path)


@pytest.mark.parametrize("make", ODD)
def test_a_special_file_does_not_keep_others_from_being_listed(good, make, short, monkeypatch, capsys):
    monkeypatch.setenv("LOOPTAP_STORE", ".")
    shutil.copy(good, short / "good.looptap")
    make(short / "odd.looptap")
    (short / "gone.looptap").symlink_to("nowhere")
    assert {path.name for path in kept()} >= {"good.looptap", "odd.looptap"}
    assert open_run.open_command(None, as_json=False) == 0
    said = capsys.readouterr().out
    assert "good.looptap" in said
    assert "unusable file" in said
    with pytest.raises(StoreError, match=r"Did you mean good\.looptap"):
        looptap.open("goo")
    with pytest.raises(StoreError, match=r"and no stored run has this name\.$"):
        looptap.open("bad")


@pytest.mark.parametrize("make", ODD)
def test_a_special_file_among_connection_files_is_reported(make, short):
    make(short / "odd.json")
    (found,) = connections.listing(short.absolute())
    assert found.file is None
    assert "odd.json" in found.problem
    with pytest.raises((UnsafeFile, OSError)):
        connections.read_connection_file(short / "odd.json")
    assert not connections.remove(short / "odd.json")


@pytest.mark.parametrize("make", [fifo, listening, device, link_to_fifo])
def test_a_special_file_among_event_files_is_reported(make, short):
    make(short / "events.out.tfevents.1")
    with pytest.raises(StoreError, match=r"events\.out\.tfevents\.1 cannot be read"):
        looptap.open(short)


@pytest.mark.parametrize("make", ODD)
def test_a_special_file_in_the_git_folder_does_not_stop_the_writer(make, short):
    (short / ".git").mkdir()
    make(short / ".git" / "HEAD")
    assert git_commit(short.absolute()) == ""


@pytest.mark.parametrize("make", [fifo, directory, listening])
def test_a_special_file_is_not_written_to(good, make, short):
    make(short / "out")
    with looptap.open(good) as run:
        for write in (run.stream("loss").to_csv, run.stream("loss").to_parquet):
            with pytest.raises(OSError, match="out"):
                write(short / "out")
    with pytest.raises(OSError, match="out"):
        looptap.guard("none-*", [looptap.Rule("isnan(loss)")], record=short / "out")


def test_a_fifo_with_a_reader_is_written_to(good, short):
    fifo(short / "out")
    end = os.open(short / "out", os.O_RDONLY | os.O_NONBLOCK)
    with looptap.open(good) as run, open(end, "rb") as file:
        writing = threading.Thread(target=run.stream("loss").to_csv, args=(short / "out",))
        writing.start()
        os.set_blocking(end, True)
        assert select.select([end], [], [], 60)[0], "nothing was written"
        assert len(file.read().splitlines()) == 20_001
        writing.join(300)


def test_an_export_without_a_name_never_writes_through_a_link(good, short, capsys):
    (short / "good-loss.csv").symlink_to("elsewhere")
    assert export.export_command(str(good), "loss", "csv", None) == 1
    assert "exists already" in capsys.readouterr().err
    assert not (short / "elsewhere").exists()


def test_a_journal_that_names_another_file_is_not_played_back(good, tmp_path):
    """SQLite would remove the file that the end of such a journal names."""
    path, precious = Path(shutil.copy(good, tmp_path)), tmp_path / "precious"
    precious.write_text("precious")
    name = os.fsencode(precious)
    header = bytes.fromhex("d9d505f920a163d7") + struct.pack(">IIIII", 0, 1, path.stat().st_size // 4096, 512, 4096)
    end = struct.pack(">I", 4096 // 4096) + name + struct.pack(">II", len(name), sum(name)) + header[:8]
    path.with_name(path.name + "-journal").write_bytes(header.ljust(512, b"\0") + end)
    with contextlib.suppress(StoreError):
        read(path)
    assert precious.read_text() == "precious"


# ---------------------------------------------------------------- YAML


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: &a [*a, *a]", "values"),
        (DOUBLING, "values"),
        ("- " * 5000 + "x", "cannot be read"),
        ("[" * 20_000, "cannot be read"),
        ("a: " + "9" * 5000, "line 1.*4,300 digits"),
        ("a: 0x" + "f" * 1_000_000, "line 1.*4,300 digits"),
        ("a: 1" + ":1" * 100_000, "digits"),
        ("a: \ud800", "utf-8|surrogates"),
        ("a: \0", "cannot be read"),
    ],
)  # fmt: skip
def test_yaml_that_grows_while_it_is_read_is_refused(text, says, tmp_path):
    path = tmp_path / "rules.yaml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(ControlError, match=says) as refused:
        documents.Document(path, ControlError)
    assert len(str(refused.value)) < 1000


def test_yaml_with_ordinary_aliases_and_many_names_is_read(tmp_path):
    path = tmp_path / "rules.yaml"
    path.write_text("a: &a [1, 2]\nb: *a\n" + "".join(f"name{n}: {n}\n" for n in range(5000)))
    value = documents.Document(path, ControlError).value
    assert value["b"] == [1, 2]
    assert value["name4999"] == 4999


def test_yaml_that_is_too_large_is_not_read(tmp_path):
    path = tmp_path / "rules.yaml"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # a file with holes
    with pytest.raises(ControlError, match="larger than 16,777,216 bytes"):
        documents.Document(path, ControlError)


def test_commands_are_not_saved_through_a_link(tmp_path, monkeypatch):
    monkeypatch.setattr("os.urandom", bytes)
    (tmp_path / f"commands.yaml.{bytes(8).hex()}.part").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="exists"):
        command_file.save_commands(tmp_path / "commands.yaml", [], "run")
    assert not (tmp_path / "elsewhere").exists()


# ---------------------------------------------------------------- TensorBoard's event files


def event_file(folder, *events):
    path = folder / "events.out.tfevents.1"
    path.write_bytes(b"".join(map(tensorboard_events.framed, events)))
    return path


def event(step=1, wall=1.0, tag=b"loss"):
    point = tensorboard_events.bytes_field(1, tag) + b"\x15" + struct.pack("<f", 0.5)
    return (
        tensorboard_events.double_field(1, wall)
        + b"\x10"
        + step
        + tensorboard_events.bytes_field(5, tensorboard_events.bytes_field(1, point))
    )


@pytest.mark.parametrize(
    "events",
    [
        [event(b"\xff" * 9 + b"\x7f")],  # a step of more than 64 bits
        [event(b"\x01", float("nan"))],
        [event(b"\x01", float("inf"))],
        [b"\x2a\xff\xff\xff\xff\xff\xff\xff\xff\x7f"],  # a summary of 2**63 bytes
        [b"\x0b" * 100],
    ],
)
def test_an_event_that_no_job_wrote_is_read_or_refused_in_a_sentence(events, tmp_path):
    event_file(tmp_path, *events)
    with contextlib.suppress(StoreError), looptap.open(tmp_path) as run:
        assert [len(stream.values) for stream in run.streams] == [1]


def test_the_curves_of_a_folder_may_have_names_of_many_bytes(tmp_path):
    folder = tmp_path.joinpath(*["deep" * 60] * 14)
    folder.mkdir(parents=True)
    event_file(folder, *(event(b"\x01", tag=b"%d" % n) for n in range(5000)))
    with looptap.open(tmp_path) as run:
        assert sum(len(stream.name) for stream in run.streams) > 16_000_000


def test_an_event_file_of_many_points_is_read_to_its_end(tmp_path):
    """They are in a table of looptap's own, so no bound of SQLite's steps applies."""
    points = [tensorboard_events.ScalarPoint("loss", step, 1e9, step / 2) for step in range(10_000)]
    with (tmp_path / "events.out.tfevents.1").open("wb") as file:
        tensorboard_events.write_points(file, 1e9, points)
    with looptap.open(tmp_path) as run:
        assert run.stream("loss").values == [point.value for point in points]


def test_a_record_that_claims_a_gigabyte_takes_no_memory(tmp_path):
    path = event_file(tmp_path, event(b"\x01"))
    length = struct.pack("<Q", 1 << 30)
    with path.open("ab") as file:
        file.write(length + struct.pack("<I", tensorboard_events.masked_crc(length)))
        file.truncate(path.stat().st_size + (1 << 34))
    tracemalloc.start()
    try:
        with contextlib.suppress(StoreError), looptap.open(tmp_path) as run:
            assert run.streams
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


def test_a_directory_of_more_curves_than_a_run_has_is_refused(tmp_path):
    event_file(tmp_path, *(event(b"\x01", tag=b"%d" % n) for n in range(MAX_CURVES + 1)))
    with pytest.raises(StoreError, match="more than 10,000 curves"):
        looptap.open(tmp_path)


def test_a_folder_whose_name_is_no_text_is_read(tmp_path):
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    folder.mkdir()
    event_file(folder, event(b"\x01"))
    with looptap.open(tmp_path) as run:
        assert [stream.name for stream in run.streams] == ["\ufffd/loss"]
