"""What every stream has: a state, a cost, and bounds of what it keeps."""

from __future__ import annotations

from typing import NamedTuple

from looptap.streams.durations import short_time

LIVE, ENDED, FAILED = "live", "ended", "failed"
"""The states of a stream."""

DEFAULT_BUFFER_ITEMS = 200_000
"""Items that a stream keeps, unless ``buffer=`` says otherwise."""
DEFAULT_BUFFER_BYTES = 268_435_456
"""Bytes that a stream's items may take, about, unless ``buffer_bytes=`` says otherwise."""


class Cost(NamedTuple):
    """A query's cost: nanoseconds of training thread per event, share of a step."""

    nanoseconds: float = 0.0
    share: float = 0.0

    def __str__(self) -> str:
        return f"{short_time(self.nanoseconds / 1e9)} an event, {self.share:.2%} of the step time"
