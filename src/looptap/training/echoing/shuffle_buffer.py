"""The shuffle buffer after the echo stage: bounded, O(1) per item, no copies."""

from __future__ import annotations

import random
from typing import Any

from looptap.training.echoing.pytrees import Packed
from looptap.training.echoing.worker_stages import Entry, Ticket

_SPARSE_DIVISOR = 4
"""If this part of a batch or less is left, it is copied, to free the memory of the rest."""


_MAX_TRIES = 8
"""A copy of what the batch has already is put back so often: two in one batch teach less than in two. Most of a buffer
are others, unless it ends."""


class Piece:
    """A block of memory: the fresh batch of which examples are views."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.examples: dict[Example, None] = {}
        self.whole = 0


class Example:
    """A fresh item (or batch, if batches are echoed) and how many copies remain."""

    __slots__ = ("count", "done", "key", "piece", "ticket", "u", "value", "waiting")

    def __init__(
        self,
        key: tuple[int, int, int],
        value: Any,
        piece: Piece,
        u: float,
        ticket: Ticket | None = None,
        count: int = 1,
    ) -> None:
        self.key, self.value, self.piece, self.ticket = key, value, piece, ticket
        self.u, self.done = u, 0
        """The random number for a fractional copy, and how many copies went into the buffer."""
        self.waiting = 0
        """Copies in the buffer."""
        self.count = count
        """The number of examples, of a batch as of a single one."""
        piece.examples[self] = None
        piece.whole = max(piece.whole, len(piece.examples))

    def entries(self) -> list[Entry]:
        """Return what to read again for this example; empty if it is of a stream."""
        if self.ticket is None:
            return []
        _, place, copy = self.key
        if place < 0:  # a whole batch
            return list(self.ticket.entries())
        return [(self.ticket.indices[self.ticket.places.index(place)], place, [copy])]


class ShuffleBuffer:
    """References in random order, drawn by ``order``; bytes count memory kept alive.

    Above ``roomy`` bytes the rest of a mostly used batch is copied; below, that would only take time.

    >>> buffer = ShuffleBuffer(random.Random(0))
    >>> piece = buffer.piece(100)
    >>> buffer.add(Example((0, 0, 0), "a", piece, 0.0)), buffer.nbytes
    (None, 100)
    >>> (example,) = buffer.draw()
    >>> buffer.release(example)
    >>> example.value, len(buffer), buffer.nbytes
    ('a', 0, 0)
    """

    def __init__(self, order: random.Random, roomy: int = 0) -> None:
        self.items: list[Example] = []
        self.nbytes = 0
        self._order, self._roomy = order, roomy

    def __len__(self) -> int:
        return len(self.items)

    def piece(self, nbytes: int) -> Piece:
        """Return a block of memory for examples that will be views of it."""
        self.nbytes += nbytes
        return Piece(nbytes)

    def add(self, example: Example) -> None:
        """Add a copy."""
        example.waiting += 1
        self.items.append(example)

    def draw(self, many: int = 1, had: set[tuple[int, int]] | None = None) -> list[Example]:
        """Remove and return ``many`` copies at random; the buffer must hold as many.

        ``had`` are the items already in the batch: others come first while there are any.
        """
        items, random, found = self.items, self._order.random, []
        had = set() if had is None else had
        for _ in range(many):
            for _ in range(_MAX_TRIES):
                at = int(random() * len(items))
                if (item := items[at].key[:2]) not in had:
                    had.add(item)
                    break
            items[at], items[-1] = items[-1], items[at]
            example = items.pop()
            example.waiting -= 1
            found.append(example)
        return found

    def release(self, example: Example) -> None:
        """Release an example without copies; frees its memory with the last of its piece."""
        piece = example.piece
        if piece.examples.pop(example, example) is not None:
            return
        left = len(piece.examples)
        if not left:
            self.nbytes -= piece.nbytes
        elif self.nbytes > self._roomy and piece.whole > 1 and left * _SPARSE_DIVISOR <= piece.whole:
            self.nbytes -= piece.nbytes
            rest = list(piece.examples)
            packed = Packed([one.value for one in rest])
            packed.own()
            smaller = self.piece(packed.nbytes)
            for one, value in zip(rest, packed.examples(), strict=True):
                one.value, one.piece = value, smaller
                smaller.examples[one] = None
            smaller.whole = len(rest)
            piece.examples.clear()
