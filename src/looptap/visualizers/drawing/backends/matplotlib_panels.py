"""matplotlib panels without limits: a matrix, images, a pie, lines of text."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from matplotlib import ticker
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.patches import Wedge

from looptap.streams.text import cut
from looptap.visualizers.data.color_scales import BLUES, VIRIDIS, is_dark_shade
from looptap.visualizers.drawing.backends.matplotlib_axes import Change, Place
from looptap.visualizers.drawing.backends.matplotlib_marks import (
    PLAIN,
    SMALL_FONT_POINTS,
    draw_words,
    drawable,
    theme_of,
)
from looptap.visualizers.drawing.layouts import Panel, caption_lines, scale, ticks, written
from looptap.visualizers.drawing.picture import Grid, Images, Picture, Pie, Table, Text

_LETTER_POINTS_SHARE, _LINE_POINTS_SHARE = 0.62, 1.25  # of the size of the font: a character wide, a line high
_PITCH_SHARE = 1.1  # of the width of an image, from one to the next
CAPTION_LINES = 2
"""Lines below an image for its label and its prediction, at least."""
_MONO = "DejaVu Sans Mono"
_MAX_WRITTEN_CELLS = 900  # cells whose numbers can be read
_MAX_NAMED_ROWS, _MAX_LEVEL_CHARACTERS = 30, 8  # longer names of columns are turned


@cache
def _colormap(stops: tuple[str, ...]) -> Any:
    return LinearSegmentedColormap.from_list("looptap", stops)


class GridView:
    """A matrix as coloured cells, with a colour scale or numbers in the cells."""

    def __init__(self, figure: Any, place: Place, panel: Panel, picture: Picture) -> None:
        grid = _single(panel, Grid)
        rows, columns = grid.cells.shape
        self.axes = figure.add_axes((0.1, 0.1, 0.8, 0.8))
        self.cells = self.axes.imshow(
            np.zeros((rows, columns)),
            aspect="auto",
            interpolation="nearest",
            cmap=_colormap(BLUES if grid.written else VIRIDIS),
        )
        self.axes.set_xlabel(drawable(picture.x.title), fontsize=SMALL_FONT_POINTS, **PLAIN)
        self.axes.set_ylabel(drawable(picture.y.title), fontsize=SMALL_FONT_POINTS, **PLAIN)
        self.axes.tick_params(labelsize=SMALL_FONT_POINTS)
        for axis in (self.axes.xaxis, self.axes.yaxis):
            axis.set_major_locator(ticker.MaxNLocator("auto", integer=True, steps=[1, 2, 5, 10]))
        self.columns = grid.columns
        if grid.rows:
            at = ticks(grid.rows, _MAX_NAMED_ROWS)
            self.axes.set_yticks([i for i, _ in at], [drawable(text) for _, text in at], **PLAIN)
        longest = max(map(len, grid.columns), default=1)
        self.turned = longest > _MAX_LEVEL_CHARACTERS
        if self.turned:
            self.axes.tick_params(axis="x", labelrotation=60)
        self.margins = (
            0.5 + 0.06 * max(map(len, grid.rows), default=3),
            0.42 + 0.05 * (longest if self.turned else 0),
            0.15 if grid.written else 0.85,
            0.25 if grid.name else 0.1,
        )
        self.axes.set_title(drawable(grid.name), fontsize=SMALL_FONT_POINTS, **PLAIN)
        self.bar = None if grid.written else figure.add_axes((0.9, 0.1, 0.02, 0.8))
        self.numbers = [
            draw_words(self.axes, j, i, "", ha="center", va="center")
            for i in range(rows)
            for j in range(columns)
            if grid.written and rows * columns <= _MAX_WRITTEN_CELLS
        ]
        if self.bar is not None:
            figure.colorbar(self.cells, cax=self.bar)
            self.bar.tick_params(labelsize=SMALL_FONT_POINTS)
        self.place(place)
        self.set(panel, picture)

    @property
    def artists(self) -> list[Any]:
        """The artists that move while the scale holds, in drawing order."""
        return [self.cells, *self.numbers]

    def place(self, place: Place) -> None:
        """Put the axes where ``place`` says."""
        left, bottom, width, height = place(*self.margins)
        self.axes.set_position((left, bottom, width, height))
        if self.columns:  # as many names as there is room for
            letters = 2 if self.turned else max(map(len, self.columns)) + 1
            inches = width * self.axes.figure.bbox.width / self.axes.get_figure(root=True).dpi
            at = ticks(self.columns, max(2, int(inches * 72 / (letters * _LETTER_POINTS_SHARE * SMALL_FONT_POINTS))))
            self.axes.set_xticks([i for i, _ in at], [drawable(text) for _, text in at], **PLAIN)
        if self.bar is not None:
            self.bar.set_position((left + 1.03 * width, bottom, 0.03 * width, height))

    def set(self, panel: Panel, picture: Picture) -> Change:
        """Show this panel, which has the structure of the previous one."""
        cells = _single(panel, Grid).cells
        self.cells.set_data(cells)
        old, (low, high) = self.cells.get_clim(), scale(cells)
        held = old[0] <= low and high <= old[1] and high - low >= 0.5 * (old[1] - old[0])
        if not held:
            self.cells.set_clim(low, high)
        low, high = self.cells.get_clim()
        for text, cell in zip(self.numbers, cells.ravel(), strict=False):
            text.set_text(written(cell))
            dark = is_dark_shade(BLUES, (cell - low) / (high - low)) if high > low else False
            text.set_color("white" if dark else "black")
        return "data" if held else "limits"


class FramelessView:
    """Axes without a frame, with small margins."""

    def __init__(self, figure: Any, left: float = 0.1) -> None:
        self.axes = figure.add_axes((0.1, 0.1, 0.8, 0.8))
        self.axes.set_axis_off()
        self._left = left

    def place(self, place: Place) -> None:
        """Put the axes where ``place`` says."""
        self.axes.set_position(place(self._left, 0.1, 0.1, 0.1))


class ImagesView(FramelessView):
    """Images in rows, each with its caption below; of a caption two lines at least."""

    def __init__(self, figure: Any, place: Place, panel: Panel, picture: Picture) -> None:
        mark = _single(panel, Images)
        super().__init__(figure)
        self._columns = mark.columns
        self._tall, self._wide = (max(image.shape[i] for image in mark.images) for i in (0, 1))
        self.images = [self.axes.imshow(image, interpolation="nearest") for image in mark.images]
        self.captions = [draw_words(self.axes, 0, 0, "", ha="center", va="top") for _ in mark.images if mark.captions]
        self._room = 0, 0
        self.place(place)
        self.set(panel, picture)

    @property
    def artists(self) -> list[Any]:
        """The artists that move, in drawing order."""
        return [*self.images, *self.captions]

    def place(self, place: Place) -> None:
        """Put the images where they are largest, in units of a pixel of theirs."""
        super().place(place)
        figure = self.axes.figure
        box = self.axes.get_position(original=True).transformed(figure.transSubfigure)
        room = box.width * 72 / figure.dpi, box.height * 72 / figure.dpi
        line, letter = _LINE_POINTS_SHARE * SMALL_FONT_POINTS, _LETTER_POINTS_SHARE * SMALL_FONT_POINTS
        count, lines = len(self.images), CAPTION_LINES if self.captions else 0
        pitch = _PITCH_SHARE * self._wide

        def points(columns: int) -> float:
            """Return the points of a pixel in so many columns."""
            rows = -(-count // columns)
            free = room[1] - rows * (lines + 0.4) * line
            return float(min(room[0] / (columns * pitch), max(free, 0.25 * room[1]) / (rows * self._tall)))

        columns = self._columns or max(range(1, count + 1), key=points)
        scale, rows = points(columns), -(-count // columns)
        height = room[1] / scale / rows  # of an image with its caption
        height = min(height, self._tall + max((lines + 0.4) * line / scale, 0.55 * self._tall * bool(lines)))
        self._room = int(pitch * scale / letter), max(1, int((height - self._tall) * scale / line))
        for i, image in enumerate(self.images):
            left, top = (i % columns) * pitch, (i // columns) * height
            down, across = image.get_array().shape[:2]
            image.set_extent((left, left + across, top + down, top))
            if self.captions:
                self.captions[i].set_position((left + self._wide / 2, top + self._tall + 0.15 * line / scale))
        self.axes.set_aspect("equal")
        self.axes.set_xlim(0, columns * pitch)
        self.axes.set_ylim(rows * height, 0)

    def set(self, panel: Panel, picture: Picture) -> Change:
        """Show this panel, which has the structure of the previous one."""
        mark = _single(panel, Images)
        for artist, image in zip(self.images, mark.images, strict=True):
            artist.set_data(image)
        for text, caption in zip(self.captions, mark.captions, strict=False):
            text.set_text("\n".join(map(drawable, caption_lines(caption, *self._room))))
        return "data"


class PieView(FramelessView):
    """Shares of a whole, clockwise from the top, with labels and percentages."""

    def __init__(self, figure: Any, place: Place, panel: Panel, picture: Picture) -> None:
        super().__init__(figure)
        self.axes.set_aspect("equal")
        self.axes.set_xlim(-1.7, 1.7)
        self.axes.set_ylim(-1.25, 1.25)
        count = len(_single(panel, Pie).shares)
        theme = theme_of(figure)
        colors = [theme.colors[i % len(theme.colors)] for i in range(count)]
        self.wedges = [Wedge((0, 0), 1, 0, 0, color=color, ec=theme.ground) for color in colors]
        self.labels = [draw_words(self.axes, 0, 0, "", va="center") for _ in range(count)]
        for wedge in self.wedges:
            self.axes.add_patch(wedge)
        self.place(place)
        self.set(panel, picture)

    @property
    def artists(self) -> list[Any]:
        """The artists that move, in drawing order."""
        return [*self.wedges, *self.labels]

    def set(self, panel: Panel, picture: Picture) -> Change:
        """Show this panel, which has the structure of the previous one."""
        mark = _single(panel, Pie)
        ends = 90 - 360 * np.concatenate([[0], np.cumsum(mark.shares)])
        for i, (wedge, text) in enumerate(zip(self.wedges, self.labels, strict=True)):
            wedge.set_theta1(ends[i + 1])
            wedge.set_theta2(ends[i])
            middle = np.deg2rad((ends[i] + ends[i + 1]) / 2)
            text.set_position((1.08 * np.cos(middle), 1.08 * np.sin(middle)))
            text.set_ha("left" if np.cos(middle) >= 0 else "right")
            seen = mark.shares[i] >= 0.02  # labels of slivers would overlap
            text.set_text(drawable(f"{mark.labels[i]} {100 * mark.shares[i]:.1f}%") if seen else "")
        return "data"


class LettersView(FramelessView):
    """A table or lines of text in a monospaced font; a note counts cut lines."""

    def __init__(self, figure: Any, place: Place, panel: Panel, picture: Picture) -> None:
        super().__init__(figure, left=0.2)
        self.text = draw_words(self.axes, 0, 1, "", va="top", fontfamily=_MONO, clip_on=True)
        self.place(place)
        self.set(panel, picture)

    @property
    def artists(self) -> list[Any]:
        """The artists that move, in drawing order."""
        return [self.text]

    def set(self, panel: Panel, picture: Picture) -> Change:
        """Show this panel."""
        box, figure = self.axes.get_position(), self.axes.get_figure(root=True)
        inches = figure.get_size_inches() * (box.width, box.height) * self._share()
        width, height = (
            max(8, int(inches[0] * 72 / (0.61 * SMALL_FONT_POINTS))),
            max(2, int(inches[1] * 72 / (1.25 * SMALL_FONT_POINTS))),
        )
        mark = panel.marks[0]
        if isinstance(mark, Table):
            lines = table_lines(mark, width)
            if len(lines) > height:
                lines = [*lines[: height - 1], f"… {len(lines) - height + 1} more rows"]
        else:
            lines = [cut(line, width) for line in _single(panel, Text).lines[-height:]]
        self.text.set_text("\n".join(drawable(line, _MONO) for line in lines))
        return "data"

    def _share(self) -> Any:
        """Return the share of the whole figure that the part with these axes takes."""
        part, whole = self.axes.figure.bbox, self.axes.get_figure(root=True).bbox
        return np.array([part.width / whole.width, part.height / whole.height])


def table_lines(table: Table, width: int) -> list[str]:
    """Return the lines of a table at most ``width`` wide; numbers align right."""
    if not table.titles:
        return []
    columns = list(zip(table.titles, *table.rows, strict=True))
    right = [bool(column[1:]) and all(_is_number(cell) for cell in column[1:]) for column in columns]
    most = max(4, width // len(columns) - 2) if sum(max(map(len, c)) + 2 for c in columns) > width else width
    sizes = [min(most, max(map(len, column))) for column in columns]
    lines = []
    for row in (table.titles, *table.rows):
        cells = [cut(cell, size) for cell, size in zip(row, sizes, strict=True)]
        padded = [cell.rjust(s) if r else cell.ljust(s) for cell, s, r in zip(cells, sizes, right, strict=True)]
        lines.append(cut("  ".join(padded).rstrip(), width))
    return [lines[0], "─" * min(width, sum(sizes) + 2 * len(sizes) - 2), *lines[1:]]


def _is_number(text: str) -> bool:
    try:
        float(text or "0")
    except ValueError:
        return False
    return True


def _single(panel: Panel, sort: type[Any]) -> Any:
    (mark,) = panel.marks
    assert isinstance(mark, sort)
    return mark
