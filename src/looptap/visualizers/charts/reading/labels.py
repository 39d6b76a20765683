"""`labels_of`: the labels of a query's parts, read from its text.

A part has a name if it is an observable, an attribute, or what a function or method makes of one; a constant has none,
and neither has a sine or cosine, which draws a figure in the plane or in space.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple, TypeVar

Found = TypeVar("Found")

MAX_LABEL_CHARACTERS = 40
"""The longest label; more of an expression is cut off."""
_CASTS = ("float", "int", "round", "bool")
_READINGS = ("item", "detach", "cpu", "numpy", "tolist", "float", "double", "clone")
_FIGURES = ("sin", "cos", "tan", "sinh", "cosh", "atan2", "hypot")
_RATES = ("get_last_lr", "get_lr")
_RANKINGS = ("batch_topk", "batch_bottomk")


class Label(NamedTuple):
    """The label of a part of a value, and whether it names what the part is."""

    text: str
    named: bool


@lru_cache(maxsize=512)
def labels_of(query: str) -> tuple[Label, ...]:
    """Return a label for each part of what a query yields, or ().

    >>> [label.text for label in labels_of("lambda e: (e.step, e.loss.item(), mean(e.x))")]
    ['step', 'loss', 'mean(x)']
    >>> labels_of("mean(e.loss for e in events)"), labels_of("math.sin(step)")
    ((Label(text='mean(loss)', named=True),), (Label(text='math.sin(step)', named=False),))
    >>> labels_of("batch_topk(9, losses, image=image, target=target)")[0].text
    'batch_topk(9, …)'
    """
    return read_query(query, _labels, ())


def read_query(query: str, read: Callable[[ast.Module], Found], otherwise: Found) -> Found:
    """Return what is read from the tree of a query, or ``otherwise`` if it has none."""
    try:
        return read(ast.parse(query.strip()))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return otherwise


def _labels(tree: ast.Module) -> tuple[Label, ...]:
    body = _yielded(tree)
    if body is None:
        return ()
    body = _Short().visit(body)
    if isinstance(body, ast.Dict) and all(isinstance(key, ast.Constant) for key in body.keys):
        return tuple(Label(str(key.value), True) for key in body.keys if isinstance(key, ast.Constant))
    return tuple(map(_label, body.elts if isinstance(body, ast.Tuple | ast.List) else [body]))


@lru_cache(maxsize=512)
def ranked_by(query: str) -> str:
    """Return the name of what `batch_topk` ranks samples by; "" if unknown.

    >>> ranked_by("batch_topk(9, e.losses, image=e.image)"), ranked_by("batch_topk(9, by=margin)")
    ('loss', 'margin')
    """
    return read_query(query, _ranking, "")


def _ranking(tree: ast.Module) -> str:
    """Return the name of what the first call of a ranking ranks by."""
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    call = next((one for one in calls if isinstance(one.func, ast.Name) and one.func.id in _RANKINGS), None)
    by = call and next(iter([*call.args[1:2], *(one.value for one in call.keywords if one.arg == "by")]), None)
    name = getattr(by, "id", "") or getattr(by, "attr", "")
    return "loss" if name == "losses" else name


@lru_cache(maxsize=512)
def made_by(query: str) -> str:
    """Return the function that makes a value, "list" if its parts are made alike.

    >>> made_by("[g['lr'] for g in optimizer.param_groups]"), made_by("tuple(x.norm() for x in params)")
    ('list', 'list')
    >>> made_by("Counter(e.label for e in events)"), made_by("[e.loss for e in events]"), made_by("step, loss")
    ('Counter', '', '')
    """
    return read_query(query, _maker, "")


def _maker(tree: ast.Module) -> str:
    """Return the function that makes a value, "list" for a list of things made alike."""
    body, name = _yielded(tree), ""
    if isinstance(body, ast.Call):
        name = getattr(body.func, "id", "") or getattr(body.func, "attr", "")
        if name in ("tuple", "list") and len(body.args) == 1:
            body, name = body.args[0], ""
    if isinstance(body, ast.ListComp | ast.GeneratorExp):
        over = {node.id for node in ast.walk(body.generators[0].iter) if isinstance(node, ast.Name)}
        return "" if "events" in over else "list"
    return "list" if name in _RATES else name


def _yielded(tree: ast.Module) -> ast.expr | None:
    """Return the expression for one value: of a lambda, a generator, or a function."""
    if len(tree.body) != 1:
        return None
    (only,) = tree.body
    if isinstance(only, ast.FunctionDef):
        returns = [node.value for node in ast.walk(only) if isinstance(node, ast.Return) and node.value]
        aliases = {argument.arg for argument in only.args.args}
        return _without(returns[0], aliases) if len(returns) == 1 else None
    if not isinstance(only, ast.Expr):
        return None
    body = only.value
    if isinstance(body, ast.GeneratorExp):
        targets = ast.walk(body.generators[0].target)
        body = _without(body.elt, {node.id for node in targets if isinstance(node, ast.Name)})
    if isinstance(body, ast.Call) and isinstance(body.func, ast.Name) and body.func.id == "map" and body.args:
        body = body.args[0]
    if isinstance(body, ast.Lambda):
        body = _without(body.body, {argument.arg for argument in body.args.args})
    return body


def _without(body: ast.expr, aliases: set[str]) -> ast.expr:
    """Return an expression in which ``e.loss`` is ``loss``, where ``e`` is an alias."""
    found: ast.expr = _Unaliased(aliases).visit(body)
    return found


class _Unaliased(ast.NodeTransformer):
    def __init__(self, aliases: set[str]) -> None:
        self._aliases = aliases

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        if isinstance(node.value, ast.Name) and node.value.id in self._aliases:
            return ast.copy_location(ast.Name(node.attr, ast.Load()), node)
        self.generic_visit(node)
        return node


class _Short(ast.NodeTransformer):
    """Writes ``mean(e.loss for e in events)`` as ``mean(loss)``."""

    def visit_GeneratorExp(self, node: ast.GeneratorExp) -> ast.expr:
        self.generic_visit(node)
        (first, *more) = node.generators
        if more or first.ifs or not isinstance(first.target, ast.Name):
            return node
        return _without(node.elt, {first.target.id})


def _label(node: ast.expr) -> Label:
    match node:
        case ast.Name(id=name):
            return Label(name, True)
        case ast.Subscript(slice=ast.Constant(value=str(name))):
            return Label(name, True)
        case ast.Call(func=ast.Name(id=cast), args=[one]) if cast in _CASTS:
            return _label(one)
        case ast.Call(func=ast.Attribute(value=one, attr=reading), args=[]) if reading in _READINGS:
            return _label(one)
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in _FIGURES:
            return Label(_text(node), False)
    return Label(_text(node), any(isinstance(one, ast.Name) for one in ast.walk(node)))


def _text(node: ast.expr) -> str:
    text = ast.unparse(node)
    if len(text) > MAX_LABEL_CHARACTERS and isinstance(node, ast.Call) and len(node.args) + len(node.keywords) > 1:
        short = ast.Call(node.func, [*node.args[:1], ast.Name("…")], [])
        text = ast.unparse(short)
    return text if len(text) <= MAX_LABEL_CHARACTERS else text[: MAX_LABEL_CHARACTERS - 1] + "…"
