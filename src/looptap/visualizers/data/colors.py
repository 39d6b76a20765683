"""The colours of streams and of the ground they stand on, light or dark.

The hues are those of Okabe and Ito. Each is darkened or lightened until it has a contrast of 3 : 1 to its ground and
until any two differ, to people who see no red or no green as well. A colour is named by its form on a light ground;
`Theme.of` gives the form on another.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

COLORS = ("#066299", "#af4d03", "#0ea276", "#bc6a98", "#3193c7", "#c1860e", "#222222")
"""The colours on a light ground, assigned to names in order of appearance."""
DARK_COLORS = ("#0674b4", "#d86109", "#0ea276", "#d07dab", "#52b1e5", "#e7a002", "#eeeeee")
"""The same on a dark ground."""
DASHES = ("solid", "dash", "dot", "dashdot")
"""The dashes of lines of one colour on one chart."""
_NEIGHBOURS = {0: 4, 4: 0, 1: 5, 5: 1}  # the two blues, and vermilion and orange: a pair of lines has not both
_MAX_NAMES = 10_000
_GREY_NUMBER = 0x88  # seen on a light and on a dark ground


@dataclass(frozen=True)
class Theme:
    """The ground of a chart, and the colours that can be seen on it."""

    dark: bool
    ground: str
    ink: str
    """Texts and axes."""
    muted: str
    """Texts beside them, and the lines of commands."""
    faint: str
    """The lines of a grid."""
    warning: str
    colors: tuple[str, ...]

    def of(self, color: str) -> str:
        """Return one of our colours as it is on this ground; any other as it is.

        >>> DARK.of(COLORS[0]) == DARK_COLORS[0], DARK.of("#123456")
        (True, '#123456')
        """
        return _DARK_FORMS.get(color, color) if self.dark else color


LIGHT = Theme(False, "#ffffff", "#000000", "#595959", "#cccccc", "#a04000", COLORS)
DARK = Theme(True, "#111111", "#f2f2f2", "#b0b0b0", "#3d3d3d", "#ff9f5a", DARK_COLORS)
_DARK_FORMS = dict(zip(COLORS, DARK_COLORS, strict=True))


def is_dark(red: float, green: float, blue: float) -> bool:
    """Return whether a ground of these shares of light, 0 to 1, needs light ink."""
    return 0.3 * red + 0.6 * green + 0.1 * blue < 0.5


class Palette:
    """The colour of each name; charts that are seen together share a palette.

    >>> palette = Palette()
    >>> palette.color("loss") != palette.color("error"), palette.color("loss") == palette.color("loss")
    (True, True)
    """

    def __init__(self) -> None:
        self._places: dict[str, int] = {}
        self._guard = threading.Lock()

    def color(self, name: str, but: Collection[str] = (), first: str = "") -> str:
        """Return the colour of a name, as #rrggbb.

        A new name gets ``first``, else the least used colour, if possible none of ``but``: those of its chart.
        """
        with self._guard:
            if name not in self._places:
                if len(self._places) >= _MAX_NAMES:
                    self._places.clear()
                used = Counter(self._places.values())
                pair = (
                    {COLORS[_NEIGHBOURS[i]] for i in _NEIGHBOURS if COLORS[i] in but} if len(set(but)) == 1 else set()
                )
                self._places[name] = min(
                    range(len(COLORS)),
                    key=lambda i: (COLORS[i] in but, COLORS[i] != first, COLORS[i] in pair, used[i], i),
                )
            return COLORS[self._places[name]]

    def look(self, name: str, taken: Sequence[tuple[str, str]] = (), first: str = "") -> tuple[str, str]:
        """Return the colour of a name, and a dash that no line of its chart has with it.

        ``taken`` are colour and dash of the other lines; ``first`` is the stream's own colour, for its first line.
        """
        if first and first not in COLORS:  # the user's choice
            return first, dash_for(first, taken)
        color = self.color(name, [other for other, _ in taken], first)
        return color, dash_for(color, taken)

    def clear(self) -> None:
        """Forget all names."""
        with self._guard:
            self._places.clear()


def dash_for(color: str, taken: Sequence[tuple[str, str]]) -> str:
    """Return the first dash that no line of this colour in ``taken`` has.

    The second of two lines whose colours are neighbours is dashed, too.
    Returns the rarest if all are taken.

    >>> dash_for("#000000", [("#000000", "solid")])
    'dash'
    """
    alike = {color}
    if len(taken) == 1 and color in COLORS and (near := _NEIGHBOURS.get(COLORS.index(color))) is not None:
        alike.add(COLORS[near])  # both names had their colours before
    used = Counter(dash for other, dash in taken if other in alike)
    return min(DASHES, key=lambda dash: (used[dash], DASHES.index(dash)))


def muted(color: str, times: int) -> str:
    """Return a colour mixed with grey, for the eighth class and further ones.

    >>> muted("#066299", 0), muted("#066299", 1)
    ('#066299', '#477590')
    """
    if not times:
        return color
    share = 0.5**times
    parts = [int(color[place : place + 2], 16) for place in (1, 3, 5)]
    return "#" + "".join(f"{round(share * part + (1 - share) * _GREY_NUMBER):02x}" for part in parts)


SESSION = Palette()
"""The palette of all charts of this process: a name has the same colour on each of them."""
