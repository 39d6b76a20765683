"""Snapshots: complete, detached, bounded copies; unsupported values are named."""

from __future__ import annotations

import argparse
import collections
import dataclasses
import enum
import gc
import io
import types

import numpy as np
import pytest
import torch
from PIL import Image as PILImage

from looptap.protocol.values.packing import pack
from looptap.protocol.values.unpacking import unpack
from looptap.streams.errors import SnapshotError
from looptap.streams.values import snapshots
from looptap.streams.values.described import Image
from looptap.streams.values.device_transfer import DeviceCopy, Pending
from looptap.streams.values.rows import MAX_NAMED_ROWS, Row, row_of, row_type, rows
from looptap.streams.values.snapshots import snapshot, take_item

DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2,
    torch.complex64, torch.complex128, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16,
    torch.uint32, torch.uint64, torch.bool,
]  # fmt: skip
Point = collections.namedtuple("Point", "x y")


@dataclasses.dataclass
class Metrics:
    step: int
    grad: torch.Tensor


class Phase(enum.Enum):
    TRAIN = "train"


def roundtrip(value):
    return unpack(pack(snapshot(value)[0]))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_tensor_of_any_dtype_arrives_bit_for_bit(dtype):
    tensor = torch.tensor([[0, 1, 2], [3, 1, 0]]).to(dtype)
    back = roundtrip(tensor)
    assert back.dtype == dtype
    assert torch.equal(back.view(torch.uint8), tensor.view(torch.uint8))
    assert back.shape == (2, 3)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (torch.tensor(1.5, requires_grad=True), 1.5),
        (np.longdouble(1.5), 1.5),
        (np.array(1.5, np.longdouble), 1.5),
        (np.clongdouble(1 + 2j), 1 + 2j),
        (torch.tensor(3), 3),
        (torch.tensor(True), True),
        (torch.tensor(0.5, dtype=torch.bfloat16), 0.5),
        (np.float32(0.5), 0.5),
        (np.array(7), 7),
        (np.int64(4), 4),
        (2**80, 2**80),
        (1 + 2j, 1 + 2j),
        ((1, [2, {"a": (3,)}]), (1, [2, {"a": (3,)}])),
        ({1: 2}, {1: 2}),
        ({1, 2}, {1, 2}),
        (Point(1, 2), row_type(("x", "y"))((1, 2))),
        (Phase.TRAIN, "train"),
        (torch.Size([2, 3]), (2, 3)),
        (torch.float16, "torch.float16"),
        (range(3), [0, 1, 2]),
        (collections.Counter("aab"), {"a": 2, "b": 1}),
        (collections.deque([1]), [1]),
        (b"\x00", b"\x00"),
        (None, None),
    ],
    ids=repr,
)
def test_scalars_and_containers_keep_their_kind(value, expected):
    back = roundtrip(value)
    assert back == expected
    assert type(back) is type(expected)


def test_the_names_of_a_tuple_survive_the_wire():
    back = roundtrip((7, Point(1, torch.tensor(2.0))))
    assert (back, back[1].x, back[1].y) == ((7, (1, 2.0)), 1, 2.0)
    both = roundtrip(torch.tensor([[1.0, 3.0]]).max(1))
    assert (both.values.tolist(), both.indices.tolist()) == ([3.0], [1])


def test_rows_with_ever_new_names_keep_them_and_fill_no_memory():
    for place in range(2 * MAX_NAMED_ROWS):
        row = unpack(pack(row_type((f"ever_new_{place}",))((place,))))
        assert getattr(row, f"ever_new_{place}") == row[0] == place
    gc.collect()
    kept = [one for one in Row.__subclasses__() if one._fields and one._fields[0].startswith("ever_new_")]
    assert 0 < len(kept) <= MAX_NAMED_ROWS + 1


def test_a_row_keeps_its_names_after_ever_new_ones():
    for place in range(MAX_NAMED_ROWS + 1):
        row_of([[f"b{place}"], place])
    (row,) = rows(("step", "loss"))([(3, 0.5)])
    copy, _ = snapshot(row)
    assert (copy.step, copy.loss, copy) == (3, 0.5, (3, 0.5))


@pytest.mark.parametrize("items", [[1, 2], [["a", "b"], 1], [[1], 1], [], [["a"]]])
def test_a_row_whose_names_do_not_match_its_elements_is_refused(items):
    with pytest.raises(ValueError):  # noqa: PT011  # of an empty list, Python's own
        row_of(items)


def test_a_dataclass_becomes_a_dict_and_its_tensors_copies():
    metrics = Metrics(3, torch.ones(2))
    copy, _ = snapshot(metrics)
    metrics.grad.zero_()
    assert copy["step"] == 3
    assert copy["grad"].tolist() == [1, 1]


def test_the_arguments_of_a_script_become_a_dict():
    arguments = argparse.Namespace(lr=0.1, model=types.SimpleNamespace(width=[8]), device=torch.device("cpu"))
    copy, _ = snapshot(arguments)
    arguments.model.width.append(9)
    assert copy == {"lr": 0.1, "model": {"width": [8]}, "device": "cpu"}


def test_a_later_change_in_place_does_not_reach_what_was_taken():
    array, tensor, nested = np.ones(3), torch.ones(3), {"a": [1]}
    copies = [snapshot(v)[0] for v in (array, tensor, nested)] + [take_item(tensor)]
    array += 1
    tensor += 1
    nested["a"].append(2)
    assert copies[0].tolist() == copies[1].tolist() == copies[3].tolist() == [1, 1, 1]
    assert copies[2] == {"a": [1]}


def test_no_graph_is_kept():
    w = torch.ones(3, requires_grad=True)
    copy, _ = snapshot((w * 2, (w * 2).sum()))
    assert not copy[0].requires_grad
    assert copy[1] == 6.0


def test_pictures_become_images():
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2, 1), dpi=50)
    for picture, size in ((PILImage.new("RGB", (5, 4)), (5, 4)), (figure, (100, 50))):
        back = roundtrip(picture)
        assert isinstance(back, Image)
        assert PILImage.open(io.BytesIO(back.png)).size == (back.width, back.height) == size


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (torch.Generator(), r"result is a torch._C.Generator"),
        ({"a": [1, object()]}, r"result\['a'\]\[1\] is a builtins.object"),
        ((x for x in "a"), "generator wants list"),
        (np.array([object()]), "dtype object"),
        (torch.sparse_coo_tensor([[0]], [1.0], (2,), check_invariants=True), "to_dense"),
        (torch.empty(2, device="meta"), "meta"),
        (np.zeros(1_000_001, np.float32), r"4,000,004 bytes, over max_bytes=4,000,000.*Reduce it"),
        ([np.zeros(600_000, np.float32)] * 2, r"result\[1\] is a ndarray of shape"),
    ],
    ids=["generator of numbers", "object", "generator", "objects", "sparse", "meta", "too large", "too large together"],
)
def test_a_value_that_cannot_be_copied_is_named_with_type_and_path(value, says):
    with pytest.raises(SnapshotError, match=says):
        snapshot(value)


def test_a_value_that_contains_itself_is_refused():
    loop: list = []
    loop.append(loop)
    with pytest.raises(SnapshotError, match="contains itself"):
        snapshot(loop)


def test_bytes_are_counted_before_anything_is_copied(monkeypatch):
    copied = []
    monkeypatch.setattr(np, "array", lambda *a, **k: copied.append(a))
    with pytest.raises(SnapshotError):
        snapshot(np.zeros(10**6))
    assert not copied


class Device:
    """A device of host memory, whose copies arrive at the first wait for them."""

    def __init__(self, monkeypatch):
        self.waited = 0
        monkeypatch.setattr(snapshots, "on_device", lambda t: True)
        monkeypatch.setattr(snapshots, "copy_to_host", self.copy)

    def copy(self, tensor):
        clone, host = tensor.detach().clone(), torch.empty_like(tensor.detach())

        def wait():
            self.waited += 1
            host.copy_(clone)

        return DeviceCopy(host, wait)


def test_a_device_tensor_is_waited_for_only_when_it_is_resolved(monkeypatch):
    device = Device(monkeypatch)
    tensor = torch.ones(2, 2)
    pending, size = snapshot((1, [tensor]))
    assert isinstance(pending, Pending)
    assert size >= tensor.nbytes
    assert device.waited == 0
    tensor += 1  # later on the device's stream: the copy must not see it
    step, (arrived,) = pending.resolve()
    assert (step, arrived.tolist(), device.waited) == (1, [[1, 1], [1, 1]], 1)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_cuda_tensor_arrives_as_it_was_without_synchronising():
    tensor = torch.ones(1000, 1000, device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        pending, _ = snapshot((tensor, tensor.sum()))
        tensor.zero_()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    array, total = pending.resolve()
    assert array.eq(1).all()
    assert total == 1e6
