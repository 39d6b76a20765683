"""Tells a client in this process whether its thread raises the events."""

from __future__ import annotations

from collections.abc import Callable
from threading import get_native_id

from looptap.agent.loop.event_sources import EventSources
from looptap.streams.waiting import poll_until

ANSWER_SECONDS = 1.0
"""Seconds for an answer that needs no event, or for an event of another thread."""
_POLL_INTERVAL_SECONDS = 0.005


class RaisingThread:
    """The thread that raises the events of ``sources``, if there is only one."""

    def __init__(self, sources: EventSources) -> None:
        self._sources = sources

    def waits_for_itself(self, on: str, answered: Callable[[], bool]) -> bool:
        """Return True if the calling thread waits for an event that only it raises.

        The event is of the type ``on``, or of any type if there has been none of this one. Blocks up to a second before
        it returns True: the answer may need no event, and another thread may have just begun to raise them.
        """
        own = {get_native_id()}

        def others() -> bool:
            threads = {name: source.thread for name, source in self._sources.types() if source.thread}
            return ({threads[on]} if on in threads else set(threads.values())) != own

        if answered() or others():
            return False
        for _, source in self._sources.types():
            source.mark()  # so that its next event notes its thread
        return not poll_until(lambda: answered() or others(), _POLL_INTERVAL_SECONDS, ANSWER_SECONDS)
