"""Stops a thread of looptap where libzmq would end the process.

libzmq calls abort() where it finds its descriptors closed, or none left for a client. The compiled `looptap._parking`
leaves the thread that did so where it is, for ever; abort() of any other thread or library ends the process as before.
Without it (pure Python, another C library than glibc, another system than Linux) libzmq ends the process.
"""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable
from typing import Any

import zmq

from looptap.streams.native.compiled import load_compiled

_native: Any = load_compiled("_parking")
_claimed: dict[int, Callable[[], None]] = {}  # by the system's number of a thread


def watched_context() -> zmq.Context[zmq.Socket[bytes]]:
    """Return a context whose threads are parked where they would abort."""
    context = zmq.Context()
    if _native is not None:
        _native.handle(_report)
        context.set(zmq.THREAD_NAME_PREFIX, _native.PREFIX)
    return context


def claim_thread(when_parked: Callable[[], None]) -> None:
    """Have this thread parked where libzmq aborts on it.

    Then ``when_parked`` is called, on another thread.
    """
    if _native is not None:
        _claimed[threading.get_native_id()] = when_parked
        _native.claim()


def unclaim_thread() -> None:
    """Forget what to call for this thread, which ends."""
    _claimed.pop(threading.get_native_id(), None)


def count_parked() -> int:
    """Return how many threads have been parked in this process."""
    return 0 if _native is None else _native.count_parked()


def _report(thread: int) -> None:
    """Run between two instructions of the main thread, which may hold any lock."""
    call = _claimed.pop(thread, None)
    if call is not None:
        _thread.start_new_thread(call, ())
