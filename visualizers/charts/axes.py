"""The x axis of a line: step, epoch, event, time, or a part of the values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from looptap.visualizers.charts import schemas
from looptap.visualizers.data.numbers import Floats

NUMBER, EVENT, TIME, WALL, RANK = range(5)
"""The leading columns of a line's buffer; the parts of the values follow."""
MAX_LEADING_COLUMNS = 5
"""The number of columns before the parts of the values."""


class Over(NamedTuple):
    """The x axis: numbers, title, the part of the values it is, whether a clock."""

    x: NDArray[np.float64]
    title: str
    part: int | None = None
    clock: bool = False
    remark: str = ""


def over(columns: Floats, names: Sequence[str], wanted: str, on: str, start: float, part: int | None) -> Over:
    """Return the x axis ``wanted``; "" is the ``part`` that counts, or the event.

    ``start`` is the monotonic time at which relative time begins. If the values lack what is wanted, x is the event
    number, and a badge says so.
    """
    plain = [name.lower() for name in names]
    event = Over(columns[EVENT], on or "event")
    match wanted:
        case "":
            return event if part is None else Over(columns[MAX_LEADING_COLUMNS + part], names[part], part)
        case "event":
            return event
        case "time":
            return Over(columns[TIME] - start, "seconds")
        case "wall":
            return Over(columns[WALL], "time", clock=True)
    known = {"step": schemas.STEPS, "epoch": schemas.EPOCHS}.get(wanted, (wanted.lower(),))
    for name in known:
        if name in plain:
            part = plain.index(name)
            return Over(columns[MAX_LEADING_COLUMNS + part], names[part], part)
    if wanted in ("step", on):
        return event
    return event._replace(remark=f"has no {wanted!r}: it is drawn over the number of its {on or 'event'}")
