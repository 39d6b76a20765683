"""`shared_sink`: one sink for all streams of this process that go to one place.

Two streams that are sent to one port, or into one run of W&B, so stand there beside each other.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Mapping
from typing import Any

from looptap.client.sinks.opening import open_sink
from looptap.client.sinks.sink import Origin, Sink

_lock = threading.Lock()
_shared: dict[tuple[str, object], SharedSink] = {}


class SharedSink:
    """A sink that several streams use, each from a thread of its own."""

    def __init__(self, sink: Sink, key: tuple[str, object]) -> None:
        self.sink, self._key = sink, key
        self.users = 1
        self._ids = Counter[str]()
        self._lock = threading.Lock()

    def begin(self, id: str) -> None:
        """Note that a stream of a run is sent."""
        with self._lock:
            self._ids[id] += 1

    def put(self, origin: Origin, step: int, numbers: Mapping[str, float]) -> None:
        """Take the numbers of one value. What the sink raises goes through."""
        with self._lock:
            self.sink.put(origin, step, numbers)

    def end(self, id: str) -> None:
        """Note that a stream of a run has ended; with its last one the run has."""
        with self._lock:
            self._ids[id] -= 1
            if self._ids[id] <= 0:
                del self._ids[id]
                self.sink.end(id)

    def close(self) -> None:
        """Close the sink, if this was its last stream."""
        with _lock:
            self.users -= 1
            if self.users:
                return
            _shared.pop(self._key, None)
        with self._lock:
            self.sink.close()


def shared_sink(name: str, place: Any = None) -> SharedSink:
    """Return the sink ``name`` at ``place``, opened unless it is open. Close it once.

    Raises ValueError for what `open_sink` refuses, and OSError for a port that is taken.
    """
    key = name, os.path.abspath(place) if name == "tensorboard" and isinstance(place, str | os.PathLike) else place
    with _lock:
        found = _shared.get(key)
        if found is None:
            found = _shared[key] = SharedSink(open_sink(name, place), key)
        else:
            found.users += 1
        return found
