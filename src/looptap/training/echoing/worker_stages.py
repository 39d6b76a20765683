"""The stages that run in workers, timed: read, copy, augment, collate."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from looptap.training.echoing.pytrees import Packed, copied
from looptap.training.echoing.rng import kept_random, seed_random
from looptap.training.instances import on_item

SHARED = ("factor", "whole", "epoch")
"""The floats that workers of an iterable data set read from shared memory."""


Entry = tuple[Any, int, Sequence[int]]
"""An example in a checkpoint: its index in the data set, its place in the epoch, the copies to make."""


Key = tuple[int, int, int]
"""Key of an item: number of its fresh batch, place (in the epoch; of a stream, in the batch), number of the copy."""


class Ticket(NamedTuple):
    """A worker's instructions for one batch; plain lists, since each is pickled."""

    number: int
    epoch: int
    whole: bool
    """True to collate it as the loader would."""
    indices: list[Any]
    places: Sequence[int]
    """The place of each in the epoch."""
    copies: list[tuple[int, ...]] | None = None
    """Which copies to make of each; None: the first one."""

    @classmethod
    def of(cls, number: int, epoch: int, whole: bool, entries: Iterable[Entry]) -> Ticket:
        """Return the ticket with these `entries`.

        >>> Ticket.of(0, 0, False, [("a", 7, [0, 1])]).made()
        [(7, 0), (7, 1)]
        """
        indices, places, copies = zip(*entries, strict=True)
        return cls(number, epoch, whole, list(indices), list(places), [tuple(some) for some in copies])

    def made(self) -> list[tuple[int, int]]:
        """Return the place and the copy number of each example to make."""
        if self.copies is None:
            return [(place, 0) for place in self.places]
        return [(place, copy) for place, some in zip(self.places, self.copies, strict=True) for copy in some]

    def examples(self) -> int:
        """Return how many examples the batch makes."""
        return len(self.places) if self.copies is None else sum(map(len, self.copies))

    def entries(self) -> list[Entry]:
        """Return all of it as plain data."""
        copies = self.copies or [(0,)] * len(self.places)
        return [(i, p, list(c)) for i, p, c in zip(self.indices, self.places, copies, strict=True)]


class Effort(NamedTuple):
    """The seconds that a process took for fresh batches, by what held it up."""

    computing: float
    queued: float
    """Ready to compute, while others used the processors; 0 where the system does not say."""
    waiting: float
    """For a disk, a network, a lock."""

    @classmethod
    def now(cls) -> Effort:
        """Return this moment by the clocks of the worker or thread (``waiting``: all)."""
        from torch.utils.data import get_worker_info

        computed = time.process_time() if get_worker_info() is not None else time.thread_time()
        try:
            with open("/proc/thread-self/schedstat", "rb") as file:
                queued = int(file.read().split()[1]) / 1e9
        except (OSError, ValueError, IndexError):
            queued = 0.0
        return cls(computed, queued, time.perf_counter())

    def since(self, begun: Effort) -> Effort:
        """Return what was done from ``begun`` to this."""
        whole = self.waiting - begun.waiting
        computing = min(whole, max(0.0, self.computing - begun.computing))
        queued = min(whole - computing, max(0.0, self.queued - begun.queued))
        return Effort(computing, queued, whole - computing - queued)


class Delivered:
    """A fresh batch from a worker: collated (``whole``) or as single examples."""

    def __init__(self, number: int | None, whole: bool, payload: Any, fresh: int, seconds: dict[str, float]) -> None:
        self.number, self.whole, self.payload, self.fresh = number, whole, payload, fresh
        self.seconds = seconds
        """Seconds of each stage."""
        self.effort: Effort | None = None
        self.made: list[tuple[int, int]] | None = None
        """Of a stream: the item of the batch and the copy of each example; None if each appears once."""

    def pin_memory(self, device: str = "") -> Delivered:
        """Pin a batch on the loader's thread; single examples are pinned later."""
        if self.whole:
            self.payload = pinned(self.payload)
        return self


class Copies:
    """A random draw of the copies that a worker makes; 1 if made elsewhere."""

    def __init__(self, generator: random.Random) -> None:
        self._generator, self.factor = generator, 1.0
        self.intact = False
        """True while nothing is echoed, nor waits: batches pass as the loader makes them."""

    def __call__(self) -> int:
        """Return the copies of the next example."""
        return drawn_repeats(self.factor, self._generator.random()) if self.factor != 1.0 else 1


class Fresh(NamedTuple):
    """A fresh batch that has arrived."""

    number: int
    delivered: Delivered
    ticket: Ticket | None
    """The request, if its items can be read again by index."""

    def keys(self) -> list[Key]:
        """Return the key of each item."""
        given, number = self.delivered, self.number
        if given.whole:
            return [(number, -1, 0)]
        if self.ticket is not None:
            return [(number, place, copy) for place, copy in self.ticket.made()]
        made = given.made if given.made is not None else [(at, 0) for at in range(given.fresh)]
        return [(number, at, copy) for at, copy in made]


class Reads:
    """A timed data set that takes tickets, and otherwise acts as the one it wraps.

    It passes for an object of the same class, so that a loader or a host's ``worker_init_fn`` finds what it expects.
    """

    __slots__ = ("_begun", "_dataset", "_seconds")

    def __init__(self, dataset: Any) -> None:
        object.__setattr__(self, "_dataset", dataset)
        object.__setattr__(self, "_seconds", 0.0)
        object.__setattr__(self, "_begun", None)

    @property  # type: ignore[misc]
    def __class__(self) -> type:  # isinstance asks for it
        return type(self._dataset)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._dataset,)

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "_dataset"), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._dataset, name, value)

    def __getitems__(self, ticket: Ticket) -> tuple[Ticket, list[Any], float]:
        self.begin()
        begun = time.perf_counter()
        indices = list(ticket.indices)
        many = getattr(self._dataset, "__getitems__", None)
        items = many(indices) if many else [self._dataset[index] for index in indices]
        return ticket, items, time.perf_counter() - begun

    def __iter__(self) -> Iterator[Any]:
        found = iter(self._dataset)
        while True:
            self.begin()
            begun = time.perf_counter()
            try:
                item = next(found)
            except StopIteration:
                return
            finally:
                object.__setattr__(self, "_seconds", self._seconds + time.perf_counter() - begun)
            yield item

    def begin(self) -> None:
        """Start the clocks of a batch, at its first item."""
        if self._begun is None:
            object.__setattr__(self, "_begun", Effort.now())

    def effort(self) -> Effort | None:
        """Return what was done since the batch began; it ends here."""
        begun = self._begun
        object.__setattr__(self, "_begun", None)
        return None if begun is None else Effort.now().since(begun)

    def taken(self) -> float:
        """Return the seconds spent reading a stream since the last call."""
        seconds = self._seconds
        object.__setattr__(self, "_seconds", 0.0)
        return float(seconds)


class Stage:
    """The echoed loader's collate function: copies, augments, collates or packs."""

    def __init__(
        self,
        reads: Reads,
        collate: Callable[[Any], Any],
        augment: Callable[[Any], Any] | None,
        seed: str,
        shared: Any,
        single: bool,
    ) -> None:
        self.reads, self.collate, self.augment, self.seed = reads, collate, augment, seed
        self.shared = shared
        """Only of a stream: the settings in shared memory, since there is no ticket."""
        self.single = single
        """True if the loader does not batch, but hands over single items."""
        self._random: random.Random | None = None
        self._epoch, self._place = -1, 0

    def __call__(self, given: Any) -> Delivered:
        """Collate like the loader's function, with copies, augmented and timed."""
        if self.shared is None:
            ticket, items, seconds = given
        else:
            items = [given] if self.single else given
            ticket, seconds = self._ticket(len(items)), self.reads.taken()
        times = {"read": seconds}
        examples = self._augmented(ticket, items, times)
        begun = time.perf_counter()
        payload = self.collate(examples[0] if self.single else examples) if ticket.whole else Packed(examples)
        times["collate"] = time.perf_counter() - begun
        delivered = Delivered(ticket.number, ticket.whole, payload, len(items), times)
        delivered.effort = self.reads.effort()
        if ticket.number < 0 and ticket.copies is not None:
            first = ticket.places[0]
            delivered.made = [(place - first, copy) for place, copy in ticket.made()]
        return delivered

    def _augmented(self, ticket: Ticket, items: list[Any], times: dict[str, float]) -> list[Any]:
        augment, begun = self.augment, time.perf_counter()
        if augment is None and ticket.copies is None:
            return items
        copies = ticket.copies or [(0,)] * len(items)
        if augment is None:
            return [item for item, some in zip(items, copies, strict=True) for _ in some]
        found = []
        with kept_random():
            for item, place, some in zip(items, ticket.places, copies, strict=True):
                for copy in some:
                    seed_random(f"{self.seed}/{ticket.epoch}/{place}/{copy}")
                    found.append(on_item(augment, item if copy == some[-1] else copied(item)))
        times["augment"] = time.perf_counter() - begun
        return found

    def _ticket(self, count: int) -> Ticket:
        """Return a ticket for a batch of a stream, from the settings in shared memory.

        Its copies are drawn here, with a separate generator.
        """
        from torch.utils.data import get_worker_info

        factor, whole, epoch = self.shared.tolist()
        worker = getattr(get_worker_info(), "id", 0)
        if self._random is None or epoch != self._epoch:
            self._random, self._epoch, self._place = random.Random(f"{self.seed}/{epoch}/{worker}"), epoch, 0
        places = range(self._place, self._place + count)
        self._place += count
        copies = None if whole else [tuple(range(drawn_repeats(factor, self._random.random()))) for _ in places]
        return Ticket(-1, int(epoch) * 1000 + worker, bool(whole), [None] * count, places, copies)


def drawn_repeats(factor: float, u: float) -> int:
    """Return how often an item appears: the factor, rounded at random by ``u``.

    >>> drawn_repeats(2.25, 0.2), drawn_repeats(2.25, 0.3)
    (3, 2)
    """
    whole = int(factor)
    return whole + (u < factor - whole)


def pinned(batch: Any) -> Any:
    """Return the batch in pinned memory if there is a device to copy it to."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return batch
    from torch.utils.data._utils.pin_memory import pin_memory

    return pin_memory(batch)
