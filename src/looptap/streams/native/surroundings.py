"""Threads, standard descriptors and shared state of a process that is not ours."""

from __future__ import annotations

import _thread
import errno
import os
import sys
import time
import types
from collections.abc import Callable
from typing import TypeVar

from looptap.streams.errors import LooptapError

Kept = TypeVar("Kept")

THREAD_SECONDS = 2.0
"""Seconds that a thread may take to begin, where another library starts it."""


class NoThreads(LooptapError):
    """A process whose threads are not the system's, and would block the job."""


def fill_standard_descriptors() -> None:
    """Open the null device where standard input, output or error is closed.

    A descriptor that is opened there later, such as a socket, would get what native code prints. SQLite does the same.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError as error:
            if error.errno == errno.EBADF:
                null = os.open(os.devnull, os.O_RDWR)  # gets the lowest free one, unless another thread opens a file
                if null != descriptor:
                    os.close(null)


def require_threads() -> None:
    """Raise NoThreads where threads only run while others wait.

    So do those of gevent and eventlet. Does not block, except in such a process.
    """
    start = _thread.start_new_thread
    if isinstance(start, types.BuiltinFunctionType):
        return
    begun: list[bool] = []
    start(begun.append, (True,))
    until = time.monotonic() + THREAD_SECONDS
    while not begun:  # nothing here lets another green thread run
        if time.monotonic() > until:
            library = start.__module__.partition(".")[0]
            raise NoThreads(
                f"The threads of this process are {library}'s, and looptap needs the system's. Leave threads as they "
                f"are: {_UNPATCHED.get(library, f'start the agent before {library} changes them')}."
            )


_UNPATCHED = {"gevent": "gevent.monkey.patch_all(thread=False)", "eventlet": "eventlet.monkey_patch(thread=False)"}


def one_in_process(name: str, make: Callable[[], Kept]) -> Kept:
    """Return what was made under ``name`` in this process.

    It stays the same if looptap is removed from sys.modules and imported again.
    """
    found: dict[str, Kept] = vars(sys).setdefault("_looptap", {})
    return found.setdefault(name, make())
