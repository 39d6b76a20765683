"""The descriptors and threads that libzmq takes, tried beforehand.

Without them, it aborts the process.
"""

from __future__ import annotations

import _thread
import os
import time

from looptap.protocol.errors import LinkError

DESCRIPTOR_COUNT, THREAD_COUNT = 32, 6
"""How many must be free. A third of the descriptors and half of the threads are used; the others stay the job's."""
ACCEPT_DESCRIPTOR_COUNT = 16
"""How many must stay free for clients to be accepted."""
_MAX_END_SECONDS = 1.0  # that the system takes to end the threads of a trial


def require_headroom() -> None:
    """Raise LinkError unless this process may have enough descriptors and threads.

    Call it right before sockets are made: what it has tried, it gives back. Blocks for less than a millisecond, as
    long as the machine starts a few threads.
    """
    free = free_descriptors(DESCRIPTOR_COUNT)
    if free < DESCRIPTOR_COUNT:
        raise LinkError(
            f"{DESCRIPTOR_COUNT} free file descriptors are needed, and this process has about {free}. "
            "Allow more: ulimit -n 4096."
        )
    _try_threads()


def free_descriptors(most: int) -> int:
    """Return how many descriptors are free, counted in pairs up to ``most``."""
    held: list[int] = []
    try:
        while len(held) < most:
            held += os.pipe()
    except OSError:
        pass
    finally:
        for one in held:
            os.close(one)
    return len(held)


def _try_threads() -> None:
    gate, begun, started = _thread.allocate_lock(), [_thread.get_native_id()], 1

    def wait() -> None:
        begun.append(_thread.get_native_id())
        with gate:
            pass

    with gate:
        try:
            for _ in range(THREAD_COUNT):
                _thread.start_new_thread(wait, ())
                started += 1
        except RuntimeError as error:
            raise LinkError(
                f"{THREAD_COUNT} more threads are needed, and this process may start {started - 1} ({error}). "
                "Allow more: ulimit -u, or the limit of processes (pids) of its container."
            ) from None
    deadline = time.monotonic() + _MAX_END_SECONDS  # a thread counts until it has left the process
    while len(begun) < started or any(os.path.exists(f"/proc/self/task/{one}") for one in begun[1:]):
        if time.monotonic() > deadline:
            return
        time.sleep(0.0001)
