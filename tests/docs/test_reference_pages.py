"""Pages that are made from the code, and figures that are quoted, are up to date."""

from __future__ import annotations

import importlib.util

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
    stale = [path.name for path, text in figures.renewed().items() if path.read_text() != text]
    assert stale == [], "make docs copies them"
    assert sum(len(one.cells) for one in figures.quotations()) >= QUOTED
    assert any(one.page.name == "README.md" for one in figures.quotations())


def test_a_quotation_follows_what_is_measured_and_needs_its_words_once():
    figures = module("figures")
    cell = ["benchmarks.md", "emit with 4 observables, no client attached", "looptap"]
    quotation = figures.Quotation(DOCS / "costs.md", "a call takes {}, and", [cell])
    measured = f"Here a call takes {figures.figure(*cell)}, and no more."
    assert quotation.renewed("Here a call\ntakes 7 h, and no more.") == measured.replace("call takes", "call\ntakes")
    assert quotation.renewed(measured) == measured
    assert quotation.renewed(measured.replace(' ', '\n')) == measured.replace(' ', '\n')
    for text in ("a call costs 7 h, and", "a call takes 7 h, and a call takes 8 h, and"):
        with pytest.raises(LookupError, match="needs it once"):
            quotation.renewed(text)


def test_a_figure_is_of_exactly_one_row():
    figures = module("figures")
    promised = "selection-benchmarks.md#promises", "wide-cnn, easy-heavy data", "measured"
    both = [figures.figure(*promised, which, "number") for which in ("1", "2")]
    assert [float(one) > 0 for one in both] == [True, True]
    assert both[0] != both[1]
    error = "**all**", "ours / paper"
    assert " to " in figures.figure("progress-benchmarks.md#many-kinds-of-training-kept-runs", *error, "interval")
    with pytest.raises(LookupError, match=r"begin with"):
        figures.figure("progress-benchmarks.md", *error)  # other tables have such a row
    for row in ("emit", "nothing of the kind"):
        with pytest.raises(LookupError, match=r"begin with"):
            figures.figure("benchmarks.md", row, "looptap")


def test_a_benchmark_replaces_only_its_own_section(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    harness = importlib.import_module("harness")
    page = tmp_path / "costs.md"
    page.write_text("# Costs\n\nWords.\n\n## Growth\n\nOld.\n\n### More\n\n## Charts\n\nDrawn.\n")
    harness.put_section(page, "Growth", "New.\n")
    assert page.read_text() == "# Costs\n\nWords.\n\n## Growth\n\nNew.\n\n## Charts\n\nDrawn.\n"
    harness.put_section(page, "Charts", "Drawn again.")
    harness.put_section(page, "Memory", "Little.")
    after = "## Growth\n\nNew.\n\n## Charts\n\nDrawn again.\n\n## Memory\n\nLittle.\n"
    assert page.read_text() == f"# Costs\n\nWords.\n\n{after}"
