"""`Still`: the picture of a plot in the saved notebook, seen without a kernel.

It is an output of its own below the live one, renewed now and then; a page that shows the live one hides it. Only its
PNG is saved: some ten kilobytes a chart.
"""

from __future__ import annotations

import io
import os
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from looptap.visualizers.drawing.picture import Picture
from looptap.visualizers.surfaces.live.driver import Driver

STILL_INTERVAL_SECONDS = 10.0
"""Seconds between two stills of a plot that changes."""
_FIRST_STILL_SECONDS = 1.0
_QUIET_AFTER_SECONDS = 60.0

stills = Driver("looptap-stills")
"""The thread that draws stills: slow work that no live chart waits for."""


def png_of_pictures(pictures: Sequence[Picture], rows: int, name: str) -> bytes:
    """Return pictures in ``rows`` rows as a PNG with ``name`` in its metadata."""
    from looptap.visualizers.drawing.backends.with_matplotlib import draw_all, new_figure

    columns = -(-len(pictures) // max(1, rows))
    figure = new_figure(min(12.0, 6.4 * columns), min(24.0, 3.2 * max(1, rows)), dpi=72)
    draw_all(pictures, figure, rows)
    file = io.BytesIO()
    figure.savefig(file, format="png", metadata={"Comment": name, "Software": None})
    return file.getvalue()


class Still:
    """The still of a plot: ``pictures`` and their rows, ``living`` if it may change."""

    def __init__(self, pictures: Callable[[], tuple[list[Picture], int]], living: Callable[[], bool]) -> None:
        self.name = f"looptap-{uuid.uuid4().hex[:12]}"
        self._pictures, self._living = pictures, living
        self._closed = False
        self._last: bytes = b""

    @staticmethod
    def wanted() -> bool:
        """Return whether this notebook hides the still beside the live chart."""
        return not ("VSCODE_PID" in os.environ or "COLAB_RELEASE_TAG" in os.environ or "VOILA_KERNEL" in os.environ)

    def display(self) -> None:
        """Display it below the last output; it is drawn later."""
        from IPython.display import display

        display({"text/plain": ""}, raw=True, display_id=self.name)
        stills.add(self, _FIRST_STILL_SECONDS)

    def close(self) -> None:
        """Stop renewing it."""
        self._closed = True

    def step(self, now: float) -> float | None:
        """Redraw it if it has changed."""
        if self._closed:
            return None
        living = self._living()
        pictures, rows = self._pictures()
        made = png_of_pictures(pictures, rows, self.name)
        if made != self._last:
            self._publish(made)
            self._last = made
            return STILL_INTERVAL_SECONDS if living else None
        return min(_QUIET_AFTER_SECONDS, 2 * STILL_INTERVAL_SECONDS) if living else None

    def _publish(self, image: bytes) -> None:
        from IPython.display import update_display

        data: dict[str, Any] = {"image/png": image, "text/plain": "a chart of looptap"}
        update_display(data, raw=True, display_id=self.name)
