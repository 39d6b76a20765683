"""The documentation site builds offline without a warning, and is whole."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from places import ROOT

import looptap

pytest.importorskip("sphinx", reason="the docs extra is not installed")



@pytest.fixture(scope="module")
def site(processes, tmp_path_factory):
    """Build the site as `make docs` does: a link that leads nowhere fails it."""
    built = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-c", "docs/site", ".", str(built)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return built


def test_each_page_and_notebook_is_in_the_site_and_the_front_page_leads_there(site):
    front = (site / "docs" / "index.html").read_text()
    pages = [*ROOT.glob("docs/*.md"), *ROOT.glob("notebooks/*.ipynb")]
    assert len(pages) > 30
    for page in pages:
        built = page.relative_to(ROOT).with_suffix(".html")
        assert (site / built).exists(), built
        assert f"{page.stem}.html" in front or page.stem == "index", f"docs/index.md does not list {page.name}"
    assert "docs/index.html" in (site / "index.html").read_text()


def test_each_public_name_has_an_entry(site):
    entries = set(re.findall(r'id="looptap\.(\w+)"', (site / "docs" / "api.html").read_text()))
    assert set(looptap.__all__) - entries == set()


def test_no_page_loads_anything_from_elsewhere(site):
    loads = re.compile(r'<(?:script|img|iframe|source)[^>]+src="https?:|<link[^>]+rel="stylesheet"[^>]+href="https?:')
    assert [page.name for page in site.rglob("*.html") if loads.search(page.read_text())] == []


def test_no_page_shows_a_comment_or_two_hyphens_as_text(site):
    shown = re.compile(r"&lt;!-- | -- (?!\S*[=A-Z])")
    code = re.compile(r"<pre>.*?</pre>|<code.*?</code>", re.DOTALL)
    pages = [*(site / "docs").glob("*.html"), site / "README.html"]
    assert len(pages) > 30
    assert [page.name for page in pages if shown.search(code.sub("", page.read_text().partition("<article")[2]))] == []
