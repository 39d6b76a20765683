"""Rings: the numbered values of queries, from the training to the I/O thread.

A ring holds the values of one query that a reader still has to take, up to `ValueRing.capacity`, and the newest
`ValueRing.keep` for those who come later: none for a query of clients, its history for a declared stream. Rings that
share a bound on their bytes are a `RingSet`. Where there is no room, the oldest values go; a reader that has not had
them counts them.

Guarantees: `put` never waits for a reader and never raises; each number is a value or is counted as dropped, for each
reader. Assumes one producer at a time for each ring, and that all readers are on one thread.

There is no lock. Several threads change the fields of a ring: its producer, the producer of a ring of the same set
that needs room, and the I/O thread. They do that in lines without a call and without a jump back, between which Python
runs no other thread and delivers no signal.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from operator import attrgetter, itemgetter
from typing import Any

from looptap.agent.handoff.ready_set import ReadySet
from looptap.agent.handoff.value_batch import (
    BATCH_OVERHEAD_BYTES,
    ITEM_OVERHEAD_BYTES,
    MIN_VALUE_BYTES,
    Entry,
    Item,
    bytes_in,
    compact,
    last_of,
    leading,
    single_items,
)
from looptap.streams.stream.buffer import Batch

URGENT_BYTES = 262_144
"""Bytes that have gathered in a ring from which on they do not gather for long."""
MAX_SLACK_VALUES = 1024
"""Values above its bounds that a ring may hold: a front is cut off many at a time."""
MAX_SHARED_BATCHES, MAX_SHARED_BATCH_BYTES = 2, 1_048_576
"""Batches that one reader was given and that are kept for the others, and the bytes of the largest."""
_MIN_BATCHES, _MIN_PARTS = 8, 16  # a batch has at most that part of a ring's bytes; what goes at a time
_FIRST = itemgetter(0)  # the first number of an entry
_POSITION, _HELD = attrgetter("position"), attrgetter("held")


class Inbox:
    """The values of one query on their way to a query over them, in the same thread.

    The ring of the one appends each value here as well; the other reads them right after.
    """

    __slots__ = ("items", "sink")

    def __init__(self, sink: ValueRing) -> None:
        self.sink = sink
        """The output of the query that reads them."""
        self.items: deque[Item] = deque()


class RingSet:
    """Rings that share a bound on their bytes; the one with the most gives up first.

    So a reader that takes nothing leaves room for those that do. ``each`` bounds one ring, and ``lag`` the values that
    wait in it for a reader besides those kept.
    """

    __slots__ = ("each", "held", "lag", "limit", "peak", "ready", "rings", "urgent")

    def __init__(self, ready: ReadySet, limit: int, each: int, lag: int) -> None:
        self.ready, self.limit, self.each, self.lag = ready, limit, each, lag
        self.urgent = min(URGENT_BYTES, limit // 8)
        self.rings: dict[ValueRing, None] = {}
        """Those that have had a value."""
        self.held = 0
        """Bytes in all rings."""
        self.peak = 0
        """The most that they held before they became fewer."""

    @property
    def peak_bytes(self) -> int:
        """The most bytes that they have held."""
        return max(self.peak, self.held)

    def pending_bytes(self) -> int:
        """Return the bytes in all rings."""
        return self.held

    def open(self, keep: int = 0, after: int = 0) -> ValueRing:
        """Return a new ring that keeps ``keep`` values, numbered above ``after``."""
        return ValueRing(self, min(keep, max(1, self.each // (MIN_VALUE_BYTES + ITEM_OVERHEAD_BYTES))), after)

    def close(self, ring: ValueRing) -> None:
        """Forget a ring; who still has it is bounded alone."""
        self.rings.pop(ring, None)
        ring.join(RingSet(self.ready, self.limit, self.each, self.lag))

    def shrink(self, ring: ValueRing, nbytes: int) -> bool:
        """Give up the oldest values until ``ring`` has room for further bytes.

        What is larger than the bound of one ring has room in an empty one. Returns False if it is larger than all.
        """
        if nbytes > self.limit:
            return False
        while ring.held + nbytes > self.each and ring.give_up():
            pass
        while self.held + nbytes > self.limit and max([*self.rings, ring], key=_HELD).give_up():
            pass
        return True


class ValueRing:
    """The values of one query between its producer and its readers."""

    __slots__ = (
        "_announced", "_announced_bytes", "_base", "_begins", "_entries", "_look_at", "_look_bytes", "_ready", "_slack",
        "capacity", "first", "given", "held", "inboxes", "keep", "number", "readers", "rings",
    )  # fmt: skip

    def __init__(self, rings: RingSet, keep: int, after: int) -> None:
        self.rings, self._ready = rings, rings.ready.ready
        self.keep, self.capacity = keep, keep + rings.lag
        self._slack = max(1, min(MAX_SLACK_VALUES, self.capacity // 8))
        self._entries: list[Entry] = []
        self._base = 0  # entries that have gone: a place counts them, too, so that it stays valid
        self.number = after
        """The number of the newest value."""
        self.first = after + 1
        """The number from which on its values are held."""
        self.held = 0
        """Bytes held."""
        self.readers: tuple[Cursor, ...] = ()
        """Replaced as a whole."""
        self.inboxes: tuple[Inbox, ...] = ()
        """Those of the queries over the values; replaced as a whole."""
        self.given: tuple[tuple[int, Batch, int], ...] = ()
        """What readers were given, with its places: so those at the same place get one batch, packed once."""
        self._begins = after + 1
        self._announced, self._announced_bytes = after, 0
        self._look_at, self._look_bytes = after + 1, rings.each  # the first value makes it known to its set

    @property
    def unobserved(self) -> bool:
        """True if there is no reader, neither of these values nor of those made of them."""
        return not self.readers and all([inbox.sink.unobserved for inbox in self.inboxes])

    # ------------------------------------------------------------ the producer's end

    def put(self, event: int, time: float, value: Any, size: int) -> None:
        """Append the next value, or count it as dropped if it is larger than all bounds."""
        number, nbytes, rings = self.number + 1, size + ITEM_OVERHEAD_BYTES, self.rings
        held, total = self.held + nbytes, rings.held + nbytes
        item = (number, event, time, value, nbytes)
        if number >= self._look_at or held > self._look_bytes or total > rings.limit:
            self.append([item], number, nbytes)
        else:
            # From the first line to the end of the append Python delivers no signal and runs no other thread: the value
            # has a number, counts and is there, or none of these.
            self.number, self.held, rings.held = number, held, total
            self._entries.append(item)
        for inbox in self.inboxes:
            inbox.items.append(item)
        if self.readers and self not in self._ready:
            self._announce(number, nbytes)

    def put_all(self, events: array[int], times: array[float], values: Sequence[Any], size: int) -> None:
        """Append the next values, of ``size`` bytes each, which do not change later."""
        count, first = len(events), self.number + 1
        nbytes = BATCH_OVERHEAD_BYTES + count * size
        if count > 1 and (count > self.capacity or nbytes > self.rings.each // _MIN_BATCHES):
            for half in (slice(count // 2), slice(count // 2, count)):
                self.put_all(events[half], times[half], values[half], size)
            return
        batch = Batch(first, events, times, values, nbytes=nbytes)
        entries: Sequence[Entry] = [batch]
        if self.keep:
            entries, nbytes = compact(batch, size)
        self.append(entries, first + count - 1, nbytes)
        if self.inboxes:
            items = single_items(batch)
            for inbox in self.inboxes:
                inbox.items.extend(items)
        if self.readers and self not in self._ready:
            self._announce(first, nbytes)

    def append(self, entries: Sequence[Entry], number: int, nbytes: int) -> None:
        """Append entries that have their numbers, the last of which is ``number``."""
        much = self.held + nbytes > self._look_bytes or self.rings.held + nbytes > self.rings.limit
        if (much or number >= self._look_at) and not self._make_room(nbytes):
            self.number = number
            return
        # From here to the end Python delivers no signal, as in `put`.
        rings = self.rings
        rings.held += nbytes
        self.held += nbytes
        self.number = number
        self._entries += entries

    def lose(self, count: int = 1) -> None:
        """Skip numbers of values that will never exist; readers count them as dropped."""
        self.number += count
        if self.readers:
            self.notify()

    def notify(self) -> None:
        """Wake the I/O thread, even without readers: the query's state has changed."""
        self.rings.ready.changed = True
        self.rings.ready.announce(self)
        if self.number < self._begins:  # the first value, which hurries, may follow, and finds it announced
            self.rings.ready.wake_at_once()

    def _announce(self, number: int, nbytes: int) -> None:
        self._announced, self._announced_bytes = number, self.held - nbytes
        self._look_at = min(self._look_at, number + self.capacity // 4)
        self._look_bytes = min(self._look_bytes, self._announced_bytes + self.rings.urgent)
        self.rings.ready.announce(self)
        if number == self._begins:  # a chart is still empty
            self.rings.ready.wake_at_once()

    def _make_room(self, nbytes: int) -> bool:
        """Make room for the next value, or values; return False if there cannot be any.

        Called before what gathers would be too much: it asks for a flush while there is still room.
        """
        rings, number = self.rings, self.number
        rings.rings[self] = None
        gathered = self.held - self._announced_bytes + nbytes
        if self in self._ready and (number - self._announced >= self.capacity // 4 or gathered > rings.urgent):
            rings.ready.hasten()
        self.trim()
        fits = rings.shrink(self, nbytes)
        self._look_at = min(max(self.first + self.keep, number + 1) + self._slack, number + max(1, self.capacity // 4))
        self._look_bytes = min(rings.each, self.held + nbytes + rings.urgent)
        return fits

    # ------------------------------------------------------------ either thread

    def gathered(self) -> int:
        """Return the bytes that have come since it was announced."""
        return max(0, self.held - self._announced_bytes)

    def trim(self) -> None:
        """Let go of what is neither kept nor waits for a reader, or is too much."""
        number = self.number
        taken = min([number, *map(_POSITION, self.readers)])
        upto = max(min(taken, number - self.keep), number - self.capacity)
        if taken == number:
            self.given = ()
        if upto < self.first:
            return
        base = self._base
        gone = self._entries[: bisect_right(self._entries, upto, key=_FIRST)]
        if gone and last_of(gone[-1]) > upto:
            gone.pop()
        if gone:
            self._let_go(base, gone)

    def give_up(self) -> bool:
        """Let go of some of the oldest values; return False if there is none."""
        count = max(1, min(len(self._entries) // _MIN_PARTS, MAX_SLACK_VALUES))
        base = self._base
        gone = self._entries[:count]
        if gone:
            self._let_go(base, gone)
        return bool(gone)

    def _let_go(self, base: int, gone: list[Entry]) -> None:
        """Remove the oldest entries, which were read when ``base`` had gone before."""
        count, nbytes, first = len(gone), bytes_in(gone), last_of(gone[-1]) + 1
        rings = self.rings
        rings.peak = max(rings.peak, rings.held)
        # From here on no other thread and no interrupt comes between. `gone` still has the values: none is freed here,
        # which might run other code. If another thread has removed some meanwhile, these are not the oldest any more.
        if self._base == base:
            del self._entries[:count]
            self._base = base + count
            self.first = first
            self.held -= nbytes
            self.rings.held -= nbytes

    def join(self, rings: RingSet) -> None:
        """Count the bytes in another set."""
        self.rings.peak = self.rings.peak_bytes
        # From here on no other thread and no interrupt comes between.
        self.rings.held -= self.held
        rings.held += self.held
        self.rings = rings

    # ------------------------------------------------------------ the readers' end

    @property
    def oldest(self) -> int:
        """The number from which on its values are kept."""
        return max(self.first, self.number + 1 - self.keep)

    def entries(self, place: int, count: int) -> tuple[int, list[Entry]]:
        """Return ``count`` entries from a place on, or from the oldest, and their place."""
        # Between these lines no other thread removes an entry.
        start = place - self._base
        if start < 0:
            place, start = self._base, 0
        found = self._entries[start : start + count]
        return place, found

    def batch(self, place: int, found: Sequence[Entry], after: int, count: int, size: int) -> tuple[Batch, int]:
        """Return the values above ``after`` that are one batch, and the place after it.

        ``found`` are the entries at ``place``. Another reader at the same place gets the same object.
        """
        for at, batch, following in self.given:
            if at == place and batch.first == after + 1:
                return batch, following
        batch, whole = leading(found, after, count, size)
        if len(self.readers) > 1 and batch.nbytes <= MAX_SHARED_BATCH_BYTES:
            self.given = (*self.given, (place, batch, place + whole))[-MAX_SHARED_BATCHES:]
        return batch, place + whole

    def place_of(self, number: int) -> int:
        """Return a place at or right before the first value above ``number``."""
        base = self._base  # first: what is removed meanwhile then makes the place an earlier one, which does no harm
        return max(0, bisect_right(self._entries, number, key=_FIRST) - 1) + base

    def read(self, after: int, count: int) -> list[Item]:
        """Return up to ``count`` kept values numbered above ``after``, oldest first."""
        after = max(after, self.oldest - 1)
        found = self.entries(self.place_of(after), count + 1)[1]
        return [item for entry in found for item in single_items(entry) if item[0] > after][:count]

    def __len__(self) -> int:
        return self.number + 1 - self.oldest


class Cursor:
    """One reader of a ring, with its own position. I/O thread.

    It begins after number ``position``, or with the oldest value that is kept; values in between are lost.
    """

    __slots__ = ("_end", "_lost", "_next", "_place", "base", "position", "ring")

    def __init__(self, ring: ValueRing, position: int | None = None, base: int = 0) -> None:
        self.ring, self.position = ring, ring.first - 1
        self.base = base
        """What the client's numbers are above those of the ring."""
        self._end: int | None = None
        ring.readers = (*ring.readers, self)  # from here on nothing that it has to read goes
        kept = ring.oldest - 1
        self.position = kept if position is None else max(position, kept)
        self._lost = 0 if position is None else self.position - position
        self._place = self._next = ring.place_of(self.position)

    @property
    def shared(self) -> bool:
        """True if the query is not this client's alone."""
        return bool(self.ring.keep) or len(self.ring.readers) > 1

    @property
    def number(self) -> int:
        """The number of the newest value, as the client counts."""
        return self.base + self._newest

    @property
    def _newest(self) -> int:
        return self.ring.number if self._end is None else self._end

    @property
    def dropped(self) -> int:
        """The number of values that this client has lost."""
        return self._lost + max(0, min(self.ring.first - 1, self._newest) - self.position)

    @property
    def reached(self) -> int:
        """The number up to which every value was taken, or lost, as the client counts."""
        return self.base + self.position

    def peek(self, count: int, size: int) -> Batch | None:
        """Return the next consecutive values without removing them.

        At most ``count`` values of ``size`` bytes together, but at least one, or what another reader at the same place
        was given; None if there are none.
        """
        ring, upto = self.ring, self._newest  # before the entries: a value up to it is among them, or is lost
        if self.position >= upto:
            return None
        place, found = ring.entries(self._place, count)
        while found and last_of(found[0]) <= self.position:
            place, found = ring.entries(place + 1, count)
        before = min(found[0][0] - 1, upto) if found else upto
        self._lost += max(0, before - self.position)  # what is in between was given up, or never existed
        self.position = max(before, self.position)
        if self.position >= upto:
            return None
        self._place = place
        batch, self._next = ring.batch(place, found, self.position, count, size)
        surplus = 0 if self._end is None else last_of(batch) - self._end
        return batch.part(0, len(batch.events) - surplus) if surplus > 0 else batch

    def take(self, batch: Batch) -> None:
        """Remove the values that `peek` returned."""
        self.position, self._place = last_of(batch), self._next
        self.ring.trim()

    def stop(self, *, at_once: bool = False) -> None:
        """End after the newest value; with ``at_once``, at the present position."""
        if at_once or self._end is None:
            self._end = self.position if at_once else self.ring.number

    def move_to(self, ring: ValueRing) -> None:
        """Go on in another ring, with the values that wait, under the client's numbers.

        Nothing may be evaluated meanwhile.
        """
        start, lost = self.reached, self._lost
        while (batch := self.peek(len(self), self.ring.rings.limit)) is not None:
            moved = batch._replace(first=batch.first + self.base)
            ring.append([moved], last_of(moved), moved.nbytes)
            self.take(batch)
        ring.number = self.number
        self.join(ring)
        # What was lost in between is a gap there as well, and is counted when that is reached.
        self.base, self.position, self._lost, self._place = 0, start, lost, 0

    def join(self, ring: ValueRing) -> None:
        """Go on with the next value of another ring. Nothing may be evaluated meanwhile."""
        number = self.number
        self.leave()
        self.ring, self.position, self.base = ring, ring.number, number - ring.number
        self._place = ring.place_of(self.position)
        self._end = None if self._end is None else ring.number
        ring.readers = (*ring.readers, self)

    def leave(self) -> bool:
        """Stop being a reader; return True if none is left."""
        ring = self.ring
        ring.readers = tuple([other for other in ring.readers if other is not self])
        ring.trim()
        if not (ring.readers or ring.keep):
            ring.rings.close(ring)
        return not ring.readers

    def __len__(self) -> int:
        return max(0, self._newest - self.position)
