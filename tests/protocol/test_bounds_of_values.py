"""Bounds on decoded values: memory as stated; a bad value loses no other."""

from __future__ import annotations

import contextlib
import csv
import datetime
import math
import struct
import sys
from array import array

import numpy as np
import pytest
import torch
from comparing_values import peak
from counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st

import looptap
from looptap.protocol import messages
from looptap.protocol.codec import decode_from_agent, encode
from looptap.protocol.errors import MessageError
from looptap.protocol.messages import PACKED, ROWS, SCALARS
from looptap.protocol.values import footprint, tensors, unpacking
from looptap.protocol.values.packing import pack, pack_values
from looptap.protocol.values.unpacking import unpack, unpack_values
from looptap.store.writer import Writer
from looptap.streams.errors import SnapshotError
from looptap.streams.stream.buffer import Batch
from looptap.streams.values.snapshots import snapshot
from looptap.testing import pair

FREE = 1_000_000


def items(count, each):
    return b"\xdd" + struct.pack(">I", count) + each * count


INFLATING = {
    "empty lists": b"\x90",
    "empty dicts": b"\x80",
    "dicts of one": b"\x81\xc0\xc0",
    "dicts of six": b"\x86" + bytes(range(6)) * 2,
    "dicts with a length": b"\xde\x00\x01\xc0\xc0",
    "lists with a length": b"\xdc\x00\x00",
    "lists and numbers": b"\x90\xc0",
    "tuples": b"\xc7\x02\x01\x91\xc0",
    "sets": b"\xc7\x02\x02\x91\x07",
    "frozensets": b"\xd4\x03\x90",
    "sets of many": b"\xc7\x12\x02\xdc\x00\x0f" + bytes(range(15)),
    "short texts": b"\xa2ab",
    "longer texts": b"\xd9\x03abc",
    "wide texts": b"\xa5\xf0\x9f\x98\x80a",
    "integers": b"\xcd\xff\xfe",
    "negative integers": b"\xe0",
    "arrays": pack(np.array([1], "i1")),
    "dates": pack([datetime.date(2026, 1, 1)])[1:],
    "complex numbers": pack([1j])[1:],
    "bytes": b"\xc4\x01a",
}


@pytest.fixture
def bounded(monkeypatch):
    """Lower the bound, so that small values exceed it."""
    monkeypatch.setattr(footprint, "FREE_BYTES", FREE)
    monkeypatch.setattr(footprint, "SMALL_BYTES", FREE // 80)


@pytest.mark.parametrize("each", INFLATING)
@pytest.mark.parametrize("count", [2_000, 10_000, 60_000])
def test_decoding_takes_no_more_memory_than_stated(each, count, bounded):
    raw = items(count, INFLATING[each])
    most, _ = peak(unpack, raw)
    assert most < FREE + footprint.BYTES_PER_BYTE * len(raw) + 100_000


@pytest.mark.parametrize(
    ("form", "raw"),
    [
        (PACKED, items(200_000, b"\x90")),
        (SCALARS, items(200_000, b"\xa2ab")),
        (ROWS, items(200_000, b"\x91\xa2ab")),
        (ROWS, items(200_000, b"\x91\xc0")),
    ],
)
def test_values_of_every_form_are_bounded(form, raw, bounded):
    most, refused = peak(lambda raw: unpack_values(form, raw), raw)
    assert refused
    assert most < 2 * len(raw) + 100_000


def test_four_megabytes_of_empty_lists_are_refused_before_any_is_made():
    most, refused = peak(unpack, items(4_000_000, b"\x90"))
    assert refused
    assert most < 20_000_000


def test_a_small_value_is_not_refused_for_what_it_might_take():
    dates = [datetime.date(2026, 1, 1)] * 60_000
    raw = pack(dates)
    assert len(raw) < footprint.SMALL_BYTES
    assert footprint.cost_of(raw, 1 << 60, frozenset(unpacking.CONTAINERS), frozenset()) > 1.1 * footprint.FREE_BYTES
    assert unpack(raw) == dates


@pytest.mark.parametrize("depth", [1, 5, 40])
def test_lists_inside_of_tuples_are_counted_too(depth, bounded):
    raw = items(60_000, b"\x90")
    for _ in range(depth):
        raw = b"\xc9" + struct.pack(">I", len(raw)) + b"\x01" + raw
        raw = b"\x91" + raw
    assert peak(unpack, raw)[1]


nested = st.recursive(
    st.none() | st.integers(-(2**64), 2**64) | st.floats() | st.text(max_size=40) | st.binary(max_size=300),
    lambda inner: (
        st.lists(inner, max_size=40)
        | st.dictionaries(st.text(max_size=3), inner, max_size=20)
        | st.lists(inner, max_size=6).map(tuple)
    ),
    max_leaves=40,
)


def weight(value):
    """Return the size of a value, as Python counts."""
    parts = [*value, *value.values()] if isinstance(value, dict) else value
    if not isinstance(parts, list | tuple):
        parts = []
    shared = value is None or (isinstance(value, int) and -6 < value < 257)  # Python has these once
    return (0 if shared else sys.getsizeof(value)) + 8 + sum(map(weight, parts))


@settings(max_examples=examples(200), deadline=None)
@given(nested)
def test_the_counted_bytes_are_at_least_those_python_counts(value):
    raw = pack([value])
    counted = footprint.cost_of(raw, 1 << 60, frozenset(unpacking.CONTAINERS), frozenset())
    assert counted + 100 >= 0.9 * weight(unpack(raw))  # a list that grew takes more than one that was decoded


@settings(max_examples=examples(300), deadline=None)
@given(st.binary(max_size=200))
def test_counting_raises_nothing_else_for_any_bytes(raw):
    with contextlib.suppress(ValueError):
        footprint.check_memory(raw, frozenset(unpacking.CONTAINERS), frozenset())


LIST, NUMBER, TEXT, LEAF = 72, 44, 72, 1212
PAIR = 300 + 2 * 128 + LIST + 16  # a set of two
COSTS = [
    (b"\x07", 8), (b"\xc0", 8), (b"\xca\0\0\0\0", 32), (b"\xcb" + bytes(8), 32), (b"\xcc\x01", NUMBER),
    (b"\xcd\x01\x01", NUMBER), (b"\xce" + bytes(4), NUMBER), (b"\xcf" + bytes(8), NUMBER), (b"\xd0\x01", NUMBER),
    (b"\xd1\x01\x01", NUMBER), (b"\xd2" + bytes(4), NUMBER), (b"\xd3" + bytes(8), NUMBER), (b"\xe0", NUMBER),
    (b"\x80", LIST), (b"\x81\xc0\xc0", 240 + 16), (b"\x86" + b"\xc0" * 12, 360 + 96), (b"\x90", LIST),
    (b"\x9f" + b"\xc0" * 15, LIST + 120), (b"\xdc\x00\x02\xc0\xc0", LIST + 16), (b"\xdd\0\0\0\x01\xc0", LIST + 8),
    (b"\xde\x00\x01\xc0\xc0", 240 + 16), (b"\xdf\0\0\0\x01\xc0\xc0", 240 + 16), (b"\xa2ab", TEXT),
    (b"\xd9\x02ab", TEXT),
    (b"\xda\x00\x02ab", TEXT), (b"\xdb\0\0\0\x02ab", TEXT), (b"\xc4\x02ab", TEXT), (b"\xc5\x00\x02ab", TEXT),
    (b"\xc6\0\0\0\x02ab", TEXT),
    *((bytes((0xD4 + n, 4)) + b"\x90" * (1 << n), 1200 + 4 * (1 << n)) for n in range(5)),
    (b"\xc7\x03\x04\x90\x90\x90", LEAF), (b"\xc8\x00\x03\x04\x90\x90\x90", LEAF), (b"\xd4\x01\x90", 300 + LIST),
    (b"\xc9\0\0\0\x03\x04\x90\x90\x90", LEAF), (b"\xc7\x02\x01\x91\xc0", 300 + LIST + 8),
    (b"\xc7\x03\x02\x92\x01\x02", PAIR), (b"\xc7\x05\x02\xdc\x00\x02\x01\x02", PAIR),
    (b"\xc7\x07\x02\xdd\0\0\0\x02\x01\x02", PAIR), (b"\xd5\x02\x91\x07", 300 + 128 + LIST + 8),
]  # fmt: skip


@pytest.mark.parametrize("before", [b"", b"\x90"])
@pytest.mark.parametrize(("raw", "cost"), COSTS)
def test_each_kind_of_object_is_counted_and_passed_over_exactly(raw, cost, before):
    """A value counted a byte too long or too short would change what follows."""
    counted = footprint.cost_of(before + raw + b"\x90", 1 << 60, frozenset({1, 2, 3}), frozenset({2, 3}))
    assert counted == cost + LIST + LIST * len(before)


def test_honest_values_of_some_megabytes_pass():
    for value in (
        np.full(5_000_000, 0x91, np.uint8), torch.rand(1_000_000), [n / 3 for n in range(300_000)], "é" * 3_000_000,
        [[n, n / 3] for n in range(100_000)], [{"loss": 0.5, "n": n} for n in range(50_000)], b"\x90" * 3_000_000,
    ):  # fmt: skip
        assert type(unpack(pack(value))) is type(value)


def test_a_value_that_a_client_would_refuse_is_refused_where_it_is_packed(bounded):
    with pytest.raises(SnapshotError, match="would take more than"):
        pack([[] for _ in range(100_000)])
    assert pack_values([1, [[]]])[0] == PACKED


@pytest.mark.parametrize(
    "frame",
    [
        b"\x82\xa1t\xa6bundle\xa8messages" + items(70_000, b"\xc0"),
        b"\x82\xa1t\xa4beat\xa6events\xdf" + struct.pack(">I", 70_000) + b"\xa1a\x00" * 70_000,
        b"\x83\xa1t\xa6status\xa6stream\x01\xa5notes" + items(70_000, b"\xa0"),
    ],
)  # fmt: skip
def test_messages_have_no_more_parts_than_an_agent_sends(frame):
    most, refused = peak(decode_from_agent, frame)
    assert refused
    assert most < 30_000_000


def test_containers_count_in_what_a_stream_holds():
    assert snapshot([[] for _ in range(1000)])[1] >= 56_000
    assert snapshot({n: {} for n in range(1000)})[1] >= 56_000


# ---------------------------------------------------------------- values that cannot be

BIG = 10**5000
NO_TEXT = np.array(["a"])
NO_TEXT.view(np.uint32)[0] = 0x110000


class Odd(dict):
    """A mapping that raises."""

    def items(self):
        raise RuntimeError("no items")


CANNOT = {
    "an integer": (BIG, "4,300 digits"),
    "a negative integer": (-BIG, "4,300 digits"),
    "in a row": ((1, BIG), r"\[1\].*4,300 digits"),
    "as a key": ({BIG: 1}, "4,300 digits"),
    "below a key": ({BIG: BIG}, "4,300 digits"),
    "text": (NO_TEXT, "an invalid character"),
    "truth": (np.frombuffer(b"\x02", "?"), "neither"),
    "some empty rows": (np.zeros((70_000, 0)), "without items"),
    "empty rows": (np.zeros((1 << 40, 0)), "without items"),
    "an empty tensor": (torch.zeros((1 << 40, 0)), "without items"),
    "an empty box": (np.zeros((0, 1 << 20, 1 << 20)), "without items"),
    "objects": (np.array([object()]), "cannot be sent"),
    "a structure": (np.zeros(1, "i4,f8"), "cannot be sent"),
    "one of a structure": (np.zeros(1, "i4,f8")[0], "cannot be sent"),
    "what raises": ([Odd(a=[1])], "no items"),
}


@pytest.mark.parametrize("kind", CANNOT)
def test_a_value_that_cannot_be_packed_is_refused_in_a_sentence(kind):
    value, says = CANNOT[kind]
    with pytest.raises(SnapshotError, match=says) as refused:
        pack(value)
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize(
    "value",
    [
        10**4299, -(10**4299), -0.0, math.inf, "\ud800", {"\ud800": 1}, np.array(["\ud800", "a\U0010ffff"]),
        np.zeros((0, 50257, 4096)),
        np.zeros((32, 0)), torch.zeros((0, 4096)), np.array(["2026-01-01", "NaT"], "M8[s]"), np.array([1, 2], ">i4"),
        np.array([True, False]), np.array(["", ""]), [[[[1]]]], np.array([b"a\0b"]),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_unusual_values_that_can_be_sent_come_back(value):
    back = unpack(pack(value))
    if isinstance(value, np.ndarray):
        assert back.shape == value.shape
        assert back.tolist() == value.tolist()
    elif isinstance(value, torch.Tensor):
        assert back.shape == value.shape
    else:
        assert repr(back) == repr(value)


def test_the_bits_of_a_nan_come_back():
    (odd,) = struct.unpack("<d", b"\x01\x02\x03\x04\x05\x06\xf8\x7f")
    assert struct.pack("<d", unpack(pack(odd))) == struct.pack("<d", odd)
    held = np.array([0x7FC12345], np.uint32).view(np.float32)
    assert unpack(pack(held)).tobytes() == held.tobytes()


@pytest.mark.parametrize(
    "raw",
    [
        b"\xc8" + struct.pack(">H", 1800) + b"\x04" + b"\x7f" * 1800,
        b"\xc7" + bytes([17]) + b"\x06\x03\x01<U1" + struct.pack("<QI", 1, 0x110000),
        b"\xc7" + bytes([14]) + b"\x06\x03\x01|b1" + struct.pack("<QB", 1, 7),
        b"\xc7" + bytes([21]) + b"\x06\x03\x02<f8" + struct.pack("<QQ", 1 << 40, 0),
        b"\xc7" + bytes([25]) + b"\x07\x07\x02float32" + struct.pack("<QQ", 1 << 40, 0),
        b"\xc7" + bytes([18]) + b"\x06\x07\x01<M8[0s]" + struct.pack("<Q", 0),
    ],
)  # fmt: skip
def test_bytes_that_no_agent_packs_are_refused(raw):
    with pytest.raises(MessageError):
        unpack(raw)


def test_headers_used_in_these_tests_are_valid():
    good = b"\xc7" + bytes([17]) + b"\x06\x03\x01<U1" + struct.pack("<QI", 1, 0x10FFFF)
    assert unpack(good).tolist() == ["\U0010ffff"]
    assert tensors.array(memoryview(b"\x03\x02<f8" + struct.pack("<QQ", 3, 0))).shape == (3, 0)


def test_a_value_that_cannot_be_sent_is_an_error_item_and_the_others_arrive():
    agent, run = pair("odd")
    stream, others = run.stream("x", on="batch"), run.stream("n", on="batch")
    for n in range(6):
        agent.emit("batch", n=n, x=BIG if n % 2 else n)
    agent.emit("epoch")
    agent.close()
    assert stream.values == [0, 2, 4]
    assert [error.number for error in stream.errors] == [2, 4, 6]
    assert "4,300 digits" in stream.errors[0].error
    assert others.values == list(range(6))
    assert (stream.dropped, run.refused_messages) == (0, 0)


class Unsayable(Exception):
    """An error whose text UTF-8 cannot encode."""


def raising(event):
    raise Unsayable("\ud800 went wrong")


def test_an_error_whose_text_cannot_be_sent_is_reported_nevertheless():
    agent, run = pair("odd")
    stream, others = run.stream(raising, on="batch"), run.stream("n", on="batch")
    for n in range(3):
        agent.emit("batch", n=n)
    agent.emit("epoch")
    agent.close()
    assert "went wrong" in stream.traceback
    assert (stream.error_count, stream.state, others.values) == (3, "ended", [0, 1, 2])


def test_text_that_cannot_be_sent_is_escaped_anywhere_in_a_message():
    found = decode_from_agent(encode(messages.Status(1, "live", "\ud800", notes=("a", "\udfff"))))
    assert (found.reason, found.notes) == ("\\ud800", ("a", "\\udfff"))
    assert decode_from_agent(encode(messages.Beat({"\ud800": 1}))).events == {"\\ud800": 1}


# ---------------------------------------------------------------- tables for other programs

TEXTS = ["=1+1", "+A1", "-A1", "@SUM(A1)", "\tx", "\r=x", "\n=x", "＝1", "-5", "+1e3", "a=b", "", "'=x", "\ud800"]
WRITTEN = [*(f"'{text}" for text in TEXTS[:8]), "-5", "+1e3", "a=b", "", "'=x", "\\ud800"]


def kept(tmp_path, values, fields=None):
    writer = Writer(tmp_path / "run.looptap")
    stream = writer.stream("s", fields=fields)
    writer.append(stream, Batch(1, array("q", range(len(values))), array("d", range(len(values))), list(values)))
    assert writer.close(60)
    return looptap.open(writer.path)


def test_a_text_that_looks_like_a_formula_is_no_formula_in_a_table(tmp_path):
    with kept(tmp_path, TEXTS) as run:
        run.stream("s").to_csv(tmp_path / "s.csv")
    with (tmp_path / "s.csv").open(newline="") as file:
        rows = list(csv.reader(file))[1:]
    assert [row[5] for row in rows] == WRITTEN


def test_numbers_stay_numbers_and_names_of_columns_are_no_formulas(tmp_path):
    with kept(tmp_path, [(-1, -0.5), (10**30, float("-inf"))], fields=("=a", "b")) as run:
        run.stream("s").to_csv(tmp_path / "s.csv")
    with (tmp_path / "s.csv").open(newline="") as file:
        head, *rows = csv.reader(file)
    assert head[5:] == ["'=a", "b"]
    assert [row[5:] for row in rows] == [["-1", "-0.5"], [str(10**30), "-inf"]]


@pytest.mark.parametrize("values", [["\ud800", "a"], [1.5, 10**400], [2**64, 1], [True, None, "x"], [{"a": "\ud800"}]])
def test_odd_columns_are_written_as_parquet(values, tmp_path):
    with kept(tmp_path, values) as run:
        assert run.stream("s").to_parquet(tmp_path / "s.parquet") == len(values)


def test_a_fact_that_cannot_be_written_is_replaced_by_the_reason(tmp_path):
    writer = Writer(tmp_path / "run.looptap", {"odd": BIG})
    writer.append(writer.stream("s"), Batch(1, array("q", [1, 2]), array("d", [0, 1]), [BIG, 1]))
    assert writer.close(60)
    with looptap.open(writer.path) as run:
        assert "4,300 digits" in run.metadata["odd"]
        assert run.stream("s").values == [1]
        assert "4,300 digits" in run.stream("s").errors[0].error
