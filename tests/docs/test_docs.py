"""The documentation names what exists, and its examples work."""

from __future__ import annotations

import ast
import doctest
import importlib
import pkgutil
import re
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest
from places import PACKAGE, ROOT

import looptap
from looptap.protocol import errors as protocol_errors
from looptap.streams import errors as streams_errors
from looptap.streams.aggregations.registry import REDUCERS
from looptap.streams.language.compiler import QuerySpec, compile_query
from looptap.streams.values.checks import HELPERS

ERRORS = [n for room in (protocol_errors, streams_errors) for n, kind in vars(room).items() if isinstance(kind, type)]
MODULES = [
    m.name
    for m in pkgutil.walk_packages(looptap.__path__, "looptap.")
    if not m.name.startswith("looptap.examples")
    and m.name not in ("looptap._tap", "looptap._parking")  # compiled
    and ">>>" in Path(m.module_finder.find_spec(m.name, None).origin).read_text()
]
"""Those that have examples, but for the programs of the demo."""


WHOLE_PROCESS = {"looptap.integrations.auto.entry"}
"""Those whose examples watch all that the process trains from then on, so also the tests after them."""


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("module", MODULES)
def test_the_examples_of_the_docstrings_run(module):
    if module in WHOLE_PROCESS:
        check = f"import doctest, {module} as module; raise SystemExit(doctest.testmod(module).failed)"
        assert subprocess.run([sys.executable, "-c", check]).returncode == 0
    else:
        assert doctest.testmod(importlib.import_module(module), optionflags=doctest.ELLIPSIS).failed == 0


def test_every_function_of_the_language_is_documented():
    text = (ROOT / "docs/queries.md").read_text() + (ROOT / "docs/inside.md").read_text()
    assert not [name for name in (*HELPERS, *REDUCERS) if not re.search(rf"\b{name}\b", text)]


def test_every_error_that_is_documented_can_be_caught_by_its_name_in_looptap():
    pages = [path.read_text() for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"))]
    public = [getattr(looptap, name) for name in looptap.__all__]
    members = [member for shown in public for name, member in vars(shown).items() if not name.startswith("_")]
    text = "\n".join([*pages, *(getattr(shown, "__doc__", None) or "" for shown in (*public, *members))])
    named = {name for name in ERRORS if re.search(rf"\b{name}\b", text)}
    assert len(named) > 15
    assert named - set(looptap.__all__) == set()


def test_each_test_that_the_promises_name_is_there():
    text = (ROOT / "docs/safety.md").read_text() + (ROOT / "docs/security.md").read_text()
    named = set(re.findall(r"`([\w/]+\.py)`", text))
    assert len(named) > 150
    places = [ROOT, PACKAGE, ROOT / "tests", ROOT / "benchmarks"]
    assert [name for name in sorted(named) if not any((place / name).exists() for place in places)] == []


def test_the_programs_that_the_pages_show_can_be_parsed():
    for page in (ROOT / "README.md", *ROOT.glob("docs/*.md")):
        for program in re.findall(r"^ *```python\n(.*?)^ *```", page.read_text(), re.DOTALL | re.MULTILINE):
            if ">>>" not in program:
                ast.parse(textwrap.dedent(program), page.name)


def test_the_queries_that_readme_and_tour_show_compile():
    text = (ROOT / "README.md").read_text() + (ROOT / "docs/tour.md").read_text()
    shown = re.findall(r'run\.stream\("(.+?)", on=', text)
    assert len(shown) > 7
    for query in shown:
        compile_query(QuerySpec(query))


def test_the_table_of_extras_has_each_and_what_it_brings():
    text = (ROOT / "docs/install.md").read_text()
    rows = [re.split(r" *\| *", line)[1:4] for line in text.splitlines() if line.startswith("| `")]
    table = {extra: brings for names, brings, _ in rows for extra in re.findall(r"`(\w+)`", names)}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(table) == set(project["optional-dependencies"]) - {"loaders"} | {"docs"}
    for extra, brings in table.items():
        if extra not in ("docs", "test"):
            needs = [re.match(r"[\w-]+", one)[0] for one in project["optional-dependencies"][extra]]
            assert brings.split(", ") == needs, extra
    for needed in project["dependencies"]:
        assert re.match(r"\w+", needed)[0].lower() in text.lower()
