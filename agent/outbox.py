"""What waits between the training thread and the I/O thread: bounded, lock-free, counted.

Guarantees: `put` never blocks and never raises; every value that does not fit is counted. Assumes one producer at a
time for each outbox (the agent's event lock) and one consumer (the I/O thread).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

SMALLEST = 64
"""Bytes that every value counts for, at least."""
GRANT = 65_536
"""Bytes that an outbox may fill before it asks again what the others hold."""
GREED = 2
"""An outbox may hold this many times what is free: who does not read leaves room for those who do."""
SLICE = 16_384
"""Values that the I/O thread moves out of the training thread's way at once."""


class Marked:
    """A value with flags, with what the condition of a flight recorder reads, or with the number of its window."""

    __slots__ = ("flags", "kept", "value", "window")

    def __init__(self, value: Any, flags: int, kept: dict[str, Any] | None = None, window: int = 0) -> None:
        self.value, self.flags, self.kept, self.window = value, flags, kept, window


Item: TypeAlias = tuple[int, int, float, Any, int]
"""One value that waits: its number, the number and time of its event, the value, its bytes."""


class Columns(NamedTuple):
    """Consecutive items, column by column."""

    numbers: tuple[int, ...]
    events: tuple[int, ...]
    times: tuple[float, ...]
    values: tuple[Any, ...]
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, items: Sequence[Item]) -> Columns | None:
        """The columns of some items; None if there is none."""
        return cls(*zip(*items, strict=True)) if items else None


def leading(items: Sequence[Item], size: int) -> Columns | None:
    """The first of ``items`` that are consecutively numbered, of ``size`` bytes together (one at least)."""
    columns = Columns.of(items)
    if columns is None or (columns.numbers[-1] - columns.numbers[0] < len(items) and sum(columns.sizes) <= size):
        return columns
    first, total = items[0][0], 0
    for i, item in enumerate(items):
        total += item[4]
        if item[0] != first + i or (i and total > size):
            return Columns.of(items[:i])
    return columns


class Sink(Protocol):
    """Where a query puts its values: an `Outbox`, or the ring of a standing stream."""

    @property
    def quiet(self) -> bool:
        """Whether nobody waits for them."""

    def put(self, event: int, time: float, value: Any, size: int) -> None:
        """Append the next value."""

    def put_all(
        self, events: Sequence[int], times: Sequence[float], values: Sequence[Any], sizes: Sequence[int]
    ) -> None:
        """Append the next values."""

    def ring(self) -> None:
        """Have the I/O thread look."""


class Source(Protocol):
    """Where the I/O thread takes the values of one client's stream: an `Outbox`, or a reader of a ring."""

    @property
    def number(self) -> int:
        """Of the newest value."""

    @property
    def dropped(self) -> int:
        """Values that were lost."""

    def peek(self, count: int, size: int) -> Columns | None:
        """Up to ``count`` values of ``size`` bytes together (one at least), consecutively numbered; they stay."""

    def take(self, columns: Columns) -> None:
        """Go on behind what `peek` gave."""

    def __len__(self) -> int: ...


class Post:
    """What all outboxes of an agent share: the bell that wakes the I/O thread once, and the bound on bytes.

    ``ring`` lets values gather before they are sent, ``hurry`` does not.
    """

    __slots__ = ("_outboxes", "hurry", "limit", "peak", "ring", "rung")

    def __init__(self, limit: int, ring: Callable[[], None], hurry: Callable[[], None]) -> None:
        self.limit, self.ring, self.hurry = limit, ring, hurry
        self.rung = False  # set by whoever finds it clear, cleared by the I/O thread *before* it looks
        self.peak = 0
        self._outboxes: tuple[Outbox, ...] = ()

    def open(self, outbox: Outbox) -> None:
        """Count what an outbox holds."""
        self._outboxes = (*self._outboxes, outbox)

    def wake(self) -> None:
        """Have the I/O thread look, if nobody has asked it to since it last did."""
        if not self.rung:
            self.rung = True
            self.ring()

    def close(self, outbox: Source) -> None:
        """Forget an outbox and what it holds."""
        self._outboxes = tuple(o for o in self._outboxes if o is not outbox)

    def waiting(self) -> int:
        """Bytes that wait, over all outboxes."""
        return sum(o.waiting() for o in self._outboxes)

    def free(self) -> int:
        """Bytes that no outbox holds or may fill without asking."""
        granted = sum(o.granted() for o in self._outboxes)
        self.peak = max(self.peak, granted)
        return self.limit - granted


class Outbox:
    """The values of one stream that wait for the I/O thread."""

    quiet = False  # somebody waits for them
    # Byte counters with one writer each are exact without a lock: the difference is what waits.
    __slots__ = (
        "_granted", "_held", "_items", "_post", "_room", "_taken_bytes", "dropped", "number", "values",
    )  # fmt: skip

    def __init__(self, post: Post, values: int) -> None:
        self._post, self.values = post, values
        # The training thread's. A value waits as a bare tuple in a list, which costs least to make and to leave
        # behind; one append is all or nothing, whatever interrupts it.
        self._items: list[Item] = []
        self.number = self.dropped = 0
        self._granted = self._room = 0  # bytes granted since the start, and what is left of the last grant
        # The I/O thread's.
        self._held: list[Item] = []
        self._taken_bytes = 0

    def put(self, event: int, time: float, value: Any, size: int) -> None:
        """Append the next value, or count it as dropped if there is no room."""
        self.number = number = self.number + 1
        room = self._room - size
        if room < 0:
            room = self._ask_for_room(size)
            if room < 0:
                self.dropped += 1
                return
        self._room = room
        self._items.append((number, event, time, value, size))
        if not self._post.rung:
            self._post.wake()
        if number == 1:  # somebody has just asked, and looks at an empty screen
            self._post.hurry()

    def put_all(
        self, events: Sequence[int], times: Sequence[float], values: Sequence[Any], sizes: Sequence[int]
    ) -> None:
        """Append the next values, or count those as dropped for which there is no room."""
        room = self._room - sum(sizes)
        if room < 0 or not self.number:
            for one in zip(events, times, values, sizes, strict=True):
                self.put(*one)
            return
        first = self.number + 1
        items = list(zip(range(first, first + len(values)), events, times, values, sizes, strict=True))
        self.number, self._room = self.number + len(values), room
        self._items += items
        if not self._post.rung:
            self._post.wake()

    def ring(self) -> None:
        """Have the I/O thread look."""
        self._post.wake()

    def _ask_for_room(self, size: int) -> int:
        """Bytes left for further values once this one is in; below 0 if there is no room for it."""
        left, room = self.values - len(self), self._room
        free = self._post.free() + room
        held = self.waiting()
        if left <= 0 or free < size or (held and held + size > GREED * free):
            return -1
        grant = max(size, min(GRANT, free, left * SMALLEST))
        self._granted += grant - room
        return grant - size

    # ------------------------------------------------------------ the I/O thread's end

    def peek(self, count: int, size: int) -> Columns | None:
        """Up to ``count`` values of ``size`` bytes together (one at least), consecutively numbered; they stay."""
        if not self._held:
            self._held = self._items[:SLICE]
            del self._items[: len(self._held)]
        return leading(self._held[:count], size)

    def take(self, columns: Columns) -> None:
        """Remove what `peek` gave."""
        del self._held[: len(columns.numbers)]
        self._taken_bytes += sum(columns.sizes)

    # ------------------------------------------------------------ from either thread

    def granted(self) -> int:
        """Bytes that wait, or may come before the outbox asks again."""
        return self._granted - self._taken_bytes

    def waiting(self) -> int:
        """Bytes that wait."""
        return self._granted - self._room - self._taken_bytes

    def __len__(self) -> int:
        return len(self._items) + len(self._held)
