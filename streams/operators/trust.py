"""Find queries that cannot affect the loop: pure operations on plain values.

The tree tells whether every operation is known not to draw random numbers, write or keep anything, given plain values,
and which observables it reads, down to attributes and constant subscripts. Whether these are plain is checked at each
event, by their exact types. Everything else runs in the agent's guard.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Mapping, Set
from typing import Any, NamedTuple, TypeAlias

from looptap.streams.events import Event, EventSnapshot
from looptap.streams.operators.harmless import (
    ATTRIBUTES,
    CASTS,
    COLUMN_HELPERS,
    CONSTANTS,
    HANDED,
    KEYWORDS,
    MAX_POSITIONAL_ARGUMENTS,
    METHODS,
    MODEL_HELPERS,
    MODEL_METHODS,
    MODULES,
    NAMES,
    OPTIMIZER_HELPERS,
    OUT,
)
from looptap.streams.values.modules.module_read import KINDS
from looptap.streams.values.plain import (
    ARRAY,
    ATOM,
    TENSOR,
    is_plain,
    is_plain_model,
    is_plain_optimizer,
    item_of,
    kind_of,
    stored,
)

GUARDED = (
    "guarded: {} is not known to be harmless. What it changes of the loop is put back or reported, at about 100 µs an "
    "evaluation, and more where it reads a model, an optimizer or another object"
)
"""The explanation of a query that runs in the agent's guard."""

DATA, EVENTS, LATEST = "data", "events", "latest"
"""Kinds of expressions: plain values; events or containers of them; events of another type."""


class ObservablePath(NamedTuple):
    """A path below an observable: attribute names, and item keys in 1-tuples."""

    root: str
    steps: tuple[str | tuple[Any], ...] = ()

    def shown(self) -> str:
        """Return the path as text in the query's syntax."""
        return self.root + "".join(f"[{step[0]!r}]" if isinstance(step, tuple) else f".{step}" for step in self.steps)


Kind: TypeAlias = str | ObservablePath
Need: TypeAlias = "tuple[ObservablePath, Callable[[Any], bool]]"


class Sight:
    """The paths that a query reads of its event; harmless if all of them are `plain`."""

    __slots__ = ("needs", "roots")

    def __init__(self, needs: Collection[Need], whole: bool = False) -> None:
        if whole:
            needs = [*needs, *((ObservablePath(path.root), is_plain) for path, _ in needs)]
        self.roots = tuple(dict.fromkeys(path.root for path, test in needs if test is is_plain and not path.steps))
        self.needs = tuple(dict.fromkeys(n for n in needs if n[1] is not is_plain or n[0].steps))

    @classmethod
    def of_whole(cls, names: Collection[str]) -> Sight:
        """Return the paths read by a copy of the observables ``names``."""
        return cls([(ObservablePath(name), is_plain) for name in names])

    def explanation(self) -> str:
        """Return a sentence on when the agent guards the query."""
        if not self.roots and not self.needs:
            return "not guarded: nothing in it can change the loop"
        shown = ", ".join(dict.fromkeys([*self.roots, *(path.shown() for path, _ in self.needs)]))
        return f"guarded only where this is no number, text, tensor, array, nor a container or model of them: {shown}"

    def plain(self, event: Any) -> bool:
        """Return True if everything that the query reads of ``event`` is plain."""
        if type(event) is not Event:
            return type(event) is EventSnapshot
        own = event.__dict__
        for name in self.roots:
            value = own[name] if name in own else event.__looptap_held__(name)
            if type(value) not in _NUMBERS and not is_plain(value):
                return False
        return not self.needs or all(_met(event, own, path, test) for path, test in self.needs)


_NUMBERS = frozenset({float, int, bool, str, type(None)})


def _met(event: Event, own: Mapping[str, Any], path: ObservablePath, test: Callable[[Any], bool]) -> bool:
    """Return True if ``path`` is stored at each step and ``test`` holds at its end."""
    value: Any = own[path.root] if path.root in own else event.__looptap_held__(path.root)
    for place, step in enumerate(path.steps):
        kind = kind_of(type(value))
        if kind in (ATOM, TENSOR, ARRAY):
            if step == "grad" and kind == TENSOR:
                value = value.grad if is_plain(value) else event
                continue
            rest = path.steps[place:]
            return test is is_plain and is_plain(value) and all(type(s) is tuple or s in ATTRIBUTES for s in rest)
        known, value = item_of(value, step[0]) if type(step) is tuple else stored(value, str(step))
        if not known:
            return False
        if value is None:
            return True  # the path ends here, or the query raises an error
    return test(value)


class _Unknown(Exception):
    """An operation that is not known to be harmless."""

    def __init__(self, node: ast.AST) -> None:
        self.node = node


def sight_of(
    body: ast.expr, names: Set[str], *, alias: str, source: str, whole: bool = False, stands: Set[str] = frozenset()
) -> Sight | ast.AST:
    """Return the paths that ``body`` reads, or a part not known to be harmless.

    It is harmless if the values at these paths are plain. ``names`` are those of the language that nothing hides,
    ``alias`` is the name of an event, ``source`` that of the sequence; with ``whole`` the query keeps whole
    observables. ``stands`` are the names of what the host has exposed.
    """
    seen = _Tree(names, source, stands)
    try:
        seen.data(body, {alias: EVENTS})
    except _Unknown as unknown:
        return unknown.node
    return Sight(seen.needs, whole)


def unknown_call(node: ast.expr, names: Set[str]) -> ast.AST | None:
    """Return the part of an event-free argument that may have effects, or None.

    To name or define a function is harmless; what it does counts when it is called.
    """
    if isinstance(node, ast.Lambda | ast.Name):
        return None
    if isinstance(node, ast.Attribute):
        return unknown_call(node.value, names) if not node.attr.startswith("__") else node
    if isinstance(node, ast.Call) and ast.unparse(node.func) in ("functools.partial", "partial", "operator.itemgetter"):
        parts = [*node.args, *(keyword.value for keyword in node.keywords)]
        return next((found for part in parts if (found := unknown_call(part, names)) is not None), None)
    sight = sight_of(node, names, alias="", source="")
    return None if isinstance(sight, Sight) else sight


class _Tree:
    """One pass over the tree of a query."""

    def __init__(self, names: Set[str], source: str, stands: Set[str]) -> None:
        self.names, self.source, self.stands = names, source, stands
        self.needs: list[Need] = []

    def data(self, node: ast.expr, bound: Mapping[str, Kind]) -> Kind:
        """Return the path of ``node`` where it is used as a value."""
        kind = self.kind(node, bound)
        if isinstance(kind, ObservablePath):
            self.needs.append((kind, is_plain))
            return DATA
        if kind == LATEST:
            raise _Unknown(node)
        return kind

    def all(self, nodes: Collection[ast.expr | None], bound: Mapping[str, Kind]) -> Kind:
        """Return the path of a value made of all of these."""
        kinds = {self.data(node, bound) for node in nodes if node is not None}
        return EVENTS if EVENTS in kinds else DATA

    def kind(self, node: ast.expr, bound: Mapping[str, Kind]) -> Kind:
        if isinstance(node, ast.Constant):
            return DATA
        if isinstance(node, ast.Name):
            return self.name(node, bound)
        if isinstance(node, ast.Attribute):
            return self.attribute(node, bound)
        if isinstance(node, ast.Subscript):
            return self.subscript(node, bound)
        if isinstance(node, ast.Call):
            return self.call(node, bound)
        if isinstance(node, ast.GeneratorExp | ast.ListComp | ast.SetComp | ast.DictComp):
            return self.comprehension(node, bound)
        if isinstance(node, ast.JoinedStr):
            return self.all(node.values, bound)
        if isinstance(node, ast.FormattedValue):
            return self.all([node.value, node.format_spec], bound)
        if isinstance(node, _OPERATIONS):
            return self.all([child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)], bound)
        raise _Unknown(node)

    def name(self, node: ast.Name, bound: Mapping[str, Kind]) -> Kind:
        if node.id in bound:
            return bound[node.id]
        if node.id == self.source:
            return EVENTS
        if node.id in self.names:  # a function passed as an argument, if known to be harmless
            if node.id in NAMES:
                return DATA
            raise _Unknown(node)
        return ObservablePath(node.id)

    def attribute(self, node: ast.Attribute, bound: Mapping[str, Kind]) -> Kind:
        if node.attr.startswith("__"):
            raise _Unknown(node)
        module, name = self.of_module(node, bound)
        if module:
            if name in CONSTANTS.get(module, ()) or (name in MODULES[module] and module not in OUT):
                return DATA
            raise _Unknown(node)
        kind = self.kind(node.value, bound)
        if kind == EVENTS:
            return ObservablePath(node.attr)
        if isinstance(kind, ObservablePath):
            return ObservablePath(kind.root, (*kind.steps, node.attr))
        if kind == LATEST or node.attr in ATTRIBUTES:
            return DATA
        raise _Unknown(node)

    def of_module(self, node: ast.expr, bound: Mapping[str, Kind]) -> tuple[str, str]:
        """Return the language module of attribute ``node``, and the rest of its name."""
        names: list[str] = []
        while isinstance(node, ast.Attribute):
            names.append(node.attr)
            node = node.value
        if names and isinstance(node, ast.Name) and node.id not in bound and node.id in self.names:
            if node.id not in MODULES:
                raise _Unknown(node)
            return node.id, ".".join(reversed(names))
        return "", ""

    def subscript(self, node: ast.Subscript, bound: Mapping[str, Kind]) -> Kind:
        kind = self.kind(node.value, bound)
        index = node.slice
        negative = isinstance(index, ast.UnaryOp) and isinstance(index.op, ast.USub)
        constant = index.operand if isinstance(index, ast.UnaryOp) and negative else index
        key = constant.value if isinstance(constant, ast.Constant) else None
        if kind == EVENTS and isinstance(key, str):
            return ObservablePath(key)
        if kind == LATEST and isinstance(key, str):
            return DATA
        if isinstance(kind, ObservablePath) and (type(key) is int or (type(key) is str and not negative)):
            return ObservablePath(kind.root, (*kind.steps, (-key if isinstance(key, int) and negative else key,)))
        self.data(index, bound)
        return self.data(node.value, bound)

    def call(self, node: ast.Call, bound: Mapping[str, Kind]) -> Kind:
        f = node.func
        any_keyword = isinstance(f, ast.Name) and f.id in COLUMN_HELPERS
        if any(k.arg is None or not (any_keyword or k.arg in KEYWORDS) for k in node.keywords):
            raise _Unknown(node)
        count = MAX_POSITIONAL_ARGUMENTS if any(isinstance(part, ast.Starred) for part in node.args) else len(node.args)
        if isinstance(f, ast.Name):
            if f.id in bound or f.id not in self.names | {"recent", "latest"}:
                raise _Unknown(node)
            if f.id in ("recent", "latest"):
                return EVENTS if f.id == "recent" else LATEST
            if f.id in MODEL_HELPERS | OPTIMIZER_HELPERS:
                return self.helper(node, bound, is_plain_model if f.id in MODEL_HELPERS else is_plain_optimizer)
            if f.id not in NAMES:
                raise _Unknown(node)
            return self.arguments(node, bound, handed=2 if f.id in KINDS else f.id in HANDED)
        if not isinstance(f, ast.Attribute):
            raise _Unknown(node)
        module, name = self.of_module(f, bound)
        if module:
            if count > MODULES[module].get(name, -1):
                raise _Unknown(node)
            return self.arguments(node, bound, handed=1 if name in HANDED else 0)
        return self.method(node, f, count, bound)

    def helper(self, node: ast.Call, bound: Mapping[str, Kind], test: Callable[[Any], bool]) -> Kind:
        """Check a helper that walks over a model or an optimizer."""
        kind = self.kind(node.args[0], bound) if node.args else DATA
        if not isinstance(kind, ObservablePath):
            raise _Unknown(node)
        self.needs.append((kind, test))
        return self.all([*node.args[1:], *(k.value for k in node.keywords)], bound)

    def method(self, node: ast.Call, f: ast.Attribute, count: int, bound: Mapping[str, Kind]) -> Kind:
        kind = self.kind(f.value, bound)
        if isinstance(kind, ObservablePath) and f.attr in MODEL_METHODS and not node.args and not node.keywords:
            self.needs.append((kind, is_plain_model))
            return DATA
        if kind in (EVENTS, LATEST) or count > METHODS.get(f.attr, -1):
            raise _Unknown(node)
        if f.attr in CASTS and isinstance(kind, ObservablePath) and kind.root in self.stands:
            raise _Unknown(node)
        self.data(f.value, bound)
        return self.arguments(node, bound)

    def arguments(self, node: ast.Call, bound: Mapping[str, Kind], handed: int = 0) -> Kind:
        """Return the path of a harmless function's result, derived from its arguments.

        The first ``handed`` of them are functions that it calls.
        """
        given = [*node.args, *(k.value for k in node.keywords)]
        for part in [*node.args[:handed], *(k.value for k in node.keywords if k.arg in ("key", "func", "function"))]:
            if not isinstance(part, ast.Lambda | ast.Constant) and isinstance(self.kind(part, bound), ObservablePath):
                raise _Unknown(part)
        kind = self.all([part for part in given if not isinstance(part, ast.Lambda)], bound)
        for part in given:
            if isinstance(part, ast.Lambda):
                arguments = part.args
                self.all([*arguments.defaults, *arguments.kw_defaults], bound)
                parameters = {n.arg: kind for n in ast.walk(arguments) if isinstance(n, ast.arg)}
                self.data(part.body, {**bound, **parameters})
        return kind

    def comprehension(
        self, node: ast.GeneratorExp | ast.ListComp | ast.SetComp | ast.DictComp, bound: Mapping[str, Kind]
    ) -> Kind:
        inner = dict(bound)
        for generator in node.generators:
            kind = self.data(generator.iter, inner)
            for target in ast.walk(generator.target):
                if isinstance(target, ast.Name):
                    inner[target.id] = kind
                elif not isinstance(target, ast.Tuple | ast.List | ast.Starred | ast.expr_context):
                    raise _Unknown(target)  # assignment to a subscript or an attribute
            self.all(generator.ifs, inner)
        return self.all([node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt], inner)


_OPERATIONS = (
    ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Tuple, ast.List, ast.Set, ast.Dict, ast.Starred,
    ast.Slice,
)  # fmt: skip
