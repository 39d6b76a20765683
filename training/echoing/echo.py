"""`Echo`: a loader whose items are used several times, so that a loop need not wait for slow data."""

from __future__ import annotations

import math
import random
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from looptap.streams.control import Control
from looptap.training.echoing import state as states
from looptap.training.echoing.arguments import (
    AFTER, BATCH, BEFORE, HIGHEST, MODES, SHUFFLED, Automatic, Factor, Mode, checked_loader, impossible, one_of, positive,
)  # fmt: skip
from looptap.training.echoing.auto import Auto, Meter
from looptap.training.echoing.buffer import Buffer, Example
from looptap.training.echoing.shown import Shown
from looptap.training.echoing.source import Fresh, Key, batch_length, open_source
from looptap.training.echoing.stages import drawn, kept_random, pinned, seed_random
from looptap.training.echoing.trees import copied, size, versions

_START = 4
"""Batches that the buffer may hold at the start of an epoch; it then grows by one a batch, so that nothing waits long."""


class Echo(Shown):
    """The batches of ``loader``, with each item ``factor`` times: real-valued, so 2.5 is 2 or 3 times, evenly drawn.

    ``loader`` is a DataLoader, of indices or of a stream, which stays as it is; where batches are echoed, any iterable.
    ``factor`` is a number from 1 to 64, a function of the step, or "auto": as large as keeps the loop just fed, up to
    ``bound``. ``mode`` is where the echo comes: "example_before_augment" (each copy is augmented by itself, by
    ``augment(example)`` where the loader reads, or by ``augment_batch(batch)`` here), "example_after_augment", "batch"
    (one after the other), or "batch_shuffled". ``buffer`` is how many examples are shuffled after the echo, by default
    a tenth of the data; it never keeps more than ``max_bytes`` and one batch alive. ``end`` says what becomes of them
    when the data has ended: "drain", or "drop". ``transfer(batch)`` copies to a device, a batch that is echoed once.
    ``guard="clone"`` gives each echo of a batch memory of its own; "version" notices an in-place change and leaves out
    the echoes of what was changed. On several ranks ``broadcast(value)`` returns the value of rank 0, on all of them:
    changes are then made every ``agree_every`` batches, at the same one on all ranks.

    Raises ValueError, TypeError and ControlError for what will not do. The global random numbers are those of the loop.

    >>> loader = Echo([[1, 2], [3, 4]], factor=2, mode="batch")
    >>> list(loader), len(loader)
    ([[1, 2], [1, 2], [3, 4], [3, 4]], 4)
    """

    factor = Factor(float, default=1.0, minimum=1.0, maximum=HIGHEST, doc="how often each item is used")
    auto = Automatic(bool, default=False, doc="hold the factor where the loop is just fed")
    mode = Mode(choices=MODES, default=BATCH, doc="what is echoed, and where; from the next epoch on")
    buffer = Control(int, minimum=1, default=1000, unit="examples", doc="how many are shuffled after the echo")

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
        self.loader = checked_loader(loader)
        self._augment, self._augment_batch, self._transfer = augment, augment_batch, transfer
        self._max_bytes = positive("max_bytes", max_bytes, whole=True)
        self._end = one_of("end", end, ("drain", "drop"))
        self._guard = one_of("guard", guard, ("clone", "version"))
        self._every = positive("agree_every", agree_every, whole=True)
        if not 1.0 <= positive("bound", bound) <= HIGHEST:
            raise ValueError(f"bound={bound!r}: it is a factor, from 1 to {HIGHEST:g}.")
        self.schedule: Callable[[int], float] | None = None
        ranks, rank = _ranks()
        self.apart = ranks > 1 and broadcast is None
        """There are several ranks, and nothing by which they agree."""
        self.mode, self.factor = mode, factor
        self._broadcast, self._clock = broadcast, clock
        batches = getattr(loader, "batch_size", None) or getattr(getattr(loader, "batch_sampler", None), "batch_size", None)
        self._size: int | None = batches
        self._seed = f"{seed}/{rank}"
        self._source = open_source(loader, augment, self._seed)
        self.buffer = max(1, self._tenth()) if buffer is None else buffer
        self._meter, self._controller = Meter(getattr(loader, "num_workers", 0)), Auto(bound)
        self._copies, self._order = random.Random(f"copies/{seed}"), random.Random(f"order/{seed}")
        self._factor, self._capacity = self.factor, self.buffer
        self._in_epoch, self._epoch_fresh, self._room = 0, 0, 0
        self._inside, self._over, self._now = False, False, self.mode
        self._resumed: dict[str, Any] | None = None
        self._clear()

    # ------------------------------------------------------------ what it is, beside the loop

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "loader":
            raise AttributeError(name)
        return getattr(self.loader, name)

    def __len__(self) -> int:
        """Batches of an epoch with the factor of now; inside one, those handed over and those to come. Or TypeError."""
        whole, size = self._mode_now in (BATCH, SHUFFLED), 1 if self._whole else self._size or 1
        fresh = len(self.loader) if whole else self._examples()
        factor, rest = self._factor_now, float(fresh)
        if self._inside:
            batches, examples = self._source.asked
            asked = batches if whole else examples if examples >= 0 else self._epoch_fresh
            rest = max(0.0, fresh - asked)
        rest *= factor
        if self._inside:
            rest += self._source.expected() * (1.0 if self._in_workers else factor) + len(self._buffer)
            rest += sum(max(0, self._promised(one) - one.done) for one in list(self._pending))
        if self._end == "drop" and self._mode_now != BATCH:
            rest = max(0.0, rest - self._most(self.buffer))
        left = round(rest) if whole else int(rest / size) if self._drops_last else math.ceil(rest / size - 1e-9)
        return (self._in_epoch if self._inside else 0) + left

    @property
    def fill(self) -> int:
        """What waits in the shuffle buffer: examples, or batches where these are echoed."""
        return len(self._buffer)

    @property
    def fill_bytes(self) -> int:
        """The memory that the buffer keeps alive, in bytes."""
        return self._buffer.nbytes

    def impossible(self, mode: str) -> str:
        """Why this insertion point cannot work with this loader; empty if it can."""
        return impossible(mode, self.loader, self._augment, self._augment_batch)

    def set_epoch(self, epoch: int) -> None:
        """Tell the sampler and the data set of the loader which epoch comes; call it once for each fresh one."""
        sampler = getattr(self.loader, "batch_sampler", None)
        for holder in (sampler, getattr(self.loader, "sampler", None), getattr(self.loader, "dataset", None)):
            if hasattr(holder, "set_epoch"):
                holder.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Plain data with which `load_state_dict` goes on after the batch that was handed over last."""
        return states.taken(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Have the next ``iter`` go on where the state was taken. Raises ValueError for that of another kind of loader."""
        states.given(self, state)

    # ------------------------------------------------------------ the loop

    def __iter__(self) -> Iterator[Any]:
        found = self._begin()
        arriving, clock = iter(self._source), self._clock
        self._arrival: float | None = None
        if found is not None:
            states.filled(self, found, arriving)
        while True:
            begun, self._waited = clock(), 0.0
            self._look()
            examples = self._gather(arriving)
            if not examples:
                break
            batch = self._made(examples)
            before = versions(batch) if self._whole and self._guard == "version" else []
            self._in_epoch += 1
            self.steps += 1
            self._room += self._size or 1
            count = batch_length(batch) if self._whole else len(examples)
            self.seen += count
            self.duplicates = len(examples) - len({one.key[:2] for one in examples})
            waited, handed = self._waited, clock()
            main = handed - begun - waited
            yield batch
            self._meter.handed(clock() - handed, main, waited)
            if before and versions(batch) != before:
                self._spoiled(examples[0])
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
        self._room, self._over, self._inside = _START * (self._size or 1), False, True
        self._source.begin(
            self.epoch, self._whole, (lambda: drawn(self._factor, self._copies.random())) if self._in_workers else lambda: 1,
            self._factor if self._in_workers else 1.0,
        )  # fmt: skip
        return state

    def _look(self) -> None:
        """What is wanted for the batch to come."""
        before, step = self._factor, self.steps
        if self.auto:
            self.__dict__["factor"] = self._controller.next(self.factor, self._meter, step)
        elif self.schedule is not None:
            self._scheduled(self.schedule)
        self._agree(step % self._every == 0)
        if self._factor != before:
            self._meter.changed()
            if self._in_workers and self._broadcast is None:
                self._source.turned(self._factor)

    def _scheduled(self, schedule: Callable[[int], float]) -> None:
        try:
            value = Echo.factor.checked(schedule(self.steps), "factor")
            if not isinstance(value, float):
                raise TypeError(f"it returned {value!r:.60}")
            self.__dict__["factor"] = value
        except Exception as error:  # the loop has nothing to do with a schedule that fails
            self._say(f"The schedule of the factor failed at step {self.steps}, and {self.factor:g} stays: {error}")

    def _agree(self, now: bool) -> None:
        """Take over what is wanted; of several ranks what rank 0 wants, when all of them are here."""
        if self._broadcast is None:
            self._factor, self._capacity = self.factor, self.buffer
        elif now:
            wanted = self._broadcast((self.factor, self.buffer, self.mode))
            self._factor, self._capacity, mode = wanted
            self.__dict__.update(factor=self._factor, buffer=self._capacity, mode=mode)

    # ------------------------------------------------------------ items

    def _gather(self, arriving: Iterator[Fresh]) -> list[Example]:
        """What the next batch consists of; empty at the end of the epoch."""
        buffer, many = self._buffer, 1 if self._whole else self._size or 1
        found: list[Example] = []
        while len(found) < many:
            self._fill(arriving)
            if self._over and self._end == "drop" and self._now != BATCH and not self._pending:
                self.dropped += len(buffer)
                self._clear()
            if not len(buffer):
                break
            found.append(buffer.draw())
        if self._drops_last and 0 < len(found) < many:
            self.dropped += len(found)
            return []
        return found

    def _fill(self, arriving: Iterator[Fresh]) -> None:
        buffer, pending, most = self._buffer, self._pending, self._most(min(self._capacity, self._room))
        while len(buffer) < most:
            if pending:
                head = pending[0]
                if head.done < self._promised(head):
                    head.done += 1
                    buffer.add(head)
                if head.done >= self._promised(head):
                    pending.popleft()
                    if not head.waiting:
                        buffer.release(head)
            elif self._over or (len(buffer) and buffer.nbytes >= self._max_bytes) or not self._take(arriving):
                return

    def _take(self, arriving: Iterator[Fresh]) -> bool:
        begun = self._clock()
        fresh = next(arriving, None)
        now = self._clock()
        self._waited += now - begun
        if fresh is None:
            self._over = True
            return False
        if self._arrival is not None:
            self._meter.arrived(now - begun, now - self._arrival, fresh.seconds)
        self._arrival = now
        self.fresh += fresh.count
        self._epoch_fresh += fresh.count
        self._pending.extend(self._examples_of(fresh))
        return True

    def _examples_of(self, fresh: Fresh, draws: bool = True) -> list[Example]:
        values = [self._whole_batch(fresh)] if fresh.whole else fresh.payload.examples()
        piece = self._buffer.piece(size(values[0]) if fresh.whole else fresh.payload.nbytes)
        made = []
        for key, entries, value in zip(fresh.keys, fresh.entries, values, strict=True):
            u = self._copies.random() if draws and not self._in_workers else 0.0
            made.append(Example(key, value, piece, u, entries))
        return made

    def _whole_batch(self, fresh: Fresh) -> Any:
        batch = self._augmented(fresh.payload, fresh.keys[0])
        return batch if self._transfer is None else self._transfer(batch)

    def _augmented(self, batch: Any, key: Key) -> Any:
        if self._augment_batch is None:
            return batch
        with kept_random():
            seed_random(f"{self._seed}/{self.epoch}/batch/{key}")
            return self._augment_batch(batch)

    def _made(self, examples: list[Example]) -> Any:
        """The batch of what was drawn; what is still to come of an example stays as it is."""
        whole, values = self._whole, []
        apart = self._guard == "clone" if whole else not self._copies_when_collated
        pending, used = self._pending[0] if self._pending else None, set[int]()
        for one in examples:
            more = one.waiting or one is pending
            values.append(copied(one.value) if apart and (more or id(one) in used) else one.value)
            used.add(id(one))
            if not more:
                self._buffer.release(one)
        if whole:
            return values[0]
        batch = self._augmented(self.loader.collate_fn(values), (self._in_epoch, 0, 0))
        if getattr(self.loader, "pin_memory", False):
            batch = pinned(batch)
        return batch if self._transfer is None else self._transfer(batch)

    def _spoiled(self, example: Example) -> None:
        """A batch was changed in place while echoes of it were to come."""
        left = example.waiting + (self._promised(example) - example.done if example in self._pending else 0)
        if not left:
            return
        self.dropped += left * batch_length(example.value)
        self._buffer.items = [one for one in self._buffer.items if one is not example]
        self._pending = deque(one for one in self._pending if one is not example)
        example.waiting = 0
        self._buffer.release(example)
        self._guard = "clone"
        self._say("The loop changes its batches in place: echoes of one were left out, and from now on each is a copy.")

    def _clear(self) -> None:
        self._buffer, self._pending = Buffer(self._order), deque[Example]()

    # ------------------------------------------------------------ what follows from the settings

    @property
    def _mode_now(self) -> str:
        return self._now if self._inside else self.mode

    @property
    def _factor_now(self) -> float:
        return self._factor if self._broadcast is not None and self._inside else self.factor

    @property
    def _whole(self) -> bool:
        return self._mode_now in (BATCH, SHUFFLED)

    @property
    def _in_workers(self) -> bool:
        return self._mode_now == BEFORE and self._augment is not None

    @property
    def _drops_last(self) -> bool:
        batches = getattr(self.loader, "batch_sampler", None)
        return not self._whole and bool(getattr(batches, "drop_last", False) or getattr(self.loader, "drop_last", False))

    @property
    def _copies_when_collated(self) -> bool:
        from torch.utils.data import default_collate

        return self.loader.collate_fn is default_collate

    def _augments(self) -> bool:
        return self._augment is not None or self._augment_batch is not None

    def _promised(self, example: Example) -> int:
        """How often this item is to appear, with the factor of now."""
        return 1 if self._in_workers else drawn(self._factor, example.u)

    def _most(self, examples: int) -> int:
        """What the buffer may hold, if that is so many examples."""
        if self._now == BATCH:
            return 1
        return examples if self._now != SHUFFLED else max(2, -(-examples // (self._size or 1)))

    def _examples(self) -> int:
        batches = getattr(self.loader, "batch_sampler", None)
        source = getattr(batches, "sampler", None) if batches is not None else self.loader.dataset
        count = len(source) if source is not None and hasattr(source, "__len__") else len(self.loader) * (self._size or 1)
        return count // self._size * self._size if self._size and getattr(self.loader, "drop_last", False) else count

    def _tenth(self) -> int:
        try:
            return self._examples() // 10 if hasattr(self.loader, "dataset") else 1000
        except TypeError:  # a stream
            return 1000


def _ranks() -> tuple[int, int]:
    import torch

    group = torch.distributed
    return (group.get_world_size(), group.get_rank()) if group.is_available() and group.is_initialized() else (1, 0)


__all__ = ["AFTER", "BATCH", "BEFORE", "MODES", "SHUFFLED", "Echo"]
