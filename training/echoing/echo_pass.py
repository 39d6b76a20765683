"""`EchoPass`: what one iterator over an `Echo` has of its own."""

from __future__ import annotations

import random
from collections import deque

from looptap.training.echoing.any_loader import Iterated
from looptap.training.echoing.echo_arguments import BATCH, SHUFFLED
from looptap.training.echoing.shuffle_buffer import Example, ShuffleBuffer
from looptap.training.echoing.source import Indexed, Streamed
from looptap.training.echoing.worker_stages import Copies


class EchoPass:
    """A pass over the data, with its place, its buffer and a source that no other pass reads.

    Passes may overlap, as those of a DataLoader: nested loops, ``zip(loader, loader)``, two threads.
    """

    def __init__(
        self, source: Indexed | Streamed | Iterated, number: int, mode: str, copies: random.Random,
        order: random.Random, max_bytes: int,
    ) -> None:  # fmt: skip
        self.source, self.number, self.mode = source, number, mode
        """Where fresh batches come from, the number of the epoch, and its insertion point."""
        self.running = True
        """False once its iterator is gone; the pass may still be resumed."""
        self.asked = Copies(copies)
        """How many copies to make of what is requested from now on."""
        self.factor, self.capacity = 1.0, 1
        """The settings that apply to the next batch, on several ranks the same."""
        self.batches = self.fresh = self.room = 0
        """Batches handed over, examples read, and how many the buffer may hold so far."""
        self.over = False
        """True once the source has ended."""
        self.waited = 0.0
        self.arrival: float | None = None
        """When the newest fresh batch came."""
        self._order, self._roomy = order, max_bytes // 2
        self.clear()

    def clear(self) -> None:
        """Drop all items that wait."""
        self.buffer, self.pending = ShuffleBuffer(self._order, self._roomy), deque[Example]()

    @property
    def whole(self) -> bool:
        """True if batches are echoed, not examples."""
        return self.mode in (BATCH, SHUFFLED)

    @property
    def waits(self) -> bool:
        """True if an item waits to be handed over."""
        return bool(len(self.buffer) or self.pending)

    def oldest(self) -> int | None:
        """Return the number of the oldest fresh batch of which an item waits."""
        return min((one.key[0] for one in (*self.pending, *self.buffer.items)), default=None)
