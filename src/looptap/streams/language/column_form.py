"""The forms of a query that take a batch of events column by column.

A form is compiled beside the query, from the same expression; parts of the language that it lacks leave the query
without one.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping, Sequence, Set
from functools import partial
from types import MappingProxyType
from typing import Any, TypeAlias

from looptap.streams.columns import arithmetic, evaluation
from looptap.streams.columns.arithmetic import IN_COLUMNS, NotInColumns, Operand
from looptap.streams.columns.evaluation import BareNames, ColumnForm, Node
from looptap.streams.expressions import part_name
from looptap.streams.harmless import syntax

_FUNCTIONS: dict[str, Callable[..., Operand]] = {
    name: IN_COLUMNS[f]
    for name, f in (
        ("abs", abs),
        ("max", max),
        ("min", min),
        ("pow", pow),
    )
}
"""Functions of the language that are written for columns."""
_NUMBER_FUNCTIONS = frozenset({"round", "float", "int", "bool", "isnan", "isinf", "isfinite"})
"""Functions of the language that are called with the numbers one by one."""

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
            name = part_name(node)
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
    return ColumnForm([scope.visit(part) for part in parts], single, conditions)


def _sequence(
    node: ast.expr, is_source: IsSource, language: Mapping[str, Any]
) -> tuple[list[Node], _Scope, ast.expr | None]:
    """Return the conditions of a sequence, its item, and what the names of that mean."""
    if is_source(node, frozenset()):
        return [], _Scope("", None, frozenset(), language), None
    made: ast.expr | None
    match node:
        case ast.GeneratorExp(generators=[loop]) | ast.ListComp(generators=[loop]):
            target, iterated, tests, made = loop.target, loop.iter, loop.ifs, node.elt
        case ast.Call(func=ast.Name(id="map"), args=[ast.Lambda() as f, iterated], keywords=[]) if _one_parameter(f):
            target, tests, made = ast.Name(f.args.args[0].arg), [], f.body
        case ast.Call(func=ast.Name(id="filter"), args=[ast.Lambda() as f, iterated], keywords=[]) if _one_parameter(f):
            target, tests, made = ast.Name(f.args.args[0].arg), [f.body], None
        case _:
            raise NotInColumns
    if not isinstance(target, ast.Name):
        raise NotInColumns
    conditions, outer, item = _sequence(iterated, is_source, language)
    scope = outer.inner(target.id, item)
    conditions += map(scope.visit, tests)
    if made is None:
        return conditions, outer, item
    bare = item is None and isinstance(made, ast.Name) and made.id == target.id
    return conditions, scope, None if bare else made


def _one_parameter(function: ast.Lambda) -> bool:
    given = function.args
    others = [*given.posonlyargs, *given.kwonlyargs, *given.defaults, *filter(None, (given.vararg, given.kwarg))]
    return len(given.args) == 1 and not others


class _Scope(syntax.ExpressionReader[Node]):
    """What names mean in an expression: ``alias`` is an event or an item of one.

    Each part becomes a function of events. Raises NotInColumns for any that has no column.
    """

    operators = frozenset(op for op, f in syntax.OPERATORS.items() if f in IN_COLUMNS or issubclass(op, ast.cmpop))

    def __init__(
        self,
        alias: str,
        item: Node | None,
        known: Set[str],
        language: Mapping[str, Any],
        places: Mapping[int, Node] = MappingProxyType({}),
    ) -> None:
        self.alias, self.item, self.known, self.language, self.places = alias, item, known, language, places

    def inner(self, alias: str, item: ast.expr | None) -> _Scope:
        """Return the scope in which ``alias`` is ``item`` of this scope, or an event."""
        return _Scope(alias, None if item is None else self.visit(item), self.known, self.language)

    def visit(self, node: ast.AST) -> Node:
        """Return a part as a function of events; what slides has one already."""
        return self.places.get(id(node)) or super().visit(node)

    def refusal(self, node: ast.AST) -> Exception:
        """Return the sign that there are no columns."""
        return NotInColumns()

    def applied(self, op: ast.AST, *parts: Node) -> Node:
        """Compute with columns."""
        return evaluation.call_of_columns(IN_COLUMNS[syntax.OPERATORS[type(op)]], *parts)

    def compared(self, ops: Sequence[ast.cmpop], parts: Sequence[Node]) -> Node:
        """Compare columns."""
        return evaluation.comparison([syntax.OPERATORS[type(op)] for op in ops], parts)

    def compared_with(self, op: ast.cmpop, node: ast.expr) -> Node:
        """Take also a collection of constants, and compare by identity with None alone."""
        match op, node:
            case ast.In() | ast.NotIn(), ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts):
                if not all(isinstance(part, ast.Constant) for part in parts):
                    raise NotInColumns
                return evaluation.constant(tuple(map(ast.literal_eval, parts)))
            case ast.Is() | ast.IsNot(), _ if not (isinstance(node, ast.Constant) and node.value is None):
                raise NotInColumns  # the identity of numbers is not that of their column
        return self.visit(node)

    def visit_Constant(self, node: ast.Constant) -> Node:
        """Take numbers and text."""
        if type(node.value) not in syntax.LITERALS:
            raise NotInColumns
        return evaluation.constant(node.value)

    def visit_BoolOp(self, node: ast.BoolOp) -> Node:
        """Evaluate up to the value that decides."""
        return evaluation.until(isinstance(node.op, ast.Or), list(map(self.visit, node.values)))

    def visit_IfExp(self, node: ast.IfExp) -> Node:
        """Evaluate each side at the events that take it."""
        return evaluation.branch(self.visit(node.test), self.visit(node.body), self.visit(node.orelse))

    def visit_Call(self, node: ast.Call) -> Node:
        """Call what is known of columns, without keywords."""
        if node.keywords or not node.args:
            raise NotInColumns
        return evaluation.call_of_columns(self._function(node.func), *map(self.visit, node.args))

    def visit_Name(self, node: ast.Name) -> Node:
        """Read the item, or an observable."""
        return self.item if self.item is not None and node.id == self.alias else self._observed(node)

    def visit_Attribute(self, node: ast.Attribute) -> Node:
        """Read a number of `math`, or an observable."""
        if node.attr in syntax.NUMBERS and self._is_math(node.value):
            return evaluation.constant(getattr(math, node.attr))
        return self._observed(node)

    def visit_Subscript(self, node: ast.Subscript) -> Node:
        """Read an observable."""
        return self._observed(node)

    def _observed(self, node: ast.expr) -> Node:
        alias = "" if self.item is not None else self.alias
        name = observable(node, alias, self.known, {*self.language, self.alias})
        if name is None:
            raise NotInColumns
        return evaluation.observed(name)

    def _ours(self, name: str) -> bool:
        """Return True if ``name`` is the language's, and nothing hides it."""
        return name in self.language and name not in self.known and name != self.alias

    def _is_math(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Name) and node.id == "math" and self._ours("math")

    def _function(self, node: ast.expr) -> Callable[..., Operand]:
        """Return a function of columns. Raises NotInColumns."""
        match node:
            case ast.Name(id=name) if self._ours(name) and name in _FUNCTIONS:
                return _FUNCTIONS[name]
            case ast.Name(id=name) if self._ours(name) and name in _NUMBER_FUNCTIONS:
                return partial(arithmetic.elementwise, self.language[name])
            case ast.Attribute(attr=name) if name in syntax.MATH and self._is_math(node.value):
                return partial(arithmetic.elementwise, getattr(math, name))
        raise NotInColumns
