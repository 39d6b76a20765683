"""Pictures as one HTML file: the charts of a notebook without a kernel.

The file opens offline and keeps what a page can do by itself: zoom, scales, smoothing, other x, hover, files. It has no
more than the script and the numbers, 110 kB for a line.
"""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Mapping, Sequence
from typing import Any

from looptap.visualizers.drawing.layouts import arrange
from looptap.visualizers.drawing.picture import Picture
from looptap.visualizers.surfaces.pages.frames import SentFrame, frame_of
from looptap.visualizers.surfaces.pages.script import STATIC, script

_STYLE = """
:root { color-scheme: light dark; --jp-ui-font-color1: #222; }
body { margin: 12px; background: #fff; font: 13px system-ui, sans-serif; }
#charts { display: grid; gap: 12px; }
@media (prefers-color-scheme: dark) { :root { --jp-ui-font-color1: #f2f2f2; } body { background: #111; } }
"""
_PLOT_PIXELS = (360, 280, 220)
"""Pixels of a plot in one, two, and more rows."""


def html_of(
    pictures: Sequence[Picture],
    rows: int | None = None,
    *,
    title: str = "looptap",
    reload_seconds: float | None = None,
    over: Sequence[Mapping[str, Picture]] = (),
) -> str:
    """Return the file; it reloads itself after ``reload_seconds`` if they are given.

    ``over`` has the pictures of each chart over every x that its reader may choose, in place of ``pictures``.
    """
    every = over or [{picture.offers.get("over", ""): picture} for picture in pictures]
    down, across = arrange(len(pictures), rows)
    height = _PLOT_PIXELS[min(down, len(_PLOT_PIXELS)) - 1]
    parts: dict[str, int] = {}  # what the pictures of a chart have in common is written once
    charts = [{"height": height, "over": {x: _frame(one, parts) for x, one in shown.items()}} for shown in every]
    data = json.dumps({"charts": charts, "parts": list(parts)}).replace("<", "\\u003c")
    refresh = "" if reload_seconds is None else f'<meta http-equiv="refresh" content="{reload_seconds:g}">'
    columns = f"repeat(auto-fill, minmax(min(100%, max(300px, 100% / {across} - 12px)), 1fr))"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">{refresh}<title>{html.escape(title)}</title>'
        f"<style>{_STYLE}</style></head>"
        f'<body><div id="charts" style="grid-template-columns: {columns}"></div>'
        f'<script type="application/json" id="data">{data}</script>'
        f'<script type="module">\n{script()}\n{(STATIC / "page.js").read_text()}</script></body></html>\n'
    )


def _frame(picture: Picture, parts: dict[str, int]) -> dict[str, Any]:
    frame = frame_of(picture)
    frame.layout["playing"] = False
    message, buffers = SentFrame().update(frame, full=True)
    texts = [base64.b64encode(part).decode() for part in buffers]
    return {"message": message, "buffers": [parts.setdefault(text, len(parts)) for text in texts]}
