"""Draws pictures with matplotlib: `draw` creates artists, `Drawing` updates them."""

from __future__ import annotations

import textwrap
from collections.abc import Hashable, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from looptap.streams.text import cut
from looptap.visualizers.drawing.backends.matplotlib_axes import Change, Place, PlaneView, SpaceView, tint
from looptap.visualizers.drawing.backends.matplotlib_marks import (
    LARGE_FONT_POINTS,
    SMALL_FONT_POINTS,
    draw_words,
    drawable,
    theme_of,
)
from looptap.visualizers.drawing.backends.matplotlib_panels import GridView, ImagesView, LettersView, PieView
from looptap.visualizers.drawing.layouts import arrange, frame_words, panels, structure
from looptap.visualizers.drawing.picture import PanelKind, Picture
from looptap.visualizers.drawing.sanitize import sanitize

VIEWS: dict[PanelKind, Any] = {
    "plane": PlaneView,
    "space": SpaceView,
    "grid": GridView,
    "images": ImagesView,
    "pie": PieView,
    "table": LettersView,
    "text": LettersView,
}

_TEXT_LINE_INCHES = 0.16  # inches that a line of small letters takes
_MAX_BADGES = 3
_MAX_GUESS_LINES = 2


def draw(picture: Picture, target: Any) -> Drawing:
    """Draw a picture on a figure, on a part of one, or in place of axes.

    pyplot is neither used nor changed. Axes are removed; they must come from `subplots` or `add_subplot`, else
    ValueError is raised.

    >>> from looptap.visualizers.drawing.picture import Line, Picture, PanelKind
    >>> drawing = draw(Picture((Line([0, 1], [2, 3], name="loss"),)), new_figure())
    >>> drawing.update(Picture((Line([0, 1], [2, 3.05], name="loss"),)))
    'data'
    """
    if isinstance(target, Axes):
        spot = target.get_subplotspec()
        if spot is None:
            raise ValueError("These axes stand in no grid; hand over their figure, or axes that subplots() made.")
        figure = target.figure
        target.remove()
        target = figure.add_subfigure(spot)
    return Drawing(target, picture)


def draw_all(pictures: Sequence[Picture], figure: Any, rows: int | None = None) -> list[Drawing]:
    """Draw several pictures on a figure, in ``rows`` rows or as suits its shape."""
    if len(pictures) == 1:
        return [draw(pictures[0], figure)]
    width, height = figure.get_size_inches()
    down, across = arrange(max(1, len(pictures)), rows, 1.5 * 1.5 * height / width)
    parts = figure.subfigures(down, across, squeeze=False).ravel()
    drawings = [Drawing(part, picture) for part, picture in zip(parts, pictures, strict=False)]
    align(drawings, across)
    return drawings


def align(drawings: Sequence[Drawing], columns: int) -> None:
    """Align the axes of a grid: tops and bottoms of a row, left sides of a column."""
    for drawing in drawings:
        drawing.pad(0.0, 0.0, 0.0)
    insets = {i: found for i, drawing in enumerate(drawings) if (found := drawing.insets) is not None}
    for i, (left, bottom, top) in insets.items():
        row = [one for other, one in insets.items() if other // columns == i // columns]
        column = [one for other, one in insets.items() if other % columns == i % columns]
        drawings[i].pad(
            max(one[0] for one in column) - left, max(one[1] for one in row) - bottom, max(one[2] for one in row) - top
        )


def new_figure(width: float = 6.4, height: float = 4.2, dpi: float = 100) -> Figure:
    """Return a figure in inches that renders to memory, unknown to pyplot."""
    figure = Figure(figsize=(width, height), dpi=dpi)
    FigureCanvasAgg(figure)
    return figure


class Drawing:
    """A picture on a figure or part of one; used by the figure's thread only."""

    def __init__(self, figure: Any, picture: Picture) -> None:
        self.figure = figure
        self.views: list[Any] = []
        self._pad = (0.0, 0.0, 0.0)
        self._build(sanitize(picture, theme_of(figure)))

    @property
    def artists(self) -> list[Any]:
        """The artists that a "data" update changed, in drawing order, for blitting."""
        return [*(artist for view in self.views for artist in view.artists), self._frame, *self._notices]

    def update(self, picture: Picture) -> Change:
        """Show the next picture, and return what has to be redrawn.

        "data": only data was set, redraw `artists`. "limits": data was set and limits moved, redraw the whole canvas.
        "structure": the marks are others, everything was redrawn.
        """
        picture, theme = sanitize(picture, theme_of(self.figure)), theme_of(self.figure)
        same = theme == self._theme and structure(picture) == self._structure
        same = same and len(self._wrapped(picture.guess)) == self._guess_lines
        if not same or len(picture.badges) > len(self._notices):
            self._build(picture)
            return "structure"
        changes = {view.set(panel, picture) for view, panel in zip(self.views, panels(picture), strict=True)}
        self._say(picture)
        return "limits" if "limits" in changes else "data"

    @property
    def picture(self) -> Picture:
        """The picture that is shown, as it was made safe to draw."""
        return self._picture

    @property
    def insets(self) -> tuple[float, float, float] | None:
        """Inches left of, below and above the axes, if there is one panel that has axes."""
        if len(self.views) != 1 or not hasattr(self.views[0], "margins"):
            return None
        left, bottom, _, top = self.views[0].margins
        return left, bottom + self._footer, top + self._header

    def pad(self, left: float, bottom: float, top: float) -> None:
        """Leave more room beside the axes, in inches, than they need."""
        if self._pad != (left, bottom, top):
            self._pad = (left, bottom, top)
            self.layout()

    def layout(self) -> None:
        """Arrange everything again after the figure was resized."""
        for i, view in enumerate(self.views):
            view.place(self._placing(i, len(self.views)))
            view.set(self._panels[i], self._picture)
        self._say(self._picture)

    def _build(self, picture: Picture) -> None:
        self.figure.clear()
        self._structure: Hashable = structure(picture)
        self._theme = theme = theme_of(self.figure)
        found = panels(picture)
        self._guess_lines = len(self._wrapped(picture.guess))
        self._header = 0.05 + _TEXT_LINE_INCHES * (1.4 * bool(picture.title or picture.frame) + self._guess_lines)
        count = min(_MAX_BADGES, len(picture.badges))
        self._footer = _TEXT_LINE_INCHES * count + 0.04 * bool(count)
        self._title = draw_words(self.figure, 0, 0, "", fontsize=LARGE_FONT_POINTS, fontweight="bold", va="top")
        self._guess = draw_words(self.figure, 0, 0, "", color=theme.muted, va="top")
        self._frame = draw_words(self.figure, 0, 0, "", color=theme.muted, va="top", ha="right")
        self._notices = [draw_words(self.figure, 0, 0, "", color=theme.warning, va="bottom") for _ in picture.badges]
        places = [self._placing(i, len(found)) for i in range(len(found))]
        self.views = [
            VIEWS[panel.kind](self.figure, place, panel, picture) for panel, place in zip(found, places, strict=True)
        ]
        for axes in self.figure.axes:
            tint(axes)
        self._say(picture)

    def _letters(self) -> int:
        """Return how many small characters the width holds."""
        return int(self._inches()[0] * 72 / (0.6 * SMALL_FONT_POINTS))

    def _wrapped(self, text: str, most: int = _MAX_GUESS_LINES) -> list[str]:
        """Return a text in the lines that it may take."""
        return textwrap.wrap(text, max(20, self._letters()), max_lines=most, placeholder=" …") if most else []

    def _inches(self) -> tuple[float, float]:
        """Return width and height of the figure, or of the part that is drawn on."""
        root = self.figure.get_figure(root=True)
        width, height = root.get_size_inches()
        return (
            max(0.5, float(width * self.figure.bbox.width / max(1.0, root.bbox.width))),
            max(0.5, float(height * self.figure.bbox.height / max(1.0, root.bbox.height))),
        )

    def _placing(self, index: int, count: int) -> Place:
        """Return the `Place` of the index-th panel: margins in inches to figure parts."""
        width, height = self._inches()
        rows, columns = arrange(count, None, 1.5 * 1.5 * height / width)
        row, column = divmod(index, columns)
        wide, tall = width / columns, max(0.3, height - self._header - self._footer) / rows

        def place(left: float, bottom: float, right: float, top: float) -> tuple[float, float, float, float]:
            left, bottom, top = left + self._pad[0], bottom + self._pad[1], top + self._pad[2]
            across, up = min(left + right, 0.7 * wide), min(bottom + top, 0.7 * tall)
            share, above = left / (left + right or 1), bottom / (bottom + top or 1)
            return (
                (column * wide + across * share) / width,
                (self._footer + (rows - 1 - row) * tall + up * above) / height,
                (wide - across) / width,
                (tall - up) / height,
            )

        return place

    def _say(self, picture: Picture) -> None:
        """Show the title, guess, frame and badges, cut to what the width holds."""
        self._picture, self._panels = picture, panels(picture)
        width, height = self._inches()
        letters = self._letters()
        self._frame.set(position=(1 - 0.08 / width, 1 - 0.07 / height), text=frame_words(picture))
        room = int(letters * SMALL_FONT_POINTS / LARGE_FONT_POINTS * 0.95) - (
            len(frame_words(picture)) + 2 if picture.frame else 0
        )
        title = cut(drawable(picture.title, weight="bold"), room)
        self._title.set(position=(0.08 / width, 1 - 0.05 / height), text=title)
        top = 1 - (self._header - _TEXT_LINE_INCHES * self._guess_lines) / height
        guess = self._wrapped(picture.guess, self._guess_lines)
        self._guess.set(position=(0.08 / width, top), text="\n".join(map(drawable, guess)))
        badges = list(picture.badges)
        if len(badges) > _MAX_BADGES:
            first, rest = badges[: _MAX_BADGES - 1], badges[_MAX_BADGES - 1 :]
            badges = [*first, f"… and {len(rest)} more: {rest[0]}"]
        for i, text in enumerate(self._notices):
            line = cut(drawable("⚠ " + badges[i]), letters) if i < len(badges) else ""
            text.set(position=(0.08 / width, (self._footer - 0.02 - _TEXT_LINE_INCHES * (i + 1)) / height), text=line)
