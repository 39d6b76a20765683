"""The colours of streams: one belongs to a stream's name, as long as there are enough of them."""

from __future__ import annotations

COLORS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f", "#bcbd22", "#17becf")
"""In the order in which the names of streams come."""
DASHES = ("solid", "dash", "dot", "dashdot")
"""For the eleventh name, the 21st and so on, which has the colour of an earlier one."""
_MAX_NAMES = 10_000


class Palette:
    """Which colour has been given to which name. Charts that are seen together share one.

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

    def color(self, name: str) -> str:
        """Return the colour of that name, as #rrggbb."""
        return COLORS[self.place(name) % len(COLORS)]

    def dash(self, name: str) -> str:
        """Return the dash of that name: solid, dash, dot or dashdot."""
        return DASHES[self.place(name) // len(COLORS) % len(DASHES)]
