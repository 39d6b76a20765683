"""The observables that a query certainly reads, before any event comes."""

from __future__ import annotations

import ast
from collections.abc import Collection

from looptap.streams.errors import QueryError
from looptap.streams.expressions import COMPREHENSIONS, SourceText, free_names, part_name


def observables_read(text: str, known: Collection[str]) -> list[str]:
    """Return names that the query reads from each of its events, as they stand in it.

    ``known`` are the names of functions and of what the job exposes. What a function or `latest` reads is left out.

    >>> observables_read("step, log(los)", ["log"])
    ['step', 'los']
    >>> observables_read("mean(e.los for e in events if e.step > 3)", ["mean"])
    ['los', 'step']
    """
    try:
        body = SourceText(text).body
    except QueryError:  # a def
        return []
    free = [node.id for node in free_names(body) if node.id not in known]
    found = [] if "events" in free else [name for name in free if name != "e"]
    if "e" in free and "events" not in free:
        found += _of(body, "e")
    for node in ast.walk(body):
        if isinstance(node, COMPREHENSIONS):
            first = node.generators[0]
            if isinstance(first.iter, ast.Name) and first.iter.id == "events" and isinstance(first.target, ast.Name):
                found += _of(node, first.target.id)
    return [name for name in dict.fromkeys(found) if name not in known]


def _of(node: ast.AST, event: str) -> list[str]:
    """Return what is read of the name ``event``: ``e.loss``, ``e['train/loss']``."""
    parts = [n for n in ast.walk(node) if isinstance(n, ast.Attribute | ast.Subscript)]
    names = (part_name(n) for n in parts if isinstance(n.value, ast.Name) and n.value.id == event)
    return [name for name in names if name is not None]
