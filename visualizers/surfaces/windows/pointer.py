"""`Pointer`: all values at the x of the mouse, and a line there on every chart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from looptap.streams.text import cut
from looptap.visualizers.drawing.backends.matplotlib_axes import PlaneView
from looptap.visualizers.drawing.backends.matplotlib_marks import PLAIN, SMALL_FONT_POINTS, placed, shown, theme_of
from looptap.visualizers.drawing.layouts import time_words
from looptap.visualizers.drawing.picture import Line, Points
from looptap.visualizers.surfaces.windows.window_part import WindowPart

MAX_VALUE_LINES = 12
"""The most values in the box: those of the first lines."""
_NEAR_POINT_PIXELS = 12  # from the mouse to a point of a scatter that it means
_BOX_GAP_PIXELS = 14


class Pointer:
    """A box of values beside the mouse, and a line on charts over the same x."""

    def __init__(self, figure: Any) -> None:
        theme = theme_of(figure)
        box = {"facecolor": theme.ground, "edgecolor": theme.muted, "boxstyle": "round,pad=0.3", "alpha": 0.95}
        self._text = figure.text(
            0, 0, "", color=theme.ink, fontsize=SMALL_FONT_POINTS, bbox=box, va="top", zorder=20, **PLAIN
        )
        self._text.set_animated(True)
        self._text.set_visible(False)
        self._color = theme.muted
        self._lines: dict[Any, Any] = {}

    @property
    def artists(self) -> list[Any]:
        """What is drawn over everything else."""
        return [
            *(line for line in self._lines.values() if line.get_visible()),
            *([self._text] * self._text.get_visible()),
        ]

    def move(self, event: Any, parts: Sequence[WindowPart]) -> bool:
        """Follow the mouse; return whether something has to be drawn."""
        before = bool(self.artists)
        planes = [(part, view) for part in parts for view in part.drawing.views if isinstance(view, PlaneView)]
        self._lines = {view.axes: self._lines.get(view.axes) or self._line(view.axes) for _, view in planes}
        over = next((one for one in planes if event.inaxes in (one[1].axes, one[1].right)), None)
        said = [] if over is None or event.xdata is None else values_at(*over, event)
        for part, view in planes:
            same = over is not None and part.picture.x.title == over[0].picture.x.title
            low, high = view.axes.get_xlim()
            self._lines[view.axes].set_visible(bool(said) and same and low <= event.xdata <= high)
            self._lines[view.axes].set_xdata([event.xdata, event.xdata])
        self._text.set_visible(bool(said))
        if said:
            self._say("\n".join(said), event)
        return before or bool(self.artists)

    def _line(self, axes: Any) -> Any:
        line = axes.axvline(0.0, color=self._color, linewidth=0.8)
        line.set_animated(True)
        return line

    def _say(self, text: str, event: Any) -> None:
        figure = self._text.get_figure(root=True)
        width, height = figure.bbox.width, figure.bbox.height
        on_the_right = event.x > width / 2
        self._text.set_text(text)
        self._text.set_ha("right" if on_the_right else "left")
        aside = -_BOX_GAP_PIXELS if on_the_right else _BOX_GAP_PIXELS
        self._text.set_position(((event.x + aside) / width, event.y / height))


def values_at(part: WindowPart, view: Any, event: Any) -> list[str]:
    """Return the lines of the box: x, then name and value of all that is there."""
    picture = part.drawing.picture
    found: list[str] = []
    at: float | None = None
    for mark in picture.marks:
        if isinstance(mark, Line) and mark.name and mark.z is None and np.isfinite(mark.y).any():
            far = np.abs(placed(mark.x, picture.x) - event.xdata)
            index = int(np.nanargmin(np.where(np.isfinite(mark.y), far, np.inf)))
            at = float(mark.x[index]) if at is None else at
            found.append(f"{cut(shown(mark.name), 40)}  {mark.y[index]:.5g}")
        elif isinstance(mark, Points) and mark.name and mark.z is None and len(mark.x):
            axes = view.right if mark.side == "right" and view.right else view.axes
            places = axes.transData.transform(np.column_stack([placed(mark.x, picture.x), mark.y]))
            away = np.hypot(*(places - (event.x, event.y)).T)
            index = int(np.nanargmin(np.where(np.isfinite(away), away, np.inf)))
            if away[index] < _NEAR_POINT_PIXELS:
                label = getattr(mark, "labels", ())[index : index + 1]
                name = label[0] if label else mark.name
                found.append(f"{cut(shown(str(name)), 40)}  ({mark.x[index]:.5g}, {mark.y[index]:.5g})")
    if len(found) > MAX_VALUE_LINES:
        found = [*found[:MAX_VALUE_LINES], f"and {len(found) - MAX_VALUE_LINES} more"]
    if at is None:
        return found
    return [f"{shown(picture.x.title) or 'x'} {time_words(at) if picture.x.time else f'{at:.6g}'}", *found]
