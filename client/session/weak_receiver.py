"""Keeps a transport from keeping alive a session that is not used any more."""

from __future__ import annotations

import weakref

from looptap.client.transport.base import Receiver
from looptap.protocol import messages as m
from looptap.protocol.errors import LinkError


class WeakReceiver:
    """Passes the calls of a transport on to its session, as long as the session is in use elsewhere."""

    def __init__(self, session: Receiver) -> None:
        self._session = weakref.ref(session)

    def on_frame(self, frame: bytes) -> None:
        """Pass on a frame of the agent."""
        if (session := self._session()) is not None:
            session.on_frame(frame)

    def on_tick(self) -> None:
        """Pass on that a second has passed."""
        if (session := self._session()) is not None:
            session.on_tick()

    def on_lost(self, error: LinkError) -> None:
        """Pass on that the link is down."""
        if (session := self._session()) is not None:
            session.on_lost(error)

    def on_back(self) -> None:
        """Pass on that there is a new link."""
        if (session := self._session()) is not None:
            session.on_back()

    def on_next(self, run: m.RunInfo) -> None:
        """Pass on that the link leads to the next run."""
        if (session := self._session()) is not None:
            session.on_next(run)

    def on_end(self, error: LinkError) -> None:
        """Pass on that there will be no further link."""
        if (session := self._session()) is not None:
            session.on_end(error)
