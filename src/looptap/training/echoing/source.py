"""Resumable sources of fresh data: the host's loader with each batch as a ticket."""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from looptap.training.echoing.any_loader import Iterated, Unplanned
from looptap.training.echoing.rng import kept_random
from looptap.training.echoing.worker_stages import SHARED, Copies, Delivered, Entry, Fresh, Reads, Stage, Ticket
from looptap.training.host_loader import OrderState, follow, rebuildable, rebuilt


def open_source(loader: Any, augment: Callable[[Any], Any] | None, seed: str) -> Indexed | Streamed | Iterated:
    """Return the source for a loader, by its kind.

    It is a DataLoader with indices, one of a stream, or any other iterable of batches, such as a DataLoader of a class
    that makes its batches by itself.
    """
    from torch.utils.data import IterableDataset

    if not rebuildable(loader):
        return Iterated(loader)
    return (Streamed if isinstance(loader.dataset, IterableDataset) else Indexed)(loader, augment, seed)


class Tickets:
    """The host's batch sampler, which adds the copies to make to each batch."""

    def __init__(self, loader: Any) -> None:
        self._sampler = loader.batch_sampler if loader.batch_sampler is not None else _Singles(loader.sampler)
        self.order, self._loader = OrderState(loader), loader
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
        self.ended = False
        """Whether the sampler has no more batches in this epoch."""
        self._drawing: Any = None  # the sampler's iterator
        self._rest: Any = ()  # the batches that it has left
        self.started: list[bytes] = []
        """The random states, of torch and of each generator, from which the sampler began this epoch."""

    def resume(self, state: dict[str, Any], needed: dict[int, list[Entry]]) -> None:
        """Continue inside an epoch: request what is ``needed`` or outstanding again."""
        self.asked, self.place = state["asked"], state["place"]
        self.started, self.ended = list(state["started"]), state.get("ended", False)
        for number, entries in needed.items():
            self.again[number] = Ticket.of(number, self.epoch, self._whole, entries)
        for number, entries, *intact in state["outstanding"]:
            self.outstanding[number] = Ticket.of(number, self.epoch, self._whole or any(intact), entries)
        if self.asked:  # at once: a pass within this one would continue the sampler's
            self._drawing = self._continued(state)
            self._rest = () if self.ended and not state.get("sampler") else self._drawing

    def state(self) -> dict[str, Any]:
        """Return plain data for `resume`."""
        waiting = [
            [number, ticket.entries(), *[True] * (ticket.whole and not self._whole)]
            for number, ticket in self.outstanding.items()
        ]
        state = {"asked": self.asked, "place": self.place, "started": list(self.started), "outstanding": waiting}
        if self.ended:
            state["ended"] = True
        if hasattr(self._rest, "state_dict"):
            state["sampler"] = self._rest.state_dict()
        return state | {"order": self.order.taken()}

    @property
    def intact(self) -> bool:
        """Whether the next batch to arrive was requested as the loader collates it."""
        first = next(iter(self.outstanding.values()), None)
        return first is not None and first.whole and not self._whole

    def __len__(self) -> int:
        return len(self._sampler)

    def __iter__(self) -> Iterator[Ticket]:
        from torch.utils.data import default_collate

        in_order = getattr(self._loader, "in_order", True)  # otherwise a whole one may come between examples
        try:
            yield from list(self.again.values())
            yield from list(self.outstanding.values())
            if self._drawing is None:
                self.started = self.order.taken()
                self._rest = self._drawing = iter(self._sampler)
            for indices in self._rest:
                indices, once = list(indices), self._whole or self._copies.factor == 1.0
                places = range(self.place, self.place + len(indices))
                copies = None if once else [tuple(range(self._copies())) for _ in places]
                self.place += len(indices)
                own = self._copies.intact and in_order and self._loader.collate_fn is not default_collate
                ticket = Ticket(self.asked, self.epoch, self._whole or own, indices, places, copies)
                self.outstanding[self.asked] = ticket
                self.asked += 1
                yield ticket
            self.ended = True
        finally:
            if not self.ended:  # the loop has left the epoch
                self.close()

    def close(self) -> None:
        """Tell the sampler that its batches were used, or its pass left early."""
        if hasattr(self._drawing, "close"):
            self._drawing.close()

    def _continued(self, state: dict[str, Any]) -> Any:
        """Return an iterator over the rest of the epoch; draw no numbers of the job."""
        if hasattr(self._sampler, "load_state_dict"):  # its own state is loaded, so it continues by itself
            drawing = iter(self._sampler)
            if hasattr(drawing, "load_state_dict"):
                drawing.load_state_dict(state.get("sampler", {}))
            return drawing
        with kept_random():
            self.order.put_back(self.started)
            batches = iter(self._sampler)
            for _ in range(self.asked + self.ended):  # at its end a sampler may draw, too
                next(batches, None)
            self.order.put_back(state.get("order", ()))
        return batches


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
        reads, self._host = Reads(loader.dataset), loader
        self.single = loader.batch_sampler is None
        self._stage = Stage(reads, loader.collate_fn, augment, seed, None, self.single)
        self._tickets = Tickets(loader)
        self._loader = rebuilt(loader, reads, self._stage, batch_sampler=self._tickets)

    def begin(self, epoch: int, whole: bool, copies: Copies) -> None:
        """Begin the next epoch."""
        self._tickets.begin(epoch, whole, copies)

    def turned(self) -> None:
        """Do nothing: a ticket keeps the factor from when it was drawn."""

    def close(self) -> None:
        """End the epoch: the loop has had all echoes."""
        self._tickets.close()

    def resume(self, state: dict[str, Any], needed: dict[int, list[Entry]]) -> int:
        """Continue inside the epoch, after `begin`; return how many batches come again."""
        self._tickets.resume(state, needed)
        return len(needed)

    def state(self, oldest: int | None = None) -> dict[str, Any]:
        """Return plain data for `resume`."""
        return self._tickets.state()

    @property
    def intact(self) -> bool:
        """Whether the next batch comes collated, though examples are echoed."""
        return self._tickets.intact

    def expected(self, whole: bool) -> int:
        """Return how many requested copies, or ``whole`` batches, have not arrived."""
        tickets = list(self._tickets.outstanding.values())
        return len(tickets) if whole else sum(ticket.examples() for ticket in tickets)

    @property
    def asked(self) -> tuple[int, int]:
        """Batches and examples requested in this epoch."""
        return self._tickets.asked, self._tickets.place

    @property
    def ended(self) -> bool:
        """Whether all batches of this epoch are requested."""
        return self._tickets.ended

    def __iter__(self) -> Iterator[Fresh]:
        tickets, self._stage.collate = self._tickets, self._host.collate_fn
        follow(self._host, self._loader)
        if tickets.asked:
            with kept_random(), tickets.order:  # the epoch began earlier, and the loader drew its numbers then
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


class Streamed(Unplanned):
    """A DataLoader over a stream; a resume rereads it and picks the pending items."""

    def __init__(self, loader: Any, augment: Callable[[Any], Any] | None, seed: str) -> None:
        import torch

        reads, self.single = Reads(loader.dataset), loader.batch_size is None
        self._shared = torch.zeros(len(SHARED), dtype=torch.float64).share_memory_()
        self._host, self._stage = loader, Stage(reads, loader.collate_fn, augment, seed, self._shared, self.single)
        batching = {"batch_size": loader.batch_size} | ({} if self.single else {"drop_last": loader.drop_last})
        self._loader = rebuilt(loader, reads, self._stage, **batching)
        self._order = OrderState(loader)
        self._taken = self._skip = 0
        self._needed: set[int] = set()
        self._started: list[bytes] = []
        self._saved: list[bytes] = []

    def begin(self, epoch: int, whole: bool, copies: Copies) -> None:
        """Begin the next epoch."""
        self._shared[1], self._shared[2] = float(whole), float(epoch)
        self._copies = copies
        self.turned()
        self._taken = self._skip = 0
        self._needed, self._started, self._saved = set(), [], []

    def turned(self) -> None:
        """Use the current factor for what a worker reads next."""
        self._shared[0] = self._copies.factor

    def resume(self, state: dict[str, Any], needed: dict[int, list[Entry]]) -> int:
        """Continue inside the epoch, after `begin`; return how many batches come again."""
        self._skip, self._needed, self._started = state["asked"], set(needed), list(state.get("started", ()))
        self._saved = list(state.get("order", ()))
        return len(needed)

    def state(self, oldest: int | None = None) -> dict[str, Any]:
        """Return plain data for `resume`."""
        state: dict[str, Any] = {"asked": self._taken, "order": self._order.taken()}
        return state | ({"started": list(self._started)} if self._started else {})

    def __iter__(self) -> Iterator[Fresh]:
        self._stage.collate = self._host.collate_fn
        follow(self._host, self._loader)
        again = deque[Fresh]()
        if self._skip:  # as when the epoch began, and the job's own random numbers stay as they are
            with kept_random():
                self._order.put_back(self._started)
                arriving: Iterator[Delivered] = iter(self._loader)
                for number, delivered in enumerate(itertools.islice(arriving, self._skip)):
                    if number in self._needed:
                        again.append(Fresh(number, delivered, None))
                self._order.put_back(self._saved)
            self._taken = self._skip
        else:
            self._started = self._order.taken()
            arriving = iter(self._loader)
        while again:
            yield again.popleft()
        for delivered in arriving:
            fresh = [Fresh(self._taken, delivered, None)]
            self._taken += 1
            del delivered  # so that the loop can free the batch
            yield fresh.pop()
