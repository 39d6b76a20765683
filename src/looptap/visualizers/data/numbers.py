"""Values of a stream as float64: of Python, numpy and torch, of any dtype.

A complex number counts as its magnitude, a duration as its seconds; None is NaN. Nothing here imports torch: the sender
of a tensor has.
"""

from __future__ import annotations

import datetime
import math
import struct
import sys
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from looptap.streams.columns.value_columns import TextColumn, ValueColumns
from looptap.streams.values.torch_interop import is_tensor

Floats: TypeAlias = NDArray[np.float64]
MISSING: float = struct.unpack(">d", bytes.fromhex("7ff80000000010c0"))[0]
"""The NaN of what is not there, None or a name that a dict lacks: no arithmetic yields its bits."""
_PLAIN = frozenset({float, int, bool})
_NUMERIC = "biufcm"
_WIDENED = {"torch.complex32": "complex64"}  # what numpy lacks, and what becomes of it


def is_array(value: Any) -> bool:
    """Return whether a value is an array or a tensor."""
    return isinstance(value, np.ndarray) or is_tensor(value)


def has_numbers(value: Any) -> bool:
    """Return whether an array or a tensor is of numbers, of any dtype."""
    return is_tensor(value) or value.dtype.kind in _NUMERIC or _is_small_float(value.dtype)


def is_number(value: Any) -> bool:
    """Return whether a value is a single number, of Python, numpy or torch.

    >>> is_number(True), is_number(np.float32(1)), is_number("1"), is_number(np.zeros(1))
    (True, True, False, False)
    """
    if isinstance(value, bool | int | float | complex | datetime.timedelta | Decimal | Fraction):
        return True
    if isinstance(value, np.generic | np.ndarray):
        return value.ndim == 0 and has_numbers(value)
    return is_tensor(value) and value.ndim == 0


def number(value: Any) -> float:
    """Return a value as a float. Raises TypeError if it is not a number.

    >>> number(3 + 4j), number(10**400), number(Fraction(1, 2)), number(datetime.timedelta(minutes=1))
    (5.0, inf, 0.5, 60.0)
    """
    if value is None:
        return MISSING
    if not is_number(value) and not (is_array(value) and math.prod(value.shape) == 1):
        raise TypeError(f"expected number, got {describe(value)}")
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if not isinstance(value, bool | int | float | complex | Decimal | Fraction):
        value = as_array(value).reshape(())
        value = abs(value) if value.dtype.kind == "c" else value
    try:
        return abs(value) if isinstance(value, complex) else float(value)
    except OverflowError:
        return -math.inf if not isinstance(value, complex) and value < 0 else math.inf
    except ValueError:  # a signalling NaN of Decimal
        return math.nan


def missing(numbers: Floats) -> NDArray[np.bool_]:
    """Return which numbers stand for None; a NaN of the job does not.

    >>> missing(scalars([1, None, math.nan])).tolist()
    [False, True, False]
    """
    found: NDArray[np.bool_] = numbers.view(np.int64) == np.float64(MISSING).view(np.int64)
    return found


def as_array(value: Any) -> NDArray[Any]:
    """Return an array, a tensor or nested lists as a numpy array of numbers.

    A dtype that numpy lacks, such as bfloat16, becomes float32. Raises TypeError if there are no numbers in it.
    """
    given, value = value, _without_tensors(value)
    try:
        array = np.asarray(value)
    except (ValueError, TypeError):  # rows of different lengths
        array = np.empty(0, object)
    if _is_small_float(array.dtype):
        array = array.astype(np.float32)
    if array.dtype.kind == "m":
        array = _seconds(array)
    if array.dtype.kind == "O" and isinstance(value, list | tuple) and value and all(map(is_number, value)):
        return scalars(value)  # integers beyond 64 bits, numbers of torch
    if array.dtype.kind not in _NUMERIC:
        raise TypeError(f"expected an array of numbers, got {describe(given)}")
    return array


def _without_tensors(value: Any) -> Any:
    """Return a value in which tensors, also in nested lists, are arrays of numpy."""
    if is_tensor(value):
        return _of_tensor(value)
    if isinstance(value, list | tuple):
        kinds = {type(one): one for one in value}
        if any(is_tensor(one) or isinstance(one, list | tuple) for one in kinds.values()):
            return [_without_tensors(one) for one in value]
    return value


def _of_tensor(tensor: Any) -> Any:
    """Return a tensor as an array. Raises TypeError if torch cannot read its numbers."""
    try:
        tensor = tensor.detach()
        if tensor.is_quantized:
            tensor = tensor.dequantize()
        if str(tensor.layout) != "torch.strided":
            tensor = tensor.to_dense()
        tensor = tensor.cpu().resolve_conj().resolve_neg()
        if str(tensor.dtype) in _WIDENED:
            tensor = tensor.to(getattr(sys.modules["torch"], _WIDENED[str(tensor.dtype)]))
        elif "float" in str(tensor.dtype) and tensor.itemsize < 4:  # bfloat16 and the 8-bit floats
            tensor = tensor.float()
        return tensor.numpy()
    except (RuntimeError, NotImplementedError) as error:  # of dtypes that only hold bits, and tensors without data
        raise TypeError(f"the numbers of {describe(tensor)} cannot be read: {error}") from None


def _seconds(durations: NDArray[Any]) -> Floats:
    """Return durations in seconds, NaN for those that are not a time."""
    unit = np.datetime_data(durations.dtype)[0]
    if unit in ("generic", "Y", "M"):  # a plain number, or months of different lengths
        return np.where(np.isnat(durations), np.nan, durations.astype(np.int64).astype(np.float64))
    return durations / np.timedelta64(1, "s")


def _is_small_float(dtype: np.dtype[Any]) -> bool:
    """Return whether a dtype is one of those that ml_dtypes adds, such as bfloat16."""
    return dtype.kind == "V" and dtype.type.__module__ == "ml_dtypes"


def floats(value: Any) -> Floats:
    """Return an array, tensor or nested lists as float64, or raise TypeError.

    >>> floats([1, 2.5])
    array([1. , 2.5])
    """
    array = as_array(value)
    if array.dtype.kind == "c":
        array = np.abs(array)
    with np.errstate(over="ignore", invalid="ignore"):
        return array.astype(np.float64)


def scalars(values: Sequence[Any]) -> Floats:
    """Return the values as an array (n,). Raises TypeError if one is not a number.

    >>> scalars([1, None, True])
    array([ 1., nan,  1.])
    """
    if isinstance(values, ValueColumns) and not values.rows and "str" not in values.types:
        (found,) = in_floats(values)
        return np.asarray(found, np.float64)
    if _PLAIN.issuperset(map(type, values)):
        try:
            return np.fromiter(values, np.float64, len(values))
        except OverflowError:
            pass
    return np.fromiter(map(number, values), np.float64, len(values))


def in_floats(values: ValueColumns) -> Floats:
    """Return the columns as an array (columns, n); texts are NaN."""
    found: Floats = np.full((len(values.columns), len(values)), np.nan)
    for place, column in enumerate(values.columns):
        if not isinstance(column, TextColumn):
            found[place] = column
    return found


def rows_as_array(values: Sequence[Sequence[Any]], width: int) -> Floats:
    """Return rows of ``width`` numbers as an array (width, n), or raise TypeError.

    >>> rows_as_array([(1, 0.5), (2, 0.25)], 2)[1]
    array([0.5 , 0.25])
    """
    if isinstance(values, ValueColumns) and values.rows and len(values.columns) == width and "str" not in values.types:
        return in_floats(values)
    if {width}.issuperset(map(len, values)) and all(issubclass(kind, tuple) for kind in set(map(type, values))):
        if _PLAIN.issuperset(map(type, chain.from_iterable(values))):
            try:
                flat = np.fromiter(chain.from_iterable(values), np.float64, width * len(values))
                return flat.reshape(len(values), width).T
            except OverflowError:
                pass
        if all(map(_numeric, chain.from_iterable(values))):
            return np.array([[number(part) for part in value] for value in values], np.float64).reshape(-1, width).T
    found = [_row(value, width) for value in values]
    return np.array(found, np.float64).reshape(len(values), width).T


def _numeric(value: Any) -> bool:
    return value is None or is_number(value)


def _row(value: Any, width: int) -> list[float]:
    fits = isinstance(value, tuple | list) and len(value) == width and all(map(_numeric, value))
    if not fits:
        raise TypeError(f"expected ({', '.join(['number'] * width)}), got {describe(value)}")
    return [number(part) for part in value]


def describe(value: Any) -> str:
    """Describe a value for error messages.

    >>> describe((1, "a")), describe(np.zeros((2, 3))), describe({"a": 1})
    ('(number, str)', 'an array of float64 (2, 3)', 'a dict of number')
    """
    if value is None:
        return "None"
    if is_number(value):
        return "number"
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} {value.shape}"
    if is_tensor(value):
        return f"a tensor of {str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    if isinstance(value, tuple):
        shown = ", ".join(map(_short, value[:6]))
        return f"({shown}{', …' if len(value) > 6 else ''})"
    if isinstance(value, list):
        return f"a list of {_kinds(value)}"
    if isinstance(value, Mapping):
        return f"a dict of {_kinds(value.values())}"
    return type(value).__name__


def _short(value: Any) -> str:
    return describe(value) if is_number(value) or is_array(value) or value is None else type(value).__name__


def _kinds(values: Iterable[Any]) -> str:
    return ", ".join(sorted({_short(value) for value in values})[:4]) or "nothing"
