"""`ModuleLock`: a lock of a module, for objects that may be copied or pickled."""

from __future__ import annotations

import os
import threading


class ModuleLock:
    """A reentrant lock; a forked child has a new one.

    In the child the thread that holds the old one may not be there.

    >>> with ModuleLock():
    ...     pass
    """

    def __init__(self) -> None:
        self._renew()
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()
