"""A stream keeps columns: it reads as a list would, and makes no row unasked."""

from __future__ import annotations

import math
import subprocess
import sys
from array import array
from datetime import UTC, datetime, timedelta

import numpy as np
import pandas
import pytest
from comparing_values import same
from counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from looptap.streams.columns.value_columns import ValueColumns, as_columns
from looptap.streams.flags import ERROR, PARTIAL
from looptap.streams.stream.buffer import Batch
from looptap.streams.stream.stream import Stream, stream_of
from looptap.streams.values.rows import Row
from looptap.testing import pair
from looptap.visualizers.plot import Plot

FIELDS = ("step", "loss")
ROWS = [(step, step / 7) for step in range(1000)]


def batch(first, values, flags=b"", **more):
    events, times = array("q", range(first, first + len(values))), array("d", range(len(values)))
    return Batch(first, events, times, values, 1e9, flags, **more)


def in_columns(values):
    columns = as_columns(values)
    assert columns is not None
    return columns


kinds = [
    lambda n: n,
    lambda n: n / 7,
    lambda n: bool(n % 2),
    lambda n: "ab"[n % 2],
    lambda n: f"text {n}",
    lambda n: (n, n / 7),
    lambda n: (n / 7, n),
    lambda n: (n, "train" if n % 3 else "val"),
    lambda n: (n, f"{n}"),
    lambda n: None if n % 5 == 0 else n,
    lambda n: {"a": n},
]


@settings(max_examples=examples(400), deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, len(kinds) - 1), st.integers(1, 30), st.booleans(), st.integers(0, 2))),
    st.integers(1, 150),
    st.sampled_from([None, FIELDS]),
)
def test_a_stream_reads_as_if_it_kept_a_list(pieces, buffer, fields):
    stream, items = Stream(fields=fields, buffer=buffer), []
    for kind, count, columnar, flagged in pieces:
        values = [kinds[kind](len(items) + 1 + n) for n in range(count)]
        flags = b""
        if flagged:
            flags = bytes((ERROR if flagged == 2 and n % 4 == 1 else PARTIAL * (n % 2)) for n in range(count))
            values = ["failed" if flag & ERROR else value for value, flag in zip(values, flags, strict=True)]
        given_as = as_columns(values) if columnar else None
        stream.publish(batch(len(items) + 1, values if given_as is None else given_as, flags))
        items += zip(values, flags or bytes(count), strict=True)
        if len(items) % 2:  # what was read before must not change what is read later
            assert len(stream.values) == len(stream)
    kept = items[stream.forgotten :]
    wanted = [value for value, flag in kept if not flag & ERROR]
    plain = [tuple(value) if isinstance(value, Row) else value for value in stream.values]
    assert same(plain, wanted)
    assert len(kept) <= buffer
    for value in stream.values:
        named = fields is not None and isinstance(value, tuple) and len(value) == 2
        assert isinstance(value, Row) == named
    columns = stream.columns()
    assert same([tuple(v) if isinstance(v, Row) else v for v in columns.values], wanted)
    first = len(items) - len(kept) + 1
    assert columns.numbers.tolist() == [n for n, (_, flag) in enumerate(kept, first) if not flag & ERROR]
    records = stream.records
    assert [record.number for record in records] == list(range(first, len(items) + 1))
    assert [record.error for record in records] == ["failed" if flag & ERROR else None for _, flag in kept]
    paged = [value for page in stream.pages(7) for value in page.good()]
    assert same([tuple(v) if isinstance(v, Row) else v for v in paged], wanted)


def test_arrays_and_tables_are_read_without_rows(monkeypatch):
    stream = Stream(fields=FIELDS)
    for first in range(0, 1000, 100):
        stream.publish(batch(first + 1, ROWS[first : first + 100]))
    monkeypatch.setattr(ValueColumns, "tolist", lambda self: pytest.fail("rows were made"))
    monkeypatch.setattr(ValueColumns, "__iter__", lambda self: pytest.fail("rows were made"))
    step, loss = stream.to_numpy("step", "loss")
    assert step.dtype == np.int64
    assert np.array_equal(loss, np.arange(1000) / 7)
    assert stream.to_numpy().shape == (1000, 2)
    frame = stream.to_pandas()
    assert frame["loss"].tolist() == loss.tolist()
    assert isinstance(stream.columns(990).values, ValueColumns)
    assert stream.latest.loss == 999 / 7


def test_a_chart_draws_columns_without_rows(monkeypatch):
    stream = Stream(fields=FIELDS)
    stream.publish(batch(1, in_columns(ROWS)))
    plot = Plot(stream)
    monkeypatch.setattr(ValueColumns, "tolist", lambda self: pytest.fail("rows were made"))
    monkeypatch.setattr(ValueColumns, "__iter__", lambda self: pytest.fail("rows were made"))
    stream.publish(batch(1001, in_columns([(step, step / 7) for step in range(1000, 2000)])))
    assert plot.pull()
    (picture,) = plot.pictures()
    line = picture.marks[0]
    assert line.x[-1] == 1999
    assert line.y[-1] == 1999 / 7


def test_what_a_reader_changes_is_its_own():
    stream = stream_of(ROWS, fields=FIELDS)
    stream.to_numpy("loss")[:] = 0
    stream.to_numpy()[:] = 0
    frame = stream.to_pandas()
    frame.loc[:, "loss"] = 0
    with pytest.raises(ValueError, match="read-only"):
        stream.columns().values.columns[1][:] = 0
    assert stream.to_numpy("loss").tolist() == [loss for _, loss in ROWS]


def test_what_was_read_stays_while_the_stream_grows():
    stream, seen = Stream(fields=FIELDS), []
    for first in range(0, 1000, 10):
        stream.publish(batch(first + 1, in_columns(ROWS[first : first + 10])))
        seen.append(stream.columns().values)
    assert all(values == ROWS[: len(values)] for values in seen)


def test_names_that_come_later_name_the_rows_that_were_read_before():
    stream = Stream()
    stream.publish(batch(1, ROWS[:20]))
    assert stream.values[3] == (3, 3 / 7)
    stream.feed.set_fields(FIELDS)
    assert stream.values[3].loss == 3 / 7
    assert stream.columns().values[3].step == 3


# ---------------------------------------------------------------- Arrow

MIXED = [(1, 0.5, "train", True), (2, math.nan, "val", False), (3, -0.0, "train", True)]


@pytest.fixture
def pyarrow():
    return pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install pyarrow")


def test_an_arrow_table_has_the_columns_of_the_stream_with_their_types(pyarrow):
    stream = stream_of(MIXED, fields=("step", "loss", "phase", "number"))
    table = stream.to_arrow()
    assert table.column_names == ["number_", "event", "rank", "time", "wall", "step", "loss", "phase", "number"]
    assert [str(kind) for kind in table.schema.types] == [
        "int64", "int64", "int64", "double", "double", "int64", "double", "string", "bool",
    ]  # fmt: skip
    assert table["phase"].to_pylist() == ["train", "val", "train"]
    assert table["loss"].null_count == 0
    assert math.isnan(table["loss"][1].as_py())
    assert table["number"].to_pylist() == [True, False, True]
    assert stream_of([1.5, 2.5]).to_arrow()["value"].to_pylist() == [1.5, 2.5]


def test_numbers_are_handed_over_without_a_copy(pyarrow):
    stream = stream_of(ROWS, fields=FIELDS)
    kept = stream.columns(plain=True).values.columns[1]
    read = pyarrow.table(stream)["loss"]  # through the C stream
    assert read.num_chunks == 1
    assert read.chunk(0).buffers()[1].address == kept.ctypes.data


def test_parts_and_errors_are_a_table_too(pyarrow):
    stream = Stream(fields=FIELDS, buffer=80)
    for first in range(0, 100, 10):
        stream.publish(batch(first + 1, in_columns(ROWS[first : first + 10])))
    assert stream.to_arrow()["step"].to_pylist() == list(range(20, 100))
    assert stream.to_arrow().column("step").num_chunks > 1
    stream.publish(batch(101, ["failed", (7, 0.5)], bytes((ERROR, 0))))
    assert stream.to_arrow()["step"].to_pylist()[-2:] == [99, 7]
    assert stream.to_arrow()["number"].to_pylist()[-2:] == [100, 102]


def test_an_error_that_comes_first_changes_no_column(pyarrow):
    stream = Stream(fields=FIELDS)
    stream.publish(batch(1, ["failed"], bytes((ERROR,))))
    assert stream.to_arrow().column_names[5:] == list(FIELDS)
    stream.publish(batch(2, in_columns(ROWS)))
    assert [str(kind) for kind in stream.to_arrow().schema.types[5:]] == ["int64", "double"]


def test_each_column_of_a_table_has_a_name_of_its_own(pyarrow):
    stream = stream_of([(1, 2, 3)] * 2, fields=("wall", "wall_", "time"))
    names = ["number", "event", "rank", "time_", "wall__", "wall", "wall_", "time"]
    assert stream.to_arrow().column_names == names
    assert list(stream.to_pandas().columns) == names[1:]
    assert stream.to_numpy("wall_").tolist() == [2, 2]


def test_what_is_no_number_and_no_text_is_json(pyarrow):
    stream = stream_of([{"a": 1, "b": [1, 2]}, {"a": None, "b": {"c": 2**70}}])
    assert stream.to_arrow().select(["a", "b"]).to_pylist() == [
        {"a": 1, "b": "[1, 2]"},
        {"a": None, "b": '{"c": 1180591620717411303424}'},
    ]
    assert stream_of([1, 2.5, None]).to_arrow()["value"].to_pylist() == [1.0, 2.5, None]
    assert stream_of([(1, 2)]).to_arrow()["value"].to_pylist() == ["[1, 2]"]
    assert stream_of(["\ud800", "\ud800"]).to_arrow()["value"].to_pylist() == ["\\ud800"] * 2
    grown = stream_of([{}, {"a": 1}, {"b": "x", "a": 2}]).to_arrow()
    assert grown.select(["a", "b"]).to_pylist() == [{"a": None, "b": None}, {"a": 1, "b": None}, {"a": 2, "b": "x"}]
    assert stream_of([None, (1, 0.5)], fields=FIELDS).to_arrow()["loss"].to_pylist() == [None, 0.5]
    assert Stream(fields=FIELDS).to_arrow().column_names[5:] == ["step", "loss"]
    assert Stream().to_arrow().num_rows == 0


def test_an_arrow_table_has_the_types_of_its_numbers_and_times(pyarrow):
    noon = datetime(2024, 2, 29, 12)

    def column(*values):
        found = stream_of(list(values)).to_arrow()["value"]
        return str(found.type), found.to_pylist()

    assert column(np.float32(1.5), None, np.int64(2)) == ("double", [1.5, None, 2.0])
    assert column(True, 2, None) == ("int64", [1, 2, None])
    assert column(False, 0.5) == ("double", [0.0, 0.5])
    assert column(True, None) == ("bool", [True, None])
    assert column(noon, None) == ("timestamp[us]", [noon, None])
    assert column(noon.date()) == ("date32[day]", [noon.date()])
    assert column(timedelta(seconds=90)) == ("duration[us]", [timedelta(seconds=90)])
    assert column(noon, noon.replace(tzinfo=UTC)) == ("string", [str(noon), str(noon.replace(tzinfo=UTC))])
    assert column(1, 2**70) == ("string", ["1", str(2**70)])
    assert column(1, None, 2**64 - 1) == ("uint64", [1, None, 2**64 - 1])
    assert column(-1, 2**63) == ("string", ["-1", str(2**63)])
    assert column(noon.time(), None) == ("time64[us]", [noon.time(), None])
    assert column(noon.time(), noon.time().replace(tzinfo=UTC)) == ("string", ["12:00:00", "12:00:00+00:00"])
    assert column(0.5, 2**53) == ("double", [0.5, 2.0**53])
    assert column(0.5, 2**53 + 1) == ("string", ["0.5", str(2**53 + 1)])
    assert column((noon, 1)) == ("string", ['["2024-02-29 12:00:00", 1]'])


def test_without_pyarrow_a_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for read in (stream_of(ROWS).to_arrow, stream_of(ROWS).__arrow_c_stream__):
        with pytest.raises(ImportError, match=r"need pyarrow: pip install 'looptap\[parquet\]'"):
            read()


def test_polars_reads_a_stream(pyarrow):
    polars = pytest.importorskip("polars", reason="polars is not installed: pip install polars")
    stream = stream_of(ROWS, fields=FIELDS)
    frame = polars.DataFrame(stream)
    assert frame.filter(polars.col("step") > 997)["loss"].to_list() == [998 / 7, 999 / 7]


QUERY = """
import duckdb
from looptap import stream_of
stream = stream_of([(step, step / 7) for step in range(1000)], fields=("step", "loss"))
print(duckdb.sql("SELECT count(*), max(loss) FROM stream WHERE step < 10").fetchall() == [(10, 9 / 7)])
"""


@pytest.mark.usefixtures("processes")
def test_duckdb_reads_a_stream(pyarrow):
    pytest.importorskip("duckdb", reason="duckdb is not installed: pip install duckdb")
    done = subprocess.run([sys.executable, "-c", QUERY], capture_output=True, text=True)  # it complains at its exit
    assert done.stdout == "True\n", done.stderr


def test_a_live_stream_is_read_as_a_table(pyarrow):
    job = pair(manual=True)
    stream = job.run.stream("step, loss", on="batch")
    for step, loss in ROWS[:100]:
        job.agent.emit("batch", step=step, loss=loss)
    job.deliver()
    assert isinstance(stream.columns().values, ValueColumns)
    assert stream.to_arrow().select(["step", "loss"]).to_pylist()[-1] == {"step": 99, "loss": 99 / 7}
    job.run.close()
    job.agent.close()


def test_arrays_by_name_are_the_readers_own_and_those_of_the_frame():
    parts = [[(n, n / 2) for n in range(first, first + 10)] for first in (0, 10)]
    for batches in (parts[:1], parts):
        stream = Stream("s", fields=FIELDS)
        for batch in batches:
            events = array("q", [step for step, _ in batch])
            stream.publish(Batch(batch[0][0] + 1, events, array("d", events), batch, 1.7e9 + 0.1))
        expected = [row for batch in batches for row in batch]
        loss, step = stream.to_numpy("loss", "step")
        assert list(zip(step.tolist(), loss.tolist(), strict=True)) == expected
        assert stream.to_numpy("loss", "event")[1].tolist() == step.tolist()
        loss[:], step[:] = 0, 0
        assert stream.values == expected
        first, second = stream.to_numpy("loss", "loss")
        first[:] = 0
        assert second.tolist() == [loss for _, loss in expected]
        frame = stream.to_pandas()
        assert frame["loss"].tolist() == second.tolist()
        walls = [1.7e9 + 0.1 + step for step, _ in expected]
        assert frame["wall"].tolist() == pandas.to_datetime(walls, unit="s", utc=True).tolist()
        assert set(frame["rank"]) == {0}


@settings(max_examples=examples(400), deadline=None)
@given(wall=st.floats(-1e10, 1e10) | st.floats(1.6e9, 2e9))
def test_the_date_of_a_wall_clock_is_the_one_of_pandas(wall):
    stream = Stream("s")
    stream.publish(Batch(1, array("q", [1]), array("d", [0.0]), [1.0], wall))
    try:
        expected = pandas.to_datetime([wall], unit="s", utc=True)
    except pandas.errors.OutOfBoundsDatetime:
        with pytest.raises(pandas.errors.OutOfBoundsDatetime):
            stream.to_pandas()
    else:
        assert stream.to_pandas()["wall"].tolist() == expected.tolist()


@pytest.mark.parametrize("values", [[2**63, 1], [-1, 2**63 + 1], [2**64 - 1, 2**53 + 1], [2**64, 0]])
def test_integers_that_int64_does_not_hold_stay_exact_in_an_array(values):
    array = stream_of(values).to_numpy()
    assert array.tolist() == values
    assert array.dtype == (np.uint64 if min(values) >= 0 and max(values) < 2**64 else object)


@pytest.mark.parametrize("values", [[2**60 + 1, None], [0.5, 2**60 + 1], [None, 2**63 + 1, 0.5], [True, 2**60 + 1]])
def test_integers_that_no_float_equals_are_not_rounded_beside_other_values(values):
    stream = stream_of([(value, 1) for value in values], fields=("id", "n"))
    plain = stream_of(values)
    for read in (stream.to_numpy("id"), plain.to_numpy(), stream.to_pandas()["id"], plain.to_pandas()["value"]):
        assert read.tolist() == values
    assert stream_of([None, 2**53]).to_pandas()["value"].dtype == np.float64


@pytest.mark.parametrize("values", [["a\0", "b"], [b"a\0", b"b"], ["\0", "\0"]])
def test_texts_that_end_with_nul_keep_it_in_an_array(values):
    assert stream_of(values).to_numpy().tolist() == values
    assert stream_of([(value, 1) for value in values], fields=("text", "n")).to_numpy("text").tolist() == values


def test_a_frame_takes_texts_that_are_no_unicode():
    stream = stream_of([("\ud800", 1, 0.5), ("a", None, 0.25)], fields=("text", "count", "loss"))
    frame = stream.to_pandas()
    assert frame["text"].tolist() == ["\ud800", "a"]
    assert frame["count"].isna().tolist() == [False, True]
    assert frame["loss"].dtype == np.float64
    assert frame.index.tolist() == [1, 2]
