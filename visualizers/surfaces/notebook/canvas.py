"""`Canvas`: the widget that shows changing pictures in the plane, by uPlot.

The code of the page is held once, by a model of its own; a canvas carries some lines that load it.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from functools import cache
from typing import Any

import anywidget
import traitlets

from looptap.visualizers.surfaces.notebook.browser_pages import BrowserPages
from looptap.visualizers.surfaces.notebook.kernels import answer_anywhere, pulse, quietly
from looptap.visualizers.surfaces.pages.frames import CanvasFrame, SentFrame
from looptap.visualizers.surfaces.pages.script import STATIC, script


class Library(anywidget.AnyWidget):
    """The code of the page, as a model without a view."""

    _esm = "export default {};"
    code = traitlets.Unicode().tag(sync=True)


@cache
def library() -> Library:
    """Return the library of this process."""
    return Library(code=script())


class Canvas(anywidget.AnyWidget):
    """A widget that shows frames as fast as its pages can draw them.

    ``on_ask(message)`` is called with other requests of a page: to seek a frame, to play. ``still`` names the picture
    that stands below it in the saved notebook, and is hidden beside it.
    """

    _esm = (STATIC / "stub.js").read_text()
    library = traitlets.Unicode().tag(sync=True)
    identity = traitlets.Unicode().tag(sync=True)
    still = traitlets.Unicode().tag(sync=True)
    height = traitlets.Int(300).tag(sync=True)

    def __init__(
        self, on_ask: Callable[[dict[str, Any]], None] = lambda message: None, *, height: int = 300, still: str = ""
    ) -> None:
        code = f"IPY_MODEL_{library().model_id}"
        super().__init__(library=code, identity=uuid.uuid4().hex, still=still, height=height)
        self._guard = threading.Lock()
        self._pages, self._sent = BrowserPages(), SentFrame()
        self._number = 0
        self._full = True
        self._on_ask = on_ask
        self.on_msg(self._message)
        answer_anywhere(self)
        quietly(self)

    # ------------------------------------------------------------ what pages say

    def _message(self, widget: Any, message: Any, buffers: Any) -> None:
        pulse.hear()
        kind, page = message.get("t"), str(message.get("page", ""))[:40]
        now = time.monotonic()
        with self._guard:
            if kind == "ready":
                self._pages.heard(page, self._number, now)
                self._full = True
            elif kind == "ack" and isinstance(number := message.get("n"), int):
                self._pages.heard(page, min(number, self._number), now, bool(message.get("hidden")))
            elif kind == "left":
                self._pages.left(page)
        if kind not in ("ready", "ack", "left"):
            self._on_ask(message)

    # ------------------------------------------------------------ what they get

    def watched(self, now: float) -> bool:
        """Return whether a page draws what is sent."""
        with self._guard:
            return self._pages.there(self._number, now, deaf=pulse.deaf(now))

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
        """Return what pages lack of ``frame``, for `send`.

        ``made`` is when its newest value came; ``blind`` asks for a short form, for pages that have not answered.
        """
        with self._guard:
            full = self._full or blind
            self._full = False
            self._number += 1
            ask = self._pages.sent(self._number, time.monotonic())
            message, buffers = self._sent.update(frame, full=full, coarse=blind)
            message |= {"t": "frame", "n": self._number, "time": made, "ask": ask}
        return message, buffers
