"""Copies of values that may leave the job: detached, bounded, without references.

`snapshot` copies a result, `take_item` an item that enters a reducer. A tensor on a device is cloned in stream order
and copied to the host while the computation runs (`Pending`); the training thread never waits for it.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import io
import math
import os
import sys
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from decimal import Decimal
from fractions import Fraction
from inspect import signature
from types import BuiltinFunctionType, FunctionType, MappingProxyType
from typing import Any

import numpy as np

from looptap.streams.errors import SnapshotError
from looptap.streams.events import example_reads
from looptap.streams.harmless.plain import is_ordinary, name_of_type
from looptap.streams.values.described import Image, described
from looptap.streams.values.device_transfer import Pending, copy_to_host
from looptap.streams.values.rows import row_like
from looptap.streams.values.torch_interop import array_of, filled, on_device

DEFAULT_MAX_VALUE_BYTES = 4_000_000
"""Bytes of one value, unless the query asks for more with ``max_bytes=``."""
MISSING_NUMBER = np.ma.masked
"""A masked number as an item of a reducer, which leaves it out unless it collects."""
NUMBERS = frozenset({float, int, bool, type(None)})
NUMBER_IDS = frozenset(map(id, NUMBERS))
"""These types by identity: the hash of a class may be code of the job."""
_MAX_DEPTH = 64
_CONTAINER_BYTES = 64  # bytes of an empty list
_NUMBER_BYTES = 64  # bytes of a queued number with its envelope


class _Walk:
    """A walk over one value: bytes left, and whether a device is involved."""

    __slots__ = ("bytes", "limit", "on_device", "pending")

    def __init__(self, limit: int, on_device: bool) -> None:
        self.limit, self.bytes, self.pending, self.on_device = limit, 0, False, on_device

    def charge(self, size: int, value: Any) -> None:
        self.bytes += size
        if self.bytes > self.limit:
            shape = f" of shape {tuple(value.shape)}" if hasattr(value, "shape") else ""
            raise _Refusal(
                f"a {type(value).__name__}{shape} that brings the value to {self.bytes:,} bytes, over "
                f"max_bytes={self.limit:,}. Reduce it in the query (a norm, a histogram, a slice, a thumbnail) or "
                "attach with a larger max_bytes=."
            )


class _Refusal(SnapshotError):
    """A SnapshotError that collects the path to the culprit as it propagates."""

    def __init__(self, what: str, *, hopeless: bool = False) -> None:
        super().__init__(what)
        self.what, self.path, self.hopeless = what, "", hopeless

    def below(self, step: str) -> _Refusal:
        if len(self.path) < 80:
            self.path = step + self.path
        return self

    def __str__(self) -> str:
        return f"the result{self.path} is {self.what}"


def snapshot(value: Any, max_bytes: int = DEFAULT_MAX_VALUE_BYTES) -> tuple[Any, int]:
    """Return a detached copy of ``value`` and its size in bytes.

    Numbers, strings, bytes, None, bools, tuples, lists, dicts, sets, numpy arrays, torch tensors of any dtype,
    dataclasses and namespaces (as dicts), named tuples (with their names), pictures (PIL, matplotlib), dates, times and
    durations, and what other libraries give as an array or a number (``__array__``, ``__dlpack__``, ``__float__``).
    0-dimensional arrays and tensors, Decimal and Fraction become numbers; paths, dtypes and devices become text.
    Missing elements of a masked array become NaN, a masked number None. The copy is `Pending` if a device has to
    deliver first. Raises SnapshotError, with type and path, for anything else and above ``max_bytes``.

    >>> snapshot((1, 2.5))
    ((1, 2.5), 128)
    """
    kind = type(value)
    if id(kind) in NUMBER_IDS:
        return value, _NUMBER_BYTES
    if kind is tuple:
        for part in value:
            if id(type(part)) not in NUMBER_IDS:
                break
        else:
            return value, _NUMBER_BYTES * (len(value) or 1)
        if (row := _row(value)) is not None:
            return row, _NUMBER_BYTES * len(row)
    elif kind is _Tensor and value.ndim == 0 and value.is_cpu:
        return value.item(), _NUMBER_BYTES
    walk = _Walk(max_bytes, on_device=False)
    copy = _copy(value, walk, 0)
    return (Pending(copy) if walk.pending else copy), max(walk.bytes, _NUMBER_BYTES)


def take_item(value: Any, max_bytes: int = DEFAULT_MAX_VALUE_BYTES) -> Any:
    """Return a detached copy for a reducer, like `snapshot`, but on the same device."""
    kind = type(value)
    if id(kind) in NUMBER_IDS:
        return value
    if kind is _Tensor and value.is_cpu and value.ndim == 0:
        return value.item()
    return _copy(value, _Walk(max_bytes, on_device=True), 0)


def _row(values: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Return the values with scalar tensors as numbers; None if there is more."""
    found = []
    for value in values:
        kind = type(value)
        if id(kind) not in NUMBER_IDS:
            if kind is not _Tensor or value.ndim or not value.is_cpu:
                return None
            value = value.item()
        found.append(value)
    return tuple(found)


# ---------------------------------------------------------------- copying, by type

_Copier = Callable[[Any, _Walk, int], Any]
_Tensor: Any = None  # torch.Tensor, once one has been seen


def _copy(value: Any, walk: _Walk, depth: int) -> Any:
    kind = type(value)
    if id(kind) in NUMBER_IDS:
        walk.bytes += _NUMBER_BYTES
        return value
    if depth > _MAX_DEPTH:
        raise _Refusal(f"nested more than {_MAX_DEPTH} deep (or contains itself).")
    if not is_ordinary(kind):
        raise _Refusal(f"a {name_of_type(kind)}, whose metaclass is of the job's own, and which cannot leave the job.")
    return (_copiers.get(kind) or _find_copier(kind, value))(value, walk, depth)


def _text(value: Any, walk: _Walk, depth: int) -> Any:
    walk.charge(len(value), value)
    return value


def _bytearray(value: Any, walk: _Walk, depth: int) -> Any:
    walk.charge(len(value), value)
    return bytes(value)


def _items(value: Any, walk: _Walk, depth: int) -> list[Any]:
    walk.charge(_CONTAINER_BYTES, value)
    copies: list[Any] = []
    try:
        for v in value:
            copies.append(_copy(v, walk, depth + 1))
    except _Refusal as refusal:
        raise refusal.below(f"[{len(copies)}]") from None
    return copies


def _tuple(value: Any, walk: _Walk, depth: int) -> Any:
    return row_like(type(value), _items(value, walk, depth))


def _set(value: Any, walk: _Walk, depth: int) -> Any:
    return set(_items(value, walk, depth))


def _dict(value: Any, walk: _Walk, depth: int) -> Any:
    walk.charge(_CONTAINER_BYTES, value)
    copies = {}
    for k, v in value.items():
        try:
            copies[_copy(k, walk, depth + 1)] = _copy(v, walk, depth + 1)
        except _Refusal as refusal:
            raise refusal.below(f"[{k!r:.40}]") from None
    return copies


def _dataclass(value: Any, walk: _Walk, depth: int) -> Any:
    return _dict({f.name: getattr(value, f.name) for f in dataclasses.fields(value)}, walk, depth)


def _namespace(value: Any, walk: _Walk, depth: int) -> Any:
    return _dict(vars(value), walk, depth)


def _scalar(value: Any, walk: _Walk, depth: int) -> Any:
    if isinstance(value, np.datetime64 | np.timedelta64):
        unit = "us" if np.datetime_data(value.dtype)[0] != "generic" else "generic"
        return _copy(value.astype(f"{value.dtype.kind}8[{unit}]").item(), walk, depth)
    if isinstance(value, np.longdouble | np.clongdouble):  # whose item() is of the same type
        return _copy(complex(value) if isinstance(value, np.clongdouble) else float(value), walk, depth)
    if value.dtype.kind not in "biufcSU":
        return _array(np.asarray(value), walk, depth)
    return _copy(value.item(), walk, depth)


def _masked(value: Any, walk: _Walk, depth: int) -> Any:
    if value.ndim == 0 and np.ma.getmaskarray(value):
        return MISSING_NUMBER if walk.on_device else None
    if walk.on_device:
        walk.charge(value.nbytes, value)
        return value.copy()
    return _copy(filled(value), walk, depth)


def _of_protocol(value: Any, walk: _Walk, depth: int) -> Any:
    """Copy an array or a number of another library, such as jax."""
    walk.charge(int(getattr(value, "nbytes", 0)), value)
    if (found := array_of(value)) is None:
        return _copy(value.__index__() if hasattr(type(value), "__index__") else float(value), walk, depth)
    if found.dtype.kind == "V" and not found.dtype.names:  # bfloat16 and other small floats
        found = found.astype(np.float32)
    return _array(found, walk, depth)


def _array(value: Any, walk: _Walk, depth: int) -> Any:
    if value.dtype.hasobject or value.dtype.names:
        raise _Refusal(
            f"an array of dtype {value.dtype}, which cannot leave the job. "
            "Convert it to numbers with .astype(...) or send the columns one by one."
        )
    if value.ndim == 0 and value.dtype.kind in "biufcSUmM":
        return _scalar(value[()], walk, depth)
    walk.charge(value.nbytes, value)
    return np.array(value, copy=True, order="C", subok=False)


def _tensor(value: Any, walk: _Walk, depth: int) -> Any:
    if type(value) is not _Tensor and hasattr(value, "to_local"):
        value = value.to_local()  # a sharded tensor is seen as its local shard: gathering would be a collective
        if hasattr(value, "wait"):
            value = value.wait()
    elif type(value) is not _Tensor and not type(value).__module__.startswith("torch"):
        with sys.modules["torch"]._C.DisableTorchFunctionSubclass():  # a class of the job's, which sees each function
            value = value.as_subclass(_Tensor)
    torch = sys.modules["torch"]
    if value.layout != torch.strided or value.is_quantized or value.is_meta:
        what = "a meta" if value.is_meta else "a quantized" if value.is_quantized else f"a {value.layout}"
        raise _Refusal(
            f"{what} tensor, which cannot leave the job. Convert it with .to_dense() or .dequantize(), or reduce it."
        )
    if on_device(value):
        walk.charge(value.nbytes, value)
        if walk.on_device:
            return value.detach().clone()
        walk.pending = True
        return copy_to_host(value)
    if value.ndim == 0:
        walk.bytes += _NUMBER_BYTES
        return value.item()
    walk.charge(value.nbytes, value)
    return value.detach().clone(memory_format=torch.contiguous_format)


def _picture(value: Any, walk: _Walk, depth: int) -> Any:
    buffer = io.BytesIO()
    if hasattr(value, "savefig"):
        value.savefig(buffer, format="png")
        width, height = (round(n) for n in value.get_size_inches() * value.dpi)
    else:
        value.save(buffer, format="PNG")
        width, height = value.size
    return _same(Image(buffer.getvalue(), width, height), walk, depth)


def _same(value: Any, walk: _Walk, depth: int) -> Any:
    walk.charge(len(getattr(value, "png", b"")) + 16, value)
    return value


def _string_of(value: Any, walk: _Walk, depth: int) -> Any:
    return _text(str(value), walk, depth)


def _enum(value: Any, walk: _Walk, depth: int) -> Any:
    return _copy(value.value, walk, depth + 1)


def _number_subclass(value: Any, walk: _Walk, depth: int) -> Any:
    walk.bytes += _NUMBER_BYTES
    return next(kind for kind in (bool, int, float, complex) if isinstance(value, kind))(value)


def _exact_number(value: Any, walk: _Walk, depth: int) -> Any:
    walk.bytes += _NUMBER_BYTES
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
    except ValueError:  # a signalling NaN
        return math.nan


def _moment(value: Any, walk: _Walk, depth: int) -> Any:
    """Return a date or time of the standard library; its zone is only an offset."""
    walk.bytes += _NUMBER_BYTES
    if value != value:  # NaT of pandas, which says that it is a datetime
        return None
    offset = value.utcoffset()
    zone = None if offset is None else datetime.timezone(offset)
    if not isinstance(value, datetime.datetime):
        return datetime.time(value.hour, value.minute, value.second, value.microsecond, zone)
    return datetime.datetime(
        value.year, value.month, value.day, value.hour, value.minute, value.second, value.microsecond, zone
    )


def _duration(value: Any, walk: _Walk, depth: int) -> Any:
    walk.bytes += _NUMBER_BYTES
    return datetime.timedelta(value.days, value.seconds, value.microseconds)


def _day(value: Any, walk: _Walk, depth: int) -> Any:
    walk.bytes += _NUMBER_BYTES
    return datetime.date(value.year, value.month, value.day)


def _path(value: Any, walk: _Walk, depth: int) -> Any:
    return _copy(os.fspath(value), walk, depth + 1)


def _refuse(value: Any, walk: _Walk, depth: int) -> Any:
    if hasattr(type(value), "__looptap_names__"):
        raise _Refusal(f"the event itself: name what you want of it, as in {example_reads(value)}.", hopeless=True)
    ours = type(value) is FunctionType and value.__module__.startswith("looptap.")
    if ours or (type(value) is BuiltinFunctionType and value.__module__ == "builtins"):
        name, parameters = value.__name__, signature(value).parameters.values() if ours else ()
        given = ", ".join(one.name for one in parameters if one.default is one.empty) or "…"
        raise _Refusal(
            f"the query language's own {name}: call it, {name}({given}). A variable of the job of that name is "
            f"e[{name!r}].", hopeless=True,
        )  # fmt: skip
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    raise _Refusal(
        f"{'an' if kind[:1] in 'aeiou' else 'a'} {kind}, which cannot leave the job. Return numbers, strings, "
        "arrays, tensors or tuples, lists and dicts of them; a generator wants list(...), an object the attribute you "
        "are after."
    )


_PROTOCOLS = ("__array__", "__dlpack__", "__index__", "__float__")
_BASIC: dict[type, _Copier] = {
    str: _text, bytes: _text, bytearray: _bytearray, tuple: _tuple, list: _items, deque: _items, range: _items,
    set: _set, frozenset: _set, dict: _dict, np.ndarray: _array, Image: _same, complex: _same,
}  # fmt: skip
_copiers: dict[type, _Copier] = dict(_BASIC)


def _find_copier(kind: type, value: Any) -> _Copier:
    """Return the copier for values of this type, cached."""
    if len(_copiers) > 1000:  # classes created in a loop must not accumulate
        _copiers.clear()
        _copiers.update(_BASIC)
    copier = _copiers[kind] = _choose_copier(kind, value)
    return copier


_BASES: tuple[tuple[type, _Copier], ...] = (
    (np.float64, _scalar), (enum.Enum, _enum), (int, _number_subclass), (float, _number_subclass),
    (complex, _number_subclass), (str, _string_of), (np.generic, _scalar), (np.ma.MaskedArray, _masked),
    (np.ndarray, _array), (tuple, _tuple), (list, _items), (set, _set), (frozenset, _set), (Mapping, _dict),
    (dict, _dict), (MappingProxyType, _dict), (datetime.datetime, _moment), (datetime.time, _moment),
    (datetime.date, _day), (datetime.timedelta, _duration), (Decimal, _exact_number), (Fraction, _exact_number),
    (os.PathLike, _path), (uuid.UUID, _string_of), (np.dtype, _string_of), (type({}.keys()), _items),
    (type({}.values()), _items),
)  # fmt: skip
"""What copies subclasses of these; the first that fits."""
_BY_NAME = {
    "argparse.Namespace": _namespace, "types.SimpleNamespace": _namespace, "PIL.Image.Image": _picture,
    "matplotlib.figure.Figure": _picture,
}  # fmt: skip
"""What copies subclasses of classes that may not be loaded."""


def _torch_copier(kind: type) -> _Copier | None:
    global _Tensor
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "Tensor"):  # while another thread imports torch
        return None
    if issubclass(kind, torch.Tensor):
        _Tensor = torch.Tensor
        return _tensor
    text = issubclass(kind, torch.dtype | torch.device | torch.layout | torch.memory_format)
    return _string_of if text else None


def _choose_copier(kind: type, value: Any) -> _Copier:
    if (of_torch := _torch_copier(kind)) is not None:
        return of_torch
    if (describe := described(kind)) is not None:
        return lambda value, walk, depth: _copy(describe(value), walk, depth + 1)
    for base, copier in _BASES:
        if base in kind.__mro__:  # an abstract class would ask all classes of the job
            return copier
    if hasattr(kind, "__fspath__"):
        return _path
    if dataclasses.is_dataclass(kind):
        return _dataclass
    names = {f"{base.__module__}.{base.__qualname__}" for base in kind.__mro__}
    for name, copier in _BY_NAME.items():
        if name in names:
            return copier
    if any(hasattr(kind, name) for name in _PROTOCOLS) and not hasattr(kind, "__looptap_names__"):
        return _of_protocol
    return _refuse
