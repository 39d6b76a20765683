"""The process group of a job on several ranks: its size, timeout and store.

The store is what the ranks met by (torch's TCPStore, mostly): small values under keys, with an atomic compare-and-set.
It is no collective: a rank that never asks keeps no other waiting. looptap uses a connection of its own, on a thread of
its own, since an operation on a store whose process hangs does not return. torch is never imported here.
"""

from __future__ import annotations

import sys
import threading
import time
from _queue import SimpleQueue  # that of queue may be gevent's, which waits for no other thread
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple

from looptap.streams.errors import NotAgreed

COMMIT, LATE, ALONE, OFF = "commit", "late", "alone", "off"
"""What is decided on a command: all ranks are at its event; one had passed it; they did not all come in time; it was
called off."""
DEFAULT_COLLECTIVE_TIMEOUT_SECONDS = 600.0
"""Collective timeout of a process group that states none."""
_POLL_SECONDS = 0.0002, 0.002  # seconds between two looks for the decision: at first, and at last
_DECISION_LIFETIME_SECONDS = 60.0  # seconds after which no rank asks for a decision any more
_MAX_CLOSE_SECONDS = 1.0  # for a store whose process hangs


class ProcessGroup(NamedTuple):
    """The process group of this job."""

    rank: int
    size: int
    timeout: float
    """Collective timeout in seconds."""


def group() -> ProcessGroup | None:
    """Return the default process group; None without one, or with one rank."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized() or dist.get_world_size() < 2:
        return None
    return ProcessGroup(dist.get_rank(), dist.get_world_size(), _timeout(dist))


def _timeout(dist: Any) -> float:
    try:
        world = dist.group.WORLD
        backends = [world._get_backend(device) for device in world._device_types]
        return min(float(backend.options._timeout.total_seconds()) for backend in backends)
    except Exception:  # these are torch's own affairs, and may be called otherwise one day
        return DEFAULT_COLLECTIVE_TIMEOUT_SECONDS


class Answer:
    """The result of one store operation; Ctrl-C could leave a Future's lock taken."""

    def __init__(self) -> None:
        self._results: SimpleQueue[tuple[Any, Exception | None]] = SimpleQueue()

    def give(self, value: Any, error: Exception | None = None) -> None:
        """Hand the value or the error to the waiting thread."""
        self._results.put((value, error))

    def result(self, timeout: float) -> Any:
        """Wait for the value, and return it once.

        Raises `queue.Empty` after ``timeout`` seconds, or the error of the operation.
        """
        value, error = self._results.get(timeout=timeout)
        if error is not None:
            raise error
        return value


class Ballots:
    """Votes of the ranks of a job, one key each, with ``patience`` as the timeout."""

    def __init__(self) -> None:
        self._operations: SimpleQueue[tuple[Callable[[Any], Any], Answer]] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._store_id: int | None = None
        self._store: Any = None
        self._expiring_keys: deque[tuple[float, str]] = deque()
        self.since: float | None = None
        """The start time of the running store operation."""

    def connect(self, patience: float) -> None:
        """Connect in advance, on a thread of its own."""
        self._ask(lambda store: store.set_timeout(timedelta(seconds=max(1.0, patience))))

    def vote(self, key: str, size: int, patience: float) -> Answer:
        """Cast this rank's vote; the answer is the decision, or raises the store's error."""
        return self._ask(lambda store: _vote(store, key, size, patience))

    def refuse(self, key: str, why: str = LATE) -> None:
        """Decide against ``key``, unless it is already decided."""
        self._ask(lambda store: store.compare_set(f"{key}/how", "", why))

    def close(self) -> None:
        """Disconnect, when the running operation has ended.

        A thread that returns from torch while the interpreter ends aborts the process: it takes the GIL in a
        destructor.
        """
        if self._thread is not None:
            self._operations.put((_disconnect, Answer()))
            self._thread.join(_MAX_CLOSE_SECONDS)

    def _ask(self, do: Callable[[Any], Any]) -> Answer:
        answer = Answer()
        if self._thread is None:
            thread = threading.Thread(target=self._work, name="looptap-agree", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                answer.give(None, NotAgreed(f"the store of the process group cannot be asked ({error})."))
                return answer
            self._thread = thread
        self._operations.put((do, answer))
        return answer

    def _work(self) -> None:
        while True:
            do, answer = self._operations.get()
            if do is _disconnect:
                self._store = None
                return
            self.since = time.monotonic()
            try:
                store = self.connected()
            except Exception as error:
                why = f"{type(error).__name__}: {error}"
                answer.give(None, NotAgreed(f"the store of the process group cannot be reached ({why:.300})."))
            else:
                try:
                    answer.give(do(store))
                except Exception as error:
                    answer.give(None, error)
                    self._store_id = None  # the next one comes over a new connection
            self.since = None

    def connected(self) -> Any:
        """Return the store of the default group, over a connection of this thread."""
        # torch.distributed has no public name for the store of the default group.
        found = sys.modules["torch.distributed.distributed_c10d"]._get_default_store()
        if self._store_id != id(found):
            self._store, self._store_id = found.clone(), id(found)
        now = time.monotonic()
        while self._expiring_keys and self._expiring_keys[0][0] < now - _DECISION_LIFETIME_SECONDS:
            _, key = self._expiring_keys.popleft()
            for part in ("in", "how"):
                self._store.delete_key(f"{key}/{part}")
        return self._store

    def forget_later(self, key: str) -> None:
        """Delete the key from the store once no rank asks for it any more."""
        self._expiring_keys.append((time.monotonic(), key))


def _disconnect(store: Any) -> None:
    """Tell the thread to end."""


def _vote(store: Any, key: str, size: int, patience: float) -> str:
    deadline = time.monotonic() + patience
    how, (pause, longest) = f"{key}/how", _POLL_SECONDS
    if store.add(f"{key}/in", 1) >= size:
        return _decided(store, how, COMMIT)
    while not store.check([how]):
        if time.monotonic() >= deadline:
            return _decided(store, how, ALONE)
        time.sleep(pause)
        pause = min(2 * pause, longest)
    return _decided(store, how, ALONE)  # which it is not, since it is decided


def _decided(store: Any, how: str, proposed: str) -> str:
    return bytes(store.compare_set(how, "", proposed)).decode()
