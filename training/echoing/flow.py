"""Move items from fresh batches through the buffer into batches of the loop."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from looptap.training.echoing.any_loader import Iterated
from looptap.training.echoing.echo_arguments import BATCH, BEFORE, SHUFFLED
from looptap.training.echoing.echo_observables import EchoObservables
from looptap.training.echoing.pytrees import copied, size
from looptap.training.echoing.rng import kept_random, seed_random
from looptap.training.echoing.shuffle_buffer import Example, ShuffleBuffer
from looptap.training.echoing.source import Indexed, Streamed
from looptap.training.echoing.worker_stages import Copies, Delivered, Entry, Fresh, Key, drawn, pinned
from looptap.training.host_loader import workers_of
from looptap.training.instances import expected_length, next_length, on_item

_PLACES = ("_in_epoch", "_epoch_fresh", "_room")  # also the names in checkpoints


class Flow(EchoObservables):
    """The part of an `Echo` that moves items; `Echo` decides about settings."""

    loader: Any
    buffer: int
    _source: Indexed | Streamed | Iterated
    _augment: Callable[[Any], Any] | None
    _augment_batch: Callable[[Any], Any] | None
    _transfer: Callable[[Any], Any] | None
    _broadcast: Callable[[Any], Any] | None
    _clock: Callable[[], float]
    _copies: random.Random
    _asked: Copies
    _order: random.Random
    _end: str
    _guard: str
    _seed: str
    _now: str
    _size: int | None
    _max_bytes: int
    _factor: float
    _capacity: int
    _room: int
    _in_epoch: int
    _epoch_fresh: int
    _inside: bool
    _over: bool
    _waited: float
    _arrival: float | None
    _buffer: ShuffleBuffer
    _pending: deque[Example]

    def __len__(self) -> int:
        """Return the batches of this or the next epoch. Raises TypeError if unknown."""
        found = self.expected_length
        if found is None:
            raise TypeError(f"The length of {self.loader!r:.60} is unknown, and so is how long its echo is.")
        return round(found)

    @property
    def expected_length(self) -> float | None:
        """Expected batches in this epoch, or between epochs in the next, or None."""
        whole, factor, fresh = self._whole, self._factor_now, expected_length(self.loader)
        if fresh is None:
            return None
        if not self._inside:
            return self._batches(self._items(fresh, whole) * factor, whole)
        batches, examples = self._source.asked
        rest = 0.0  # once all is requested, a sampler states the length of its next epoch
        if not (self._over or self._source.ended):
            rest = self._items(fresh, whole, batches, examples if examples >= 0 else self._epoch_fresh) * factor
        rest += self._source.expected(whole) * (1.0 if self._in_workers else factor) + len(self._buffer)
        rest += sum(max(0, self._promised(one, factor) - one.done) for one in list(self._pending))
        return self._in_epoch + self._batches(rest, whole)

    @property
    def next_length(self) -> float | None:
        """Expected number of batches in each later epoch; None if unknown."""
        whole, fresh = self.mode in (BATCH, SHUFFLED), next_length(self.loader)
        return None if fresh is None else self._batches(self._items(fresh, whole) * self.factor, whole)

    def _batches(self, items: float, whole: bool) -> float:
        """Return the number of batches made of so many items, copies included."""
        if self._end == "drop" and self._mode_now != BATCH:
            items = max(0.0, items - self._most(self.buffer))
        if whole:
            return items
        size = self._size or 1
        return float(int(items / size) if self._drops_last else math.ceil(items / size - 1e-9))

    @property
    def fill(self) -> int:
        """Number of examples waiting in the buffer, or of batches if those are echoed."""
        return len(self._buffer)

    @property
    def fill_bytes(self) -> int:
        """The memory that the buffer keeps alive, in bytes."""
        return self._buffer.nbytes

    # ------------------------------------------------------------ items

    def _straight(self, arriving: Iterator[Fresh]) -> list[Any]:
        """Return the next batch as the loader makes it, or nothing.

        With a factor of 1 and nothing waiting, batches pass whole; of examples, if a sampler orders them.
        """
        if len(self._buffer) or self._pending or (self._factor != 1.0 and not self._source.intact):
            return []
        if not self._whole and not self._source.exact:
            return []
        fresh = self._arrived(arriving)
        if fresh is None:
            return []
        given = fresh.delivered
        if self._whole:
            self.seen += given.fresh
            return [self._whole_batch(given.payload, fresh.keys()[0])]
        batch = given.payload if given.whole else self._collated_at_once(given)
        if batch is None:
            self._pending.extend(self._examples_of(fresh))
            return []
        self.seen += given.fresh
        return [self._finished(batch)]

    def _collated_at_once(self, given: Delivered) -> Any:
        """Return a batch of all delivered examples, or None if they are echoed or ragged."""
        if self._factor != 1.0:
            return None
        return given.payload.collated() if self._copies_when_collated else self._collated(given.payload.examples())

    def _collated(self, examples: list[Any]) -> Any:
        """Collate with the loader's function; keep the random numbers of the job."""
        if self._copies_when_collated or not workers_of(self.loader):
            return self.loader.collate_fn(examples)
        with kept_random():
            seed_random(f"{self._seed}/{self.epoch}/collate/{self._in_epoch}")
            return self.loader.collate_fn(examples)

    def _gather(self, arriving: Iterator[Fresh]) -> list[Example]:
        """Draw the examples of the next batch; none at the end of the epoch."""
        buffer, many = self._buffer, 1 if self._whole else self._size or 1
        found: list[Example] = []
        had: set[tuple[int, int]] = set()
        most = self._most(min(self._capacity, self._room))
        while len(found) < many:
            if len(buffer) < most:
                self._fill(arriving, most)
            if self._over and self._end == "drop" and self._now != BATCH and not self._pending:
                self.dropped += len(buffer)
                self._clear()
            if not len(buffer):
                break
            found += buffer.draw(many if len(buffer) >= 2 * many else 1, had)
        if self._drops_last and 0 < len(found) < many:
            self.dropped += len(found)
            return []
        return found

    def _fill(self, arriving: Iterator[Fresh], most: int) -> None:
        buffer, pending, factor = self._buffer, self._pending, 1.0 if self._in_workers else self._factor
        while len(buffer) < most:
            if pending:
                head = pending[0]
                promised = drawn(factor, head.u)
                if head.done < promised:
                    head.done += 1
                    buffer.add(head)
                if head.done >= promised:
                    pending.popleft()
                    if not head.waiting:
                        buffer.release(head)
            elif self._over or (len(buffer) and buffer.nbytes >= self._max_bytes) or not self._take(arriving):
                return

    def _take(self, arriving: Iterator[Fresh]) -> bool:
        fresh = self._arrived(arriving)
        if fresh is not None:
            self._pending.extend(self._examples_of(fresh))
        return fresh is not None

    def _arrived(self, arriving: Iterator[Fresh]) -> Fresh | None:
        if isinstance(self._source, Iterated):
            self._source.forget(self._oldest())
            if self._source.finished:  # it ends once the loop has got all echoes
                self._over = True
                return None
        begun = self._clock()
        fresh = next(arriving, None)
        now = self._clock()
        self._waited += now - begun
        if fresh is None:
            self._over = True
            return None
        if self._arrival is not None:
            self._meter.arrived(now - begun, now - self._arrival, fresh.delivered.seconds, fresh.delivered.effort)
        self._arrival = now
        self.fresh += fresh.delivered.fresh
        self._epoch_fresh += fresh.delivered.fresh
        return fresh

    def _oldest(self) -> int | None:
        """Return the number of the oldest fresh batch of which an item waits."""
        return min((one.key[0] for one in (*self._pending, *self._buffer.items)), default=None)

    def _examples_of(self, fresh: Fresh, draws: bool = True) -> list[Example]:
        keys, given = fresh.keys(), fresh.delivered
        values = [self._whole_batch(given.payload, keys[0])] if given.whole else given.payload.examples()
        piece = self._buffer.piece(size(values[0]) if given.whole else given.payload.nbytes)
        draw = self._copies.random if draws and not self._in_workers else float  # which is 0.0
        many = given.fresh if given.whole else 1
        return [Example(key, value, piece, draw(), fresh.ticket, many) for key, value in zip(keys, values, strict=True)]

    def _whole_batch(self, payload: Any, key: Key) -> Any:
        batch = self._augmented(payload, key)
        return batch if self._transfer is None else self._transfer(batch)

    def _augmented(self, batch: Any, key: Key) -> Any:
        if self._augment_batch is None:
            return batch
        with kept_random():
            seed_random(f"{self._seed}/{self.epoch}/batch/{key}")
            return on_item(self._augment_batch, batch)

    def _made(self, examples: list[Example]) -> Any:
        """Collate the drawn examples; copy those that are used again."""
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
        return self._finished(self._collated(values))

    def _finished(self, batch: Any) -> Any:
        batch = self._augmented(batch, (self._in_epoch, 0, 0))
        if getattr(self.loader, "pin_memory", False):
            batch = pinned(batch)
        return batch if self._transfer is None else self._transfer(batch)

    def _spoiled(self, example: Example) -> None:
        """Drop the echoes of a batch that the loop has changed in place."""
        left = example.waiting + (self._promised(example) - example.done if example in self._pending else 0)
        if not left:
            return
        self.dropped += left * example.count
        self._buffer.items = [one for one in self._buffer.items if one is not example]
        self._pending = deque(one for one in self._pending if one is not example)
        example.waiting = 0
        self._buffer.release(example)
        self._guard = "clone"
        self._say("The loop changes its batches in place: some echoes were skipped, and from now on each is a copy.")

    # ------------------------------------------------------------ a checkpoint inside an epoch

    def _epoch_state(self) -> dict[str, Any]:
        """Return the state of this epoch as plain data, without the examples."""
        needed: dict[int, dict[Key, list[Entry]]] = {}
        for one in (*self._pending, *self._buffer.items):
            needed.setdefault(one.key[0], {})[one.key] = one.entries()
        return {
            "now": self._now, "agreed": [self._factor, self._capacity],
            **{name: getattr(self, name) for name in _PLACES},
            "needed": [
                [number, [list(entry) for some in found.values() for entry in some]] for number, found in needed.items()
            ],
            "pending": [[list(one.key), one.u, one.done] for one in self._pending],
            "items": [list(one.key) for one in self._buffer.items],
            "source": self._source.state(self._oldest()),
        }  # fmt: skip

    def _refill(self, state: dict[str, Any], arriving: Iterator[Fresh]) -> None:
        """Read the examples of `_epoch_state` again, in their order."""
        for name in _PLACES:
            setattr(self, name, state[name])
        self._factor, self._capacity = state["agreed"]
        needed = {number: [(index, place, copies) for index, place, copies in some] for number, some in state["needed"]}
        again = self._source.resume(state["source"], needed)
        pending = [(tuple(key), u, done) for key, u, done in state["pending"]]
        items = [tuple(key) for key in state["items"]]
        wanted = {*items, *(key for key, _, _ in pending)}
        found: dict[tuple[int, ...], Example] = {}
        for _ in range(again):
            fresh = next(arriving, None)
            if fresh is None:
                break
            for one in self._examples_of(fresh, draws=False):
                if one.key in wanted:
                    found[one.key] = one
                else:
                    self._buffer.release(one)
        for key, u, done in pending:
            if key in found:
                found[key].u, found[key].done = u, done
                self._pending.append(found[key])
        for key in items:
            if key in found:
                self._buffer.add(found[key])
        lost = sum(key not in found for key in items)
        lost += sum(max(0, drawn(self._factor, u) - done) for key, u, done in pending if key not in found)
        if lost:
            self.dropped += lost
            self._say(f"{lost} echoes that waited at the checkpoint are lost: the data was different after the resume.")

    def _clear(self) -> None:
        self._buffer, self._pending = ShuffleBuffer(self._order, self._max_bytes // 2), deque[Example]()

    # ------------------------------------------------------------ what follows from the settings

    @property
    def _mode_now(self) -> str:
        return str(self._now if self._inside else self.mode)

    @property
    def _factor_now(self) -> float:
        return float(self._factor if self._broadcast is not None and self._inside else self.factor)

    @property
    def _whole(self) -> bool:
        return self._mode_now in (BATCH, SHUFFLED)

    @property
    def _in_workers(self) -> bool:
        return self._mode_now == BEFORE and self._augment is not None

    @property
    def _drops_last(self) -> bool:
        holders = (getattr(self.loader, "batch_sampler", None), self.loader)
        return not self._whole and any(getattr(holder, "drop_last", False) for holder in holders)

    @property
    def _copies_when_collated(self) -> bool:
        from torch.utils.data import default_collate

        return self.loader.collate_fn is default_collate

    def _augments(self) -> bool:
        return self._augment is not None or self._augment_batch is not None

    def _promised(self, example: Example, factor: float | None = None) -> int:
        """Return how often this item appears, by default by the loop's factor."""
        return 1 if self._in_workers else drawn(self._factor if factor is None else factor, example.u)

    def _most(self, examples: int) -> int:
        """Return how many items the buffer may hold if ``examples`` fit."""
        if self._now == BATCH:
            return 1
        return examples if self._now != SHUFFLED else max(2, -(-examples // (self._size or 1)))

    def _items(self, fresh: float, whole: bool, batches: float = 0, examples: float = 0) -> float:
        """Return what is left of an epoch after ``batches`` and ``examples``.

        The epoch has ``fresh`` batches. If they are echoed ``whole``, batches are counted, else examples, with the
        exact size of the last batch.
        """
        if whole:
            return max(0.0, fresh - batches)
        sampler, size = getattr(self.loader, "batch_sampler", None), self._size or 1
        source: Any = self.loader.dataset if sampler is None else getattr(sampler, "sampler", None)
        try:
            count = len(source) // size * size if self._drops_last else len(source)
        except (TypeError, NotImplementedError):  # a stream, or a batch sampler that draws by itself
            count = -1
        return max(0.0, count - examples if -(-count // size) == fresh else (fresh - batches) * size)

    def _tenth(self) -> int:
        fresh = expected_length(self.loader) if hasattr(self.loader, "dataset") else None
        return 1000 if fresh is None else int(self._items(fresh, False) / 10)
