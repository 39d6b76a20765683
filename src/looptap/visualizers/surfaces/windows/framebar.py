"""`FrameBar`: the slider under a window's charts that shows earlier frames."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from looptap.visualizers.data.colors import COLORS
from looptap.visualizers.drawing.backends.matplotlib_marks import theme_of

_WORDS = dict(fontsize=8, va="center", parse_math=False)


class FrameBar:
    """A track with a knob; calls ``moved`` with a frame's index, None for the newest."""

    def __init__(self, axes: Any, moved: Callable[[int | None], object]) -> None:
        self.axes, self._moved = axes, moved
        self._count, self._dragged = 0, False
        axes.set_axis_off()
        axes.set_xlim(-0.03, 1.03)
        axes.set_ylim(0, 1)
        theme = theme_of(axes)
        axes.plot([0, 1], [0.5, 0.5], color=theme.faint, linewidth=3, solid_capstyle="round")
        (self._knob,) = axes.plot([1], [0.5], "o", color=theme.of(COLORS[0]), markersize=9)
        self._words = axes.text(0.5, 1.05, "", ha="center", color=theme.muted, **_WORDS)
        for name, handler in (
            ("button_press_event", self._press),
            ("motion_notify_event", self._drag),
            ("button_release_event", self._release),
        ):
            axes.figure.canvas.mpl_connect(name, handler)

    @property
    def artists(self) -> list[Any]:
        """The artists that `show` changes."""
        return [self._knob, self._words] if self.axes.get_visible() else []

    def show(self, index: int, count: int) -> None:
        """Put the knob at the place of the frame."""
        self._count = count
        self._knob.set_xdata([index / max(1, count - 1) if count > 1 else 1.0])
        back = "the newest" if index >= count - 1 else f"{count - 1 - index} before the newest (End: back to it)"
        self._words.set_text(f"frame {index + 1} of {count}, {back}")

    def _press(self, event: Any) -> None:
        if event.inaxes is self.axes and self.axes.get_visible() and event.button == 1:
            self._dragged = True
            self._go(event)

    def _drag(self, event: Any) -> None:
        if self._dragged:
            self._go(event)

    def _release(self, event: Any) -> None:
        self._dragged = False

    def _go(self, event: Any) -> None:
        if event.x is None or self._count < 2:
            return
        x, _ = self.axes.transData.inverted().transform((event.x, event.y))
        index = round(min(1.0, max(0.0, float(x))) * (self._count - 1))
        self._moved(None if index >= self._count - 1 else index)
