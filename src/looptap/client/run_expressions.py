"""Expressions over settings and figures of runs, interpreted and never executed.

``lr < 0.01 and best(acc) > .9``: comparisons, arithmetic, ``and``, ``or``, ``not``, ``in``, numbers, texts, names and
the functions of `FUNCTIONS`. Nothing else of Python is accepted: an expression reads no attribute of an object and
calls no code. Its parts, their nesting and the size of every value are bounded, so it takes bounded time. What a run
lacks is unknown, as in SQL, and so is a comparison with it.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

from looptap.streams.errors import QueryError
from looptap.streams.expressions import nearest

MAX_CHARACTERS = 2000
"""Characters of an expression."""
MAX_NODES = 500
"""Parts of an expression."""
MAX_LEVELS = 100
"""Levels of an expression: parts within parts."""
MAX_INTEGER_BITS = 1024
"""Bits of an integer; a larger one is unknown, as is a float beyond its range."""
MAX_VALUE_ITEMS = 4_000
"""Characters of a text, or items of a list; a larger one is unknown."""

OF_FIGURES = ("best", "final", "first", "min", "max", "count")
"""Functions of a line of numbers by its name."""


def _rounded(number: float, *digits: int) -> float:
    """Return ``round`` of a float: that of an integer to -10**9 digits takes hours."""
    return float(round(float(number), *digits))


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "abs": abs, "log": math.log, "log10": math.log10, "log2": math.log2, "sqrt": math.sqrt, "exp": math.exp,
    "round": _rounded, "min": min, "max": max, "isnan": math.isnan, "isfinite": math.isfinite,
}  # fmt: skip
"""Functions of plain values."""

_ARITHMETIC: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow,
}  # fmt: skip
_COMPARISONS: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Eq: operator.eq,
    ast.NotEq: operator.ne, ast.Is: operator.is_, ast.IsNot: operator.is_not,
    ast.In: lambda a, b: a in b, ast.NotIn: lambda a, b: a not in b,
}  # fmt: skip


class UnknownFact:
    """The value of what a run lacks."""

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return "unknown"


UNKNOWN = UnknownFact()


class ReadableRun(Protocol):
    """What an expression reads of one run."""

    def value(self, name: str) -> Any:
        """Return a setting, a fact or the newest number of a line; or `UNKNOWN`."""

    def figure(self, function: str, line: str) -> Any:
        """Return a figure of a line of numbers, one of `OF_FIGURES`; or `UNKNOWN`."""


class Expression:
    """An expression over one run, parsed and checked. Raises QueryError.

    ``known`` are the names that at least one run has, ``lines`` those of its numbers over time.
    """

    def __init__(self, text: str, known: Collection[str], lines: Collection[str]) -> None:
        self.text = text.strip()
        self._known, self._lines = known, lines
        if len(self.text) > MAX_CHARACTERS:
            raise QueryError(f"an expression has up to {MAX_CHARACTERS:,} characters, not {len(self.text):,}.")
        try:
            self._tree = ast.parse(self.text, mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            at = getattr(error, "offset", None)
            why = getattr(error, "msg", str(error))
            raise QueryError(f"not an expression: {why}.", self.text, at - 1 if at else None) from None
        if sum(1 for _ in ast.walk(self._tree)) > MAX_NODES:
            raise QueryError(f"an expression has up to {MAX_NODES} parts.", self.text)
        if _levels(self._tree) > MAX_LEVELS:
            raise QueryError(f"an expression has up to {MAX_LEVELS} levels of parts within parts.", self.text)
        self._check(self._tree)

    def of(self, run: ReadableRun) -> Any:
        """Return the value for one run; `UNKNOWN` if the run lacks what it needs."""
        try:
            return self._value(self._tree, run)
        except (ArithmeticError, TypeError, ValueError):  # a text where others have a number; log(0)
            return UNKNOWN

    # ------------------------------------------------------------ what is allowed

    def _check(self, node: ast.expr) -> None:
        match node:
            case ast.Constant(value=bool() | int() | float() | str() | None):
                return
            case ast.Name() | ast.Attribute():
                self._check_name(node)
            case ast.BoolOp(values=parts) | ast.Tuple(elts=parts) | ast.List(elts=parts):
                for part in parts:
                    self._check(part)
            case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.UAdd(), operand=inner):
                self._check(inner)
            case ast.BinOp(left=left, op=by, right=right) if type(by) in _ARITHMETIC:
                self._check(left)
                self._check(right)
            case ast.Compare(left=left, ops=ops, comparators=others) if all(type(op) in _COMPARISONS for op in ops):
                for part in (left, *others):
                    self._check(part)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                for part in (test, body, orelse):
                    self._check(part)
            case ast.Subscript(value=ast.Name(id="config"), slice=ast.Constant(value=str(name))):
                self._require(name, self._known, node)
            case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
                self._check_call(name, arguments, node)
            case _:
                raise self._refused("this is not part of such an expression", node)

    def _check_call(self, name: str, arguments: list[ast.expr], node: ast.Call) -> None:
        line = _line_of(arguments[0]) if arguments else None
        if name in OF_FIGURES and line is not None and (name not in FUNCTIONS or line in self._lines):
            best = name == "best" and len(arguments) == 2 and _direction(arguments[1]) is not None
            if len(arguments) > 1 and not best:
                if name in FUNCTIONS:
                    return self._check_all(arguments)
                raise self._refused(f"{name} takes the name of one line; best also 'min' or 'max'", node)
            return self._require(line, self._lines, node)
        if name not in FUNCTIONS:
            there = ", ".join(dict.fromkeys((*OF_FIGURES, *FUNCTIONS)))
            raise self._refused(f"there is no function {name!r:.40}; there are {there}", node)
        return self._check_all(arguments)

    def _check_all(self, parts: list[ast.expr]) -> None:
        for part in parts:
            self._check(part)

    def _check_name(self, node: ast.Name | ast.Attribute) -> None:
        name = _line_of(node)
        if name is None:
            raise self._refused("only a name may stand before a dot", node)
        self._require(name, (*self._known, *self._lines), node)

    def _require(self, name: str, there: Collection[str], node: ast.expr) -> None:
        if name not in there:
            listed = ", ".join(list(there)[:20]) + (", …" if len(there) > 20 else "")
            raise self._refused(f"no run has {name!r:.80}; there are {listed or 'none'}", node, nearest(name, there))

    def _refused(self, why: str, node: ast.expr, hint: str = "") -> QueryError:
        return QueryError(f"{why}.", self.text, node.col_offset if "\n" not in self.text else None, hint)

    # ------------------------------------------------------------ what it means

    def _value(self, node: ast.expr, run: ReadableRun) -> Any:
        return _bounded(self._unbounded(node, run))

    def _unbounded(self, node: ast.expr, run: ReadableRun) -> Any:
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name() | ast.Attribute():
                return run.value(str(_line_of(node)))
            case ast.Subscript(slice=ast.Constant(value=str(name))):
                return run.value(name)
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                return [self._value(part, run) for part in parts]
            case ast.BoolOp(op=by, values=parts):
                return _joined(isinstance(by, ast.And), (self._value(part, run) for part in parts))
            case ast.UnaryOp(op=by, operand=inner):
                return _unary(by, self._value(inner, run))
            case ast.BinOp(left=left, op=by, right=right):
                return _arithmetic(by, self._value(left, run), self._value(right, run))
            case ast.Compare(left=left, ops=ops, comparators=others):
                return self._compared(left, ops, others, run)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                known = self._value(test, run)
                return UNKNOWN if known is UNKNOWN else self._value(body if known else orelse, run)
            case ast.Call(func=ast.Name(id=name), args=arguments):
                return self._called(name, arguments, run)
        return UNKNOWN

    def _compared(self, left: ast.expr, ops: list[ast.cmpop], others: list[ast.expr], run: ReadableRun) -> Any:
        a = self._value(left, run)
        for op, other in zip(ops, others, strict=True):
            b = self._value(other, run)
            if a is UNKNOWN or b is UNKNOWN:
                return UNKNOWN
            try:
                holds = bool(_COMPARISONS[type(op)](a, b))
            except TypeError:  # a text and a number
                return UNKNOWN
            if not holds:
                return False
            a = b
        return True

    def _called(self, name: str, arguments: list[ast.expr], run: ReadableRun) -> Any:
        line = _line_of(arguments[0]) if arguments else None
        if name in OF_FIGURES and line in self._lines and line is not None and (len(arguments) == 1 or name == "best"):
            way = _direction(arguments[1]) if len(arguments) == 2 else None
            return run.figure(way or name, line)
        values = [self._value(argument, run) for argument in arguments]
        return UNKNOWN if any(value is UNKNOWN for value in values) else FUNCTIONS[name](*values)


def _levels(tree: ast.expr) -> int:
    """Return how deep the parts of an expression are nested."""
    count, level = 0, [tree]
    while level:
        count += 1
        level = [part for node in level for part in ast.iter_child_nodes(node)]  # type: ignore[misc]
    return count


def _bounded(value: Any) -> Any:
    """Return a plain value of bounded size; any other is `UNKNOWN`."""
    if isinstance(value, int):
        return value if value.bit_length() <= MAX_INTEGER_BITS else UNKNOWN
    if isinstance(value, str):
        return value if len(value) <= MAX_VALUE_ITEMS else UNKNOWN
    if isinstance(value, list | tuple):
        flat = len(value) <= MAX_VALUE_ITEMS and not any(isinstance(one, list | tuple) for one in value)
        return [_bounded(one) for one in value] if flat else UNKNOWN
    return value if isinstance(value, float) or value is None else UNKNOWN


def _line_of(node: ast.expr) -> str | None:
    """Return the dotted name, or the text, that stands for a line or a setting."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Constant(value=str(name)):
            return name
        case ast.Attribute(value=ast.Name() | ast.Attribute() as inner, attr=last):
            before = _line_of(inner)
            return None if before is None else f"{before}.{last}"
    return None


def _direction(node: ast.expr) -> str | None:
    match node:
        case ast.Constant(value="min" | "max" as way) | ast.Name(id="min" | "max" as way):
            return str(way)
    return None


def _joined(both: bool, values: Any) -> Any:
    """Return ``and`` or ``or`` of values, some of which may be unknown."""
    unknown = False
    for value in values:
        if value is UNKNOWN:
            unknown = True
        elif bool(value) != both:
            return not both
    return UNKNOWN if unknown else both


def _unary(by: ast.unaryop, value: Any) -> Any:
    if value is UNKNOWN:
        return UNKNOWN
    if isinstance(by, ast.Not):
        return not value
    return -value if isinstance(by, ast.USub) else +value


def _arithmetic(by: ast.operator, a: Any, b: Any) -> Any:
    """Return a result of numbers, a power as a float; other values are unknown."""
    if not (isinstance(a, int | float) and isinstance(b, int | float)):
        return UNKNOWN
    if isinstance(by, ast.Pow):
        a = float(a)
    result = _ARITHMETIC[type(by)](a, b)
    return UNKNOWN if isinstance(result, complex) else result
