"""`WindowView`: scales, smoothing and x of the charts of a window."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from looptap.visualizers.charts.chart import Chart
from looptap.visualizers.drawing.view import View
from looptap.visualizers.surfaces.windows.window_part import ORDERS, WindowPart

_SMOOTHING_SHARE = (0.0, 0.6, 0.9, 0.97)  # in turn, by the key


class WindowView:
    """Scales, smoothing and x of all charts of a window at once.

    ``order`` is that of the names of lines: "" as they are drawn, "name" or "value". ``save`` writes a file of that
    suffix, ``copy`` takes a text to the clipboard.
    """

    def __init__(
        self, parts: Callable[[], list[WindowPart]], save: Callable[[str], object], copy: Callable[[str], object]
    ) -> None:
        self._parts, self._save, self._copy = parts, save, copy
        self.order = ""
        self._first: dict[int, tuple[View, str]] = {}  # as the charts came

    @property
    def buttons(self) -> list[tuple[str, Callable[[], str], Callable[[], object]]]:
        """The name, the text and the action of each button."""
        return [
            ("log", lambda: f"log: {'on' if self.log else 'off'} (l)", self.toggle_log),
            ("clip", lambda: f"outliers: {'out' if self.clip else 'in'} (c)", self.toggle_clip),
            ("x", lambda: f"x: {self.x or 'auto'} (x)", self.next_x),
            ("order", lambda: f"names: {self.order or 'drawn'} (n)", self.next_order),
            ("csv", lambda: "save CSV (d)", self.save_table),
            ("reset", lambda: "reset (r)", self.reset),
        ]

    def pressed(self, key: str | None) -> bool:
        """Run the action of a key; return whether it has one."""
        keys: dict[str | None, Callable[[], object]] = {
            "l": self.toggle_log,
            "e": self.next_smoothing,
            "c": self.toggle_clip,
            "x": self.next_x,
            "v": self.turn,
            "n": self.next_order,
            "d": self.save_table,
            "g": self.save_drawing,
            "y": self.copy_queries,
            "ctrl+c": self.copy_queries,
            "s": self.save_picture,
            "ctrl+s": self.save_picture,
        }
        if key not in keys:
            return False
        keys[key]()
        return True

    def save_table(self) -> None:
        """Write all kept numbers as CSV."""
        self._save(".csv")

    def save_picture(self) -> None:
        """Write the window as PNG."""
        self._save(".png")

    def save_drawing(self) -> None:
        """Write the window as SVG."""
        self._save(".svg")

    def copy_queries(self) -> None:
        """Copy the queries of all charts, a line each."""
        queries = [stream.text or stream.name for part in self._parts() for stream in part.cell.streams]
        self._copy("\n".join(dict.fromkeys(queries)))

    def turn(self) -> None:
        """Draw the values of each chart as the next kind that shows them, if any."""
        for part in self._parts():
            part.turn()

    @property
    def log(self) -> bool:
        """True if any chart has a logarithmic y axis."""
        return any(part.picture.y.log for part in self._parts())

    @property
    def clip(self) -> bool:
        """True if outliers are left out of the limits."""
        return any(chart.view.clip for chart in self._charts())

    @property
    def smoothing(self) -> float:
        """The largest smoothing of a chart."""
        return max((chart.view.smooth for chart in self._charts()), default=0.0)

    @property
    def x(self) -> str:
        """What the first chart is drawn over."""
        return next((chart.x for chart in self._charts() if chart.xs), "")

    def toggle_log(self) -> None:
        """Switch all y axes to logarithms, or back."""
        log = "" if self.log else "y"
        for chart in self._charts():
            chart.view.log = log

    def toggle_clip(self) -> None:
        """Leave outliers out of the limits, or take them in again."""
        clip = not self.clip
        for chart in self._charts():
            chart.view.clip = clip

    def smooth(self, weight: float) -> None:
        """Smooth all lines."""
        for chart in self._charts():
            chart.view.smooth = min(max(0.0, weight), 0.999)

    def next_smoothing(self) -> None:
        """Smooth more, and after the most not at all."""
        now = self.smoothing
        self.smooth(next((weight for weight in _SMOOTHING_SHARE if weight > now + 0.005), 0.0))

    def next_x(self) -> None:
        """Draw over the next of step, epoch, event, seconds, time of day."""
        now = self.x
        for chart in self._charts():
            if xs := ["", *chart.xs]:
                chart.x = xs[(xs.index(now) + 1) % len(xs)] if now in xs else ""

    def next_order(self) -> None:
        """Sort the names of lines by name, by their newest value, or not at all."""
        self.order = ORDERS[(ORDERS.index(self.order) + 1) % len(ORDERS)]
        for part in self._parts():
            part.dirty = True

    def reset(self) -> None:
        """Show the charts as they came."""
        self.order = ""
        for part in self._parts():
            part.hidden.clear()
            part.dirty = True
        for chart in self._charts():
            view, chart.x = self._first[id(chart)]
            chart.view = replace(view)

    def _charts(self) -> Iterator[Chart]:
        charts: list[Any] = [part.cell.chart for part in self._parts() if part.cell.chart is not None]
        for chart in charts:
            self._first.setdefault(id(chart), (replace(chart.view), chart.x))
            yield chart
