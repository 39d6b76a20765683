"""How much the code decides: figures that may only fall.

A decision is a branch, a loop, an exception handler, a conditional expression, a loop of a comprehension, a case, or
one `and` or `or`. Write a lower figure here when one falls.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from places import PACKAGE
from trees import tree_of

MAX_DECISIONS = {
    "streams": 33.3, "protocol": 16.7, "store": 24.6, "agent": 27.0, "client": 24.7, "visualizers": 33.3, "cli": 23.6,
    "integrations": 30.4, "training": 25.9,
}  # fmt: skip
"""Decisions per 100 lines of code in each folder."""

MAX_COUNTS = {"branching": 83, "tall": 18, "namesakes": 0, "unformatted": 46, "lonely": 5}
"""Functions with 15 paths or more; classes on top of three of ours or more; names of public functions that several
modules define; places where the formatter is off; packages of one module."""

BRANCHES = (ast.If, ast.For, ast.While, ast.ExceptHandler, ast.IfExp, ast.AsyncFor, ast.comprehension, ast.match_case)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
BLANK = {getattr(tokenize, name) for name in ("NL", "NEWLINE", "INDENT", "DEDENT", "ENCODING", "ENDMARKER", "COMMENT")}
MANY_PATHS = 15
MAX_BASES = 3


@cache
def files(folder: str) -> tuple[Path, ...]:
    return tuple(sorted((PACKAGE / folder).rglob("*.py")))


def every_file() -> Iterator[Path]:
    for folder in MAX_DECISIONS:
        yield from files(folder)


def decisions(tree: ast.AST) -> int:
    """Return the number of decisions in ``tree``.

    >>> decisions(ast.parse("a = [x for x in y if x > 0 and x < 1 or x == 2]"))
    3
    """
    nodes = list(ast.walk(tree))
    joined = sum(len(node.values) - 1 for node in nodes if isinstance(node, ast.BoolOp))
    return joined + sum(isinstance(node, BRANCHES) for node in nodes)


def lines_of_code(path: Path) -> int:
    """Return the number of lines that are neither blank, comment nor docstring."""
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type not in BLANK:
            code.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            code.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(code)


@pytest.mark.parametrize("folder", MAX_DECISIONS)
def test_a_folder_decides_no_more_than_it_did(folder):
    made = sum(decisions(tree_of(path)) for path in files(folder))
    lines = sum(lines_of_code(path) for path in files(folder))
    assert 100 * made / lines <= MAX_DECISIONS[folder]


def branching() -> Iterator[str]:
    for path in every_file():
        for node in ast.walk(tree_of(path)):
            if isinstance(node, FUNCTIONS) and decisions(node) + 1 >= MANY_PATHS:
                yield f"{path.relative_to(PACKAGE)}:{node.lineno} {node.name}"


def tall() -> Iterator[str]:
    bases = {
        node.name: [ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases]
        for path in every_file()
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ClassDef)
    }

    def height(name: str) -> int:
        return 1 + max((height(base) for base in bases[name] if base in bases), default=0)

    return (name for name in bases if height(name) > MAX_BASES)


def namesakes() -> Iterator[str]:
    where = defaultdict(set)
    for path in every_file():
        for node in tree_of(path).body:
            if isinstance(node, FUNCTIONS) and not node.name.startswith("_"):
                where[node.name].add(path)
    return (name for name, paths in where.items() if len(paths) > 1)


def unformatted() -> Iterator[str]:
    for path in every_file():
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if "# fmt: skip" in line or "# fmt: off" in line:
                yield f"{path.relative_to(PACKAGE)}:{number}"


def lonely() -> Iterator[str]:
    for folder in {path.parent for path in every_file()}:
        inside = list(folder.glob("*.py"))
        if len(inside) == 2 and not any((child / "__init__.py").exists() for child in folder.iterdir()):
            yield str(folder.relative_to(PACKAGE))


@pytest.mark.parametrize("kind", [branching, tall, namesakes, unformatted, lonely])
def test_there_are_no_more_of_what_makes_code_hard_to_read(kind):
    found = sorted(kind())
    assert len(found) <= MAX_COUNTS[kind.__name__], "\n".join(["", *found])
