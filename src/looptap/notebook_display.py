"""Registers charts as a notebook's display of streams and plots; imports nothing."""

from __future__ import annotations

import html
import sys
import traceback
from importlib import import_module
from typing import Any

_folded: list[Exception] = []  # the newest error whose traceback is shown


def register() -> None:
    """Show a stream or plot that ends a notebook cell as a live chart."""
    ipython = sys.modules.get("IPython")
    shell: Any = None if ipython is None else ipython.get_ipython()
    if getattr(shell, "kernel", None) is not None:
        shown = shell.display_formatter.ipython_display_formatter
        for room, name in (("streams.stream.stream", "Stream"), ("visualizers.plot", "Plot")):
            shown.for_type_by_name(f"looptap.{room}", name, show)
        errors: Any = import_module("looptap.streams.errors")
        errors.LooptapError._render_traceback_ = shown_error


def shown_error(error: Exception) -> list[str]:
    """Return the text of an error, for a notebook; its traceback is shown folded."""
    if error in _folded:  # the kernel asks twice
        return [f"{type(error).__name__}: {error}"]
    _folded[:] = [error]
    display = import_module("IPython.display")
    trace = html.escape("".join(traceback.format_exception(error)))
    display.display(display.HTML(f"<details><summary>The traceback</summary><pre>{trace}</pre></details>"))
    return [f"{type(error).__name__}: {error}"]


def show(what: Any) -> None:
    """Show ``what`` as a live chart, or as text that says which library is missing."""
    try:
        chart = import_module("looptap.visualizers.surfaces.notebook.display").show_in_cell
    except ImportError as error:
        print(f"{what!r}\nIt would be a live chart here, but {error.name} is missing: pip install 'looptap[notebook]'")
        return
    chart(what)
