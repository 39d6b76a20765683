"""Move items from fresh batches through the buffer into batches of the loop."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from looptap.streams.loop.loop_place import LoopPlace
from looptap.training.echoing.any_loader import Iterated
from looptap.training.echoing.echo_arguments import AFTER, BATCH, BEFORE, SHUFFLED
from looptap.training.echoing.echo_observables import EchoObservables
from looptap.training.echoing.pytrees import copied, size
from looptap.training.echoing.rng import kept_random, seed_random
from looptap.training.echoing.shuffle_buffer import Example, ShuffleBuffer
from looptap.training.echoing.source import Indexed, Streamed
from looptap.training.echoing.worker_stages import Copies, Delivered, Entry, Fresh, Key, drawn, pinned
from looptap.training.host_loader import workers_of
from looptap.training.instances import expected_length, next_length, on_item

_PLACES = {"_in_epoch": "batches", "_epoch_fresh": "fresh", "_room": "room"}  # names in checkpoints, and here


class EchoPass:
    """A pass over the data, with its own place, buffer and source.

    Passes may overlap, as those of a DataLoader: nested loops, ``zip(loader, loader)``, two threads.
    """

    place = LoopPlace()
    """Of its loop."""

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


class Flow(EchoObservables):
    """The part of an `Echo` that moves items; `Echo` decides about settings."""

    loader: Any
    buffer: int
    _source: Indexed | Streamed | Iterated
    _passes: list[EchoPass]
    _augment: Callable[[Any], Any] | None
    _augment_batch: Callable[[Any], Any] | None
    _transfer: Callable[[Any], Any] | None
    _broadcast: Callable[[Any], Any] | None
    _clock: Callable[[], float]
    _copies: random.Random
    _end: str
    _guard: str
    _seed: str
    _size: int | None
    _max_bytes: int

    @property
    def _now(self) -> EchoPass | None:
        """The pass under way, or that was left early; None between epochs."""
        return self._passes[-1] if self._passes else None

    def __len__(self) -> int:
        """Return the batches of this or the next epoch. Raises TypeError if unknown."""
        found = self.expected_length
        if found is None:
            raise TypeError(f"The length of {self.loader!r:.60} is unknown, and so is how long its echo is.")
        return round(found)

    @property
    def expected_length(self) -> float | None:
        """Expected batches in this epoch, or between epochs in the next, or None."""
        now, fresh = self._now, expected_length(self.loader)
        whole = self.mode in (BATCH, SHUFFLED) if now is None else now.whole
        factor = float(self.factor if now is None or self._broadcast is None else now.factor)
        if fresh is None:
            return None
        if now is None:
            return self._batches(self._items(fresh, whole) * factor, self.mode)
        batches, examples = now.source.asked
        rest = 0.0  # once all is requested, a sampler states the length of its next epoch
        if not (now.over or now.source.ended):
            rest = self._items(fresh, whole, batches, examples if examples >= 0 else now.fresh) * factor
        rest += now.source.expected(whole) * (1.0 if self._in_workers(now.mode) else factor) + len(now.buffer)
        rest += sum(max(0, self._promised(now, one, factor) - one.done) for one in list(now.pending))
        return now.batches + self._batches(rest, now.mode)

    @property
    def next_length(self) -> float | None:
        """Expected number of batches in each later epoch; None if unknown."""
        whole, fresh = self.mode in (BATCH, SHUFFLED), next_length(self.loader)
        return None if fresh is None else self._batches(self._items(fresh, whole) * self.factor, self.mode)

    def _batches(self, items: float, mode: str) -> float:
        """Return the number of batches made of so many items, copies included."""
        if self._end == "drop" and mode != BATCH:
            items = max(0.0, items - self._most(mode, self.buffer))
        if mode in (BATCH, SHUFFLED):
            return items
        size = self._size or 1
        return float(int(items / size) if self._drops_last(mode) else math.ceil(items / size - 1e-9))

    @property
    def fill(self) -> int:
        """Number of examples waiting in the buffer, or of batches if those are echoed."""
        return 0 if self._now is None else len(self._now.buffer)

    @property
    def fill_bytes(self) -> int:
        """The memory that the buffer keeps alive, in bytes."""
        return 0 if self._now is None else self._now.buffer.nbytes

    # ------------------------------------------------------------ items

    def _straight(self, run: EchoPass, arriving: Iterator[Fresh]) -> list[Any]:
        """Return the next batch as the loader makes it, or nothing.

        With a factor of 1 and nothing waiting, batches pass whole; of examples, if a sampler orders them.
        """
        if run.waits or (run.factor != 1.0 and not run.source.intact):
            return []
        if not run.whole and not run.source.exact:
            return []
        fresh = self._arrived(run, arriving)
        if fresh is None:
            return []
        given = fresh.delivered
        if run.whole:
            self.seen += given.fresh
            return [self._whole_batch(run, given.payload, fresh.keys()[0])]
        batch = given.payload if given.whole else self._collated_at_once(run, given)
        if batch is None:
            run.pending.extend(self._examples_of(run, fresh))
            return []
        self.seen += given.fresh
        return [self._finished(run, batch)]

    def _collated_at_once(self, run: EchoPass, given: Delivered) -> Any:
        """Return a batch of all delivered examples, or None if they are echoed or ragged."""
        if run.factor != 1.0:
            return None
        if self._copies_when_collated:
            return given.payload.collated()
        return self._collated(run, given.payload.examples())

    def _collated(self, run: EchoPass, examples: list[Any]) -> Any:
        """Collate with the loader's function; keep the random numbers of the job."""
        if self._copies_when_collated or not workers_of(self.loader):
            return self.loader.collate_fn(examples)
        with kept_random():
            seed_random(f"{self._seed}/{run.number}/collate/{run.batches}")
            return self.loader.collate_fn(examples)

    def _gather(self, run: EchoPass, arriving: Iterator[Fresh]) -> list[Example]:
        """Draw the examples of the next batch; none at the end of the epoch."""
        many = 1 if run.whole else self._size or 1
        found: list[Example] = []
        had: set[tuple[int, int]] = set()
        most = self._most(run.mode, min(run.capacity, run.room))
        while len(found) < many:
            if len(run.buffer) < most:
                self._fill(run, arriving, most)
            if run.over and self._end == "drop" and run.mode != BATCH and not run.pending:
                self.dropped += len(run.buffer)
                run.clear()
            if not len(run.buffer):
                break
            found += run.buffer.draw(many if len(run.buffer) >= 2 * many else 1, had)
        if self._drops_last(run.mode) and 0 < len(found) < many:
            self.dropped += len(found)
            return []
        return found

    def _fill(self, run: EchoPass, arriving: Iterator[Fresh], most: int) -> None:
        buffer, pending = run.buffer, run.pending
        factor = 1.0 if self._in_workers(run.mode) else run.factor
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
            elif run.over or (len(buffer) and buffer.nbytes >= self._max_bytes) or not self._take(run, arriving):
                return

    def _take(self, run: EchoPass, arriving: Iterator[Fresh]) -> bool:
        fresh = self._arrived(run, arriving)
        if fresh is not None:
            run.pending.extend(self._examples_of(run, fresh))
        return fresh is not None

    def _arrived(self, run: EchoPass, arriving: Iterator[Fresh]) -> Fresh | None:
        if isinstance(run.source, Iterated):
            run.source.forget(run.oldest())
            if run.source.finished:  # it ends once the loop has got all echoes
                run.over = True
                return None
        begun = self._clock()
        fresh = next(arriving, None)
        now = self._clock()
        run.waited += now - begun
        if fresh is None:
            run.over = True
            return None
        if run.arrival is not None:
            self._meter.arrived(now - begun, now - run.arrival, fresh.delivered.seconds, fresh.delivered.effort)
        run.arrival = now
        self.fresh += fresh.delivered.fresh
        run.fresh += fresh.delivered.fresh
        return fresh

    def _examples_of(self, run: EchoPass, fresh: Fresh, draws: bool = True) -> list[Example]:
        keys, given = fresh.keys(), fresh.delivered
        values = [self._whole_batch(run, given.payload, keys[0])] if given.whole else given.payload.examples()
        piece = run.buffer.piece(size(values[0]) if given.whole else given.payload.nbytes)
        draw = self._copies.random if draws and not self._in_workers(run.mode) else float  # which is 0.0
        many = given.fresh if given.whole else 1
        return [Example(key, value, piece, draw(), fresh.ticket, many) for key, value in zip(keys, values, strict=True)]

    def _whole_batch(self, run: EchoPass, payload: Any, key: Key) -> Any:
        batch = self._augmented(run, payload, key)
        return batch if self._transfer is None else self._transfer(batch)

    def _augmented(self, run: EchoPass, batch: Any, key: Key) -> Any:
        if self._augment_batch is None:
            return batch
        with kept_random():
            seed_random(f"{self._seed}/{run.number}/batch/{key}")
            return on_item(self._augment_batch, batch)

    def _made(self, run: EchoPass, examples: list[Example]) -> Any:
        """Collate the drawn examples; copy those that are used again."""
        whole, values = run.whole, []
        apart = self._guard == "clone" if whole else not self._copies_when_collated
        pending, used = run.pending[0] if run.pending else None, set[int]()
        for one in examples:
            more = one.waiting or one is pending
            values.append(copied(one.value) if apart and (more or id(one) in used) else one.value)
            used.add(id(one))
            if not more:
                run.buffer.release(one)
        if whole:
            return values[0]
        return self._finished(run, self._collated(run, values))

    def _finished(self, run: EchoPass, batch: Any) -> Any:
        batch = self._augmented(run, batch, (run.batches, 0, 0))
        if getattr(self.loader, "pin_memory", False):
            batch = pinned(batch)
        return batch if self._transfer is None else self._transfer(batch)

    def _spoiled(self, run: EchoPass, example: Example) -> None:
        """Drop the echoes of a batch that the loop has changed in place."""
        left = example.waiting + (self._promised(run, example) - example.done if example in run.pending else 0)
        if not left:
            return
        self.dropped += left * example.count
        run.buffer.items = [one for one in run.buffer.items if one is not example]
        run.pending = deque(one for one in run.pending if one is not example)
        example.waiting = 0
        run.buffer.release(example)
        self._guard = "clone"
        self._say("The loop changes its batches in place: some echoes were skipped, and from now on each is a copy.")

    # ------------------------------------------------------------ a checkpoint inside an epoch

    def _epoch_state(self, run: EchoPass) -> dict[str, Any]:
        """Return the state of a pass as plain data, without the examples."""
        needed: dict[int, dict[Key, list[Entry]]] = {}
        for one in (*run.pending, *run.buffer.items):
            needed.setdefault(one.key[0], {})[one.key] = one.entries()
        return {
            "now": run.mode,
            "agreed": [run.factor, run.capacity],
            **{name: getattr(run, here) for name, here in _PLACES.items()},
            "needed": [
                [number, [list(entry) for some in found.values() for entry in some]] for number, found in needed.items()
            ],
            "pending": [[list(one.key), one.u, one.done] for one in run.pending],
            "items": [list(one.key) for one in run.buffer.items],
            "source": run.source.state(run.oldest()),
        }

    def _refill(self, run: EchoPass, state: dict[str, Any], arriving: Iterator[Fresh]) -> None:
        """Read the examples of `_epoch_state` again, in their order."""
        for name, here in _PLACES.items():
            setattr(run, here, state[name])
        run.factor, run.capacity = state["agreed"]
        needed = {number: [(index, place, copies) for index, place, copies in some] for number, some in state["needed"]}
        again = run.source.resume(state["source"], needed)
        pending = [(tuple(key), u, done) for key, u, done in state["pending"]]
        items = [tuple(key) for key in state["items"]]
        wanted = {*items, *(key for key, _, _ in pending)}
        found: dict[tuple[int, ...], Example] = {}
        for _ in range(again):
            fresh = next(arriving, None)
            if fresh is None:
                break
            for one in self._examples_of(run, fresh, draws=False):
                if one.key in wanted:
                    found[one.key] = one
                else:
                    run.buffer.release(one)
        for key, u, done in pending:
            if key in found:
                found[key].u, found[key].done = u, done
                run.pending.append(found[key])
        for key in items:
            if key in found:
                run.buffer.add(found[key])
        lost = sum(key not in found for key in items)
        lost += sum(max(0, drawn(run.factor, u) - done) for key, u, done in pending if key not in found)
        if lost:
            self.dropped += lost
            self._say(f"{lost} echoes that waited at the checkpoint are lost: the data was different after the resume.")

    # ------------------------------------------------------------ what follows from the settings

    def _in_workers(self, mode: str) -> bool:
        return mode == BEFORE and self._augment is not None

    def _drops_last(self, mode: str) -> bool:
        holders = (getattr(self.loader, "batch_sampler", None), self.loader)
        return mode not in (BATCH, SHUFFLED) and any(getattr(holder, "drop_last", False) for holder in holders)

    @property
    def _copies_when_collated(self) -> bool:
        from torch.utils.data import default_collate

        return self.loader.collate_fn is default_collate

    def _augments(self) -> bool:
        return self._augment is not None or self._augment_batch is not None

    def _promised(self, run: EchoPass, example: Example, factor: float | None = None) -> int:
        """Return how often this item appears, by default by the loop's factor."""
        return 1 if self._in_workers(run.mode) else drawn(run.factor if factor is None else factor, example.u)

    def _most(self, mode: str, examples: int) -> int:
        """Return how many items the buffer may hold if ``examples`` fit."""
        if mode == BATCH:
            return 1
        return examples if mode != SHUFFLED else max(2, -(-examples // (self._size or 1)))

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
            count = len(source) // size * size if self._drops_last(AFTER) else len(source)
        except (TypeError, NotImplementedError):  # a stream, or a batch sampler that draws by itself
            count = -1
        return max(0.0, count - examples if -(-count // size) == fresh else (fresh - batches) * size)

    def _tenth(self) -> int:
        fresh = expected_length(self.loader) if hasattr(self.loader, "dataset") else None
        return 1000 if fresh is None else int(self._items(fresh, False) / 10)
