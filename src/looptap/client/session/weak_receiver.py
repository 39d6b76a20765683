"""Lets a transport call its session without keeping it alive."""

from __future__ import annotations

import weakref

from looptap.client.transport.base import Receiver
from looptap.protocol import messages as m
from looptap.protocol.errors import LinkError


class WeakReceiver:
    """A receiver that passes calls to its session while that is in use elsewhere."""

    def __init__(self, session: Receiver) -> None:
        self._session = weakref.ref(session)

    def on_frame(self, frame: bytes | memoryview) -> None:
        """Pass on a frame of the agent."""
        if (session := self._session()) is not None:
            session.on_frame(frame)

    def on_tick(self) -> None:
        """Pass on the tick."""
        if (session := self._session()) is not None:
            session.on_tick()

    def on_lost(self, error: LinkError) -> None:
        """Pass on the loss of the link."""
        if (session := self._session()) is not None:
            session.on_lost(error)

    def on_back(self) -> None:
        """Pass on the new link."""
        if (session := self._session()) is not None:
            session.on_back()

    def on_next(self, run: m.RunInfo) -> None:
        """Pass on the link to the next run."""
        if (session := self._session()) is not None:
            session.on_next(run)

    def on_end(self, error: LinkError) -> None:
        """Pass on the end of all links."""
        if (session := self._session()) is not None:
            session.on_end(error)
