"""Compares the clocks of two hosts."""

from __future__ import annotations

import time
from typing import NamedTuple

from looptap.client.session.session import Session
from looptap.client.transport.timeouts import REPLY_SECONDS
from looptap.protocol import messages as m
from looptap.protocol.errors import MessageError

_SAMPLES = 8


class Offset(NamedTuple):
    """The ``seconds`` that one clock is ahead of another, give or take ``error``."""

    seconds: float
    error: float


def ahead(session: Session, timeout: float = REPLY_SECONDS) -> Offset:
    """Measure how far the clock of the run's host is ahead of this one's.

    The quickest of eight requests counts; half of its duration is the error.
    """
    best = Offset(0.0, float("inf"))
    for _ in range(_SAMPLES):
        asked = time.monotonic()
        shown = session.inquire(m.GetClock, "The question for the clock", timeout)
        came = time.monotonic()
        if not abs(shown) < 1e12:
            raise MessageError(f"The clock of the run shows {shown!r}.")
        best = min(best, Offset(shown - (asked + came) / 2, (came - asked) / 2), key=lambda offset: offset.error)
    return best


def clock_offset_between(first: Session, second: Session, boots: tuple[str, str]) -> Offset:
    """Measure how far ``second``'s clock is ahead of ``first``'s; 0 for one boot."""
    if first is second or (boots[0] and boots[0] == boots[1]):
        return Offset(0.0, 0.0)
    one, other = ahead(first), ahead(second)
    return Offset(other.seconds - one.seconds, other.error + one.error)
