"""The descriptors and threads that libzmq takes, counted and tried beforehand.

Without them, it aborts the process.
"""

from __future__ import annotations

import _thread
import os
import time

from looptap.protocol.errors import LinkError

try:
    import resource
except ImportError:  # Windows, where sockets are no descriptors
    resource = None  # type: ignore[assignment]

DESCRIPTOR_COUNT, THREAD_COUNT = 32, 6
"""How many must be free. A third of the descriptors and half of the threads are used; the others stay the job's."""
ACCEPT_DESCRIPTOR_COUNT = 16
"""How many must stay free for clients to be accepted."""
MAX_NUMBERS_COUNT = 4096
"""Numbers of descriptors that are looked at to find free ones."""
_MAX_END_SECONDS = 1.0  # that the system takes to end the threads of a trial


def require_headroom() -> None:
    """Raise LinkError unless this process may have enough descriptors and threads.

    Call it right before sockets are made: the threads that it has tried have ended. Blocks for less than a millisecond,
    as long as the machine starts a few threads.
    """
    free = free_descriptors(DESCRIPTOR_COUNT)
    if free < DESCRIPTOR_COUNT:
        raise LinkError(
            f"{DESCRIPTOR_COUNT} free file descriptors are needed, and this process has about {free}. "
            "Allow more: ulimit -n 4096."
        )
    _try_threads()


def free_descriptors(most: int) -> int:
    """Return how many descriptors are free, up to ``most``.

    It takes none: the job may be about to need the last one. The lowest free number is given out first, so it looks
    from the limit downwards, at no more than `MAX_NUMBERS_COUNT` numbers.
    """
    if resource is None:
        return most
    limit, free = min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 2**31 - 1), 0
    for number in range(limit - 1, max(limit - MAX_NUMBERS_COUNT, 0) - 1, -1):
        if free >= most:
            break
        try:
            os.get_inheritable(number)
        except OSError:
            free += 1
    return free


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
