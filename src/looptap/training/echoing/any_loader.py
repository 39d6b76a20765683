"""A source of whole batches: any loader, iterated and left alone."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterator
from typing import Any

from looptap.training.echoing.pytrees import batch_length
from looptap.training.echoing.rng import kept_random
from looptap.training.echoing.worker_stages import Copies, Delivered, Entry, Fresh
from looptap.training.host_loader import OrderState, loaders_in

_END = object()


class Unplanned:
    """A source of which nothing is known before it arrives."""

    exact = intact = ended = False
    _taken = 0

    def close(self) -> None:
        """Do nothing: the loader ends its epoch by itself."""

    def expected(self, whole: bool) -> int:
        """Return 0: how much the loader or its workers have ready is unknown."""
        return 0

    @property
    def asked(self) -> tuple[int, int]:
        """Batches that have arrived, and -1 for the unknown number of examples."""
        return self._taken, -1


class Iterated(Unplanned):
    """An iterable of batches, which can be echoed; their examples are unknown.

    A resume loads the loader's own state, if it has one, as of before the oldest batch that is needed; otherwise it
    reads the epoch again from its beginning, in the same order if that comes from generators of torch.
    """

    single = False

    def __init__(self, loader: Any) -> None:
        self._loader, self._order = loader, OrderState(loader)
        self._own = all(callable(getattr(loader, name, None)) for name in ("state_dict", "load_state_dict"))
        self._iterated = False
        self._copies: Copies | None = None
        self._reset()

    def _reset(self) -> None:
        self._taken = 0
        self.finished = False
        """Whether the loader says that it has yielded its last batch, as one of Accelerate does."""
        self._resumed: tuple[Iterator[Any], deque[Fresh]] | None = None
        self._needed: set[int] = set()
        self._started: list[bytes] = []
        self._marks: deque[tuple[int, Any]] = deque()
        """The loader's own state before a batch, by its number."""

    def begin(self, epoch: int, whole: bool, copies: Copies) -> None:
        """Begin the next epoch."""
        self._reset()
        self._copies = copies

    def turned(self) -> None:
        """Do nothing: this source makes no copies."""

    def resume(self, state: dict[str, Any], needed: dict[int, list[Entry]]) -> int:
        """Continue inside the epoch, after `begin`; return how many batches come again."""
        self._needed, self._taken = set(needed), state["asked"]
        samplers = [] if state.get("loader") else self._samplers()
        if samplers:  # their state is loaded, so they continue by themselves, and draw again what was in flight
            self._taken = min(self._taken, *(getattr(sampler, "given", self._taken) for sampler in samplers))
            self._needed.clear()
        self._resumed = self._continued(state, by_itself=bool(samplers))
        return len(self._needed)

    def state(self, oldest: int | None = None) -> dict[str, Any]:
        """Return plain data for `resume`, from the ``oldest`` batch that is needed on."""
        state: dict[str, Any] = {"asked": self._taken, "order": self._order.taken()}
        if self._started:
            state["started"] = list(self._started)
        self.forget(oldest)
        if oldest is None:
            own = self.own_state()
            return state if own is None else state | {"loader": [self._taken, own]}
        return state | {"loader": [*self._marks[0]]} if self._marks and self._marks[0][0] <= oldest else state

    def forget(self, oldest: int | None) -> None:
        """Drop the loader's states that a resume from batch ``oldest`` does not need."""
        marks = self._marks
        while marks and (oldest is None or (len(marks) > 1 and marks[1][0] <= oldest)):
            marks.popleft()

    def own_state(self) -> Any:
        """Return the loader's own state; None if it has none, or was not iterated."""
        if not self._own or not self._iterated:
            return None
        try:
            return copy.deepcopy(self._loader.state_dict())
        except Exception:  # a wrapper with this method may wrap a loader without it
            self._own = False
            return None

    def load_own(self, state: Any) -> None:
        """Give the loader its own state."""
        self._loader.load_state_dict(copy.deepcopy(state))

    def __iter__(self) -> Iterator[Fresh]:
        if self._resumed is None:
            self._started = self._order.taken()
            arriving, again = iter(self._loader), deque[Fresh]()
        else:
            (arriving, again), self._resumed = self._resumed, None
        self._iterated = True
        while again:
            yield again.popleft()
        while True:
            if self._copies is None or not self._copies.intact:  # else the batch is used once, and not read again
                self._mark(self._taken)
            if (batch := next(arriving, _END)) is _END:
                return
            self.finished = self._says_last()
            fresh = [_fresh(self._taken, batch)]
            del batch  # so that the loop can free it
            self._taken += 1
            yield fresh.pop()

    def hand_over(self, *, last: bool, shuffled: bool) -> None:
        """Tell Accelerate's loader if the loop gets its ``last`` batch, echoes included.

        Accelerate then applies the gradients that it has accumulated, and takes the batch for the incomplete one.
        """
        if self.finished:
            self._loader.end_of_dataloader = last
            if shuffled:
                self._loader.remainder = 0

    def _says_last(self) -> bool:
        return getattr(self._loader, "end_of_dataloader", False) is True

    def _continued(self, state: dict[str, Any], *, by_itself: bool) -> tuple[Iterator[Any], deque[Fresh]]:
        """Return the rest of the epoch, and the batches that are needed again.

        The loader draws the numbers that it drew when the epoch began; the job's own stay as they are.
        """
        again = deque[Fresh]()
        with kept_random():
            if by_itself:
                arriving = iter(self._loader)
            else:
                self._started = list(state.get("started", ()))
                self._order.put_back(self._started)
                first, own = state.get("loader") or (0, None)
                if own is not None:
                    self.load_own(own)
                arriving = iter(self._loader)
                self._iterated = True
                for number in range(first, self._taken):
                    if number in self._needed:
                        self._mark(number)
                    if (batch := next(arriving, _END)) is _END:
                        break
                    if number in self._needed:
                        again.append(_fresh(number, batch))
                self.finished = self._taken > first and self._says_last()
                self._order.put_back(state.get("order", ()))
        return arriving, again

    def _mark(self, number: int) -> None:
        if self._own and (state := self.own_state()) is not None:
            self._marks.append((number, state))

    def _samplers(self) -> list[Any]:
        holders = loaders_in(self._loader)
        found = [getattr(one, name, None) for one in holders for name in ("batch_sampler", "sampler")]
        return [one for one in found if hasattr(one, "load_state_dict")]


def _fresh(number: int, batch: Any) -> Fresh:
    return Fresh(number, Delivered(None, True, batch, batch_length(batch), {}), None)
