"""Move items from fresh batches through the buffer into batches of the loop."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from looptap.streams.loop.loop_place import LoopPlace
from looptap.training.echoing.any_loader import Iterated
from looptap.training.echoing.auto_factor import StageMeter
from looptap.training.echoing.echo_arguments import AFTER, BATCH, BEFORE, SHUFFLED
from looptap.training.echoing.pytrees import copied, tree_bytes
from looptap.training.echoing.rng import kept_random, seed_random
from looptap.training.echoing.shuffle_buffer import Example, ShuffleBuffer
from looptap.training.echoing.source import Indexed, Streamed
from looptap.training.echoing.worker_stages import Copies, Delivered, Entry, Fresh, Key, drawn_repeats, pinned
from looptap.training.host_loader import workers_of
from looptap.training.instances import expected_length, on_item
from looptap.training.noted import Noted

_PLACES = {"_in_epoch": "batches", "_epoch_fresh": "fresh", "_room": "room"}  # names in checkpoints, and here


class EchoPass:
    """A pass over the data, with its own place, buffer and source.

    Passes may overlap, as those of a DataLoader: nested loops, ``zip(loader, loader)``, two threads.
    """

    place = LoopPlace()
    """Of its loop."""

    def __init__(
        self,
        source: Indexed | Streamed | Iterated,
        number: int,
        mode: str,
        copies: random.Random,
        order: random.Random,
        max_bytes: int,
    ) -> None:
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


class Flow(Noted):
    """Moves the items of passes, and counts them.

    `Echo` decides about the settings.
    """

    def __init__(
        self,
        loader: Any,
        *,
        augment: Callable[[Any], Any] | None,
        augment_batch: Callable[[Any], Any] | None,
        transfer: Callable[[Any], Any] | None,
        end: str,
        guard: str,
        seed: str,
        max_bytes: int,
        copies: random.Random,
        meter: StageMeter,
        clock: Callable[[], float],
    ) -> None:
        self.loader, self._meter, self._clock = loader, meter, clock
        self._augment, self._augment_batch, self._transfer = augment, augment_batch, transfer
        self._end, self.guard, self._seed, self._max_bytes, self._copies = end, guard, seed, max_bytes, copies
        sampler = getattr(loader, "batch_sampler", None)
        self.size: int | None = getattr(loader, "batch_size", None) or getattr(sampler, "batch_size", None)
        """The examples of a batch; None if the loader does not say."""
        self.fresh = self.seen = self.dropped = 0

    def say(self, text: str) -> None:
        """Put ``text`` into `note`, and warn of it."""
        self._say(text)

    # ------------------------------------------------------------ how long an epoch is

    def length(self, now: EchoPass | None, mode: str, factor: float, capacity: int) -> float | None:
        """Return the expected batches of the pass ``now``; None: of the next.

        ``mode``, ``factor`` and ``capacity`` are the settings of the coming batches. Returns None if it is unknown.
        """
        fresh = expected_length(self.loader)
        if fresh is None or now is None:
            return self.whole_length(fresh, mode, factor, capacity)
        batches, examples = now.source.asked
        rest = 0.0  # once all is requested, a sampler states the length of its next epoch
        if not (now.over or now.source.ended):
            rest = self._items(fresh, now.whole, batches, examples if examples >= 0 else now.fresh) * factor
        rest += now.source.expected(now.whole) * (1.0 if self.in_workers(now.mode) else factor) + len(now.buffer)
        rest += sum(max(0, self._promised(now, one, factor) - one.done) for one in list(now.pending))
        return now.batches + self._batches(rest, now.mode, capacity)

    def whole_length(self, fresh: float | None, mode: str, factor: float, capacity: int) -> float | None:
        """Return the expected batches of an epoch of ``fresh`` ones; None if unknown."""
        if fresh is None:
            return None
        return self._batches(self._items(fresh, mode in (BATCH, SHUFFLED)) * factor, mode, capacity)

    def _batches(self, items: float, mode: str, capacity: int) -> float:
        """Return the number of batches made of so many items, copies included."""
        if self._end == "drop" and mode != BATCH:
            items = max(0.0, items - self._most(mode, capacity))
        if mode in (BATCH, SHUFFLED):
            return items
        size = self.size or 1
        return float(int(items / size) if self._drops_last(mode) else math.ceil(items / size - 1e-9))

    # ------------------------------------------------------------ items

    def straight(self, run: EchoPass, arriving: Iterator[Fresh]) -> list[Any]:
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

    def gather(self, run: EchoPass, arriving: Iterator[Fresh]) -> list[Example]:
        """Draw the examples of the next batch; none at the end of the epoch."""
        many = 1 if run.whole else self.size or 1
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
        factor = 1.0 if self.in_workers(run.mode) else run.factor
        while len(buffer) < most:
            if pending:
                head = pending[0]
                promised = drawn_repeats(factor, head.u)
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
        piece = run.buffer.piece(tree_bytes(values[0]) if given.whole else given.payload.nbytes)
        draw = self._copies.random if draws and not self.in_workers(run.mode) else float  # which is 0.0
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

    def made(self, run: EchoPass, examples: list[Example]) -> Any:
        """Collate the drawn examples; copy those that are used again."""
        whole, values = run.whole, []
        apart = self.guard == "clone" if whole else not self._copies_when_collated
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

    def spoiled(self, run: EchoPass, example: Example) -> None:
        """Drop the echoes of a batch that the loop has changed in place."""
        left = example.waiting + (self._promised(run, example) - example.done if example in run.pending else 0)
        if not left:
            return
        self.dropped += left * example.count
        run.buffer.items = [one for one in run.buffer.items if one is not example]
        run.pending = deque(one for one in run.pending if one is not example)
        example.waiting = 0
        run.buffer.release(example)
        self.guard = "clone"
        self._say("The loop changes its batches in place: some echoes were skipped, and from now on each is a copy.")

    # ------------------------------------------------------------ a checkpoint inside an epoch

    def epoch_state(self, run: EchoPass) -> dict[str, Any]:
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

    def refill(self, run: EchoPass, state: dict[str, Any], arriving: Iterator[Fresh]) -> None:
        """Read the examples of `epoch_state` again, in their order."""
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
        lost += sum(max(0, drawn_repeats(run.factor, u) - done) for key, u, done in pending if key not in found)
        if lost:
            self.dropped += lost
            self._say(f"{lost} echoes that waited at the checkpoint are lost: the data was different after the resume.")

    # ------------------------------------------------------------ what follows from the settings

    def in_workers(self, mode: str) -> bool:
        """Return whether copies are made in workers."""
        return mode == BEFORE and self._augment is not None

    def _drops_last(self, mode: str) -> bool:
        holders = (getattr(self.loader, "batch_sampler", None), self.loader)
        return mode not in (BATCH, SHUFFLED) and any(getattr(holder, "drop_last", False) for holder in holders)

    @property
    def _copies_when_collated(self) -> bool:
        from torch.utils.data import default_collate

        return self.loader.collate_fn is default_collate

    def _promised(self, run: EchoPass, example: Example, factor: float | None = None) -> int:
        """Return how often this item appears, by default by the loop's factor."""
        return 1 if self.in_workers(run.mode) else drawn_repeats(run.factor if factor is None else factor, example.u)

    def _most(self, mode: str, examples: int) -> int:
        """Return how many items the buffer may hold if ``examples`` fit."""
        if mode == BATCH:
            return 1
        return examples if mode != SHUFFLED else max(2, -(-examples // (self.size or 1)))

    def _items(self, fresh: float, whole: bool, batches: float = 0, examples: float = 0) -> float:
        """Return what is left of an epoch after ``batches`` and ``examples``.

        The epoch has ``fresh`` batches. If they are echoed ``whole``, batches are counted, else examples, with the
        exact size of the last batch.
        """
        if whole:
            return max(0.0, fresh - batches)
        sampler, size = getattr(self.loader, "batch_sampler", None), self.size or 1
        source: Any = self.loader.dataset if sampler is None else getattr(sampler, "sampler", None)
        try:
            count = len(source) // size * size if self._drops_last(AFTER) else len(source)
        except (TypeError, NotImplementedError):  # a stream, or a batch sampler that draws by itself
            count = -1
        return max(0.0, count - examples if -(-count // size) == fresh else (fresh - batches) * size)

    def tenth(self) -> int:
        """Return a tenth of the examples of an epoch, or 1000 if these are unknown."""
        fresh = expected_length(self.loader) if hasattr(self.loader, "dataset") else None
        return 1000 if fresh is None else int(self._items(fresh, False) / 10)
