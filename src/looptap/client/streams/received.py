"""Values as they came in a message, in columns."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np

from looptap.protocol import messages as m
from looptap.protocol.errors import MessageError
from looptap.protocol.replies import MAX_VALUE_NUMBER
from looptap.protocol.values.unpacking import unpack_values
from looptap.streams.columns.value_columns import ValueColumns
from looptap.streams.flags import ERROR
from looptap.streams.stream.buffer import Batch
from looptap.streams.text import public_line
from looptap.streams.values.sizing import size_of


def received(message: m.Values, *, discreet: bool = False) -> Batch:
    """Return the columns of a message, checked against each other.

    With ``discreet`` an error says no more than a viewer may know. Raises MessageError.
    """
    values: Sequence[Any] = unpack_values(message.form, message.values)
    count = len(values)
    events, times, windows = array("q"), array("d"), array("q")
    if len(message.events) == len(message.times) == 8 * count and len(message.flags) in (0, count):
        events.frombytes(message.events)
        times.frombytes(message.times)
    if not count or len(events) != count or not 0 < message.first <= MAX_VALUE_NUMBER:
        raise MessageError(f"{count} values from number {message.first} on with columns of another length.")
    highest = int(np.frombuffer(events, np.uint64).max())  # a negative number is the highest of all
    if not (highest <= MAX_VALUE_NUMBER and 0 <= message.rank <= MAX_VALUE_NUMBER):
        raise MessageError("Values with impossible event numbers.")
    if discreet and any(message.flags):
        values = [public_line(v) if f & ERROR else v for v, f in zip(values, message.flags, strict=True)]
    nbytes = _footprint(message, values)
    if len(message.windows) == 8 * count:
        windows.frombytes(message.windows)
    columns = events, times, values, message.clock, message.flags, message.rank, nbytes
    return Batch(message.first, *columns, windows=windows or None)


def _footprint(message: m.Values, values: Sequence[Any]) -> int:
    """Estimate the bytes that values take, without visiting each plain one."""
    if message.form == m.PACKED:
        return max(size_of(values), len(message.values))
    if isinstance(values, ValueColumns):
        return len(message.values) + values.list_bytes
    width = len(values[0]) if message.form == m.ROWS else 0
    return len(message.values) + len(values) * (64 + 40 * width)
