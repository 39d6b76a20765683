"""Values in columns equal the list they stand for, in memory and on the wire."""

from __future__ import annotations

import copy
import math
import pickle
import random
import struct

import msgspec
import numpy as np
import pytest
from comparing_values import mutated, peak, same
from counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from looptap.protocol.errors import MessageError
from looptap.protocol.messages import COLUMNS, ROWS
from looptap.protocol.values import footprint
from looptap.protocol.values.column_form import pack_columns, unpack_columns
from looptap.protocol.values.packing import pack_values
from looptap.protocol.values.unpacking import unpack_values
from looptap.streams.columns.value_columns import (
    MAX_COLUMNS,
    MAX_TEXT_CHARACTERS,
    TextColumn,
    ValueColumns,
    as_columns,
    joined_columns,
)
from looptap.streams.values.rows import row_type

integers = st.integers(-(2**63), 2**63 - 1)
texts = st.sampled_from(["train", "val", "", "\0", "žluťoučký", "\U0001f600"])
of_one_type = [integers, st.floats(), st.booleans(), texts]
anything = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3)


@st.composite
def columnar(draw):
    """Return a list of scalars or of rows in which each column has one type."""
    kinds = draw(st.lists(st.sampled_from(of_one_type), min_size=1, max_size=4))
    count = draw(st.integers(1, 40))
    columns = [draw(st.lists(kind, min_size=count, max_size=count)) for kind in kinds]
    return list(columns[0]) if len(columns) == 1 and draw(st.booleans()) else list(zip(*columns, strict=True))


@settings(max_examples=examples(300), deadline=None)
@given(columnar(), st.integers(-50, 50), st.integers(-50, 50), st.integers(1, 3))
def test_columns_equal_the_list_in_every_way_of_reading(items, start, stop, step):
    columns = as_columns(items)
    if columns is None:  # texts that hardly repeat
        assert any(isinstance(v, str) for row in items for v in (row if isinstance(row, tuple) else (row,)))
        return
    part = slice(start, stop, step)
    assert len(columns) == len(items)
    assert same(columns.tolist(), items)
    assert same(list(columns), items)
    assert same(list(columns[part]), items[part])
    assert same([columns[i] for i in range(-len(items), len(items))], items + items)
    assert columns == columns.tolist() or any(v != v for v in np.ravel(np.array(items, object)))
    keep = np.arange(len(items)) % 3 == 1
    assert same(columns.where(keep).tolist(), items[1::3])
    for copied in (copy.copy(columns), pickle.loads(pickle.dumps(columns))):
        assert same(copied, items)
    for place in (len(items), -len(items) - 1):
        with pytest.raises(IndexError):
            columns[place]


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(anything | st.tuples(anything, anything) | st.lists(anything, max_size=2)))
def test_what_is_in_columns_equals_the_list_whatever_is_in_it(items):
    columns = as_columns(items)
    assert columns is None or same(columns.tolist(), items)
    assert same(list(unpack_values(*pack_values(items))), items)


@settings(max_examples=examples(300), deadline=None)
@given(columnar())
def test_columns_come_back_from_the_wire_without_rows(items):
    columns = as_columns(items)
    if columns is None:
        return
    back = unpack_columns(pack_columns(columns))
    assert type(back) is ValueColumns
    assert (back.rows, back.types) == (columns.rows, columns.types)
    assert same(back.tolist(), items)
    for old, new in zip(columns.columns, back.columns, strict=True):
        if isinstance(new, TextColumn):
            assert new.texts == old.texts
        else:
            assert new.tobytes() == old.tobytes()  # NaN and -0.0 too, bit by bit
            assert new.flags.aligned
            assert new.dtype == old.dtype


@pytest.mark.parametrize(
    "items",
    [
        [], [()], [(), ()], [None], [1, 2.0], [1, True], [(1, 2), (1, 2.0)], [(1, 2), (1,)], [(1, 2), [1, 2]], [[1]],
        [2**63], [-(2**63) - 1], [b"x"], [np.float64(1)], ["x" * (MAX_TEXT_CHARACTERS + 1)] * 9, list("abcdefgh"),
        [(1,) * (MAX_COLUMNS + 1)] * 2, [1j], [{"a": 1}],
    ],
    ids=lambda items: f"{items!r:.40}",
)  # fmt: skip
def test_what_columns_would_change_or_not_shorten_stays_a_list(items):
    assert as_columns(items) is None
    assert same(list(unpack_values(*pack_values(items))), items) or type(items[0]) in (np.float64,)


def test_a_single_row_stays_a_list():
    items = [row_type(("a",))((1,))]  # of a type that other tests may have pushed out of those that are kept
    assert as_columns(items) is None
    assert same(list(unpack_values(*pack_values(items))), items)


def test_rows_have_their_names_where_they_are_read_and_slices_keep_them():
    columns = as_columns([(1, 0.5), (2, 0.25), (3, 0.125)]).named(row_type(("step", "loss")))
    assert columns[1].loss == 0.25
    assert [row.step for row in columns[1:]] == [2, 3]
    assert columns.where(np.array([True, False, True]))[-1].loss == 0.125
    assert columns == [(1, 0.5), (2, 0.25), (3, 0.125)]
    assert columns == [(1, 0.5), (2, 0.25), (3, 0.125)]
    assert columns != [(1, 0.5)]
    assert columns != (1, 0.5)
    assert repr(columns[:1]) == "[(step=1, loss=0.5)]"


def test_a_slice_shares_the_memory_of_its_columns():
    columns = as_columns([(step, 0.5) for step in range(100)])
    assert np.shares_memory(columns[10:20].columns[0], columns.columns[0])


@pytest.mark.parametrize("items", [[1, 2], [0.5, math.nan], [True], [(1, 0.5)], [(True, 2)], ["a", "a", "b"]])
def test_numpy_makes_of_columns_what_it_makes_of_the_list(items):
    ours, theirs = np.array(as_columns(items)), np.array(items)
    np.testing.assert_array_equal(ours, theirs)
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)


def test_parts_join_where_all_have_the_same_types():
    parts = [[(1, "a"), (2, "a")], [(3, "b"), (4, "a"), (5, "b")], [(6, "c")]]
    columns = [as_columns(part) for part in parts]
    assert same(joined_columns(columns).tolist(), [row for part in parts for row in part])
    assert joined_columns([]) is None
    assert joined_columns([columns[0], parts[1]]) is None
    assert joined_columns([columns[0], as_columns([(1.0, "a")])]) is None
    assert joined_columns([as_columns([1]), as_columns([(1,)])]) is None
    many = [as_columns([f"{part} {n}" for n in range(200)] * 2) for part in range(3)]
    assert joined_columns(many).columns[0].indices.dtype == np.uint16
    assert joined_columns(many).tolist() == [text for part in many for text in part.tolist()]


def test_columns_of_different_lengths_are_refused():
    with pytest.raises(ValueError, match="columns of different lengths: 2, 3"):
        ValueColumns([np.zeros(2), np.zeros(3)], True)


# ---------------------------------------------------------------- the wire


def test_columns_that_exist_are_packed_without_rows(monkeypatch):
    columns = as_columns([(step, step / 7) for step in range(1000)])
    monkeypatch.setattr(ValueColumns, "tolist", lambda self: pytest.fail("rows were made"))
    monkeypatch.setattr(ValueColumns, "__iter__", lambda self: pytest.fail("rows were made"))
    form, raw = pack_values(columns)
    assert form == COLUMNS
    assert len(raw) < 16 * 1000 + 30
    assert len(unpack_values(form, msgspec.Raw(raw))) == 1000


def test_a_reader_that_does_not_know_columns_gets_rows():
    columns = as_columns([(step, step / 7) for step in range(1000)])
    form, raw = pack_values(columns, columns=False)
    assert form == ROWS
    assert same(unpack_values(form, raw), columns.tolist())


def test_buffers_are_little_endian_whatever_the_machine():
    columns = ValueColumns([np.array([1, 2], ">i8"), np.array([0.5, 0.25], ">f8")], True)
    raw = pack_columns(columns)
    assert struct.pack("<2q", 1, 2) in raw
    assert struct.pack("<2d", 0.5, 0.25) in raw
    assert unpack_columns(raw) == [(1, 0.5), (2, 0.25)]


def packed(*parts):
    return msgspec.msgpack.encode(parts)


INTEGERS = ["q", struct.pack("<2q", 1, 2)]


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        packed(),
        packed(True),
        packed(True, []),
        packed(1, [INTEGERS]),
        packed(False, [INTEGERS, INTEGERS]),
        packed(True, [INTEGERS] * (MAX_COLUMNS + 1)),
        packed(True, [INTEGERS, ["d", bytes(8)]]),
        packed(True, [["q", bytes(9)]]),
        packed(True, [["Q", bytes(8)]]),
        packed(True, [["O", bytes(8)]]),
        packed(True, [["", bytes(8)]]),
        packed(True, [["q"]]),
        packed(True, [["q", "12345678"]]),
        packed(True, [["?", b"\0\1\2"]]),
        packed(True, [["B", b"\0\1", ["a"]]]),
        packed(True, [["B", b"\0"]]),
        packed(True, [["H", b"\0\0\1", ["a"]]]),
        packed(True, [["B", b"\0", [1]]]),
        packed(True, [["B", b"\0", ["x" * (MAX_TEXT_CHARACTERS + 1)]]]),
        packed(True, [["B", b"\0", ["x"] * 65_537]]),
        b"\x92\xc3\xdd\xff\xff\xff\xff",
        b"\x92\xc3\x91\x92\xa1q\xc6\xff\xff\xff\xff",
        b"\x92\xc3\x91\x92\xa1q\xc6\x00\x00\x00\x10" + bytes(8),
        packed(True, [INTEGERS]) + b"\0",
    ],
)
def test_malformed_columns_raise_the_error_of_messages(raw):
    with pytest.raises(MessageError):
        unpack_values(COLUMNS, raw)


def test_what_a_newer_sender_adds_at_the_end_is_ignored():
    assert unpack_values(COLUMNS, packed(True, [[*INTEGERS, [], "more"]], "and more")) == [(1,), (2,)]


def test_columns_without_values_are_none():
    assert len(unpack_values(COLUMNS, packed(True, [["q", b""]]))) == 0


def test_a_text_that_is_not_unicode_is_refused():
    with pytest.raises(MessageError):
        unpack_values(COLUMNS, packed(True, [["B", b"\0", ["ab"]]]).replace(b"ab", b"\xed\xa0"))


def test_columns_whose_list_would_take_too_much_memory_are_refused_on_both_sides(monkeypatch):
    monkeypatch.setattr(footprint, "FREE_BYTES", 1_000_000)
    raw = packed(True, [["?", bytes(100_000)]])
    most, refused = peak(lambda raw: unpack_values(COLUMNS, raw), raw)
    assert refused
    assert most < 3 * len(raw)
    many = ValueColumns([np.zeros(100_000, bool)], True)
    with pytest.raises(ValueError, match="in columns that would take"):
        pack_columns(many)
    assert unpack_values(COLUMNS, pack_columns(many[:9000])) == many[:9000]


def test_a_list_takes_no_more_memory_than_its_columns_were_charged():
    for columns in (
        ValueColumns([np.arange(50_000) + 2**40], False),
        ValueColumns([np.zeros(50_000, bool)], True),
        ValueColumns([np.random.default_rng(1).random(50_000)] * 3, True),
    ):
        most, _ = peak(lambda _, columns=columns: columns.tolist(), b"")
        assert most < 1.1 * columns.list_bytes


def test_mutated_columns_raise_nothing_but_the_error_of_messages():
    rng = random.Random(7)
    items = [(step, step / 7, step > 5, "train" if step < 8 else "val") for step in range(12)]
    refused = read = 0
    for data in (pack_columns(as_columns(items)), pack_columns(as_columns(["a", "b"] * 6))):
        for _ in range(examples(5000)):
            try:
                found = unpack_values(COLUMNS, mutated(data, rng))
            except MessageError:
                refused += 1
            else:
                read += 1
                assert len(found.tolist()) == len(found)
                assert {len(row) for row in found if found.rows} <= {len(found.columns)}
    assert refused > examples(200)
    assert read > examples(200)
