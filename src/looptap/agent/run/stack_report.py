"""The stacks of all threads, reported by the I/O thread while the loop hangs."""

from __future__ import annotations

import sys
import threading
import traceback

from looptap.protocol.statistics import ThreadStack

MAX_FRAMES = 60
"""Innermost frames of a thread that are reported."""


def stacks() -> list[ThreadStack]:
    """Return the Python stack of each thread of this process, the main thread first.

    A thread that waits in C is shown at the call that went there. Threads that never ran Python do not appear.

    >>> stacks()[0].thread
    'MainThread'
    """
    known = {thread.ident: thread for thread in threading.enumerate()}
    main = threading.main_thread().ident
    found = []
    for ident, frame in sys._current_frames().items():
        thread = known.get(ident)
        lines = traceback.format_list(traceback.extract_stack(frame)[-MAX_FRAMES:])
        name, daemon = (thread.name, thread.daemon) if thread else (f"thread {ident}", False)
        found.append(ThreadStack(thread=name, ident=ident, daemon=daemon, stack="".join(lines)))
    return sorted(found, key=lambda t: (t.ident != main, t.thread.startswith("looptap-"), t.thread))
