"""The thread that updates the charts of notebooks and pages."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
import weakref
from typing import Protocol

from looptap.client.transport.background import background_thread

log = logging.getLogger("looptap")

_RETRY_DELAY_SECONDS = 5.0  # seconds until a failed update is retried
_IDLE_TIMEOUT_SECONDS = 60.0  # the thread ends after this time without a chart


class Moved(Protocol):
    """An object that the driver visits."""

    def step(self, now: float) -> float | None:
        """Update it; return the seconds until the next visit, None for never."""


class Driver:
    """A thread that visits the objects given to `add` until they are done."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._changed = threading.Condition()
        self._waiting: list[tuple[float, int, Moved]] = []
        self._count = itertools.count()
        self._running = self._ending = False
        self._failed: weakref.WeakSet[Moved] = weakref.WeakSet()

    def add(self, moved: Moved, pause: float = 0.0) -> None:
        """Visit ``moved`` after ``pause`` seconds; this replaces its next visit."""
        with self._changed:
            self._waiting = [entry for entry in self._waiting if entry[2] is not moved]
            self._waiting.append((time.monotonic() + pause, next(self._count), moved))
            heapq.heapify(self._waiting)
            self._changed.notify()
            if not self._running and not self._ending:
                self._running = True
                background_thread(self._run, self.name, self.end).start()

    def end(self) -> None:
        """End the thread after the visit under way."""
        with self._changed:
            self._ending = True
            self._changed.notify()

    def _run(self) -> None:
        while (found := self._next()) is not None:
            due, moved = found
            begun = time.monotonic()
            try:
                pause = moved.step(begun)
            except Exception:
                if moved not in self._failed:
                    self._failed.add(moved)
                    log.exception("looptap: a chart failed; looptap retries every few seconds.")
                pause = _RETRY_DELAY_SECONDS
            if pause is not None:
                again = max(due, begun - pause) + pause  # one late visit does not delay the following ones
                with self._changed:
                    if not any(entry[2] is moved for entry in self._waiting):
                        heapq.heappush(self._waiting, (again, next(self._count), moved))

    def _next(self) -> tuple[float, Moved] | None:
        """Wait for the next visit that is due; return its time and object."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._waiting or self._ending, _IDLE_TIMEOUT_SECONDS):
                self._running = False
                return None
            while not self._ending:
                now = time.monotonic()
                due = self._waiting[0][0]
                if due <= now:
                    return due, heapq.heappop(self._waiting)[2]
                self._changed.wait(due - now)
            return None


driver = Driver("looptap-charts")
"""The driver of this process."""
