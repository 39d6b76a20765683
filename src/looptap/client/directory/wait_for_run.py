"""Waiting for a job that has not started yet."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TypeVar

from looptap.protocol.errors import LinkError, NoDirectory, NoSuchRun, RunEnded
from looptap.streams.durations import duration

POLL_INTERVAL_SECONDS = 0.25
"""Seconds between two searches for the job."""
LOOK_AFAR_SECONDS = 5.0
"""Seconds between two searches for a job that is found by a command."""
SAY_AGAIN_SECONDS = 60.0
"""Seconds after which the wait is reported again."""

T = TypeVar("T")


def wait_for_run(
    look: Callable[[], T],
    seconds: float,
    tell: Callable[[str], None],
    *,
    follow: bool = False,
    pause: float = POLL_INTERVAL_SECONDS,
) -> T:
    """Call ``look`` repeatedly for ``seconds`` until it finds a run; return it.

    ``tell`` is called with the awaited name, at once and then every minute. Raises what ``look`` raises if that is
    anything but NoSuchRun, RunEnded or NoDirectory, or when the time is over; and RunEnded for a run that has begun and
    ended meanwhile, unless it should ``follow`` one run with the next.

    >>> wait_for_run(lambda: 7, 0.0, print)
    7
    """
    began, began_at, said = time.monotonic(), time.time(), -math.inf
    while True:
        try:
            return look()
        except (NoSuchRun, RunEnded, NoDirectory) as error:
            waited = time.monotonic() - began
            if waited >= seconds or (not follow and isinstance(error, RunEnded) and error.started >= began_at):
                raise
            if waited - said >= SAY_AGAIN_SECONDS:
                still = f"Still waiting for it to start, {duration(waited)} so far."
                tell(still if said >= 0 else _waiting(error, seconds))
                said = waited
        time.sleep(min(pause, max(0.0, seconds - (time.monotonic() - began))))


def _waiting(error: LinkError, seconds: float) -> str:
    lasting = "" if seconds == float("inf") else f", for {seconds:g} s"
    end = "" if str(error).endswith((".", "…")) else "."
    return f"{error}{end} Waiting for it to start{lasting}; Ctrl-C ends that."
