"""The receiver that a transport knows: it does not keep a run alive that nobody else uses."""

from __future__ import annotations

import weakref

from looptap.client.transport.base import Receiver
from looptap.protocol import messages as m
from looptap.protocol.errors import LinkError


class WeakReceiver:
    """Passes on to a session what its transport has to say, as long as somebody else holds the session."""

    def __init__(self, session: Receiver) -> None:
        self._session = weakref.ref(session)

    def on_frame(self, frame: bytes) -> None:
        """A frame of the agent."""
        if (session := self._session()) is not None:
            session.on_frame(frame)

    def on_tick(self) -> None:
        """A second has passed."""
        if (session := self._session()) is not None:
            session.on_tick()

    def on_lost(self, error: LinkError) -> None:
        """The link is down."""
        if (session := self._session()) is not None:
            session.on_lost(error)

    def on_back(self) -> None:
        """There is a new link."""
        if (session := self._session()) is not None:
            session.on_back()

    def on_next(self, run: m.RunInfo) -> None:
        """The link leads to the next run."""
        if (session := self._session()) is not None:
            session.on_next(run)

    def on_end(self, error: LinkError) -> None:
        """There will be no further link."""
        if (session := self._session()) is not None:
            session.on_end(error)
