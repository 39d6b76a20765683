"""What waits between the training thread and the I/O thread: bounded, lock-free, counted.

Guarantees: `put` never blocks and never raises; every value that does not fit is counted. Assumes one producer at a
time for each outbox (the agent's event lock) and one consumer (the I/O thread).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple


class Item(NamedTuple):
    """One value on its way: its number, the event's number and time, flags, the value, its bytes.

    On the training thread it is a bare tuple, which is five times cheaper to make.
    """

    number: int
    event: int
    time: float
    flags: int
    value: Any
    size: int
    kept: dict[str, Any] | None


class Post:
    """What all outboxes of an agent share: the bell that wakes the I/O thread once, and the bound on bytes."""

    __slots__ = ("_outboxes", "limit", "peak", "ring", "rung")

    def __init__(self, limit: int, ring: Callable[[], None]) -> None:
        self.limit, self.ring = limit, ring
        self.rung = False  # set by whoever finds it clear, cleared by the I/O thread *before* it looks
        self.peak = 0
        self._outboxes: tuple[Outbox, ...] = ()

    def open(self, values: int) -> Outbox:
        """A new outbox that holds up to ``values`` values."""
        outbox = Outbox(self, values)
        self._outboxes = (*self._outboxes, outbox)
        return outbox

    def close(self, outbox: Outbox) -> None:
        """Forget an outbox and what it holds."""
        self._outboxes = tuple(o for o in self._outboxes if o is not outbox)

    def waiting(self) -> int:
        """Bytes that wait, over all outboxes."""
        return sum(o.put_bytes - o.taken_bytes for o in self._outboxes)


class Outbox:
    """The values of one stream that wait for the I/O thread."""

    # Two counters with one writer each are exact without a lock: the difference is what waits.
    __slots__ = ("_items", "_post", "dropped", "number", "put_bytes", "put_count", "taken_bytes", "values")
    SMALL = 1_048_576  # bytes under which an outbox need not ask what the others hold

    def __init__(self, post: Post, values: int) -> None:
        self._post, self.values = post, values
        self._items: deque[tuple[Any, ...]] = deque()
        self.number = 0
        self.dropped = 0
        self.put_bytes = self.taken_bytes = self.put_count = 0

    def put(
        self, event: int, time: float, flags: int, value: Any, size: int, kept: dict[str, Any] | None = None
    ) -> None:
        """Append the next value, or count it as dropped if there is no room."""
        self.number = number = self.number + 1
        post = self._post
        if self.put_bytes - self.taken_bytes + size > Outbox.SMALL or len(self._items) >= self.values:
            waiting = post.waiting()
            post.peak = max(post.peak, waiting)
            if len(self._items) >= self.values or waiting + size > post.limit:
                self.dropped += 1
                return
        self._items.append((number, event, time, flags, value, size, kept))
        self.put_bytes += size
        if not post.rung:
            post.rung = True
            post.ring()

    def ring(self) -> None:
        """Have the I/O thread look, though there is no value."""
        if not self._post.rung:
            self._post.rung = True
            self._post.ring()

    def peek(self, count: int, size: int) -> list[Item]:
        """Up to ``count`` items of ``size`` bytes together (one at least), consecutively numbered; they stay."""
        items: list[Item] = []
        total = 0
        held = self._items  # the other end may grow meanwhile, which an iterator of a deque would not forgive
        for i in range(min(count, len(held))):
            item = Item._make(held[i])
            total += item.size
            if items and (total > size or item.number != items[-1].number + 1):
                break
            items.append(item)
        return items

    def take(self, items: list[Item]) -> None:
        """Remove what `peek` gave."""
        for item in items:
            self._items.popleft()
            self.taken_bytes += item.size

    def __len__(self) -> int:
        return len(self._items)
