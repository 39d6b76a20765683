"""The codec: values and messages round-trip, and hostile bytes raise one error."""

from __future__ import annotations

import datetime
import enum
import math
import os
import random
import subprocess
import sys
import time
from collections import Counter, OrderedDict, namedtuple

import msgspec
import numpy as np
import pytest
import torch
from comparing_values import mutated, same
from counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from places import SUPPORT

from looptap.protocol import messages
from looptap.protocol.codec import decode_from_agent, decode_from_client, encode
from looptap.protocol.errors import MessageError
from looptap.protocol.messages import COLUMNS, PACKED, ROWS, SCALARS
from looptap.protocol.values import floats
from looptap.protocol.values.extensions import MAX_INTEGER_BITS
from looptap.protocol.values.packing import pack, pack_values
from looptap.protocol.values.unpacking import unpack, unpack_values
from looptap.streams.errors import SnapshotError
from looptap.streams.operators.windows import MAX_WINDOW_EVENTS, Count, Group, Seconds, Sliding
from looptap.streams.values.described import Image

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=20)
leaves = (
    scalars
    | st.binary(max_size=20)
    | st.complex_numbers()
    | st.datetimes().map(lambda d: d.replace(fold=0))
    | st.timedeltas()
)
hashable = st.recursive(leaves, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=4)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(hashable, inner, max_size=4)
        | st.sets(hashable, max_size=4)
        | st.frozensets(hashable, max_size=4)
    ),
    max_leaves=20,
)


@settings(max_examples=examples(500), deadline=None)
@given(values)
def test_a_nested_value_comes_back_as_it_was(value):
    assert same(unpack(pack(value)), value)


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(scalars | st.tuples(scalars, scalars)))
def test_a_list_of_values_comes_back_as_it_was_whatever_its_form(items):
    assert same(list(unpack_values(*pack_values(items))), items)


@pytest.mark.parametrize(
    ("items", "form"),
    [
        ([], SCALARS),
        ([1, 2.5, True, None, "text", 2**63, -(2**63)], SCALARS),
        ([(1, 0.5), (2, None, "x"), ()], ROWS),
        ([1, (2, 3)], PACKED),
        ([[1, 2]], PACKED),
        ([b"bytes"], PACKED),
        ([2**64], PACKED),
        ([(1, 2**200)], PACKED),
        (["\ud800"], PACKED),
        ([0.5] * 7, SCALARS),
        ([0.5] * 8, COLUMNS),
        ([(1, 0.5, True, "train")] * 8, COLUMNS),
        ([(1,)] * 7 + [(1.0,)], ROWS),
        ([1] * 7 + [True], SCALARS),
        ([(1, 2)] * 7 + [(1,)], ROWS),
        ([(1, None)] * 8, ROWS),
        ([2**63] * 8, SCALARS),
        ([2**64] * 8, PACKED),
        ([(step, f"text {step}") for step in range(8)], ROWS),
        (["\ud800"] * 8, PACKED),
        ([()] * 8, ROWS),
    ],
)
def test_the_form_is_the_fastest_that_holds_the_values(items, form):
    assert pack_values(items)[0] == form
    assert same(list(unpack_values(*pack_values(items))), items)


def test_values_are_read_from_inside_a_message_without_a_copy_of_it():
    form, raw = pack_values([1.5, 2.5])
    frame = encode(messages.Values(1, 1, b"", b"", 0.0, form, msgspec.Raw(raw)))
    message = decode_from_agent(frame)
    assert isinstance(message, messages.Values)
    assert unpack_values(message.form, message.values) == [1.5, 2.5]


class Colour(enum.IntEnum):
    RED = 3


class Word(str):
    __slots__ = ()


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (namedtuple("Point", "x y")(1, 2), (1, 2)),
        (OrderedDict(b=1, a=[2]), {"b": 1, "a": [2]}),
        (Counter("aab"), {"a": 2, "b": 1}),
        (Colour.RED, 3),
        (Word("hello"), "hello"),
        (np.float32(0.5), 0.5),
        (np.int64(7), 7),
        (np.bool_(True), True),
        (np.str_("text"), "text"),
        (bytearray(b"abc"), b"abc"),
        (memoryview(b"abc"), b"abc"),
    ],
)
def test_a_subclass_arrives_as_its_base_type(value, plain):
    assert same(unpack(pack([value])), [plain])


def test_an_integer_arrives_up_to_its_most_bits():
    for sign in (1, -1):
        largest = sign * ((1 << MAX_INTEGER_BITS) - 1)
        assert unpack(pack(largest)) == largest
        with pytest.raises(SnapshotError):
            pack(largest + sign)


def test_a_picture_arrives_with_its_size():
    assert unpack(pack((1, Image(b"\x89PNG", 640, 480)))) == (1, Image(b"\x89PNG", 640, 480))


# ---------------------------------------------------------------- arrays and tensors

NUMPY_DTYPES = "? i1 u1 i2 u2 i4 u4 i8 u8 f2 f4 f8 c8 c16 >i4 >f8 M8[ns] m8[us]"
TORCH_DTYPES = (
    "bool uint8 int8 int16 int32 int64 uint16 uint32 uint64 float16 float32 float64 bfloat16 complex32 complex64 "
    "complex128 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu"
)

ARRAYS = [np.arange(6).astype(dtype).reshape(2, 3) for dtype in NUMPY_DTYPES.split()] + [
    np.zeros((0, 5)),
    np.array(3.5),
    np.asfortranarray(np.arange(12.0).reshape(3, 4)),
    np.arange(20.0)[::3],
    np.array(["one", "three"]),
    np.array(["", ""]),
    np.ndarray((2, 3), "U0"),
    np.array([b"x", b"yz"]),
    np.array([math.nan, math.inf, -0.0]),
    np.arange(4, dtype=np.longdouble),
]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda a: f"{a.dtype}{a.shape}")
def test_an_array_comes_back_with_its_dtype_shape_and_memory_of_its_own(array):
    back = unpack(pack(array))
    assert (back.dtype.kind, back.shape) == (array.dtype.kind, array.shape)
    np.testing.assert_array_equal(back, array)
    assert back.flags.writeable
    assert back.flags.aligned


DTYPES = [getattr(torch, name) for name in TORCH_DTYPES.split() if hasattr(torch, name)]


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)], ids=str)
def test_a_tensor_of_any_dtype_comes_back_bit_by_bit(dtype, shape):
    size = torch.empty((), dtype=dtype).element_size() * math.prod(shape)
    bits = torch.randint(0, 2 if dtype == torch.bool else 256, (size,), dtype=torch.uint8)
    tensor = bits.view(dtype).reshape(shape)
    back = unpack(pack(tensor))
    assert (back.dtype, back.shape) == (tensor.dtype, tensor.shape)
    assert torch.equal(back.reshape(-1).view(torch.uint8), bits)


def test_a_tensor_that_is_a_view_conjugate_or_needs_grad_comes_back_plain():
    grown = torch.arange(6.0, requires_grad=True).reshape(2, 3).T
    back = unpack(pack([grown, torch.tensor([1 + 2j]).conj()]))
    assert torch.equal(back[0], grown)
    assert not back[0].requires_grad
    assert back[1].tolist() == [1 - 2j]


WITHOUT_TORCH = """
import sys; sys.modules["torch"] = None
import numpy as np
from looptap.protocol.values.unpacking import unpack
back = unpack(sys.stdin.buffer.read())
np.savez(sys.stdout.buffer, *back)
"""


@pytest.mark.usefixtures("processes")
@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")  # of torch, once in a process
def test_without_torch_a_tensor_arrives_as_an_array_of_the_same_numbers(tmp_path):
    tensors = []
    for dtype in DTYPES:
        size = torch.empty((), dtype=dtype).element_size()
        bits = torch.arange(256 * size, dtype=torch.int64).to(torch.uint8)
        tensors.append((bits % 2 if dtype == torch.bool else bits).view(dtype))
    out = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], input=pack(tensors), capture_output=True, check=True)
    file = tmp_path / "arrays.npz"
    file.write_bytes(out.stdout)
    with np.load(file) as arrays:
        for tensor, array in zip(tensors, arrays.values(), strict=True):
            known = {torch.bfloat16: torch.float32, torch.complex32: torch.complex64}.get(tensor.dtype)
            wide = tensor.to(torch.float32 if "float8" in str(tensor.dtype) else known or tensor.dtype)
            np.testing.assert_array_equal(array, wide.numpy())


def test_where_torch_cannot_be_imported_a_tensor_arrives_as_an_array(monkeypatch):
    sent = pack([torch.tensor([[1.5, -2.0]], dtype=torch.bfloat16), torch.arange(3)])
    monkeypatch.setattr("looptap.protocol.values.tensors._torch", lambda: None)
    assert same(unpack(sent), [np.array([[1.5, -2.0]], np.float32), np.arange(3)])


def test_the_widened_formats_are_those_that_the_codec_lists():
    assert set(floats.WIDENED) <= {str(dtype).removeprefix("torch.") for dtype in DTYPES}


# ---------------------------------------------------------------- what cannot be sent


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": [1, object()]}, r"The result\['a'\]\[1\] is of type builtins.object"),
        ((1, np.array([object()])), r"result\[1\] is an array of object"),
        (np.zeros(2, [("x", "f4")]), "is an array of"),
        (np.ma.masked_array([1, 2], [True, False]), "masked array"),
        (torch.eye(2).to_sparse(), "sparse"),
        (torch.empty(2, device="meta"), "device tensor"),
        ({(1, print): 2}, "is of type builtins.builtin_function_or_method"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_with_its_path(value, message):
    with pytest.raises(SnapshotError, match=message):
        pack(value)
    with pytest.raises(SnapshotError, match="which cannot be sent"):
        pack_values([1, value])


def test_a_value_that_contains_itself_is_refused():
    loop: list[object] = [1]
    loop.append(loop)
    with pytest.raises(SnapshotError, match="nested more than 80 deep"):
        pack(loop)


def test_everything_that_can_be_packed_can_be_unpacked_at_the_bound_of_depth():
    value: object = 1
    for _ in range(79):
        value = (value,)
    assert unpack(pack(value)) == value
    with pytest.raises(SnapshotError):
        pack(((value,),))


# ---------------------------------------------------------------- hostile bytes


def samples() -> list[bytes]:
    rng = np.random.default_rng(1)
    plain = [1, 2.5, "text", None, b"x", (1, (2, {3})), {"a": [1 + 2j], 4: frozenset({2**70})}]
    arrays = [rng.random((3, 4)), torch.ones(2, 2, dtype=torch.bfloat16), np.array(["abc"])]
    rest = [Image(b"png", 2, 2), datetime.datetime(2026, 1, 1), datetime.timedelta(1), "\ud800"]
    return [pack(plain), pack(arrays), pack(rest), pack([*plain, *arrays, *rest])]


def test_mutated_values_raise_nothing_but_the_error_of_messages():
    rng = random.Random(7)
    refused = 0
    for data in samples():
        for _ in range(2500):
            hostile = mutated(data, rng)
            try:
                unpack(hostile)
                unpack_values(rng.randrange(5), hostile)
            except MessageError:
                refused += 1
    assert refused > 5000


def test_mutated_messages_raise_nothing_but_the_error_of_messages():
    rng = random.Random(8)
    run = messages.RunInfo("id", "name", "host", 1, 2.0)
    ours = [messages.Attach(1, 2, messages.Code("loss"), "batch"), messages.Hello((1, 0), "me")]
    theirs = [messages.Welcome((1, 0), run, "operator"), messages.Status(1, "live", notes=("a", "b"))]
    refused = 0
    for _ in range(2500):
        for decode, message in [(decode_from_client, m) for m in ours] + [(decode_from_agent, m) for m in theirs]:
            try:
                decode(mutated(encode(message), rng))
            except MessageError:
                refused += 1
    assert refused > 5000


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\x91" * 200_000,
        b"\xc7\x00\x06",
        b"\xc7\x00\x63",
        b"\xc7\x0d\x06\x03\x01<f8" + (2**60).to_bytes(8, "little"),
        b"\xc7\x0d\x06\x03\x00|O8" + b"\0" * 8,
        b"\xc7\x1a\x06\x03\x02<U0" + (2**62).to_bytes(8, "little") * 2 + b"\0" * 5,
        b"\xc7\x15\x06\x03\x02<f8" + (2**63).to_bytes(8, "little") + bytes(8),
        b"\xd4\x02\xc0",
        b"\xc7\x02\x02\x91\x90",
        b"\xc7\x03\x01\xa2ab",
    ],
)
def test_absurd_sizes_and_shapes_are_refused_before_memory_is_taken(data):
    began = time.thread_time()
    with pytest.raises(MessageError):
        unpack(data)
    with pytest.raises(MessageError):
        decode_from_client(data)
    assert time.thread_time() - began < 1.0


@pytest.mark.parametrize("name", ["|O", "|O8", "O", "|V8", "<i4,O", "<f4,<f4", "2<f4", ">f8", "f8"])
def test_an_array_of_a_dtype_that_is_never_sent_is_refused_by_its_name(name):
    """Of a dtype that holds objects, the bytes would be taken for their addresses."""
    data = bytes((len(name), 0)) + name.encode() + bytes(8)
    with pytest.raises(MessageError, match="the dtype '"):
        unpack(b"\xc7" + bytes((len(data), 6)) + data)


@pytest.mark.parametrize("form", [-1, 4, 255])
def test_values_of_an_unknown_form_are_refused(form):
    with pytest.raises(MessageError, match=f"the unknown form {form}: the sender may be newer"):
        unpack_values(form, pack([1]))


def test_deeply_nested_extensions_are_refused_whatever_the_recursion_limit():
    data = pack(())
    for _ in range(500):
        data = b"\x91" + data
        data = b"\xc9" + len(data).to_bytes(4, "big") + b"\x01" + data
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(100_000)
    try:
        with pytest.raises(MessageError, match="80 deep"):
            unpack(data)
    finally:
        sys.setrecursionlimit(limit)


def test_an_error_message_does_not_repeat_what_was_sent():
    with pytest.raises(MessageError) as caught:
        decode_from_client(msgspec.msgpack.encode({"t": "x" * 60_000}))
    assert len(str(caught.value)) < 400


NOTHING_HAPPENS = """
import random, sys
sys.path[:0] = [{here!r}, {support!r}]
import test_codec
from looptap.protocol.values.unpacking import unpack
unpack(test_codec.pack(1))
seen = []
def watch(event, arguments):
    if event in ("pickle.find_class", "exec", "compile", "import", "marshal.loads") or event.startswith(
        ("subprocess", "os.", "ctypes", "open", "socket")
    ):
        seen.append((event, arguments))
rng, data = random.Random(9), test_codec.samples()
sys.addaudithook(watch)
for i in range({count}):
    try: unpack(test_codec.mutated(data[i % len(data)], rng))
    except test_codec.MessageError: pass
print(seen)
"""


@pytest.mark.usefixtures("processes")
@pytest.mark.promise("S9")
def test_decoding_hostile_bytes_imports_executes_and_opens_nothing(tmp_path):
    source = NOTHING_HAPPENS.format(here=os.path.dirname(__file__), support=str(SUPPORT), count=examples(10_000))
    out = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True, timeout=300)
    assert out.stdout.strip() == "[]"


# ---------------------------------------------------------------- speed


@pytest.mark.parametrize("items", [[float(i) for i in range(20_000)], [(i, i / 7) for i in range(20_000)]])
def test_numbers_and_rows_are_sent_at_over_a_third_of_a_million_a_second(items):
    best = math.inf
    for _ in range(5):
        began = time.perf_counter()
        unpack_values(*pack_values(items))
        best = min(best, time.perf_counter() - began)
    assert len(items) / best > 333_000


# ---------------------------------------------------------------- windows


@pytest.mark.parametrize(
    "window", [Group(), Count(1), Count(MAX_WINDOW_EVENTS), Seconds(1e-3), Seconds(30), Sliding(9)]
)
def test_a_window_is_sent_unchanged(window):
    sent = messages.Attach(1, 2, messages.Code("loss"), "batch", window)
    assert decode_from_client(encode(sent)) == sent


@pytest.mark.parametrize(
    "window",
    [
        Count(0), Count(-1), Count(MAX_WINDOW_EVENTS + 1), Count(2**63), Count(2.5), Count("3"), Sliding(0),
        Sliding(MAX_WINDOW_EVENTS + 1), Seconds(0), Seconds(-1.0), Seconds(math.nan), Seconds(math.inf), Seconds("1"),
        {"type": "forever"}, {"size": 3}, {}, None, 3, "group",
    ],
)  # fmt: skip
def test_a_window_out_of_bounds_is_refused_where_it_is_decoded(window):
    with pytest.raises(MessageError):
        decode_from_client(encode(messages.Attach(1, 2, messages.Code("loss"), "batch", window)))
