"""The thread that calls users' callbacks, which may be slow or use the run.

Guarantees: callbacks of one run are called one at a time, in the order of each stream's values, and streams take
turns. A callback that is too slow for its stream misses what the stream's buffer forgets; nothing piles up. The
thread, "looptap-callbacks", exists only while there is something to do, and ten seconds longer.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from typing import Protocol

from looptap.client.transport.background import background_thread

IDLE_TIMEOUT_SECONDS = 10.0
"""Seconds without work after which the thread ends; it is started again when needed."""


class CallbackSource(Protocol):
    """A stream that may have something for its callbacks."""

    def pump(self) -> bool:
        """Serve the subscribers once; True if there is more."""


class CallbackThread:
    """The streams with pending callbacks, each once, and the thread that serves them."""

    def __init__(self, idle: float = IDLE_TIMEOUT_SECONDS) -> None:
        self._idle = idle
        self._changed = threading.Condition()
        self._waiting: OrderedDict[CallbackSource, None] = OrderedDict()
        self._running = False

    def schedule(self, stream: CallbackSource) -> None:
        """Call the callbacks of ``stream`` soon."""
        with self._changed:
            if stream in self._waiting:
                return
            self._waiting[stream] = None
            if self._running:
                self._changed.notify()
                return
            self._running = True
        background_thread(self._run, "looptap-callbacks", self.close).start()

    def close(self) -> None:
        """End the thread as soon as it has nothing to do."""
        with self._changed:
            self._idle = 0.0
            self._changed.notify()

    def _run(self) -> None:
        while (stream := self._next()) is not None:
            more = True
            with contextlib.suppress(BaseException):  # a SystemExit in a query; what failed is not tried again
                more = stream.pump()
            if more:
                self.schedule(stream)
            del stream  # not kept alive while the thread waits

    def _next(self) -> CallbackSource | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or not self._idle, self._idle)
            if self._waiting:
                return self._waiting.popitem(last=False)[0]
            self._running = False
            return None
