"""The width of a window, with its panel and without."""

from __future__ import annotations

from typing import Any

PANEL_INCHES = 2.6
"""The width of the panel."""
MAX_WINDOW_INCHES = 16.0
"""The most that a window takes by itself."""
_MIN_WINDOW_INCHES = 3.0


def widen(figure: Any, panels: int) -> None:
    """Make room for so many panels more, or fewer: the charts keep theirs."""
    if panels:
        width, height = figure.get_size_inches()
        wider = max(_MIN_WINDOW_INCHES, min(max(width, MAX_WINDOW_INCHES), width + panels * PANEL_INCHES))
        figure.set_size_inches(wider, height, forward=True)
