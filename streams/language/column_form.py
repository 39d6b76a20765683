"""The forms of a query that take a batch of events column by column."""

from __future__ import annotations

import ast
from collections.abc import Set

from looptap.streams.expressions import item_name
from looptap.streams.operators.pipeline import BareNames


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
