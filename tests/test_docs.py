"""The documentation says what is there, and what it shows works."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import looptap
from looptap.streams.helpers import HELPERS
from looptap.streams.language import QuerySpec, compile_query
from looptap.streams.reducers import REDUCERS

ROOT = Path(__file__).parent.parent
MODULES = [
    m.name
    for m in pkgutil.walk_packages(looptap.__path__, "looptap.")
    if not m.name.startswith("looptap.examples") and not m.name.endswith("__main__")
]


@pytest.mark.parametrize("module", MODULES)
def test_the_examples_of_the_docstrings_run(module):
    assert doctest.testmod(importlib.import_module(module), optionflags=doctest.ELLIPSIS).failed == 0


def test_every_function_of_the_language_is_documented():
    text = (ROOT / "docs/queries.md").read_text()
    assert not [name for name in (*HELPERS, *REDUCERS) if not re.search(rf"\b{name}\b", text)]


def test_the_queries_that_the_readme_shows_compile():
    shown = re.findall(r'run\.stream\("(.+?)", on=', (ROOT / "README.md").read_text())
    assert len(shown) > 7
    for query in shown:
        compile_query(QuerySpec(query))
