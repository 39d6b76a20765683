"""Runs work on a thread of its own, which Ctrl-C cannot interrupt."""

from __future__ import annotations

import _thread
import threading
from _queue import SimpleQueue  # that of queue may be gevent's, which waits for no other thread
from collections.abc import Callable
from typing import TypeVar

from looptap.streams.native.surroundings import require_threads

Result = TypeVar("Result")


def run_uninterrupted(do: Callable[[], Result], name: str) -> Result:
    """Run a function on a thread called ``name``; return its result or raise.

    Ctrl-C ends the wait but not the work. If no thread can be started, the function runs on this one. Raises NoThreads
    where threads are not the system's.
    """
    require_threads()
    came: SimpleQueue[tuple[Result | None, BaseException | None]] = SimpleQueue()
    begun: SimpleQueue[bool] = SimpleQueue()

    def work() -> None:
        try:
            came.put((do(), None))
        except BaseException as error:
            came.put((None, error))

    def begin() -> None:
        try:
            threading.Thread(target=work, name=name, daemon=True).start()
        except RuntimeError:
            begun.put(False)
        else:
            begun.put(True)

    try:  # `Thread.start` keeps a lock if Ctrl-C comes at the wrong moment, and its thread would wait for that forever
        _thread.start_new_thread(begin, ())
    except RuntimeError:  # there are too many, or the interpreter ends
        return do()
    if not begun.get():
        return do()
    result, error = came.get()
    if error is not None:
        raise error
    return result  # type: ignore[return-value]  # there was no error, so there is one
