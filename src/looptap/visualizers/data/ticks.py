"""Numbers at ticks, for reading: the same arithmetic as on the page (ticks.js)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

_SUFFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_MIN_SHORTENED, _MAX_SHORTENED, _MIN_PLAIN = 1e4, 1e15, 1e-4
_MAX_DECIMALS = 12


def tick_labels(values: Sequence[float | None], log: bool = False) -> list[str]:
    """Return texts for the numbers at the ticks of an axis; no two numbers share one.

    On a ``log`` axis each stands alone. None has no text.

    >>> tick_labels([0, 5000, 10000]), tick_labels([0.0985, 0.099, 0.0995])
    (['0', '5k', '10k'], ['0.0985', '0.0990', '0.0995'])
    >>> tick_labels([1e-5, 0.01, 1.0, 1e4], log=True)
    ['1e-5', '0.01', '1', '10k']
    """
    known = [value for value in values if value is not None]
    if log:
        return ["" if value is None else _written(value, *_form([value])) for value in values]
    form = _form(known)
    return ["" if value is None else _written(value, *form) for value in values]


def round_numbers(low: float, high: float, most: int) -> list[float]:
    """Return at most ``most`` round numbers between two ends, evenly spread.

    >>> round_numbers(0.03, 1.1, 4), round_numbers(0, 1450, 6)
    ([0.5, 1.0], [0.0, 500.0, 1000.0])
    """
    if not high > low or most < 1:
        return []
    power = 10.0 ** math.floor(math.log10((high - low) / most))
    for step in (factor * power for factor in (1, 2, 5, 10, 20, 50)):
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if last - first < most:
            return [float(f"{number * step:.12g}") for number in range(first, last + 1)]
    return []


def _form(values: Sequence[float]) -> tuple[float, str, int]:
    """Return unit, suffix and decimals that tell these numbers apart."""
    largest = max(map(abs, values), default=0.0)
    unit, suffix = 1.0, ""
    if largest and (largest < _MIN_PLAIN or largest >= _MAX_SHORTENED):
        power = math.floor(math.log10(largest) + 1e-12)
        unit, suffix = 10.0**power, f"e{power}"
    elif largest >= _MIN_SHORTENED:
        unit, suffix = next((unit, suffix) for unit, suffix in _SUFFIXES if largest >= unit)
    ordered = sorted(values)
    step = min((b - a for a, b in pairwise(ordered) if b > a), default=abs(largest))
    decimals = 0
    while decimals < _MAX_DECIMALS and any(
        abs(float(f"{value / unit:.{decimals}f}") - value / unit) > 0.01 * step / unit for value in values
    ):
        decimals += 1
    return unit, suffix, decimals


def _written(value: float, unit: float, suffix: str, decimals: int) -> str:
    text = f"{value / unit:.{decimals}f}"
    if float(text) == 0:
        return "0"
    return text + suffix
