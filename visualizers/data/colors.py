"""The colours of streams: each name keeps its own while there are enough."""

from __future__ import annotations

from collections.abc import Sequence

COLORS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f", "#bcbd22", "#17becf")
"""Assigned to names of streams in order of appearance."""
DASHES = ("solid", "dash", "dot", "dashdot")
"""The next dash for every ten names, whose colours repeat."""
_MAX_NAMES = 10_000


class Palette:
    """The colour of each name; charts that are seen together share a palette.

    >>> palette = Palette()
    >>> palette.color("loss") != palette.color("error"), palette.color("loss") == palette.color("loss")
    (True, True)
    """

    def __init__(self) -> None:
        self._places: dict[str, int] = {}

    def place(self, name: str) -> int:
        """Return how many names came before this one."""
        if name not in self._places and len(self._places) >= _MAX_NAMES:
            self._places.clear()
        return self._places.setdefault(name, len(self._places))

    def color(self, name: str, but: Sequence[str] = ()) -> str:
        """Return the colour of a name, as #rrggbb; the next one if that is among ``but``."""
        place = self.place(name)
        following = (COLORS[(place + step) % len(COLORS)] for step in range(len(COLORS)))
        return next((color for color in following if color not in but), COLORS[place % len(COLORS)])

    def dash(self, name: str) -> str:
        """Return the dash of a name: solid, dash, dot or dashdot."""
        return DASHES[self.place(name) // len(COLORS) % len(DASHES)]
