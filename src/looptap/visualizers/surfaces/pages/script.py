"""The script of a page that draws charts: of a notebook, and of a file."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from looptap.visualizers.data.color_scales import BLUES, VIRIDIS
from looptap.visualizers.data.colors import COLORS, DARK
from looptap.visualizers.data.smoothing import OUTLIER_QUANTILE_SHARE, OUTLIER_REACH_FACTOR

STATIC = Path(__file__).parent / "static"
_PARTS = (
    "uPlot.iife.min.js",
    "columns.js",
    "paint.js",
    "ticks.js",
    "smooth.js",
    "hover.js",
    "plane.js",
    "panels.js",
    "svg.js",
    "tools.js",
    "legend.js",
    "chart.js",
)


@cache
def style() -> str:
    """Return the style of charts."""
    return (STATIC / "uPlot.min.css").read_text() + (STATIC / "chart.css").read_text()


@cache
def script(*, styled: bool = True) -> str:
    """Return the script, an ECMAScript module, with its tables of colours.

    Unless it is ``styled``, the page has the `style` in a file of its own.
    """
    tables = {
        "STYLE": style() if styled else "",
        "COLORS": COLORS,
        "DARK_FORMS": dict(zip(COLORS, DARK.colors, strict=True)),
        "VIRIDIS": [_parts(color) for color in VIRIDIS],
        "BLUES": [_parts(color) for color in BLUES],
        "OUTLIER_QUANTILE_SHARE": OUTLIER_QUANTILE_SHARE,
        "OUTLIER_REACH_FACTOR": OUTLIER_REACH_FACTOR,
    }
    named = [f"const {name} = {json.dumps(table)};" for name, table in tables.items()]
    return "\n".join([*named, *((STATIC / name).read_text() for name in _PARTS)])


def _parts(color: str) -> list[int]:
    return [int(color[i : i + 2], 16) for i in (1, 3, 5)]
