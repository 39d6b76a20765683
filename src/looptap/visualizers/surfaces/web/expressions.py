"""Arithmetic over the values of a stream, from texts that must not become code.

A text of a reader is parsed, and what it may consist of is written again as a query over ``values``: names of fields,
numbers, operators, and the functions below. All numbers are floats and each value costs a bounded number of steps, so
nothing grows without bound.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Sequence
from dataclasses import dataclass

from looptap.streams.errors import QueryError
from looptap.streams.harmless.syntax import ARITHMETIC, MATH, ORDERING, ExpressionReader
from looptap.streams.operators.windows import Sliding
from looptap.streams.text import did_you_mean

MAX_TEXT_CHARACTERS = 300
"""Characters of an expression."""
MAX_SLIDING_MEDIAN_VALUES = 1_000
"""Values of a sliding window of which a reader may have the median: it is computed again at each value."""
_MAX_NODES_COUNT = 150
FUNCTIONS = ("abs", "sqrt", "exp", "log", "log10", "log2", "sin", "cos", "tanh", "min", "max")
"""The functions of numbers."""
REDUCERS = ("mean", "median", "min", "max", "sum", "stdev", "first", "last")
"""The functions of all values of a window."""
_GRAMMAR = (
    "Of what is shown here, a text is the name of a stream or arithmetic over its fields, such as log10(loss) or, with "
    "a window, mean(loss)."
)


@dataclass(frozen=True)
class ReadableStream:
    """A stream that a reader may see, with the fields of its rows."""

    name: str
    fields: tuple[str, ...] = ()

    def names(self) -> dict[str, str]:
        """Translate each name of an expression for a query over its ``values``."""
        found = {field: f"v.{field}" for field in self.fields if field.isidentifier()}
        if not self.fields:
            found = {self.name: "v"} if self.name.isidentifier() else {}
            return found | {"value": "v"}
        last = self.fields[-1]
        if self.name.isidentifier() and self.name not in found and last in found:
            found[self.name] = found[last]
        return found


@dataclass(frozen=True)
class ReaderQuery:
    """An expression of a reader as a query over the ``values`` of a stream."""

    stream: str
    query: str


def reader_query(text: str, streams: Sequence[ReadableStream], window: object = None) -> ReaderQuery:
    """Return an expression as a query over one of ``streams``. Raises QueryError.

    >>> reader_query("2 * loss", [ReadableStream("loss", ("step", "loss"))]).query
    'v.step, 2.0 * float(v.loss)'
    >>> reader_query("mean(loss)", [ReadableStream("loss")], window=100).query
    'mean((float(v) for v in values))'
    """
    reader = _ArithmeticWriter()
    body, written = _written(text, reader)
    stream = _stream_of({name.id for name in reader.names}, text, streams)
    names = stream.names()
    step = [f"v.{name}" for name in stream.fields[:1] if len(stream.fields) > 1 and name in names]
    reducer = "" if window is None else _reduction(body, window)
    for node in reader.reducing:
        if window is None or node is not body:
            raise QueryError(f"{ast.unparse(node)!r:.120} needs a window. {_GRAMMAR}")
    for name in reader.names:
        name.id = names[name.id]
    if not reducer:
        return ReaderQuery(stream.name, ", ".join([*step, ast.unparse(written)]))
    assert isinstance(written, ast.Call)
    reduced = f"{reducer}(({ast.unparse(written.args[0])} for v in values))"
    return ReaderQuery(stream.name, ", ".join([*(f"last(({one} for v in values))" for one in step), reduced]))


def _written(text: str, reader: _ArithmeticWriter) -> tuple[ast.expr, ast.expr]:
    """Return an expression as it is and as ``reader`` writes it. Raises QueryError."""
    if len(text) > MAX_TEXT_CHARACTERS:
        raise QueryError(f"An expression has {MAX_TEXT_CHARACTERS} characters at most; this one has {len(text)}.")
    try:
        body = ast.parse(text.strip(), mode="eval").body
        written = reader.visit(body)
    except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError):
        raise QueryError(f"{text!r:.120} is not arithmetic. {_GRAMMAR}") from None
    if sum(not isinstance(node, ast.expr_context) for node in ast.walk(body)) > _MAX_NODES_COUNT:
        raise QueryError(f"{text!r:.120} is too long. {_GRAMMAR}")
    return body, written


def _stream_of(wanted: set[str], text: str, streams: Sequence[ReadableStream]) -> ReadableStream:
    """Return the first stream that has all names of an expression. Raises QueryError."""
    every = {name for stream in streams for name in stream.names()}
    if missing := sorted(wanted - every):
        known = f" There are {', '.join(sorted(every))}." if every else " None is shown."
        raise QueryError(f"No stream shown here has {missing[0]!r}.{did_you_mean(missing[0], every) or known}")
    if not wanted:
        raise QueryError(f"{text!r:.120} names no stream. {_GRAMMAR}")
    for stream in streams:
        if wanted <= set(stream.names()):
            return stream
    raise QueryError(f"{', '.join(sorted(wanted))} are of several streams; an expression is over one.")


def _reduction(body: ast.expr, window: object) -> str:
    """Return the reducer that a whole expression calls. Raises QueryError."""
    if not (isinstance(body, ast.Call) and isinstance(body.func, ast.Name) and body.func.id in REDUCERS):
        raise QueryError(f"With a window, an expression is one of {', '.join(REDUCERS)}: mean(loss).")
    reducer = body.func.id
    if reducer == "median" and isinstance(window, Sliding) and window.size > MAX_SLIDING_MEDIAN_VALUES:
        raise QueryError(
            f"median slides over {MAX_SLIDING_MEDIAN_VALUES:,} values at most, not {window.size:,}: it is computed "
            "again at each value. Use mean, or a window that does not slide."
        )
    if len(body.args) != 1:
        raise QueryError(f"{reducer} takes one expression: {reducer}(loss).")
    return reducer


class _ArithmeticWriter(ExpressionReader[ast.expr]):
    """The walk that checks an expression and writes it again, of floats.

    Raises ValueError or OverflowError for anything else.
    """

    operators = ARITHMETIC | ORDERING

    def __init__(self) -> None:
        self.names: list[ast.Name] = []
        """The names that were written, which are still those of the expression."""
        self.reducing: list[ast.Call] = []
        """The calls, as they were read, that need a window."""

    def refusal(self, node: ast.AST) -> Exception:
        """Return the error for a part that is no arithmetic."""
        return ValueError(type(node).__name__)

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        """Write a number as a float."""
        value = node.value
        if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(float(value)):
            raise self.refusal(node)
        return ast.Constant(float(value))

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Write the float of a value."""
        self.names.append(ast.Name(node.id, ast.Load()))
        return _call("float", self.names[-1])

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """Write a function of numbers, or one that needs a window."""
        if not isinstance(node.func, ast.Name) or node.func.id not in (*FUNCTIONS, *REDUCERS) or node.keywords:
            raise self.refusal(node)
        name = node.func.id
        if name not in FUNCTIONS:
            self.reducing.append(node)
        return _call(f"math.{name}" if name in MATH else name, *map(self.visit, node.args))

    def applied(self, op: ast.AST, *parts: ast.expr) -> ast.expr:
        """Write an operator."""
        return ast.BinOp(parts[0], op, parts[1]) if isinstance(op, ast.operator) else ast.UnaryOp(op, *parts)  # type: ignore[arg-type]

    def compared(self, ops: Sequence[ast.cmpop], parts: Sequence[ast.expr]) -> ast.expr:
        """Write a chain of comparisons as 0.0 or 1.0."""
        return _call("float", ast.Compare(parts[0], list(ops), list(parts[1:])))


def _call(name: str, *given: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), list(given), [])
