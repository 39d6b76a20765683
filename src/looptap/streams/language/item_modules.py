"""Modules of the job in a reduction: F.relu(e.x) is read as e.F.relu(e.x)."""

from __future__ import annotations

import ast
from collections.abc import Set

from looptap.streams.expressions import COMPREHENSIONS, mentions, rewrite


def modules_of_items(body: ast.expr, names: Set[str]) -> ast.expr:
    """Return ``body`` with unknown modules, such as F, read from the item.

    Only inside comprehensions over the events, and only where something of the module is called.
    """
    known = {*names, "events", "recent", "latest"}
    nodes = [*ast.walk(body)]
    roots = {id(_root(n.func)) for n in nodes if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)}
    generators = [g for n in nodes if isinstance(n, COMPREHENSIONS) for g in n.generators]
    targets = {ast.unparse(g.target) for g in generators if mentions(g.iter, "events")}

    def hook(node: ast.expr, bound: frozenset[str]) -> ast.expr | None:
        item = next(iter(targets & bound), None)
        if item is None or id(node) not in roots or not isinstance(node, ast.Name) or node.id in known | bound:
            return None
        return ast.copy_location(ast.Attribute(ast.Name(item, ast.Load()), node.id, ast.Load()), node)

    return ast.fix_missing_locations(rewrite(body, hook))


def _root(node: ast.expr) -> ast.expr:
    """Return what stands at the left of a path: F of F.relu."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node
