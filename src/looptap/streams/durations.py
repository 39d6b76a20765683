"""Durations as text."""

from __future__ import annotations

import math


def duration(seconds: float) -> str:
    """Return a length of time to about two digits; negative ones are 0.

    >>> [duration(length) for length in (0.25, 42, 100, 2520, 9000, 400_000)]
    ['0.2 s', '42 s', '1.7 min', '42 min', '2.5 h', '4.6 days']
    """
    if not math.isfinite(seconds):
        return "an unknown time"
    for size, unit, least in ((86_400, "days", 2.0), (3600, "h", 1.5), (60, "min", 1.5)):
        if seconds >= least * size:
            return f"{_digits(seconds / size)} {unit}"
    return f"{_digits(max(0.0, seconds)) if seconds < 0.95 else round(seconds)} s"


def short_time(seconds: float) -> str:
    """Return a time that something takes, with three digits.

    >>> [short_time(length) for length in (8.12e-7, 3.54e-5, 0.0286, 1.738, 75, 0)]
    ['812 ns', '35.4 µs', '28.6 ms', '1.74 s', '75 s', '0 s']
    """
    if not math.isfinite(seconds) or seconds >= 1000:
        return duration(seconds)
    for size, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")):
        if seconds >= 0.9995 * size:
            return f"{seconds / size:.3g} {unit}"
    return "0 s"


def _digits(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0") if number < 9.5 else f"{number:.0f}"
