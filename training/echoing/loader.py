"""`Echo`: a loader that uses items several times to hide slow data."""

from __future__ import annotations

import math
import random
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from looptap.streams.control import Control
from looptap.streams.forwarding import facade
from looptap.training.echoing import echo_arguments
from looptap.training.echoing.any_loader import Iterated
from looptap.training.echoing.auto_factor import Auto, StageMeter
from looptap.training.echoing.echo_arguments import BATCH, MAX_FACTOR, MODES, SHUFFLED, Automatic, Factor, Mode
from looptap.training.echoing.flow import Flow
from looptap.training.echoing.pytrees import versions
from looptap.training.echoing.shuffle_buffer import Example, ShuffleBuffer
from looptap.training.echoing.source import open_source
from looptap.training.echoing.worker_stages import Copies
from looptap.training.host_loader import workers_of
from looptap.training.saved_state import require_state

_START_BATCHES = 4
"""Maximum batches in the buffer at the start of an epoch: those of one fresh batch, so that none waits."""
_GROWTH_DIVISOR = 4
"""The buffer then grows by this part of a batch with each, so that a slow loader is not waited for twice as long."""
_COUNTERS = ("epoch", "steps", "fresh", "seen", "dropped")


@facade
class Echo(Flow):
    """The batches of ``loader`` with each item repeated ``factor`` times.

    A factor of 2.5 is 2 or 3 times, at random. ``loader`` is a DataLoader, of indices or of a stream, which stays
    unchanged, or any iterable if batches are echoed. ``factor`` is a number from 1 to 64, a function of the step, or
    "auto": just high enough that the loop never waits, up to ``bound``. ``mode`` is the insertion point:
    "example_before_augment" (each copy is augmented separately, by ``augment(example)`` in the loader's workers, or by
    ``augment_batch(batch)`` here), "example_after_augment", "batch" (one after the other), or "batch_shuffled".
    ``buffer`` is the number of examples in the shuffle buffer, by default a tenth of the data; it never keeps more than
    ``max_bytes`` and one batch alive. ``end`` says what happens to them when the data ends: "drain" or "drop".
    ``transfer(batch)`` copies to a device, once for an echoed batch. ``guard="clone"`` gives each echo of a batch its
    own memory; "version" detects in-place changes and skips the echoes of a changed batch. On several ranks,
    ``broadcast(value)`` returns the value of rank 0 on all of them; changes are then made every ``agree_every``
    batches, at the same batch on all ranks.

    Raises ValueError, TypeError and ControlError for invalid arguments. Only the loader draws from the global random
    numbers.

    >>> loader = Echo([[1, 2], [3, 4]], factor=2, mode="batch")
    >>> list(loader), len(loader)
    ([[1, 2], [1, 2], [3, 4], [3, 4]], 4)
    """

    __looptap_panel__ = (
        ("echo factor", "{'factor': self.factor, 'R, free': None if isnan(self.ratio) else self.ratio}"),
        ("share of the time waiting for data", "None if isnan(self.starved) else self.starved"),
        ("examples", "{'fresh': self.fresh, 'seen': self.seen}"),
    )

    factor = Factor(float, default=1.0, minimum=1.0, maximum=MAX_FACTOR, doc="how often each item is used")
    auto = Automatic(bool, default=False, doc="keep the factor just high enough that the loop never waits")
    mode = Mode(choices=MODES, default=BATCH, doc="what is echoed, and where, from the next epoch on")
    buffer = Control(int, minimum=1, default=1000, unit="examples", doc="number of items in the shuffle buffer")

    def __init__(
        self,
        loader: Any,
        factor: float | str | Callable[[int], float] = 1.0,
        mode: str = BATCH,
        *,
        augment: Callable[[Any], Any] | None = None,
        augment_batch: Callable[[Any], Any] | None = None,
        buffer: int | None = None,
        max_bytes: int = 1 << 30,
        end: str = "drain",
        bound: float = 16.0,
        transfer: Callable[[Any], Any] | None = None,
        guard: str = "clone",
        seed: int = 0,
        broadcast: Callable[[Any], Any] | None = None,
        agree_every: int = 16,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        echo_arguments.functions(
            augment=augment, augment_batch=augment_batch, transfer=transfer, broadcast=broadcast, clock=clock
        )
        self.loader = echo_arguments.checked_loader(loader, augment)
        self._augment, self._augment_batch, self._transfer = augment, augment_batch, transfer
        self._max_bytes = echo_arguments.positive("max_bytes", max_bytes, whole=True)
        self._end = echo_arguments.one_of("end", end, ("drain", "drop"))
        self._guard = echo_arguments.one_of("guard", guard, ("clone", "version"))
        self._every = echo_arguments.positive("agree_every", agree_every, whole=True)
        if not 1.0 <= echo_arguments.positive("bound", bound) <= MAX_FACTOR:
            raise ValueError(f"bound={bound!r} must be a factor, from 1 to {MAX_FACTOR:g}.")
        self.schedule: Callable[[int], float] | None = None
        ranks, rank = _ranks()
        self.apart = ranks > 1 and broadcast is None
        """True if there are several ranks without a way to agree."""
        mode, another = echo_arguments.possible(mode, loader)
        self.mode, self.factor = mode, factor
        if another:
            self._say(another)
        self._broadcast, self._clock = broadcast, clock
        sampler = getattr(loader, "batch_sampler", None)
        self._size: int | None = getattr(loader, "batch_size", None) or getattr(sampler, "batch_size", None)
        self._seed = f"{seed}/{rank}"
        self._in_epoch = self._epoch_fresh = self._room = self._turns = 0
        self._inside, self._over, self._now = False, False, self.mode
        self._source = open_source(loader, augment, self._seed)
        self.buffer = max(1, self._tenth()) if buffer is None else buffer
        self._meter, self._controller = StageMeter(workers_of(loader)), Auto(bound)
        self._copies, self._order = random.Random(f"copies/{seed}"), random.Random(f"order/{seed}")
        self._asked = Copies(self._copies)  # does not refer to this object: a loader in a cycle would be freed late
        self._factor, self._capacity = self.factor, self.buffer
        self._resumed: dict[str, Any] | None = None
        self._buffer, self._pending = ShuffleBuffer(self._order, self._max_bytes // 2), deque[Example]()

    # ------------------------------------------------------------ settings and properties

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "loader":
            raise AttributeError(name)
        return getattr(self.loader, name)

    def impossible(self, mode: str) -> str:
        """Return why this insertion point cannot work with this loader; empty if it can."""
        return echo_arguments.impossible(mode, self.loader, self._augment, self._augment_batch)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of loader, sampler and data set; call before each fresh epoch."""
        sampler = getattr(self.loader, "batch_sampler", None)
        holders: list[Any] = [
            self.loader,
            sampler,
            getattr(self.loader, "sampler", None),
            getattr(self.loader, "dataset", None),
        ]
        for holder in holders:
            if hasattr(holder, "set_epoch"):
                holder.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return plain data from which `load_state_dict` continues after the last batch."""
        if self._resumed is not None:  # state loaded, but not continued yet
            return dict(self._resumed)
        state = self._whole_state()
        return state | self._epoch_state() if self._inside else state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from ``state`` at the next ``iter``. Raises ValueError.

        The state must be of the same kind of loader.
        """
        require_state(state, self._whole_state(), "an Echo")
        kind = type(self._source).__name__
        if state["kind"] != kind:
            raise ValueError(f"The state is that of a loader of another kind, {state['kind']!r}; this one is {kind!r}.")
        if state["inside"]:
            require_state(state, self._epoch_state(), "an Echo within an epoch")
        for name in _COUNTERS:
            setattr(self, name, state[name])
        self.mode, self.buffer, self._guard = state["mode"], state["buffer"], state["guard"]
        self.__dict__.update(factor=Echo.factor.checked(state["factor"]), auto=state["auto"])
        for generator, found in ((self._copies, state["copies"]), (self._order, state["order"])):
            version, numbers, rest = found
            generator.setstate((version, tuple(numbers), rest))
        self._inside = False
        self._resumed = dict(state) if state["inside"] else None
        if isinstance(self._source, Iterated) and state.get("loader") is not None:
            self._source.load_own(state["loader"])

    def _whole_state(self) -> dict[str, Any]:
        """Return the part of a state that is not that of an epoch."""
        state: dict[str, Any] = {name: getattr(self, name) for name in _COUNTERS}
        state |= {"factor": self.factor, "auto": self.auto, "buffer": self.buffer, "mode": self.mode}
        state |= {"inside": self._inside, "kind": type(self._source).__name__, "guard": self._guard}
        if isinstance(self._source, Iterated) and not self._inside and (own := self._source.own_state()) is not None:
            state["loader"] = own
        return state | {"copies": self._copies.getstate(), "order": self._order.getstate()}

    # ------------------------------------------------------------ the loop

    def __iter__(self) -> Iterator[Any]:
        found, self._turns = self._begin(), self._turns + 1
        turn = self._turns
        arriving, clock = iter(self._source), self._clock
        self._arrival = None
        if found is not None:
            self._refill(found, arriving)
        while True:
            begun, self._waited = clock(), 0.0
            self._look()
            held, examples = self._straight(arriving), list[Example]()
            if not held:
                examples = self._gather(arriving)
                if not examples:
                    break
                held = [self._made(examples)]
            guarded = self._whole and self._guard == "version" and examples
            batch = held[0] if guarded else None  # keep no other reference, so that the loop can free the batch
            before = versions(batch) if guarded else []
            self._in_epoch += 1
            self.steps += 1
            self._room += -(-(self._size or 1) // _GROWTH_DIVISOR)
            self.seen += sum(one.count for one in examples)
            self.duplicates = len(examples) - len({one.key[:2] for one in examples})
            waited, handed = self._waited, clock()
            main = handed - begun - waited
            examples = examples if before else []
            if isinstance(self._source, Iterated):
                last = not (len(self._buffer) or self._pending)
                self._source.hand_over(last=last, shuffled=self._now == SHUFFLED)
            yield held.pop()
            if turn != self._turns:
                return self._say("An epoch ended early, since the loader was iterated again before its end.")
            self._meter.handed(clock() - handed, main, waited)
            if before and versions(batch) != before:
                self._spoiled(examples[0])
        next(arriving, None)  # lets a loader that has yielded its last batch end its epoch
        if not self._epoch_fresh:
            self._say("The loader yielded nothing in this epoch: it may be exhausted.")
        self._inside = False
        self.epoch += 1

    def _begin(self) -> dict[str, Any] | None:
        state, self._resumed = self._resumed, None
        if self._inside and state is None:  # the loop left the epoch before its end
            self.epoch += 1
        self._agree(state is None)
        self._now = self.mode if state is None else state["now"]
        self._clear()
        self._in_epoch = self._epoch_fresh = 0
        self._room = self._first_room()
        self._over, self._inside = False, True
        self._ask()
        self._source.begin(self.epoch, self._whole, self._asked)
        return state

    def _first_room(self) -> int:
        return min(_START_BATCHES, math.ceil(self._factor)) * (self._size or 1)

    def _look(self) -> None:
        """Apply the requested settings to the next batch."""
        before, step = self._factor, self.steps
        if self.auto:
            self.__dict__["factor"] = self._controller.next(self.factor, self._meter, step)
        elif self.schedule is not None:
            self._scheduled(self.schedule)
        self._agree(step % self._every == 0)
        self._ask()
        if self._factor != before:
            self._meter.changed()
            if not len(self._buffer):
                self._room = self._first_room()
            if self._broadcast is None:  # otherwise at the next epoch: workers of a stream read it at any time
                self._source.turned()

    def _ask(self) -> None:
        """State which copies to make of what is requested from now on."""
        self._asked.factor = self._factor if self._in_workers else 1.0
        self._asked.intact = self._factor == 1.0 and not len(self._buffer) and not self._pending

    def _scheduled(self, schedule: Callable[[int], float]) -> None:
        try:
            value = Echo.factor.checked(schedule(self.steps), "factor")
            if not isinstance(value, float):
                raise TypeError(f"it returned {value!r:.60}")
            self.__dict__["factor"] = value
        except Exception as error:  # a schedule that fails must not affect the loop
            self._say(f"The schedule of the factor failed at step {self.steps}, and {self.factor:g} stays: {error}")

    def _agree(self, now: bool) -> None:
        """Apply the requested settings, on several ranks those of rank 0, on all at once."""
        if self._broadcast is None:
            self._factor, self._capacity = self.factor, self.buffer
        elif now:
            wanted = self._broadcast((self.factor, self.buffer, self.mode))
            self._factor, self._capacity, mode = wanted
            self.__dict__.update(factor=self._factor, buffer=self._capacity, mode=mode)


def _ranks() -> tuple[int, int]:
    import torch

    group = torch.distributed
    return (group.get_world_size(), group.get_rank()) if group.is_available() and group.is_initialized() else (1, 0)
