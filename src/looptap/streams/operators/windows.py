"""The windows of a reduction: host's group, events, seconds, or sliding."""

from __future__ import annotations

import math
import sys
from typing import Annotated, TypeAlias

import msgspec

from looptap.streams.errors import QueryError

MAX_WINDOW_EVENTS = 1_000_000
"""Events of a window that counts them."""
_Events: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=MAX_WINDOW_EVENTS)]
_Length: TypeAlias = Annotated[float, msgspec.Meta(gt=0, le=sys.float_info.max)]


class Group(msgspec.Struct, frozen=True, tag="group"):
    """The events of the host's group, which the host ends."""

    def __str__(self) -> str:
        return "the host's group"


class Count(msgspec.Struct, frozen=True, tag="count"):
    """Each ``size`` events."""

    size: _Events

    def __str__(self) -> str:
        return f"{self.size} events"


class Seconds(msgspec.Struct, frozen=True, tag="seconds"):
    """Each ``size`` seconds; a window closes at the first event after its end."""

    size: _Length

    def __str__(self) -> str:
        return f"{self.size:g} s"


class Sliding(msgspec.Struct, frozen=True, tag="sliding"):
    """The last ``size`` events, with a value at every event."""

    size: _Events

    def __str__(self) -> str:
        return f"the last {self.size} events"


Window: TypeAlias = Group | Count | Seconds | Sliding
"""A client sends one as it is; its bounds are checked when it is decoded."""


def seconds(size: float) -> Seconds:
    """Return a window of ``size`` seconds (> 0). Raises QueryError for anything else.

    Args:
        size: The seconds.

    >>> seconds(30)
    Seconds(size=30)
    """
    if isinstance(size, bool) or not isinstance(size, int | float) or not (0 < size < math.inf):
        raise QueryError(f"seconds({size!r}): a window lasts a positive, finite number of seconds.")
    return Seconds(size)


def sliding(size: int) -> Sliding:
    """Return a window of ``size`` events, 1 to 1,000,000. Raises QueryError.

    Args:
        size: The number of events.

    >>> sliding(100)
    Sliding(size=100)
    """
    return Sliding(_events(size, f"sliding({size!r})"))


def as_window(window: object) -> Window:
    """Return a window for None (the host's group), a number of events, or a window.

    Raises QueryError for anything else.

    >>> as_window(100)
    Count(size=100)
    """
    if window is None:
        return Group()
    if isinstance(window, Group | Count | Seconds | Sliding):
        return window
    return Count(_events(window, f"window={window!r}"))


def _events(size: object, shown: str) -> int:
    if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= MAX_WINDOW_EVENTS:
        raise QueryError(
            f"{shown}: a window is None (the host's group), a number of events from 1 to 1,000,000, "
            "seconds(s) or sliding(n)."
        )
    return size
