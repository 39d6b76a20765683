"""The receiver that a transport knows: it does not keep a run alive that nobody else uses."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from looptap.protocol import messages as m
from looptap.protocol.errors import LinkError
from looptap.streams.stream.feed import FAILED

if TYPE_CHECKING:
    from looptap.client.session.session import Session


class WeakReceiver:
    """Passes on to a session what its transport has to say, as long as somebody else holds the session."""

    def __init__(self, run: Session) -> None:
        self._run = weakref.ref(run)

    def on_frame(self, frame: bytes) -> None:
        """A frame of the agent."""
        if (run := self._run()) is not None:
            run._on_frame(frame)

    def on_tick(self) -> None:
        """A second has passed."""
        if (run := self._run()) is not None:
            run._on_tick()

    def on_lost(self, error: LinkError) -> None:
        """The link is down."""
        if (run := self._run()) is not None:
            run._on_lost(error)

    def on_back(self) -> None:
        """There is a new link."""
        if (run := self._run()) is not None:
            run._on_back()

    def on_next(self, run: m.RunInfo) -> None:
        """The link leads to the next run."""
        if (living := self._run()) is not None:
            living._on_next(run)

    def on_end(self, error: LinkError) -> None:
        """There will be no further link."""
        if (run := self._run()) is not None:
            run._over(FAILED, error)
