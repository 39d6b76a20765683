"""`FrameChannel`: tracks which frame each page has, and builds the next delta."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from looptap.visualizers.surfaces.live.browser_pages import BrowserPages
from looptap.visualizers.surfaces.pages.frames import CanvasFrame, SentFrame

MAX_PAGE_NAME_CHARACTERS = 40
"""Characters of the name that a page gives itself."""

Asked = Callable[[dict[str, Any]], None]
"""Takes a request of a page: to seek a frame, to play, to draw as another kind."""


class LiveCanvas(Protocol):
    """A place where a chart is shown: a widget of a notebook, or a part of a page."""

    @property
    def channel(self) -> FrameChannel:
        """The frame that each page has acknowledged, and the next one to send."""

    def watched(self, now: float) -> bool:
        """Return whether a page draws the frames."""

    def deaf(self, now: float) -> bool:
        """Return whether pages cannot be heard at present."""

    def ready(self) -> bool:
        """Return whether the pages can take another frame."""

    def send(self, content: dict[str, Any], buffers: list[memoryview]) -> None:
        """Send a frame. Does not block."""

    def close(self) -> None:
        """Free the canvas."""


class FrameChannel:
    """The frames of one chart for its pages, for any thread.

    ``asked`` is called with what a page asks for. With ``coarse_start`` a page that opens gets a short form first: all
    points of a long line are megabytes, and a slow link shows nothing until they are there.
    """

    def __init__(self, asked: Asked, *, coarse_start: bool = False) -> None:
        self._guard = threading.Lock()
        self._pages, self._sent = BrowserPages(), SentFrame()
        self._number = 0
        self._full = True
        self._coarse_start = self._coarse_next = coarse_start
        self._asked = asked

    def take(self, message: dict[str, Any]) -> None:
        """Take a message of a page."""
        kind, page = message.get("t"), str(message.get("page", ""))[:MAX_PAGE_NAME_CHARACTERS]
        now = time.monotonic()
        with self._guard:
            if kind == "ready":
                self._pages.heard(page, self._number, now)
                self._full, self._coarse_next = True, self._coarse_start
            elif kind == "ack" and isinstance(number := message.get("n"), int):
                self._pages.heard(page, min(number, self._number), now, bool(message.get("hidden")))
            elif kind == "left":
                self._pages.left(page)
        if kind not in ("ack", "left"):
            self._asked(message)

    def watched(self, now: float, *, deaf: bool = False) -> bool:
        """Return whether a page draws the frames."""
        with self._guard:
            return self._pages.there(self._number, now, deaf=deaf)

    def ready(self) -> bool:
        """Return whether the pages can take another frame."""
        with self._guard:
            return self._pages.ready(self._number)

    @property
    def hidden(self) -> bool:
        """True if the canvas is out of sight on all pages."""
        return self._pages.hidden

    @property
    def behind(self) -> bool:
        """True if a page needs the whole frame again."""
        return self._full

    def made(self, frame: CanvasFrame, *, blind: bool = False, made: float) -> tuple[dict[str, Any], list[memoryview]]:
        """Return the changes of ``frame`` that pages have not received.

        ``made`` is when its newest value came; ``blind`` asks for a short form, for pages that have not answered.
        """
        with self._guard:
            full = self._full or blind
            coarse = blind or (full and self._coarse_next)
            self._full = full and coarse and not blind  # the whole of it follows
            self._coarse_next = False
            self._number += 1
            ask = self._pages.sent(self._number, time.monotonic())
            message, buffers = self._sent.update(frame, full=full, coarse=coarse)
            message |= {"t": "frame", "n": self._number, "time": made, "ask": ask}
        return message, buffers
