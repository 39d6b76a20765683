"""Python's operators on whole columns, with the results of value by value.

An operand is an array (float64, int64 or bool, for Python's float, int and bool), a list of plain values where these
have several types, or one constant. numpy computes where its result is the same to the last bit. Elsewhere Python's own
operator goes along the lists: for integers that may leave 64 bits or that a float does not represent, powers,
remainders of floats, and mixed types. What raises for one value raises for the column.
"""

from __future__ import annotations

import operator
from array import array
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import compress, repeat
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Operand: TypeAlias = Any
"""An array, a list, or a constant."""
Mask: TypeAlias = "NDArray[np.bool_]"

_INT_LIMIT, _EXACT_INT_LIMIT = 2**63, 2**53  # of an array; of those that a float represents
_NUMBERS = frozenset({float, int, bool})
_KINDS: dict[type, str] = {float: "f", int: "i", bool: "b"}
_DTYPES: dict[str, Any] = {"f": np.float64, "i": np.int64, "b": np.bool_}


class NotInColumns(Exception):
    """An operation that is left to the evaluation value by value."""


def number_array(values: Sequence[Any]) -> NDArray[Any] | Sequence[Any]:
    """Return numbers of one type as an array, other values as they are.

    >>> number_array([1, 2]), number_array([1, 2.5]), number_array([2**63])
    (array([1, 2]), [1, 2.5], [9223372036854775808])
    """
    kinds = set(map(type, values))
    try:
        if kinds == {float}:
            return np.frombuffer(array("d", values))
        if kinds == {int}:
            return np.frombuffer(array("q", values), np.int64)
        if kinds == {bool}:
            return np.frombuffer(bytes(values), np.bool_)
    except OverflowError:  # an integer beyond 64 bits
        pass
    return values


def as_list(value: Operand, count: int) -> list[Any]:
    """Return an operand as a list of ``count`` values."""
    found: list[Any] = value.tolist() if isinstance(value, np.ndarray) else value
    return found if isinstance(value, np.ndarray | list) else [value] * count


def as_column(value: Operand, count: int) -> NDArray[Any] | list[Any]:
    """Return an operand as an array or a list of ``count`` values."""
    if isinstance(value, np.ndarray | list):
        return value
    kind = _kind(value)
    return np.full(count, value, _DTYPES[kind]) if kind else [value] * count


def picked(value: Operand, mask: Mask) -> Operand:
    """Return the values of an operand at which ``mask`` is true."""
    if isinstance(value, np.ndarray):
        return value[mask]
    return list(compress(value, mask.tolist())) if isinstance(value, list) else value


def selected(mask: Mask, true: Operand, false: Operand) -> Operand:
    """Return the values of ``true`` where ``mask`` is, and of ``false`` elsewhere.

    >>> selected(np.array([True, False, True]), [1, None], 0.5)
    [1, 0.5, None]
    """
    kind = _kind(true)
    if kind and kind == _kind(false):
        found = np.empty(len(mask), _DTYPES[kind])
        found[mask], found[~mask] = true, false
        return found
    sides = [iter(as_list(side, len(mask))) for side in (false, true)]
    return [next(sides[which]) for which in mask.tolist()]


def truth_mask(value: Operand) -> Mask | bool:
    """Return which values are true; one bool if all are, or none is."""
    if isinstance(value, np.ndarray):
        mask: Mask = value if value.dtype.kind == "b" else value != 0
    elif isinstance(value, list):
        mask = np.fromiter(map(bool, value), np.bool_, len(value))
    else:
        return bool(value)
    count = int(np.count_nonzero(mask))
    return mask if 0 < count < len(mask) else count > 0


def opposite(true: Mask | bool) -> Mask | bool:
    """Return where what `truth_mask` has returned is false."""
    return not true if isinstance(true, bool) else ~true


def elementwise(function: Callable[..., Any], *operands: Operand) -> Operand:
    """Return what ``function`` gives for the numbers of the operands, one by one.

    >>> elementwise(round, np.array([1.5, 2.5]))
    array([2, 2])
    """
    if any(not are_numbers(operand) for operand in operands):
        raise NotInColumns
    found = _mapped(function, operands)
    if not are_numbers(found):
        raise NotInColumns
    return found


def _mapped(function: Callable[..., Any], operands: Sequence[Operand]) -> Operand:
    columns: list[Iterable[Any]] = []
    for operand in operands:
        if isinstance(operand, np.ndarray | list):
            columns.append(operand.tolist() if isinstance(operand, np.ndarray) else operand)
        else:
            columns.append(repeat(operand))
    if all(isinstance(column, repeat) for column in columns):
        return function(*operands)
    return number_array(list(map(function, *columns)))


def are_numbers(value: Operand) -> bool:
    """Return True for numbers, integers up to 64 bits or a little beyond."""
    if isinstance(value, np.ndarray):
        return True
    values = value if isinstance(value, list) else [value]
    small = all(number.bit_length() <= 128 for number in values if type(number) is int)
    return small and _NUMBERS.issuperset(map(type, values))


def all_equal_themselves(column: Operand) -> bool:
    """Return True if no item is a NaN."""
    if isinstance(column, np.ndarray):
        return column.dtype.kind != "f" or not np.isnan(column).any()
    return all(item == item for item in column)


def _kind(value: Operand) -> str:
    """Return f, i or b for what is or fits an array of this kind, else nothing."""
    if isinstance(value, np.ndarray):
        return str(value.dtype.kind)
    kind = _KINDS.get(type(value), "")
    return "" if kind == "i" and not -_INT_LIMIT <= value < _INT_LIMIT else kind


def _magnitude(value: Operand) -> int:
    """Return the largest magnitude of integers."""
    if isinstance(value, np.ndarray):
        return max(int(value.max()), -int(value.min()))
    return abs(int(value))


def _as_ints(value: Operand) -> Operand:
    """Return bools as integers, as Python's arithmetic takes them."""
    if isinstance(value, np.ndarray):
        return value.astype(np.int64) if value.dtype.kind == "b" else value
    return int(value) if type(value) is bool else value


def _constant(value: Operand) -> bool:
    return not isinstance(value, np.ndarray | list)


# ---------------------------------------------------------------- operators


def _kinds(a: Operand, b: Operand) -> tuple[str, ...]:
    """Return the kinds of two operands of which numpy can compute; () for any others."""
    kinds = _kind(a), _kind(b)
    return () if "" in kinds or (_constant(a) and _constant(b)) else kinds


def _exactly(python: Any, ufunc: Any, bound: Any, limit: int, a: Operand, b: Operand) -> Operand:
    """Return what an operator gives, by numpy where that is exact.

    Of integers it is, if their ``bound`` is below the limit.
    """
    kinds = _kinds(a, b)
    x, y = (_as_ints(a), _as_ints(b)) if kinds else (a, b)
    if not kinds or ("f" not in kinds and bound(_magnitude(x), _magnitude(y)) >= limit):
        return elementwise(python, a, b)
    if ufunc is np.true_divide and not np.all(y):
        raise ZeroDivisionError
    return ufunc(x, y)


def _floored(python: Any, ufunc: Any, a: Operand, b: Operand) -> Operand:
    if isinstance(a, np.ndarray) and a.dtype.kind in "ib" and type(b) is int and 0 < b < _INT_LIMIT:
        return ufunc(_as_ints(a), b)
    return elementwise(python, a, b)


def _power(a: Any, b: Any) -> Any:
    if type(a) is not float and type(b) is not float and abs(a).bit_length() * abs(b) > 128:
        raise NotInColumns  # integers without bound
    return a**b


def _bitwise(python: Any, ufunc: Any, a: Operand, b: Operand) -> Operand:
    kinds = _kinds(a, b)
    if not kinds or "f" in kinds:
        return elementwise(python, a, b)
    return ufunc(a, b) if set(kinds) == {"b"} else ufunc(_as_ints(a), _as_ints(b))


def _signed(python: Any, ufunc: Any, a: Operand) -> Operand:
    if isinstance(a, np.ndarray) and (a.dtype.kind != "i" or _magnitude(a) < _INT_LIMIT):
        return ufunc(_as_ints(a))
    return elementwise(python, a)


def _negation(a: Operand) -> Operand:
    """Return ``not a``."""
    return opposite(truth_mask(a))


_UFUNCS: dict[Any, Any] = {
    operator.eq: np.equal,
    operator.ne: np.not_equal,
    operator.lt: np.less,
    operator.le: np.less_equal,
    operator.gt: np.greater,
    operator.ge: np.greater_equal,
}


def compared(python: Callable[[Any, Any], Any], a: Operand, b: Operand) -> Operand:
    """Return the comparison of the operands, of which ``python`` is the operator.

    >>> compared(operator.lt, np.array([1, 2]), 2)
    array([ True, False])
    """
    kinds, ufunc, x, y = _kinds(a, b), _UFUNCS.get(python), _as_ints(a), _as_ints(b)
    if ufunc is None or not kinds:
        return _mapped(python, (a, b))
    whole = [one for one, kind in zip((x, y), kinds, strict=True) if kind != "f"]
    if len(whole) == 1 and _magnitude(whole[0]) > _EXACT_INT_LIMIT:
        return _mapped(python, (a, b))  # Python compares an integer with a float exactly
    return ufunc(x, y)


def _extreme(python: Any, better: Any, *operands: Operand) -> Operand:
    """Return the largest or the smallest of numbers."""
    if len(operands) < 2:
        raise NotInColumns
    kinds = set(map(_kind, operands))
    if len(kinds) > 1 or kinds == {""} or all(map(_constant, operands)):
        return elementwise(python, *operands)
    found, *rest = operands
    for operand in rest:
        found = np.where(better(operand, found), operand, found)
    return found


IN_COLUMNS: dict[Callable[..., Any], Callable[..., Operand]] = {
    operator.add: partial(_exactly, operator.add, np.add, operator.add, _INT_LIMIT),
    operator.sub: partial(_exactly, operator.sub, np.subtract, operator.add, _INT_LIMIT),
    operator.mul: partial(_exactly, operator.mul, np.multiply, operator.mul, _INT_LIMIT),
    operator.truediv: partial(_exactly, operator.truediv, np.true_divide, max, _EXACT_INT_LIMIT + 1),
    operator.floordiv: partial(_floored, operator.floordiv, np.floor_divide),
    operator.mod: partial(_floored, operator.mod, np.remainder),
    operator.pow: partial(elementwise, _power),
    operator.and_: partial(_bitwise, operator.and_, np.bitwise_and),
    operator.or_: partial(_bitwise, operator.or_, np.bitwise_or),
    operator.xor: partial(_bitwise, operator.xor, np.bitwise_xor),
    operator.neg: partial(_signed, operator.neg, np.negative),
    operator.pos: partial(_signed, operator.pos, np.positive),
    operator.not_: _negation,
    abs: partial(_signed, abs, np.absolute),
    pow: partial(elementwise, _power),
    max: partial(_extreme, max, np.greater),
    min: partial(_extreme, min, np.less),
}
"""Operators and functions of Python, and what does the same for whole columns. They raise what Python's raise."""
