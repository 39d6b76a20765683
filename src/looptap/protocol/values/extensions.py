"""The extension types of msgpack by which values are packed, and their bounds."""

TUPLE, SET, FROZENSET, BIG, COMPLEX, ARRAY, TENSOR, IMAGE, TEXT = range(1, 10)
"""Their codes: ``BIG`` is an integer beyond 64 bits, ``TEXT`` one with surrogates."""
DATETIME, DATE, TIME, TIMEDELTA, ROW = range(10, 15)
"""``ROW`` is a tuple with names: their list, and then its elements."""

MAX_DEPTH = 80
"""Maximum nesting of a value; `looptap.streams.values.snapshots` allows less."""
MAX_INTEGER_BITS = 14_284
"""Maximum bits of an integer: Python prints no more than 4,300 digits."""
