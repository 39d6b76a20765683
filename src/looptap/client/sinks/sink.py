"""`Sink`: a place for the numbers of runs; and which numbers a value has."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any, NamedTuple, Protocol

STEPS = ("step", "global_step", "iteration", "batch", "epoch")
"""Fields of a value that count, the first of them is its step."""


class Origin(NamedTuple):
    """Where values come from: a run, and a stream of it."""

    run: str
    id: str
    host: str
    rank: int
    stream: str


class Sink(Protocol):
    """A place for numbers. One thread."""

    def put(self, origin: Origin, step: int, numbers: Mapping[str, float]) -> None:
        """Take the numbers of one value by their tags."""

    def end(self, id: str) -> None:
        """Note that a run has ended, or is no longer asked."""

    def close(self) -> None:
        """Send what is left, and release everything."""


def step_and_numbers(value: Any, name: str, count: int) -> tuple[int, dict[str, float]]:
    """Return the step of a value, and its other numbers by tag.

    A value without a field that counts has ``count`` as its step.

    >>> step_and_numbers({"step": 3, "loss": 0.5, "note": "a"}, "curve", 0)
    (3, {'loss': 0.5})
    >>> step_and_numbers(0.25, "loss", 7)
    (7, {'loss': 0.25})
    """
    fields = value._asdict() if hasattr(value, "_asdict") else value
    if isinstance(fields, tuple):
        fields = {f"{name}[{index}]": one for index, one in enumerate(fields)}
    elif not isinstance(fields, Mapping):
        fields = {name: value}
    counters = [key for key in STEPS if isinstance(fields.get(key), Real)] if len(fields) > 1 else []
    others = {str(key): _number(one) for key, one in fields.items() if key not in counters[:1]}
    numbers = {tag: number for tag, number in others.items() if number is not None}
    step = fields[counters[0]] if counters else count
    return int(step) if math.isfinite(step) else count, numbers


def _number(value: Any) -> float | None:
    if isinstance(value, Real):
        return float(value)
    single = getattr(value, "size", None) == 1 or getattr(value, "numel", lambda: 0)() == 1
    return _number(value.item()) if single and hasattr(value, "item") else None
