"""Pages of columns in a file: exact, joined, crash-safe, checked, plain SQL."""

from __future__ import annotations

import contextlib
import math
import random
import shutil
import sqlite3
import struct
import threading
from array import array
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from counts import FULL, examples
from hypothesis import given, settings
from hypothesis import strategies as st
from places import TESTS
from waiting import soon

import looptap
from looptap.store import writer as writers
from looptap.store.layout import page_writer, schema, written_file
from looptap.store.layout.page_writer import MIN_PAGE_ITEMS, PageWriter
from looptap.store.layout.pages import PAGE_BYTES, PAGE_ITEMS, items_of, page_of
from looptap.store.writer import Writer
from looptap.streams.columns.value_columns import ValueColumns, as_columns
from looptap.streams.flags import ERROR, PARTIAL, REPEATED
from looptap.streams.stream.buffer import Batch

STORES = TESTS / "store" / "versions"
ROWS = [(step, 1 / (step + 1), step % 3 == 0, "train" if step % 10 else "valid") for step in range(10_000)]


def batch(first, values, flags=b"", clock=1e9, rank=0):
    count = len(values)
    events = array("q", [7 * number for number in range(first, first + count)])
    return Batch(first, events, array("d", [0.25 * event for event in events]), values, clock, flags, rank)


@pytest.fixture
def prompt(monkeypatch):
    """Let a writer commit what comes at once."""
    monkeypatch.setattr(writers, "FLUSH_INTERVAL_SECONDS", 0.001)


def written(path, batches, **declared):
    kept = Writer(path, {"id": "run-1", "name": "run"})
    stream = kept.stream("s", **declared)
    for one in batches:
        assert kept.append(stream, one)
    assert kept.close(60), kept.stats().reason
    return path


@contextlib.contextmanager
def sql(path):
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        yield lambda *query: connection.execute(*query).fetchall()


def counts(path):
    """Return the number of items in rows, and in each page."""
    with sql(path) as ask:
        ((rows,),) = ask("SELECT count(*) FROM items")
        return rows, [count for (count,) in ask("SELECT count FROM pages ORDER BY first")]


def exact(value):
    """Return a value as text that tells types, NaN and signs apart."""
    return f"{value!r}" if not isinstance(value, np.ndarray) else f"{value.dtype} {value.tolist()}"


def items(records):
    return [
        (r.number, r.event, r.rank, r.time, r.error or exact(r.value), r.partial, r.again, bool(r.error))
        for r in records
    ]


# ---------------------------------------------------------------- what is written is read

LIKE = {
    "int": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(),
    "bool": st.booleans(),
    "text": st.sampled_from(["", "train", "ä", 'a"b\\', "\x00", "x" * 64]),
    "odd": st.one_of(st.none(), st.integers(2**63, 2**70), st.just("\ud800"), st.just([1]), st.just({"a": (1,)})),
}
LIKE |= {
    "row": st.tuples(LIKE["int"], LIKE["float"], LIKE["bool"], LIKE["text"]),
    "pair": st.tuples(LIKE["float"], LIKE["float"]),
    "odd row": st.tuples(LIKE["int"], LIKE["odd"]),
}
FLAGS = [[PARTIAL, 0] * 100, [0] * 150 + [REPEATED] * 50, [0, 0, 0, ERROR] * 50]


@st.composite
def stretches(draw):
    """Return batches of a stream whose kinds, ranks and clocks change, with gaps."""
    number, found = draw(st.integers(1, 50)), []
    for _ in range(draw(st.integers(1, 5))):
        kind, rank = draw(st.sampled_from(sorted(LIKE))), draw(st.integers(0, 2))
        clock = draw(st.sampled_from([1e9, 1e9 + 60]))
        for _ in range(draw(st.integers(1, 4))):
            some = draw(st.lists(LIKE[kind], min_size=1, max_size=8))
            values = (some * 30)[: draw(st.integers(1, 200))]
            flags = draw(st.sampled_from([b"", b"", bytes(200), *map(bytes, FLAGS)]))[: len(values)]
            values = [str(n) if n < len(flags) and flags[n] & ERROR else value for n, value in enumerate(values)]
            columns = as_columns(values)
            found.append(
                batch(number, columns if columns is not None and draw(st.booleans()) else values, flags, clock, rank)
            )
            number += len(values) + draw(st.sampled_from([0, 0, 0, 3]))
    return found


@settings(max_examples=examples(400), deadline=None)
@given(
    batches=stretches(),
    commits=st.lists(st.booleans(), min_size=20, max_size=20),
    full=st.sampled_from([40, 128, 4096]),
)
def test_a_stream_that_was_written_and_read_again_is_what_it_was(batches, commits, full, tmp_path_factory):
    """In whatever batches and commits it came, with types, times, flags and gaps."""
    path = tmp_path_factory.mktemp("runs") / "run.looptap"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        schema.create(connection)
        connection.execute("INSERT INTO streams VALUES (1, 's', '', 'batch', '', NULL, '', ?)", (batches[0].first,))
        pages, waiting = PageWriter(), []
        for one, commit in zip(batches, commits, strict=False):
            waiting.append((1, one))
            if commit or one is batches[-1]:
                connection.execute("BEGIN")
                with patch.object(page_writer, "PAGE_ITEMS", full):
                    pages.write(connection, waiting)
                connection.execute("COMMIT")
                waiting = []
    expected = [record for one in batches for record in one._replace(values=list(one.values)).records()]
    with looptap.open(path) as run:
        stream = run.stream("s")
        assert items(stream.records) == items(expected)
        assert [r.wall for r in stream.records] == pytest.approx([r.wall for r in expected], abs=2e-3)
        good = [record.value for record in expected if record.error is None]
        assert list(map(exact, stream.values)) == list(map(exact, good))
        assert len(stream) == len(good)
        assert stream.error_count == len(expected) - len(good)
        assert stream.latest is None if not good else exact(stream.latest) == exact(good[-1])
        lost = batches[-1].first + len(batches[-1].values) - batches[0].first - len(expected)
        assert stream.dropped == lost == sum(gap.missing for gap in stream.gaps)
        for limit in (1, 7, 4096):
            assert items([r for page in stream.pages(limit) for r in page.records()]) == items(expected)


def test_a_million_of_values_are_read_without_making_rows(tmp_path):
    count = 300_000
    steps, losses = np.arange(count), np.random.default_rng(1).random(count)
    parts = [slice(first, first + 1000) for first in range(0, count, 1000)]
    path = written(
        tmp_path / "large.looptap",
        [batch(1 + part.start, ValueColumns([steps[part], losses[part]], True)) for part in parts],
        fields=("step", "loss"),
    )
    rows, pages = counts(path)
    assert rows < MIN_PAGE_ITEMS
    assert set(pages[:-1]) == {PAGE_ITEMS}
    with looptap.open(path) as run:
        stream = run.stream("s")
        assert isinstance(stream.columns().values, ValueColumns)
        assert all(isinstance(page.values, ValueColumns) for page in stream.pages(10_000))
        assert np.array_equal(stream.to_numpy("step"), steps)
        assert np.array_equal(stream.to_numpy("loss"), losses)
        frame = stream.to_pandas()
        assert (frame.dtypes["step"], frame.dtypes["loss"]) == (np.int64, np.float64)
        assert np.array_equal(frame["event"], 7 * frame.index.to_numpy())
        assert stream.latest == (count - 1, losses[-1])
        assert stream.latest.loss == losses[-1]
        assert next(iter(stream)).step == 0
        assert stream.records_after(count - 2)[0].value == (count - 2, losses[-2])
        assert run.events() == {}
        assert stream.query("max(v.loss for v in values)").values == [losses.max()]


def test_an_arrow_table_of_a_stored_stream_has_its_columns(tmp_path):
    pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install pyarrow")
    path = written(tmp_path / "a.looptap", [batch(1, ROWS)], fields=("step", "loss", "third", "phase"))
    with looptap.open(path) as run:
        table = run.stream("s").to_arrow()
    names = ("step", "loss", "third", "phase")
    assert list(zip(*[table[name].to_pylist() for name in names], strict=True)) == ROWS


def test_the_newest_event_of_a_page_is_known_without_reading_it(tmp_path):
    path = written(tmp_path / "a.looptap", [batch(1, list(range(100)))], on="batch")
    with looptap.open(path) as run:
        assert run.events() == {"batch": 700}


# ---------------------------------------------------------------- joining


@pytest.mark.parametrize("size", [1, 10, MIN_PAGE_ITEMS, 100, 1000, 4095, 4097, 10_000])
def test_small_batches_become_full_pages(size, tmp_path, prompt):
    """However they come and are committed, and each is in the file as soon as it was."""
    path = tmp_path / "run.looptap"
    kept = Writer(path)
    stream = kept.stream("s", fields=("step", "loss", "third", "phase"))
    for first in range(0, len(ROWS), size):
        assert kept.append(stream, batch(first + 1, ROWS[first : first + size]))
        if first // size % 50 == 0:
            handed = min(first + size, len(ROWS))
            soon(lambda handed=handed: kept.stats().kept == handed, detail="it was not written")
            with sql(path) as ask:
                ((rows, paged),) = ask("SELECT (SELECT count(*) FROM items), (SELECT sum(count) FROM pages)")
            assert rows + (paged or 0) == handed
    assert kept.close(60)
    rows, pages = counts(path)
    assert rows + sum(pages) == len(ROWS)
    assert pages[:2] == [PAGE_ITEMS, PAGE_ITEMS]
    with looptap.open(path) as run:
        assert run.stream("s").values == ROWS


def test_wide_rows_are_in_smaller_pages(tmp_path):
    rows = [tuple(float(step * column) for column in range(200)) for step in range(1000)]
    path = written(
        tmp_path / "wide.looptap", [batch(1 + first, rows[first : first + 10]) for first in range(0, 1000, 10)]
    )
    with sql(path) as ask:
        assert all(size <= PAGE_BYTES for (size,) in ask("SELECT length(columns) FROM pages"))
    with looptap.open(path) as run:
        assert run.stream("s").values == rows


def test_items_held_to_be_joined_are_bounded_over_all_streams(tmp_path, monkeypatch):
    monkeypatch.setattr(page_writer, "MAX_HELD_BYTES", 40_000)
    path, streams, values = tmp_path / "many.looptap", 20, list(range(1000))
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        schema.create(connection)
        pages = PageWriter()
        for first in range(0, 1000, 250):
            pages.write(connection, [(n, batch(first + 1, values[first : first + 250])) for n in range(1, streams + 1)])
            assert 0 < pages.held_bytes <= 40_000
        for stream in range(1, streams + 1):
            connection.execute("INSERT INTO streams VALUES (?, ?, '', '', '', NULL, '', 1)", (stream, f"s{stream}"))
    with looptap.open(path) as run:
        assert [stream.values for stream in run.streams] == [values] * streams


def test_values_of_another_type_begin_another_page(tmp_path):
    parts = [[1] * 50, [1.5] * 50, [None] * 50, ["a"] * 50, [(1, 2)] * 50, [(1, 2.5)] * 50, [1] * 50]
    path = written(tmp_path / "mixed.looptap", [batch(1 + 50 * n, part) for n, part in enumerate(parts)])
    assert counts(path) == (50, [50] * 6)
    with looptap.open(path) as run:
        assert list(map(exact, run.stream("s").values)) == [exact(value) for part in parts for value in part]


def test_texts_that_ever_differ_stay_as_they_were(tmp_path):
    texts = [f"text {n}" for n in range(2000)] + ["lone \ud800"] * 100 + ["long" * 100] * 100
    path = written(tmp_path / "texts.looptap", [batch(1 + n, texts[n : n + 50]) for n in range(0, len(texts), 50)])
    with looptap.open(path) as run:
        assert run.stream("s").values == texts


class Failing(written_file.OwnConnection):
    """A disk whose commits fail, each second one."""

    commits = 0

    def execute(self, sql, *parameters):
        if sql == "COMMIT":
            Failing.commits += 1
            if Failing.commits % 2:
                raise sqlite3.OperationalError("disk I/O error")
        return super().execute(sql, *parameters)


def test_nothing_is_lost_or_doubled_where_commits_fail(tmp_path, monkeypatch, prompt):
    monkeypatch.setattr(writers, "RETRY_DELAY_SECONDS", 0.001)
    monkeypatch.setattr(written_file, "OwnConnection", Failing)
    path = tmp_path / "run.looptap"
    kept = Writer(path)
    stream = kept.stream("s")
    for first in range(0, len(ROWS), 500):
        kept.append(stream, batch(first + 1, ROWS[first : first + 500]))
        soon(lambda first=first: kept.stats().kept == min(first + 500, len(ROWS)), detail="it did not resume")
    kept.close(60)
    monkeypatch.undo()
    rows, pages = counts(path)
    assert rows + sum(pages) == len(ROWS)
    with looptap.open(path) as run:
        assert run.stream("s").values == ROWS


def test_a_reader_sees_each_item_once_while_pages_are_joined(tmp_path, prompt):
    path = tmp_path / "run.looptap"
    kept = Writer(path)
    stream, over = kept.stream("n"), threading.Event()

    def write():
        chance = random.Random(1)
        first = 1
        while first < 30_000:
            count = chance.choice([1, 5, 40, 300])
            kept.append(stream, batch(first, list(range(first, first + count))))
            first += count
            over.wait(0.0005)
        kept.close(60)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        soon(path.exists)
        with looptap.open(path) as run:
            soon(lambda: run.streams)
            seen, called = [], []
            run.stream("n").on_value(called.append, replay=True)
            for value in run.stream("n").follow(timeout=300):
                seen.append(value)
            assert seen == list(range(1, len(seen) + 1))
            assert len(seen) >= 29_999
            soon(lambda: len(called) == len(seen))
            assert called == seen
            assert (run.stream("n").dropped, len(run.stream("n"))) == (0, len(seen))
    finally:
        over.set()
        thread.join(300)


# ---------------------------------------------------------------- crashes and damage


def prefixes(path):
    """Open a file, and check that it has a prefix of ROWS; return how many."""
    with looptap.open(path) as run:
        streams = run.streams
        found = streams[0].values if streams else []
    assert found == ROWS[: len(found)]
    return len(found)


def test_a_log_cut_off_at_any_byte_leaves_a_prefix(tmp_path, prompt):
    """This is what a killed process, or a machine without power, leaves behind."""
    path = tmp_path / "run.looptap"
    kept = Writer(path, {"ended": 1.0})
    stream = kept.stream("s", fields=("step", "loss", "third", "phase"))
    for first in range(0, 9000, 300):
        kept.append(stream, batch(first + 1, ROWS[first : first + 300]))
        soon(lambda first=first: kept.stats().kept == first + 300)
    data, log = path.read_bytes(), Path(f"{path}-wal").read_bytes()
    assert kept.close(60)
    cut, found = tmp_path / "cut.looptap", []
    step = 1009 if FULL else 40_009  # a frame of the log has 4,120 bytes, its header 24
    places = sorted({*range(0, len(log), step), *range(4100, 4180, 9), *range(len(log) - 40, len(log), 7), len(log)})
    for place in places:
        for beside in ("-shm", "-wal"):
            Path(f"{cut}{beside}").unlink(missing_ok=True)
        cut.write_bytes(data)
        Path(f"{cut}-wal").write_bytes(log[:place])
        found.append(prefixes(cut))
    assert found == sorted(found)
    assert found[-1] == 9000


def test_a_file_cut_off_anywhere_is_an_error_or_whole(tmp_path):
    path = written(tmp_path / "run.looptap", [batch(1, ROWS[:2000]), batch(2001, [*ROWS[2000:2500], None])])
    data, cut, refused = path.read_bytes(), tmp_path / "cut.looptap", 0
    expected = [*ROWS[:2500], None]
    for place in range(0, len(data), 331):
        cut.write_bytes(data[:place])
        try:
            with looptap.open(cut) as run:
                assert run.stream("s").values == expected
        except looptap.StoreError:
            refused += 1
    assert refused > len(data) // 331 // 2


def test_no_changed_byte_changes_a_value(tmp_path):
    """A damaged tree of pages may lose items, but no item is wrong."""
    path = written(tmp_path / "run.looptap", [batch(1, ROWS[:3000])], fields=("step", "loss", "third", "phase"))
    data, hurt, chance = path.read_bytes(), tmp_path / "hurt.looptap", random.Random(1)
    with looptap.open(path) as run:
        expected = {item[0]: item for item in items(run.stream("s").records)}
    noticed = 0
    for place in sorted(chance.sample(range(100, len(data)), 3000 if FULL else 100)):
        hurt.write_bytes(data[:place] + bytes((data[place] ^ chance.choice([1, 16, 128, 255]),)) + data[place + 1 :])
        try:
            with looptap.open(hurt) as run:
                found = items(run.streams[0].records) if run.streams else []
        except looptap.StoreError:
            noticed += 1
            continue
        assert all(expected[item[0]] == item for item in found)
    assert noticed > 30


@pytest.fixture(scope="module")
def paged(tmp_path_factory):
    return written(tmp_path_factory.mktemp("runs") / "paged.looptap", [batch(1, ROWS[:5000])])


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE pages SET checksum = checksum + 1", "UPDATE pages SET first = first + 1", "UPDATE pages SET rank = 3",
        "UPDATE pages SET count = count - 1", "UPDATE pages SET clock = 0", "UPDATE pages SET rows = 0",
        "UPDATE pages SET events = x'00'", "UPDATE pages SET times = zeroblob(32768)",
        "UPDATE pages SET first = 'x' WHERE first > 1",
        "UPDATE pages SET columns = zeroblob(2000000)", "UPDATE pages SET layout = '[[\"q\",0]]'",
        "UPDATE pages SET layout = '7'", "UPDATE pages SET flags = zeroblob(4096)", "UPDATE pages SET count = 1 << 60",
        "UPDATE pages SET first = 9223372036854775807 WHERE first > 1", "UPDATE pages SET first = 1.5 WHERE first > 1",
    ],
)  # fmt: skip
def test_a_page_that_was_never_written_is_an_error_in_a_sentence(change, paged, tmp_path):
    path = Path(shutil.copy(paged, tmp_path / "changed.looptap"))
    with sql(path) as ask:
        ask(change)
    with pytest.raises(looptap.StoreError) as caught, looptap.open(path) as run:
        _ = run.stream("s").values
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"layout": '[["z",0]]'}, {"layout": '[["q",8]]'}, {"layout": '[["q",0],["q",0]]'}, {"layout": "[]"},
        {"layout": '[["B",0]]'}, {"layout": '[["?",0]]'}, {"rows": 0, "layout": '[["?",0],["?",8]]'},
        {"length": 3}, {"flags": bytes((ERROR, 0))}, {"clock": math.inf}, {"events": b"\0" * 8}, {"times": b""},
        {"length": 1 << 50}, {"first": 0}, {"first": 1 << 63}, {"columns": b""}, {"layout": "["},
        {"layout": '[["q",0,[7]]]'},
        {"layout": '[["B",0,["' + "x" * 65 + '"]]]'},
    ],
)  # fmt: skip
def test_a_page_with_a_right_checksum_may_still_be_no_page(change):
    good = page_of(1, batch(1, [1, 2]), as_columns([1, 2]))
    assert items_of(good).values == [1, 2]
    bad = good._replace(**change)
    with pytest.raises(looptap.StoreError, match="damaged"):
        items_of(bad._replace(checksum=bad.checked()))


def test_pages_that_overlap_end(tmp_path):
    """A hostile file may hold an item twice: it is read once, and reading ends."""
    path = written(tmp_path / "run.looptap", [batch(1, list(range(100)))])
    more = [page_of(1, batch(first, [0] * 50), as_columns([0] * 50)) for first in (20, 60, 90)]
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for page in more:
            connection.execute(f"INSERT INTO pages VALUES ({', '.join('?' * 13)})", page)
        connection.execute("INSERT INTO items VALUES (1, 50, 0, 0, 0, 0, 0, 7, NULL)")
    with looptap.open(path) as run:
        numbers = [record.number for record in run.stream("s").records]
        assert numbers == sorted(set(numbers))
        assert numbers[-1] == 139


# ---------------------------------------------------------------- versions, and plain SQL


@pytest.mark.parametrize("version", ["1-last", "2"])
def test_a_long_stream_of_every_version_opens_for_ever(version, tmp_path):
    path = Path(shutil.copy(STORES / f"version-{version}.looptap", tmp_path / "old.looptap"))
    rows = [(step, 1 / (step + 1), ("warm-up", "train")[step > 99], step % 2 == 0) for step in range(1200)]
    rows[700] = (700, None, *rows[700][2:])
    with looptap.open(path) as run:
        assert run.stream("long").values == rows
        assert run.stream("long").gaps == [(1010, 1)]
        assert run.stream("long").to_numpy("step").tolist() == list(range(1200))
        assert run.stream("long").latest.phase == "train"
        assert run.events() == {"batch": 12110}
        assert [one.name for one in run.scalars] == ["loss"]
        assert run.history("loss").values == [0.5, 0.25]


def test_a_reader_of_the_version_before_refuses_pages_in_a_sentence(paged, monkeypatch):
    monkeypatch.setattr(schema, "SCHEMA_VERSION", 1)
    with pytest.raises(
        looptap.StoreError, match=r"newer looptap \(version 2 of the file, and this one reads up to 1\)"
    ):
        looptap.open(paged)


def test_a_file_without_its_pages_is_damaged(paged, tmp_path):
    path = Path(shutil.copy(paged, tmp_path / "none.looptap"))
    with sql(path) as ask:
        ask("DROP VIEW series")
        ask("DROP TABLE pages")
    with pytest.raises(looptap.StoreError, match="no such table: pages"):
        looptap.open(path)


def test_plain_sql_reads_what_is_in_pages(tmp_path):
    chance = random.Random(1)
    odd = [0.0, -0.0, 5e-324, -5e-324, 2.2250738585072014e-308, 1.7976931348623157e308, math.inf, -math.inf, math.nan]
    floats = [struct.unpack("<d", chance.randbytes(8))[0] for _ in range(200)] + odd
    path = tmp_path / "run.looptap"
    kept = Writer(path)
    columns = {
        "floats": floats, "integers": [2**63 - 1, -(2**63), 0, -1, 1] * 10, "flags": [True, False] * 20,
        "texts": ["a", 'b"\\'] * 20, "few": [(1, 0.5), (2, 0.25)], "rows": ROWS[:100],
    }  # fmt: skip
    for name, values in columns.items():
        kept.append(kept.stream(name), batch(3, values))
    assert kept.close(60)
    with sql(path) as ask:
        read = {
            name: ask("SELECT value, packed FROM series WHERE stream = ? ORDER BY number", (name,)) for name in columns
        }
        assert all(v is None if f != f else (v == f) for f, (v, _) in zip(floats, read["floats"], strict=True))
        assert [value for value, _ in read["integers"]] == columns["integers"]
        assert [value for value, _ in read["flags"]] == [1, 0] * 20
        assert {packed for value, packed in [*read["integers"], *read["flags"]]} == {None}
        assert [packed for _, packed in read["texts"]] == ['"a"', '"b\\"\\\\"'] * 20
        elements = "json_extract(packed, '$[0]'), json_extract(packed, '$[1]'), json_extract(packed, '$[2]')"
        found = ask(
            f"SELECT {elements}, json_extract(packed, '$[3]') FROM series WHERE stream = 'rows' ORDER BY number"
        )
        assert [
            (step, pytest.approx(loss, rel=1e-15), third, phase) for step, loss, third, phase in ROWS[:100]
        ] == found
        where = "SELECT number, event, time, wall FROM series WHERE stream = ? ORDER BY number"
        for name in ("few", "rows"):
            times = [(n, 7 * n, 1.75 * n, pytest.approx(1e9 + 1.75 * n)) for n in range(3, 3 + len(columns[name]))]
            assert ask(where, (name,)) == times
