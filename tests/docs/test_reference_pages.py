"""Pages that are made from the code, and figures that are quoted, are up to date."""

from __future__ import annotations

import importlib.util
import re

import pytest
from places import ROOT

DOCS = ROOT / "docs"
QUOTED = 60
"""Measured figures that texts quote, at least."""


def module(name):
    """Return a program of docs/, which is no package."""
    spec = importlib.util.spec_from_file_location(f"docs_{name}", DOCS / f"{name}.py")
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


@pytest.mark.parametrize(("path", "page"), module("reference").PAGES.items(), ids=lambda one: getattr(one, "stem", ""))
def test_a_page_that_is_made_from_the_code_is_what_the_code_says(path, page):
    assert path.read_text() == page(), "make docs writes it again"


def test_each_quoted_figure_is_that_of_its_benchmark():
    figures = module("figures")
    found = {path.name: path.read_text() for path in figures.PAGES}
    assert [name for name, text in found.items() if figures.renewed(text) != text] == [], "make docs copies them"
    assert sum(len(figures.quotations(text)) for text in found.values()) >= QUOTED
    assert figures.quotations(found["README.md"])
    broken = [name for name, text in found.items() if re.search(r"^ *<!-- from", text, re.MULTILINE)]
    assert broken == [], "a comment that begins a line ends the paragraph before it"


def test_a_quotation_follows_what_is_measured_and_needs_exactly_one_row():
    figures = module("figures")
    quoted = "<!-- from benchmarks.md: emit with 4 observables, no client attached | looptap -->7 h<!-- -->"
    assert figures.quotations(figures.renewed(quoted)) == [figures.figure(
        "benchmarks.md", "emit with 4 observables, no client attached", "looptap"
    )]  # fmt: skip
    assert figures.quotations(figures.renewed(quoted)) != ["7 h"]
    promised = "selection-benchmarks.md", "wide-cnn, easy-heavy data", "measured", "promises"
    both = [figures.figure(*promised, (which, "number")) for which in ("1", "2")]
    assert [float(one) > 0 for one in both] == [True, True]
    assert both[0] != both[1]
    error = "progress-benchmarks.md", "**all**", "ours / paper"
    assert " to " in figures.figure(*error, "many-kinds-of-training-kept-runs", ("interval",))
    with pytest.raises(LookupError, match=r"begin with"):
        figures.figure(*error)  # other tables have such a row
    for row in ("emit", "nothing of the kind"):
        with pytest.raises(LookupError, match=r"begin with"):
            figures.figure("benchmarks.md", row, "looptap")
