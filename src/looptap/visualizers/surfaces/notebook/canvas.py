"""`Canvas`: the widget that shows changing pictures in the plane, by uPlot.

The code of the page is held once, by a model of its own; a canvas carries some lines that load it.
"""

from __future__ import annotations

import uuid
from functools import cache
from typing import Any

import anywidget
import traitlets

from looptap.visualizers.surfaces.live.frame_channel import Asked, FrameChannel
from looptap.visualizers.surfaces.notebook.kernels import answer_anywhere, pulse, quietly
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

    def __init__(self, on_ask: Asked = lambda message: None, *, height: int = 300, still: str = "") -> None:
        code = f"IPY_MODEL_{library().model_id}"
        super().__init__(library=code, identity=uuid.uuid4().hex, still=still, height=height)
        self.channel = FrameChannel(on_ask)
        self.on_msg(self._message)
        answer_anywhere(self)
        quietly(self)

    def _message(self, widget: Any, message: Any, buffers: Any) -> None:
        pulse.hear()
        self.channel.take(message)

    def watched(self, now: float) -> bool:
        """Return whether a page draws the frames."""
        pulse.beat(now)
        return self.channel.watched(now, deaf=pulse.deaf(now))

    def deaf(self, now: float) -> bool:
        """Return whether the kernel holds up all messages until the running cell ends."""
        return pulse.deaf(now)

    def ready(self) -> bool:
        """Return whether the pages can take another frame."""
        return self.channel.ready()
