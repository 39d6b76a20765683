"""Resumable sources of fresh data: the host's loader with each batch as a ticket."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from looptap.training.echoing.pytrees import leaves
from looptap.training.echoing.rng import kept_random
from looptap.training.echoing.worker_stages import SHARED, Delivered, Entry, Reads, Stage, Ticket, drawn

Key = tuple[int, int, int]
"""Key of an item: number of its fresh batch, place (in the epoch; of a stream, in the batch), number of the copy."""


class Copies:
    """A random draw of the copies that a worker makes; 1 if made elsewhere."""

    def __init__(self, generator: random.Random) -> None:
        self._generator, self.factor = generator, 1.0

    def __call__(self) -> int:
        """Return the copies of the next example."""
        return drawn(self.factor, self._generator.random()) if self.factor != 1.0 else 1


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


def open_source(loader: Any, augment: Callable[[Any], Any] | None, seed: str) -> Indexed | Streamed | Iterated:
    """Return the source for a loader, by its kind.

    It is a DataLoader with indices, one of a stream, or any other iterable of batches.
    """
    from torch.utils.data import DataLoader, IterableDataset

    if not isinstance(loader, DataLoader):
        return Iterated(loader)
    return (Streamed if isinstance(loader.dataset, IterableDataset) else Indexed)(loader, augment, seed)


def _like(loader: Any, dataset: Any, stage: Stage, **batching: Any) -> Any:
    """Return a DataLoader with the host's settings, but other reads and collation."""
    from torch.utils.data import DataLoader

    more = {"in_order": loader.in_order} if hasattr(loader, "in_order") else {}
    if getattr(loader, "pin_memory_device", ""):
        more["pin_memory_device"] = loader.pin_memory_device
    return DataLoader(
        dataset, collate_fn=stage, num_workers=loader.num_workers, pin_memory=loader.pin_memory,
        timeout=loader.timeout, worker_init_fn=loader.worker_init_fn, generator=loader.generator,
        multiprocessing_context=loader.multiprocessing_context, prefetch_factor=loader.prefetch_factor,
        persistent_workers=loader.persistent_workers, **batching, **more,
    )  # fmt: skip


class Tickets:
    """The host's batch sampler, which adds the copies to make to each batch."""

    def __init__(self, loader: Any) -> None:
        self._sampler = loader.batch_sampler if loader.batch_sampler is not None else _Singles(loader.sampler)
        holders = (loader, self._sampler, getattr(self._sampler, "sampler", None), loader.sampler)
        found: list[Any] = [getattr(holder, "generator", None) for holder in holders]
        self._generators = list({id(one): one for one in found if hasattr(one, "get_state")}.values())
        self.outstanding: dict[int, Ticket] = {}
        """Requested, but not arrived."""
        self.again: dict[int, Ticket] = {}
        self.begin(0, True, Copies(random.Random(0)))

    def begin(self, epoch: int, whole: bool, copies: Copies) -> None:
        """Begin an epoch; ``copies()`` is how many copies a worker makes of an example."""
        self.epoch, self._whole, self._copies = epoch, whole, copies
        self.outstanding.clear()
        self.again.clear()
        self.asked = self.place = 0
        """Batches and examples requested in this epoch."""
        self.started: list[bytes] = []
        """The random states, of torch and of each generator, from which the sampler began this epoch."""

    def resume(self, state: dict[str, Any], needed: dict[int, list[Entry]]) -> None:
        """Continue inside an epoch: request what is ``needed`` or outstanding again."""
        self.asked, self.place = state["asked"], state["place"]
        self.started = list(state["started"])
        for number, entries in needed.items():
            self.again[number] = Ticket.of(number, self.epoch, self._whole, entries)
        for number, entries in state["outstanding"]:
            self.outstanding[number] = Ticket.of(number, self.epoch, self._whole, entries)

    def state(self) -> dict[str, Any]:
        """Return plain data for `resume`."""
        waiting = [[number, ticket.entries()] for number, ticket in self.outstanding.items()]
        return {"asked": self.asked, "place": self.place, "started": list(self.started), "outstanding": waiting}

    def __len__(self) -> int:
        return len(self._sampler)

    def __iter__(self) -> Iterator[Ticket]:
        yield from list(self.again.values())
        yield from list(self.outstanding.values())
        for indices in self._batches():
            indices, once = list(indices), self._whole or self._copies.factor == 1.0
            places = range(self.place, self.place + len(indices))
            copies = None if once else [tuple(range(self._copies())) for _ in places]
            self.place += len(indices)
            ticket = Ticket(self.asked, self.epoch, self._whole, indices, places, copies)
            self.outstanding[self.asked] = ticket
            self.asked += 1
            yield ticket

    def _batches(self) -> Iterator[Any]:
        import torch

        if not self.asked:
            states = [torch.get_rng_state(), *(one.get_state() for one in self._generators)]
            self.started = [state.numpy().tobytes() for state in states]
            yield from self._sampler
            return
        if hasattr(self._sampler, "load_state_dict"):  # its own state is loaded, so it continues by itself
            batches = iter(self._sampler)
            for _ in range(getattr(self._sampler, "drawn_again", 0)):
                next(batches, None)
            yield from batches
            return
        with kept_random():
            setters = [torch.set_rng_state, *(one.set_state for one in self._generators)]
            for set_state, raw in zip(setters, self.started, strict=True):
                set_state(torch.frombuffer(bytearray(raw), dtype=torch.uint8))
            batches = iter(self._sampler)
            for _ in range(self.asked):
                next(batches, None)
        yield from batches


class _Singles:
    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __iter__(self) -> Iterator[list[Any]]:
        return ([index] for index in self.sampler)

    def __len__(self) -> int:
        return len(self.sampler)


class Indexed:
    """A DataLoader over indexed data: items can be read again, so a resume is exact."""

    exact = True

    def __init__(self, loader: Any, augment: Callable[[Any], Any] | None, seed: str) -> None:
        reads = Reads(loader.dataset)
        self.single = loader.batch_sampler is None
        stage = Stage(reads, loader.collate_fn, augment, seed, None, self.single)
        self._tickets = Tickets(loader)
        self._loader = _like(loader, reads, stage, batch_sampler=self._tickets)

    def begin(self, epoch: int, whole: bool, copies: Copies) -> None:
        """Begin the next epoch."""
        self._tickets.begin(epoch, whole, copies)

    def turned(self) -> None:
        """Do nothing: a ticket keeps the factor from when it was drawn."""

    def resume(self, state: dict[str, Any], needed: dict[int, list[Entry]]) -> None:
        """Continue inside the epoch; called after `begin`."""
        self._tickets.resume(state, needed)

    def state(self) -> dict[str, Any]:
        """Return plain data for `resume`."""
        return self._tickets.state()

    def expected(self, whole: bool) -> int:
        """Return how many requested copies, or ``whole`` batches, have not arrived."""
        tickets = list(self._tickets.outstanding.values())
        return len(tickets) if whole else sum(ticket.examples() for ticket in tickets)

    @property
    def asked(self) -> tuple[int, int]:
        """Batches and examples requested in this epoch."""
        return self._tickets.asked, self._tickets.place

    def __iter__(self) -> Iterator[Fresh]:
        tickets = self._tickets
        if tickets.asked:
            with kept_random():  # the epoch began earlier, and the loader drew its numbers then
                arriving = iter(self._loader)
        else:
            arriving = iter(self._loader)
        early: deque[Fresh] = deque()
        for delivered in arriving:
            again = delivered.number in tickets.again
            ticket = tickets.again.pop(delivered.number) if again else tickets.outstanding.pop(delivered.number)
            fresh = [Fresh(ticket.number, delivered, ticket)]
            del delivered  # so that the loop can free the batch
            if tickets.again and not again:  # a loader without a fixed order
                early.append(fresh.pop())
                continue
            yield fresh.pop()
            while early and not tickets.again:
                yield early.popleft()


class Streamed:
    """A DataLoader over a stream; a resume rereads it and picks the pending items."""

    exact = False

    def __init__(self, loader: Any, augment: Callable[[Any], Any] | None, seed: str) -> None:
        import torch

        reads, self.single = Reads(loader.dataset), loader.batch_size is None
        self._shared = torch.zeros(len(SHARED), dtype=torch.float64).share_memory_()
        stage = Stage(reads, loader.collate_fn, augment, seed, self._shared, self.single)
        batching = {"batch_size": loader.batch_size} | ({} if self.single else {"drop_last": loader.drop_last})
        self._loader = _like(loader, reads, stage, **batching)
        self._taken = self._skip = 0
        self._needed: set[int] = set()

    def begin(self, epoch: int, whole: bool, copies: Copies) -> None:
        """Begin the next epoch."""
        self._shared[1], self._shared[2] = float(whole), float(epoch)
        self._copies = copies
        self.turned()
        self._taken = self._skip = 0
        self._needed = set()

    def turned(self) -> None:
        """Use the current factor for what a worker reads next."""
        self._shared[0] = self._copies.factor

    def resume(self, state: dict[str, Any], needed: dict[int, list[Entry]]) -> None:
        """Continue inside the epoch; called after `begin`."""
        self._skip, self._needed = state["asked"], set(needed)

    def state(self) -> dict[str, Any]:
        """Return plain data for `resume`."""
        return {"asked": self._taken}

    def expected(self, whole: bool) -> int:
        """Return 0: how much the workers have ready is unknown."""
        return 0

    @property
    def asked(self) -> tuple[int, int]:
        """Batches that have arrived, and -1 for the unknown number of examples."""
        return self._taken, -1

    def _arriving(self) -> Iterator[Delivered]:
        return iter(self._loader)

    def __iter__(self) -> Iterator[Fresh]:
        for delivered in self._arriving():
            number, again = self._taken, self._taken < self._skip
            self._taken += 1
            fresh = [Fresh(number, delivered, None)]
            del delivered
            if not again or number in self._needed:
                yield fresh.pop()


class Iterated(Streamed):
    """A re-iterable of batches, which can be echoed; their examples are unknown."""

    def __init__(self, loader: Any) -> None:
        self._batches, self.single = loader, False
        self._taken = self._skip = 0
        self._needed = set()

    def _arriving(self) -> Iterator[Delivered]:
        return (Delivered(None, True, batch, batch_length(batch), {}) for batch in self._batches)

    def begin(self, epoch: int, whole: bool, copies: Copies) -> None:
        """Begin the next epoch."""
        self._taken = self._skip = 0
        self._needed = set()

    def turned(self) -> None:
        """Do nothing: this source makes no copies."""


def batch_length(batch: Any) -> int:
    """Return the number of examples of a batch, by its first leaf with a length."""
    shapes = (getattr(leaf, "shape", None) for leaf in leaves(batch))
    return next((int(shape[0]) for shape in shapes if shape), 1)
