"""`SpaceNotes`: the notes of a line in space, none on another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.patheffects import withStroke
from matplotlib.text import Text
from matplotlib.transforms import Bbox, IdentityTransform

from looptap.visualizers.data.numbers import Floats

_GAP_POINTS, _HALO_POINTS = 4.0, 2.0


class SpaceNotes(Artist):
    """Texts beside points in space, where the view has room; the newest go first.

    They are placed when they are drawn, for a view in space can be turned. A text that would lie on another is left
    out. A rim in the colour of the ground keeps them apart from the line.
    """

    def __init__(self, axes: Any, ground: str, **style: Any) -> None:
        super().__init__()
        self._space = axes
        self.set_zorder(5)
        self.set_in_layout(False)
        axes.add_artist(self)
        self.places: Floats = np.empty((0, 3))
        """The points of the notes."""
        self.words: list[str] = []
        self._rim: list[Any] = [withStroke(linewidth=_HALO_POINTS, foreground=ground)]
        self._style = style
        self.shown: list[tuple[str, Bbox]] = []
        """The texts that were drawn last, and where."""

    def show(self, places: Floats, words: Sequence[str]) -> None:
        """Set the points (n, 3) and their texts, the newest last."""
        self.places, self.words = places, list(words)

    def draw(self, renderer: Any) -> None:
        """Draw the texts that have room."""
        self.shown = []
        if not self.words or not self.get_visible():
            return
        across, up, _, depth = self._space.get_proj() @ np.vstack([self.places.T, np.ones(len(self.places))])
        pixels = self._space.transData.transform(np.column_stack([across / depth, up / depth]))
        gap = _GAP_POINTS * renderer.points_to_pixels(1.0)
        low, high = np.array([self._space.get_xlim(), self._space.get_ylim(), self._space.get_zlim()]).T
        inside = ((self.places >= low) & (self.places <= high)).all(axis=1)
        for word, place, seen in zip(reversed(self.words), pixels[::-1], inside[::-1], strict=True):
            for text in self._beside(word, place, gap) if seen and word else ():
                box = text.get_window_extent(renderer)
                if not any(box.overlaps(other) for _, other in self.shown):
                    text.draw(renderer)
                    self.shown.append((word, box))
                    break

    def _beside(self, word: str, place: Floats, gap: float) -> Iterator[Text]:
        """Yield the text right of its point, over, under and left of it."""
        for right, up, across, along in (
            (gap, 0.0, "left", "center"),
            (0.0, gap, "center", "bottom"),
            (0.0, -gap, "center", "top"),
            (-gap, 0.0, "right", "center"),
        ):
            text = Text(place[0] + right, place[1] + up, word, ha=across, va=along, **self._style)
            text.set_path_effects(self._rim)
            text.set_transform(IdentityTransform())
            text.set_figure(self._space.figure)
            yield text
