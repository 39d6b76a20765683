"""`dated`: values in which dates and times are seconds since the epoch."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from looptap.streams.counts import clock_seconds
from looptap.streams.values.rows import row_like
from looptap.visualizers.data.numbers import is_number, number

_DATE = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d([.,]\d{1,9})?)?(Z|[+-]\d\d:?\d\d)?)?")
_TIME_OF_DAY = re.compile(r"\d\d:\d\d(:\d\d([.,]\d{1,9})?)?")
_MAX_ISO_CHARACTERS = 40


class Dated(NamedTuple):
    """A value whose dates are numbers, and the position of the first of them."""

    value: Any
    place: int


def moment(value: Any) -> float | None:
    """Return a date, a time of today, or a text of one as seconds since the epoch.

    Dates without a time zone are local. Returns None for any other value.

    >>> moment("2026-01-01T10:00:30Z") - moment("2026-01-01T12:00+02:00"), moment("epoch 3"), moment(7)
    (30.0, None, None)
    """
    try:
        if isinstance(value, str):
            value = _of_text(value)
        elif isinstance(value, np.datetime64):
            value = value.astype("M8[us]").item()
        if isinstance(value, datetime.time):
            value = datetime.datetime.combine(datetime.date.today(), value)
        elif isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
            value = datetime.datetime.combine(value, datetime.time())
        return value.timestamp() if isinstance(value, datetime.datetime) else None
    except (ValueError, OverflowError, OSError):  # 2026-02-30, a year that the platform does not know, NaT of pandas
        return None


def _of_text(text: str) -> datetime.datetime | datetime.time | None:
    if len(text) > _MAX_ISO_CHARACTERS:
        return None
    if _DATE.fullmatch(text):
        return datetime.datetime.fromisoformat(text)
    return datetime.time.fromisoformat(text) if _TIME_OF_DAY.fullmatch(text) else None


def dated(value: Any, names: Sequence[str] = ()) -> Dated | None:
    """Return a tuple or dict with its dates as numbers; None if it has no date.

    A number is a date if its name is that of a clock, and its size that of seconds since the epoch.

    >>> dated((1, datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc), 0.5))
    Dated(value=(1, 1767225600.0, 0.5), place=1)
    >>> dated({"loss": 0.5, "time": 1.76e9}).place, dated((1, 0.5)), dated(("cat", 0.5))
    (1, None, None)
    """
    if not isinstance(value, tuple | Mapping) or not value:
        return None
    parts = list(value.values() if isinstance(value, Mapping) else value)
    moments = list(map(moment, parts))
    names = tuple(map(str, value)) if isinstance(value, Mapping) else names
    known = names if len(names) == len(parts) else ()
    clocks = (place for place, name in enumerate(known) if _is_clock(name, parts[place]))
    place = next((place for place, at in enumerate(moments) if at is not None), next(clocks, None))
    if place is None:
        return None
    plain = [part if at is None else at for part, at in zip(parts, moments, strict=True)]
    if isinstance(value, Mapping):
        return Dated(dict(zip(value, plain, strict=True)), place)
    return Dated(row_like(type(value), plain), place)


def _is_clock(name: str, part: Any) -> bool:
    return is_number(part) and clock_seconds(name, np.array([number(part)])) is not None
