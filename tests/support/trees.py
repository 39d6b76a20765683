"""The syntax trees of files, which several rules of the house look at."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path


@cache
def tree_of(path: Path) -> ast.Module:
    """Return a parsed file."""
    return ast.parse(path.read_text())
