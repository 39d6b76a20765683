"""Encode arrays and tensors as raw little-endian buffers with a header.

Nothing is allocated for a buffer whose header does not fit its length, and no header can name a dtype that
holds Python objects. Tensors of dtypes that numpy lacks arrive exactly, as float32, where there is no torch.
"""

from __future__ import annotations

import importlib
import math
import re
import struct
import sys
from functools import cache
from typing import Any

import numpy as np

from looptap.protocol.values.floats import WIDENED

_DTYPE = re.compile(r"[<|](?:[biufcmM]\d{1,2}(?:\[\d{0,9}[A-Za-zμ]{1,2}\])?|[SU]\d{1,9})")
_MAX_DIMENSIONS = 64  # numpy's own bound
_MAX_CODE_POINT = 0x10FFFF
_EMPTY_ROWS, _EMPTY_ITEMS = 65_536, 1 << 31
"""Of an array without items: the most empty rows it may have, and the largest product of its other dimensions. It
takes no byte, whatever its shape, but its list or its sum does."""

_TORCH_DTYPES = frozenset(
    {
        "bool",
        "uint8",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint16",
        "uint32",
        "uint64",
        "float16",
        "float32",
        "float64",
        "bfloat16",
        "complex32",
        "complex64",
        "complex128",
        "float8_e4m3fn",
        "float8_e5m2",
        "float8_e4m3fnuz",
        "float8_e5m2fnuz",
        "float8_e8m0fnu",
    }
)


class MalformedArray(Exception):
    """The reason why an array or tensor cannot be sent, as the end of a sentence."""


# ---------------------------------------------------------------- numpy


def array_parts(value: np.ndarray[Any, Any]) -> list[bytes | memoryview]:
    """Return the header and buffer of an array, copied only if not contiguous."""
    if isinstance(value, np.ma.MaskedArray):
        raise MalformedArray("is a masked array, which cannot be sent. Send .filled(...) or .compressed().")
    plain = np.asarray(value)
    plain = plain.astype(plain.dtype.newbyteorder("<"), copy=False)
    if plain.dtype.itemsize == 0:  # only empty strings: the header must not claim items that take no room
        plain = plain.astype(f"{plain.dtype.kind}1")
    name = plain.dtype.str
    if not _DTYPE.fullmatch(name):
        raise MalformedArray(f"is an array of {value.dtype}, which cannot be sent. Convert it with .astype(...).")
    flat = np.ascontiguousarray(plain).reshape(-1)
    if problem := _problem(plain.shape, plain.dtype.kind, flat):
        raise MalformedArray(f"is an array {problem}. Send a part of it, or what it stands for.")
    return [_header(name, plain.shape), flat.view(np.uint8).data]


def array(data: memoryview) -> np.ndarray[Any, Any]:
    """Decode an array that owns its memory. Raises ValueError for a bad header."""
    name, shape, buffer = _split(data)
    if not _DTYPE.fullmatch(name):
        raise ValueError(f"the dtype {name!r:.40}")
    dtype = np.dtype(name)
    _check(shape, dtype.itemsize, buffer)
    found: np.ndarray[Any, Any] = np.ndarray(shape, dtype, bytearray(buffer))
    if problem := _problem(shape, dtype.kind, found):
        raise ValueError(f"an array {problem}")
    return found


def _problem(shape: tuple[int, ...], kind: str, items: np.ndarray[Any, Any]) -> str:
    """Return what is wrong with an array that fits its header; empty if nothing."""
    if not items.size:
        return _empty_problem(shape)
    if kind == "U" and int(np.ascontiguousarray(items).view(np.uint32).max()) > _MAX_CODE_POINT:
        return "of text with an invalid character"
    if kind == "b" and int(np.ascontiguousarray(items).view(np.uint8).max()) > 1:
        return "of truth values with one that is neither"
    return ""


def _empty_problem(shape: tuple[int, ...]) -> str:
    others = [length for length in shape if length]
    if 0 in shape and (math.prod(shape[: shape.index(0)]) > _EMPTY_ROWS or math.prod(others) > _EMPTY_ITEMS):
        return f"without items, of the shape {shape!r:.80}"
    return ""


# ---------------------------------------------------------------- torch


def tensor_parts(value: Any) -> list[bytes | memoryview]:
    """Return the header and the buffer of a tensor on the CPU."""
    torch = sys.modules["torch"]
    name = str(value.dtype).removeprefix("torch.")
    if name not in _TORCH_DTYPES:
        raise MalformedArray(f"is a tensor of {value.dtype}, which cannot be sent. Convert it with .to(...).")
    if value.layout != torch.strided or value.is_nested or not value.is_cpu:
        raise MalformedArray("is a sparse, nested or device tensor, which cannot be sent. Use .to_dense(), .cpu().")
    if problem := _empty_problem(tuple(value.shape)):
        raise MalformedArray(f"is a tensor {problem}. Send a part of it, or what it stands for.")
    plain = value.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
    return [_header(name, tuple(value.shape)), plain.numpy().data]


def tensor(data: memoryview) -> Any:
    """Decode a tensor; without torch it is an array of the same numbers."""
    name, shape, buffer = _split(data)
    if name not in _TORCH_DTYPES:
        raise ValueError(f"the dtype {name!r:.40}")
    _check(shape, _itemsize(name), buffer)
    if problem := _empty_problem(shape):
        raise ValueError(f"a tensor {problem}")
    torch = _torch()
    dtype = getattr(torch, name, None)
    if dtype is None:
        return _without_torch(name, buffer).reshape(shape)
    empty = torch.empty(0, dtype=torch.uint8)  # frombuffer refuses a buffer of no bytes
    flat = torch.frombuffer(bytearray(buffer), dtype=torch.uint8) if len(buffer) else empty
    return flat.view(dtype).reshape(shape)


def _without_torch(name: str, buffer: memoryview) -> np.ndarray[Any, Any]:
    owned = bytearray(buffer)
    if name == "complex32":
        return np.frombuffer(owned, "<f2").astype(np.float32).view(np.complex64)
    if name in WIDENED:
        return WIDENED[name](owned)
    return np.frombuffer(owned, np.dtype(name).newbyteorder("<"))


def _itemsize(name: str) -> int:
    if name == "complex32":
        return 4
    if name in WIDENED:
        return 2 if name == "bfloat16" else 1
    return np.dtype(name).itemsize


@cache
def _torch() -> Any:
    try:
        return importlib.import_module("torch")
    except ImportError:
        return None


# ---------------------------------------------------------------- headers


def _header(name: str, shape: tuple[int, ...]) -> bytes:
    """Return name length, dimension count, name and dimensions as bytes."""
    text = name.encode()
    return struct.pack(f"<BB{len(text)}s{len(shape)}Q", len(text), len(shape), text, *shape)


def _split(data: memoryview) -> tuple[str, tuple[int, ...], memoryview]:
    length, dimensions = data[0], data[1]
    if dimensions > _MAX_DIMENSIONS:
        raise ValueError(f"{dimensions} dimensions")
    layout = f"<{length}s{dimensions}Q"
    end = 2 + struct.calcsize(layout)
    name, *shape = struct.unpack(layout, data[2:end])
    return str(name, "utf-8"), tuple(shape), data[end:]


def _check(shape: tuple[int, ...], itemsize: int, buffer: memoryview) -> None:
    if math.prod(shape) * itemsize != len(buffer) or itemsize == 0:
        raise ValueError(f"a buffer of {len(buffer)} bytes for the shape {shape!r:.80}")
