"""Registers charts as a notebook's display of streams and plots; imports nothing."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any


def register() -> None:
    """Show a stream or plot that ends a notebook cell as a live chart."""
    ipython = sys.modules.get("IPython")
    shell: Any = None if ipython is None else ipython.get_ipython()
    if getattr(shell, "kernel", None) is not None:
        shown = shell.display_formatter.ipython_display_formatter
        for room, name in (("streams.stream.stream", "Stream"), ("visualizers.plot", "Plot")):
            shown.for_type_by_name(f"looptap.{room}", name, show)


def show(what: Any) -> None:
    """Show ``what`` as a live chart, or as text that says which library is missing."""
    try:
        chart = import_module("looptap.visualizers.surfaces.notebook.display").show
    except ImportError as error:
        print(f"{what!r}\nIt would be a live chart here, but {error.name} is missing: pip install 'looptap[notebook]'")
        return
    chart(what)
