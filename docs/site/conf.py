"""The settings of the documentation site, which `make docs` builds offline.

Its source is the root of the repository, so that a link between pages works on the site as it does among the files.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from docutils import nodes

import looptap

project = "looptap"
author = "the looptap developers"
copyright = f"{author}, MIT licence"
release = looptap.__version__

root_doc = "docs/index"
include_patterns = ["docs/*.md", "notebooks/*.ipynb", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"]
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode", "sphinx_copybutton"]

default_role = "py:obj"
nitpicky = False
smartquotes = False  # it made a dash of the -- of options, and quotes that no shell reads
suppress_warnings = ["mystnb.unknown_mime_type"]

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
nb_execution_mode = "off"  # the notebooks are saved with their pictures

autodoc_default_options = {"members": True, "inherited-members": True, "member-order": "groupwise"}
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True

html_theme = "furo"
pygments_dark_style = "github-dark"  # the theme's own underlines each import
html_title = f"looptap {release}"
html_extra_path = ["extra"]
html_static_path = ["static"]
html_css_files = ["wide.css"]
html_show_sourcelink = False
html_copy_source = False
templates_path: list[str] = []


def setup(app: Any) -> None:
    """Copy the pictures that Sphinx does not see; write dashes."""
    app.connect("build-finished", copy_pictures)
    app.connect("doctree-read", write_dashes)


def write_dashes(app: Any, page: Any) -> None:
    """Write a dash for the two hyphens behind the name of a parameter."""
    for text in list(page.findall(nodes.Text)):
        if text == " -- ":
            text.parent.replace(text, nodes.Text(" – "))


def copy_pictures(app: Any, error: Exception | None) -> None:
    """Copy the moving pictures beside the pages."""
    for picture in Path(app.srcdir, "docs").glob("*.webp"):
        shutil.copy(picture, Path(app.outdir, "docs"))
