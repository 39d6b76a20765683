"""Arithmetic over the values of a stream, from texts that must not become code.

A text of a reader is parsed, and what it may consist of is written again as a query over ``values``: names of fields,
numbers, operators, and the functions below. All numbers are floats and each value costs a bounded number of steps, so
nothing grows without bound.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from looptap.streams.errors import QueryError
from looptap.streams.operators.windows import Sliding
from looptap.streams.text import did_you_mean

MAX_TEXT_CHARACTERS = 300
"""Characters of an expression."""
MAX_SLIDING_MEDIAN_VALUES = 1_000
"""Values of a sliding window of which a reader may have the median: it is computed again at each value."""
_MAX_NODES_COUNT = 150
FUNCTIONS = {
    "abs": "abs", "sqrt": "math.sqrt", "exp": "math.exp", "log": "math.log", "log10": "math.log10",
    "log2": "math.log2", "sin": "math.sin", "cos": "math.cos", "tanh": "math.tanh", "min": "min", "max": "max",
}  # fmt: skip
"""The functions of numbers, and what they are in a query."""
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
    if len(text) > MAX_TEXT_CHARACTERS:
        raise QueryError(f"An expression has {MAX_TEXT_CHARACTERS} characters at most; this one has {len(text)}.")
    try:
        body = ast.parse(text.strip(), mode="eval").body
        nodes = list(_checked(body))
    except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError):
        raise QueryError(f"{text!r:.120} is not arithmetic. {_GRAMMAR}") from None
    if len(nodes) > _MAX_NODES_COUNT:
        raise QueryError(f"{text!r:.120} is too long. {_GRAMMAR}")
    called = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    wanted = {node.id for node in nodes if isinstance(node, ast.Name) and id(node) not in called}
    every = {name for stream in streams for name in stream.names()}
    if missing := sorted(wanted - every):
        known = f" There are {', '.join(sorted(every))}." if every else " None is shown."
        raise QueryError(f"No stream shown here has {missing[0]!r}.{did_you_mean(missing[0], every) or known}")
    if not wanted:
        raise QueryError(f"{text!r:.120} names no stream. {_GRAMMAR}")
    fitting = [stream for stream in streams if wanted <= set(stream.names())]
    if not fitting:
        raise QueryError(f"{', '.join(sorted(wanted))} are of several streams; an expression is over one.")
    stream = fitting[0]
    names = stream.names()
    step = stream.fields[0] if len(stream.fields) > 1 and stream.fields[0] in names else ""
    if window is None:
        query = _written(body, names)
        return ReaderQuery(stream.name, f"v.{step}, {query}" if step else query)
    if not (isinstance(body, ast.Call) and isinstance(body.func, ast.Name) and body.func.id in REDUCERS):
        raise QueryError(f"With a window, an expression is one of {', '.join(REDUCERS)}: mean(loss).")
    if body.func.id == "median" and isinstance(window, Sliding) and window.size > MAX_SLIDING_MEDIAN_VALUES:
        raise QueryError(
            f"median slides over {MAX_SLIDING_MEDIAN_VALUES:,} values at most, not {window.size:,}: it is computed "
            "again at each value. Use mean, or a window that does not slide."
        )
    if len(body.args) != 1:
        raise QueryError(f"{body.func.id} takes one expression: {body.func.id}(loss).")
    query = f"{body.func.id}(({_written(body.args[0], names)} for v in values))"
    return ReaderQuery(stream.name, f"last((v.{step} for v in values)), {query}" if step else query)


def _checked(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of an expression. Raises ValueError for any other kind of node."""
    yield node
    match node:
        case ast.Constant(value=value) if isinstance(value, int | float) and not isinstance(value, bool):
            if not math.isfinite(float(value)):
                raise ValueError("a number that no float can hold")
            return
        case ast.Name():
            return
        case ast.BinOp() | ast.UnaryOp() | ast.Compare():
            children = list(ast.iter_child_nodes(node))
        case ast.Call(func=ast.Name(id=name) as func, args=args, keywords=[]) if name in FUNCTIONS or name in REDUCERS:
            children = [func, *args]
        case ast.Load():
            return
        case _ if type(node) in _SIGNS:
            return
        case _:
            raise ValueError(type(node).__name__)
    for child in children:
        yield from _checked(child)


def _written(node: ast.AST, names: dict[str, str]) -> str:
    """Return a checked expression as text, with names as they are in the query."""
    match node:
        case ast.Constant(value=value):
            return repr(float(value))  # type: ignore[arg-type]
        case ast.Name(id=name):
            return f"float({names[name]})"
        case ast.BinOp(left=left, op=op, right=right):
            return f"{_operand(left, names)} {_SIGNS[type(op)]} {_operand(right, names)}"
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _SIGNS:
            return f"{_SIGNS[type(op)]}{_operand(operand, names)}"
        case ast.Compare(left=left, ops=ops, comparators=others):
            signs = [f" {_SIGNS[type(op)]} {_operand(other, names)}" for op, other in zip(ops, others, strict=True)]
            return f"float({_operand(left, names)}{''.join(signs)})"
        case ast.Call(func=ast.Name(id=name), args=args) if name in FUNCTIONS:
            return f"{FUNCTIONS[name]}({', '.join(_written(one, names) for one in args)})"
    raise QueryError(f"{ast.unparse(node)!r:.120} needs a window. {_GRAMMAR}")


def _operand(node: ast.AST, names: dict[str, str]) -> str:
    written = _written(node, names)
    return f"({written})" if isinstance(node, ast.BinOp | ast.UnaryOp) else written


_SIGNS: dict[type[ast.AST], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%", ast.Pow: "**",
    ast.USub: "-", ast.UAdd: "+", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==",
    ast.NotEq: "!=",
}  # fmt: skip
