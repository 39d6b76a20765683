"""The forms of a query that take a batch of events column by column.

A form is compiled beside the query, from the same expression; parts of the language that it lacks leave the query
without one.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping, Sequence, Set
from functools import partial
from types import MappingProxyType
from typing import Any, TypeAlias

from looptap.streams.columns import arithmetic, evaluation
from looptap.streams.columns.arithmetic import NotInColumns, Operand
from looptap.streams.columns.evaluation import BareNames, ColumnForm, Node
from looptap.streams.expressions import item_name

_BINARY: dict[type[ast.operator], Callable[[Operand, Operand], Operand]] = {
    ast.Add: arithmetic.add, ast.Sub: arithmetic.subtract, ast.Mult: arithmetic.multiply, ast.Div: arithmetic.divide,
    ast.FloorDiv: arithmetic.floor_divide, ast.Mod: arithmetic.remainder, ast.Pow: arithmetic.power,
    ast.BitAnd: arithmetic.bit_and, ast.BitOr: arithmetic.bit_or, ast.BitXor: arithmetic.bit_xor,
}  # fmt: skip
_UNARY: dict[type[ast.unaryop], Callable[[Operand], Operand]] = {
    ast.USub: arithmetic.negative, ast.UAdd: arithmetic.positive, ast.Not: arithmetic.negation,
}  # fmt: skip
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.Is: operator.is_, ast.IsNot: operator.is_not,
    ast.In: lambda item, items: item in items, ast.NotIn: lambda item, items: item not in items,
}  # fmt: skip
_FUNCTIONS: dict[str, Callable[..., Operand]] = {
    "abs": arithmetic.absolute, "max": arithmetic.largest, "min": arithmetic.smallest,
    "pow": arithmetic.power,
}  # fmt: skip
_NUMBER_FUNCTIONS = frozenset({"round", "float", "int", "bool", "isnan", "isinf", "isfinite"})


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_CONSTANTS = frozenset({"pi", "e", "inf", "nan", "tau"})
_MATH = _words(
    "sqrt cbrt exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan atan2 sinh cosh tanh asinh acosh atanh "
    "hypot pow fabs floor ceil trunc copysign fmod remainder isnan isinf isfinite isclose degrees radians erf erfc "
    "gamma lgamma"
) & set(vars(math))
"""Functions of `math` that make a number of numbers, and none that grows without bound."""


IsSource: TypeAlias = Callable[[ast.expr, frozenset[str]], bool]


def bare_names(body: ast.expr, alias: str, known: Set[str], language: Set[str]) -> BareNames | None:
    """Return the observables that ``body`` is a row of, or the only one; else None.

    ``alias`` is the name of the event, ``known`` are names of observables, ``language`` those of the language.

    >>> bare_names(ast.parse("step, e.loss", mode="eval").body, "e", set(), set())
    BareNames(names=('step', 'loss'), single=False)
    """
    names = []
    for part in body.elts if isinstance(body, ast.Tuple) else [body]:
        name = observable(part, alias, known, language)
        if name is None:
            return None
        names.append(name)
    return BareNames(tuple(names), not isinstance(body, ast.Tuple)) if names else None


def observable(node: ast.expr, alias: str, known: Set[str], language: Set[str]) -> str | None:
    """Return the name of the observable that ``node`` reads; None for anything else."""
    name: str | None = None
    if isinstance(node, ast.Name):
        name = node.id if node.id in known or (node.id != alias and node.id not in language) else None
    elif isinstance(node, ast.Attribute | ast.Subscript):
        value = node.value
        if isinstance(value, ast.Name) and value.id == alias and alias not in known:
            name = node.attr if isinstance(node, ast.Attribute) else item_name(node)
    return None if name is None or name.startswith("_") else name  # an event has attributes of its own


def mapped_form(
    body: ast.expr, alias: str, known: Set[str], language: Mapping[str, Any], places: Mapping[int, Node]
) -> ColumnForm | None:
    """Return the form of an expression over one event; None if it has none.

    ``language`` has the values of the language's names, ``places`` the nodes of parts that slide, by the identity of
    the part; the rest is as in `bare_names`.
    """
    try:
        return _form(_Scope(alias, None, known, language, places), body, [])
    except NotInColumns:
        return None


def sequence_form(
    body: ast.expr, is_source: IsSource, language: Mapping[str, Any], counted: bool = False
) -> ColumnForm | None:
    """Return the form of a sequence of items per event, such as a generator, or None.

    ``is_source`` finds the sequence of all events; with ``counted`` items may be bare events.
    """
    try:
        conditions, scope, item = _sequence(body, is_source, language)
        if item is None:
            return ColumnForm([evaluation.constant(None)], True, conditions) if counted else None
        return _form(scope, item, conditions)
    except NotInColumns:
        return None


def _form(scope: _Scope, body: ast.expr, conditions: Sequence[Node]) -> ColumnForm:
    single = not isinstance(body, ast.Tuple)
    parts = body.elts if isinstance(body, ast.Tuple) else [body]
    if not parts:
        raise NotInColumns
    return ColumnForm([scope.node(part) for part in parts], single, conditions)


def _sequence(
    node: ast.expr, is_source: IsSource, language: Mapping[str, Any]
) -> tuple[list[Node], _Scope, ast.expr | None]:
    """Return the conditions of a sequence, its item, and what the names of that mean."""
    if is_source(node, frozenset()):
        return [], _Scope("", None, frozenset(), language), None
    if isinstance(node, ast.GeneratorExp | ast.ListComp) and len(node.generators) == 1:
        loop = node.generators[0]
        if not isinstance(loop.target, ast.Name):
            raise NotInColumns
        conditions, outer, item = _sequence(loop.iter, is_source, language)
        scope = outer.inner(loop.target.id, item)
        conditions += [scope.node(condition) for condition in loop.ifs]
        bare = item is None and isinstance(node.elt, ast.Name) and node.elt.id == loop.target.id
        return conditions, scope, None if bare else node.elt
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) == 2 and not node.keywords:
        function, name = node.args[0], node.func.id
        if name in ("map", "filter") and isinstance(function, ast.Lambda) and _one_parameter(function):
            conditions, outer, item = _sequence(node.args[1], is_source, language)
            scope = outer.inner(function.args.args[0].arg, item)
            if name == "map":
                return conditions, scope, function.body
            return [*conditions, scope.node(function.body)], outer, item
    raise NotInColumns


def _one_parameter(function: ast.Lambda) -> bool:
    given = function.args
    others = [*given.posonlyargs, *given.kwonlyargs, *given.defaults, *filter(None, (given.vararg, given.kwarg))]
    return len(given.args) == 1 and not others


class _Scope:
    """What names mean in an expression: ``alias`` is an event or an item of one."""

    def __init__(
        self, alias: str, item: Node | None, known: Set[str], language: Mapping[str, Any],
        places: Mapping[int, Node] = MappingProxyType({}),
    ) -> None:  # fmt: skip
        self.alias, self.item, self.known, self.language, self.places = alias, item, known, language, places

    def inner(self, alias: str, item: ast.expr | None) -> _Scope:
        """Return the scope in which ``alias`` is ``item`` of this scope, or an event."""
        return _Scope(alias, None if item is None else self.node(item), self.known, self.language)

    def node(self, node: ast.expr) -> Node:
        """Return a function of events that evaluates ``node``. Raises NotInColumns."""
        if (place := self.places.get(id(node))) is not None:
            return place
        match node:
            case ast.Constant(value=value) if type(value) in (float, int, bool, str, type(None)):
                return evaluation.constant(value)
            case ast.Name(id=name) if name == self.alias and self.item is not None:
                return self.item
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
                return evaluation.call(_BINARY[type(op)], self.node(left), self.node(right))
            case ast.UnaryOp(op=op, operand=operand) if type(op) in _UNARY:
                return evaluation.call(_UNARY[type(op)], self.node(operand))
            case ast.BoolOp(op=op, values=values):
                return evaluation.until(isinstance(op, ast.Or), [self.node(value) for value in values])
            case ast.Compare(left=left, ops=ops, comparators=others):
                operands = [self._compared(op, other) for op, other in zip(ops, others, strict=True)]
                return evaluation.comparison([_COMPARISONS[type(op)] for op in ops], [self.node(left), *operands])
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return evaluation.branch(self.node(test), self.node(body), self.node(orelse))
            case ast.Call(func=function, args=args, keywords=[]) if args:
                return evaluation.call(self._function(function), *[self.node(arg) for arg in args])
            case ast.Attribute(value=ast.Name(id="math"), attr=name) if name in _CONSTANTS and self._ours("math"):
                return evaluation.constant(getattr(math, name))
        alias = "" if self.item is not None else self.alias
        if (read := observable(node, alias, self.known, {*self.language, self.alias})) is None:
            raise NotInColumns
        return evaluation.observed(read)

    def _ours(self, name: str) -> bool:
        """Return True if ``name`` is the language's, and nothing hides it."""
        return name in self.language and name not in self.known and name != self.alias

    def _function(self, node: ast.expr) -> Callable[..., Operand]:
        """Return a function of columns. Raises NotInColumns."""
        match node:
            case ast.Name(id=name) if self._ours(name) and name in _FUNCTIONS:
                return _FUNCTIONS[name]
            case ast.Name(id=name) if self._ours(name) and name in _NUMBER_FUNCTIONS:
                return partial(arithmetic.each, self.language[name])
            case ast.Attribute(value=ast.Name(id="math"), attr=name) if self._ours("math") and name in _MATH:
                return partial(arithmetic.each, getattr(math, name))
        raise NotInColumns

    def _compared(self, op: ast.cmpop, node: ast.expr) -> Node:
        """Return the right operand of a comparison, which may be a collection."""
        if isinstance(op, ast.In | ast.NotIn) and isinstance(node, ast.Tuple | ast.List | ast.Set):
            items = tuple(part.value for part in node.elts if isinstance(part, ast.Constant))
            if len(items) == len(node.elts):
                return evaluation.constant(items)
            raise NotInColumns
        if isinstance(op, ast.Is | ast.IsNot) and not (isinstance(node, ast.Constant) and node.value is None):
            raise NotInColumns  # the identity of numbers is not that of their column
        return self.node(node)
