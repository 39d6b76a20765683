"""Waiting for a job that has not started yet."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from looptap.protocol.errors import LinkError, NoSuchRun, RunEnded

LOOK = 0.25
"""Seconds between two looks for the job."""

T = TypeVar("T")


def awaited(look: Callable[[], T], seconds: float, tell: Callable[[str], None]) -> T:
    """What ``look`` finds, which looks again for ``seconds`` while there is no run; ``tell`` is told once, in words.

    Raises what ``look`` raises if that is anything but NoSuchRun or RunEnded, or when the time is over.

    >>> awaited(lambda: 7, 0.0, print)
    7
    """
    deadline, told = time.monotonic() + seconds, False
    while True:
        try:
            return look()
        except (NoSuchRun, RunEnded) as error:
            if time.monotonic() >= deadline:
                raise
            if not told:
                told = True
                tell(_waiting(error, seconds))
        time.sleep(min(LOOK, max(0.0, deadline - time.monotonic())))


def _waiting(error: LinkError, seconds: float) -> str:
    lasting = "" if seconds == float("inf") else f", for {seconds:g} s"
    end = "" if str(error).endswith((".", "…")) else "."
    return f"{error}{end} Waiting for it to start{lasting}; Ctrl-C ends that."
