"""`Pointer`: values at the x of the mouse, a line on all charts, a sample."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from looptap.streams.text import cut
from looptap.visualizers.drawing.backends.matplotlib_axes import PlaneView
from looptap.visualizers.drawing.backends.matplotlib_marks import (
    PLAIN,
    SMALL_FONT_POINTS,
    drawable,
    placed,
    theme_of,
)
from looptap.visualizers.drawing.layouts import time_words
from looptap.visualizers.drawing.picture import Axis, Line, Points
from looptap.visualizers.surfaces.windows.window_part import WindowPart

MAX_VALUE_LINES = 12
"""The most values in the box: those of the first lines."""
_NEAR_POINT_PIXELS = 12  # from the mouse to a point of a scatter that it means
_BOX_GAP_PIXELS = 14
_SAMPLE_PIXELS = 96  # about the size of the picture that a point stands for


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
        self._sample = figure.figimage(np.zeros((1, 1, 3), np.uint8), zorder=21)
        self._sample.set_animated(True)
        self._sample.set_visible(False)
        self._color = theme.muted
        self._lines: dict[Any, Any] = {}

    @property
    def artists(self) -> list[Any]:
        """What is drawn over everything else."""
        return [
            *(line for line in self._lines.values() if line.get_visible()),
            *(one for one in (self._text, self._sample) if one.get_visible()),
        ]

    def move(self, event: Any, parts: Sequence[WindowPart]) -> bool:
        """Follow the mouse; return whether something has to be drawn."""
        before = bool(self.artists)
        planes = [(part, view) for part in parts for view in part.drawing.views if isinstance(view, PlaneView)]
        self._lines = {view.axes: self._lines.get(view.axes) or self._line(view.axes) for _, view in planes}
        over = next((one for one in planes if event.inaxes in one[1].planes.values()), None)
        said = [] if over is None or event.xdata is None else values_at(*over, event)
        at = 0.0 if over is None else _x_of(over[1].axes, event)
        for part, view in planes:
            same = over is not None and part.picture.x.title == over[0].picture.x.title
            low, high = view.axes.get_xlim()
            self._lines[view.axes].set_visible(bool(said) and same and low <= at <= high)
            self._lines[view.axes].set_xdata([at, at])
        self._text.set_visible(bool(said))
        sample = None if over is None else sample_at(*over, event)
        self._sample.set_visible(sample is not None)
        if sample is not None:
            self._show(sample, event)
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

    def _show(self, sample: Any, event: Any) -> None:
        """Show the picture that a point stands for, beside the mouse and over the box."""
        zoom = max(1, _SAMPLE_PIXELS // max(sample.shape[:2]))
        large = sample.repeat(zoom, axis=0).repeat(zoom, axis=1)
        box = self._text.get_figure(root=True).bbox
        self._sample.set_data(large)
        self._sample.ox = min(max(0.0, event.x + _BOX_GAP_PIXELS), box.width - large.shape[1])
        self._sample.oy = min(event.y + _BOX_GAP_PIXELS, box.height - large.shape[0])


def sample_at(part: WindowPart, view: Any, event: Any) -> Any:
    """Return the picture of the point at the mouse, or None."""
    for mark in part.drawing.picture.marks:
        if isinstance(mark, Points) and mark.images and (index := _near(mark, part, view, event)) is not None:
            return mark.images[index]
    return None


def values_at(part: WindowPart, view: Any, event: Any) -> list[str]:
    """Return the lines of the box: x, then name and value of all that is there."""
    picture = part.drawing.picture
    found: list[str] = []
    at: float | None = None
    for mark in picture.marks:
        if (
            isinstance(mark, Line)
            and mark.name
            and mark.z is None
            and mark.filled is None
            and np.isfinite(mark.y).any()
        ):
            axis = (picture.top if mark.across == "top" else None) or picture.x
            far = np.abs(placed(mark.x, axis) - _x_of(view.plane_of(mark, picture), event))
            index = int(np.nanargmin(np.where(np.isfinite(mark.y), far, np.inf)))
            where = ""
            if axis is picture.x:
                at = float(mark.x[index]) if at is None else at
            else:
                where = f" at {drawable(axis.title)} {_written(float(mark.x[index]), axis)}"
            found.append(f"{cut(drawable(mark.name), 40)}  {mark.y[index]:.5g}{where}")
        elif isinstance(mark, Points) and mark.name and mark.z is None:
            near = _near(mark, part, view, event)
            if near is not None:
                found.append(f"{cut(drawable(mark.name), 40)}  ({mark.x[near]:.5g}, {mark.y[near]:.5g})")
    if len(found) > MAX_VALUE_LINES:
        found = [*found[:MAX_VALUE_LINES], f"and {len(found) - MAX_VALUE_LINES} more"]
    if at is None:
        return found
    return [f"{drawable(picture.x.title) or 'x'} {_written(at, picture.x)}", *found]


def _near(mark: Points, part: WindowPart, view: Any, event: Any) -> int | None:
    """Return the index of the point that the mouse means, or None."""
    picture = part.drawing.picture
    axis = (picture.top if mark.across == "top" else None) or picture.x
    places = view.plane_of(mark, picture).transData.transform(np.column_stack([placed(mark.x, axis), mark.y]))
    away = np.hypot(*(places - (event.x, event.y)).T)
    away = np.where(np.isfinite(away), away, np.inf)
    index = int(away.argmin()) if len(away) else 0
    return index if len(away) and away[index] < _NEAR_POINT_PIXELS else None


def _x_of(axes: Any, event: Any) -> float:
    """Return the x of the mouse on these axes."""
    return float(axes.transData.inverted().transform((event.x, event.y))[0])


def _written(at: float, axis: Axis) -> str:
    return time_words(at) if axis.time else f"{at:.6g}"
