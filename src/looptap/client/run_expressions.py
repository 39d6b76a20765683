"""Expressions over settings and figures of runs, interpreted and never executed.

``lr < 0.01 and best(acc) > .9``: comparisons, arithmetic, ``and``, ``or``, ``not``, ``in``, numbers, texts, names and
the functions of `FUNCTIONS`. Nothing else of Python is accepted: an expression reads no attribute of an object and
calls no code. Its parts, their nesting and the size of every value are bounded, so it takes bounded time. What a run
lacks is unknown, as in SQL, and so is a comparison with it.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from looptap.streams.errors import QueryError
from looptap.streams.expressions import nearest
from looptap.streams.harmless.syntax import ARITHMETIC, LITERALS, OPERATORS, ORDERING, ExpressionReader

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
    "abs": abs,
    "log": math.log,
    "log10": math.log10,
    "log2": math.log2,
    "sqrt": math.sqrt,
    "exp": math.exp,
    "round": _rounded,
    "min": min,
    "max": max,
    "isnan": math.isnan,
    "isfinite": math.isfinite,
}
"""Functions of plain values."""


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


Part: TypeAlias = Callable[[ReadableRun], Any]
"""A part of an expression, as a function of a run."""


class Expression:
    """An expression over one run, parsed and checked. Raises QueryError.

    ``known`` are the names that at least one run has, ``lines`` those of its numbers over time.
    """

    def __init__(self, text: str, known: Collection[str], lines: Collection[str]) -> None:
        self.text = text.strip()
        if len(self.text) > MAX_CHARACTERS:
            raise QueryError(f"an expression has up to {MAX_CHARACTERS:,} characters, not {len(self.text):,}.")
        try:
            tree = ast.parse(self.text, mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            at = getattr(error, "offset", None)
            why = getattr(error, "msg", str(error))
            raise QueryError(f"not an expression: {why}.", self.text, at - 1 if at else None) from None
        if sum(1 for _ in ast.walk(tree)) > MAX_NODES:
            raise QueryError(f"an expression has up to {MAX_NODES} parts.", self.text)
        if _levels(tree) > MAX_LEVELS:
            raise QueryError(f"an expression has up to {MAX_LEVELS} levels of parts within parts.", self.text)
        self._value: Part = _RunReader(self.text, known, lines).visit(tree)

    def of(self, run: ReadableRun) -> Any:
        """Return the value for one run; `UNKNOWN` if the run lacks what it needs."""
        try:
            return self._value(run)
        except (ArithmeticError, TypeError, ValueError):  # a text where others have a number; log(0)
            return UNKNOWN


class _RunReader(ExpressionReader[Part]):
    """The walk that checks an expression and makes a function of each part."""

    operators = ARITHMETIC | ORDERING | {ast.Not, ast.Is, ast.IsNot, ast.In, ast.NotIn}

    def __init__(self, text: str, known: Collection[str], lines: Collection[str]) -> None:
        self._text, self._known, self._lines = text, known, lines

    def refusal(self, node: ast.AST, why: str = "this is not part of such an expression", hint: str = "") -> QueryError:
        """Return the error that points at a part."""
        return QueryError(f"{why}.", self._text, node.col_offset if "\n" not in self._text else None, hint)  # type: ignore[attr-defined]  # every form that is visited has it

    def visit(self, node: ast.AST) -> Part:
        """Return a part as a function whose values are bounded."""
        part: Part = super().visit(node)
        return lambda run: _bounded(part(run))

    def visit_Constant(self, node: ast.Constant) -> Part:
        """Take numbers and text."""
        if type(node.value) not in LITERALS:
            raise self.refusal(node)
        return lambda run: node.value

    def visit_Name(self, node: ast.Name | ast.Attribute) -> Part:
        """Read a setting, a fact or the newest number of a line."""
        name = _line_of(node)
        if name is None:
            raise self.refusal(node, "only a name may stand before a dot")
        return self._read(name, (*self._known, *self._lines), node)

    visit_Attribute = visit_Name

    def visit_Subscript(self, node: ast.Subscript) -> Part:
        """Read `config['name']`."""
        match node:
            case ast.Subscript(value=ast.Name(id="config"), slice=ast.Constant(value=str(name))):
                return self._read(name, self._known, node)
        raise self.refusal(node)

    def _read(self, name: str, there: Collection[str], node: ast.expr) -> Part:
        self._require(name, there, node)
        return lambda run: run.value(name)

    def _require(self, name: str, there: Collection[str], node: ast.expr) -> None:
        if name not in there:
            listed = ", ".join(list(there)[:20]) + (", …" if len(there) > 20 else "")
            raise self.refusal(node, f"no run has {name!r:.80}; there are {listed or 'none'}", nearest(name, there))

    def visit_Tuple(self, node: ast.Tuple | ast.List) -> Part:
        """Collect values."""
        parts = list(map(self.visit, node.elts))
        return lambda run: [part(run) for part in parts]

    visit_List = visit_Tuple

    def visit_BoolOp(self, node: ast.BoolOp) -> Part:
        """Evaluate up to the value that decides."""
        both, parts = isinstance(node.op, ast.And), list(map(self.visit, node.values))
        return lambda run: _joined(both, (part(run) for part in parts))

    def visit_IfExp(self, node: ast.IfExp) -> Part:
        """Evaluate one side."""
        test, body, orelse = map(self.visit, (node.test, node.body, node.orelse))

        def chosen(run: ReadableRun) -> Any:
            known = test(run)
            return known if known is UNKNOWN else (body if known else orelse)(run)

        return chosen

    def visit_Call(self, node: ast.Call) -> Part:
        """Read a figure of a line, or compute with a function of `FUNCTIONS`."""
        if not isinstance(node.func, ast.Name) or node.keywords:
            raise self.refusal(node)
        name, line = node.func.id, _line_of(node.args[0]) if node.args else None
        if name in OF_FIGURES and line is not None and (name not in FUNCTIONS or line in self._lines):
            figure = _figure(name, node.args[1:])
            if figure is not None:
                self._require(line, self._lines, node)
                return lambda run: run.figure(figure, line)
            if name not in FUNCTIONS:
                raise self.refusal(node, f"{name} takes the name of one line; best also 'min' or 'max'")
        if name not in FUNCTIONS:
            there = ", ".join(dict.fromkeys((*OF_FIGURES, *FUNCTIONS)))
            raise self.refusal(node, f"there is no function {name!r:.40}; there are {there}")
        return _computed(FUNCTIONS[name], list(map(self.visit, node.args)))

    def applied(self, op: ast.AST, *parts: Part) -> Part:
        """Compute with numbers."""
        # The power of integers has no bound, that of floats has.
        function = _power if isinstance(op, ast.Pow) else OPERATORS[type(op)]
        return _computed(function if len(parts) == 1 else _of_numbers(function), parts)

    def compared(self, ops: Sequence[ast.cmpop], parts: Sequence[Part]) -> Part:
        """Compare up to the first comparison that does not hold."""
        functions = [OPERATORS[type(op)] for op in ops]

        def compared(run: ReadableRun) -> Any:
            left = parts[0](run)
            for function, part in zip(functions, parts[1:], strict=True):
                right = part(run)
                if left is UNKNOWN or right is UNKNOWN:
                    return UNKNOWN
                try:
                    if not function(left, right):
                        return False
                except TypeError:  # a text and a number
                    return UNKNOWN
                left = right
            return True

        return compared


def _computed(function: Callable[..., Any], parts: Sequence[Part]) -> Part:
    """Return what a function gives for values that are all known."""

    def computed(run: ReadableRun) -> Any:
        values = [part(run) for part in parts]
        return UNKNOWN if any(value is UNKNOWN for value in values) else function(*values)

    return computed


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


def _figure(name: str, others: list[ast.expr]) -> str | None:
    """Return which figure of its line a call is, as in `best(loss, 'min')`."""
    match name, others:
        case _, []:
            return name
        case "best", [ast.Constant(value="min" | "max" as way) | ast.Name(id="min" | "max" as way)]:
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


def _power(a: float, b: float) -> Any:
    return float(a) ** b


def _of_numbers(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return an operator of two numbers for which other values are unknown."""

    def result(a: Any, b: Any) -> Any:
        if not (isinstance(a, int | float) and isinstance(b, int | float)):
            return UNKNOWN
        found = function(a, b)
        return UNKNOWN if isinstance(found, complex) else found

    return result
