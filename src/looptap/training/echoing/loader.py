"""`Echo`: a loader that uses items several times to hide slow data."""

from __future__ import annotations

import math
import random
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from looptap.streams.control import Control
from looptap.streams.loop.loop_place import LoopPlace, is_left, place_of_loop
from looptap.training.echoing import echo_arguments
from looptap.training.echoing.any_loader import Iterated
from looptap.training.echoing.auto_factor import Auto, StageMeter
from looptap.training.echoing.diagnosis import advice
from looptap.training.echoing.echo_arguments import BATCH, MAX_FACTOR, MODES, SHUFFLED, Automatic, Factor, Mode
from looptap.training.echoing.flow import EchoPass, Flow
from looptap.training.echoing.pytrees import versions
from looptap.training.echoing.shuffle_buffer import Example
from looptap.training.echoing.source import open_source
from looptap.training.host_loader import workers_of
from looptap.training.instances import next_length
from looptap.training.module_lock import ModuleLock
from looptap.training.of_part import note_of, of_part
from looptap.training.saved_state import require_state

_START_BATCHES = 4
"""Maximum batches in the buffer at the start of an epoch: those of one fresh batch, so that none waits."""
_TURNS_BATCHES = 2
"""Batches after which a pass does not take turns with one that begins at its place, as those of ``zip`` do."""
_GROWTH_DIVISOR = 4
"""The buffer then grows by this part of a batch with each, so that a slow loader is not waited for twice as long."""
_passing = ModuleLock()  # held while passes begin, change places and end
_COUNTERS, _ITEM_COUNTERS = ("epoch", "steps"), ("fresh", "seen", "dropped")
"""Names in checkpoints: of an `Echo`, and of its flow."""


class Echo:
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
        echo_arguments.functions(
            augment=augment, augment_batch=augment_batch, transfer=transfer, broadcast=broadcast, clock=clock
        )
        self.loader = echo_arguments.checked_loader(loader, augment)
        max_bytes = echo_arguments.positive_number("max_bytes", max_bytes, whole=True)
        end = echo_arguments.one_of("end", end, ("drain", "drop"))
        guard = echo_arguments.one_of("guard", guard, ("clone", "version"))
        self._every = echo_arguments.positive_number("agree_every", agree_every, whole=True)
        if not 1.0 <= echo_arguments.positive_number("bound", bound) <= MAX_FACTOR:
            raise ValueError(f"bound={bound!r} must be a factor, from 1 to {MAX_FACTOR:g}.")
        ranks, rank = _ranks()
        self._augment, self._broadcast, self._clock, self._max_bytes = augment, broadcast, clock, max_bytes
        self._augment_batch, self._seed = augment_batch, f"{seed}/{rank}"
        self._copies, self._order = random.Random(f"copies/{seed}"), random.Random(f"order/{seed}")
        self._meter, self._controller = StageMeter(workers_of(loader)), Auto(bound)
        self._flow = Flow(
            loader,
            augment=augment,
            augment_batch=augment_batch,
            transfer=transfer,
            end=end,
            guard=guard,
            seed=self._seed,
            max_bytes=max_bytes,
            copies=self._copies,
            meter=self._meter,
            clock=clock,
        )
        self.steps = 0
        """Batches handed over, in all epochs."""
        self.epoch = 0
        """The number of the epoch under way; between epochs, of those that have begun."""
        self.duplicates = 0
        """Examples of the newest batch that are echoes of others in it."""
        self.schedule: Callable[[int], float] | None = None
        self.apart = ranks > 1 and broadcast is None
        """True if there are several ranks without a way to agree."""
        mode, another = echo_arguments.possible(mode, loader)
        self.mode, self.factor = mode, factor
        if another:
            self._flow.say(another)
        self._source = open_source(loader, augment, self._seed)
        self._passes: list[EchoPass] = []  # those that have begun and not ended, the newest last
        self._reading: list[EchoPass] = []  # those that have an iterator
        self._begun = 0  # passes so far, also in earlier processes
        self.buffer = max(1, self._flow.tenth()) if buffer is None else buffer
        self._resumed: dict[str, Any] | None = None

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
        state, now = self._whole_state(), self._now
        return state if now is None else state | self._flow.epoch_state(now)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from ``state`` at the next ``iter``. Raises ValueError.

        The state must be of the same kind of loader.
        """
        require_state(state, self._whole_state(), "an Echo")
        kind = type(self._source).__name__
        if state["kind"] != kind:
            raise ValueError(f"The state is that of a loader of another kind, {state['kind']!r}; this one is {kind!r}.")
        if state["inside"]:
            require_state(state, self._flow.epoch_state(self._new_pass(0)), "an Echo within an epoch")
        for holder, names in ((self, _COUNTERS), (self._flow, _ITEM_COUNTERS)):
            vars(holder).update({name: state[name] for name in names})
        self.mode, self.buffer, self._flow.guard = state["mode"], state["buffer"], state["guard"]
        self.__dict__.update(factor=Echo.factor.checked(state["factor"]), auto=state["auto"])
        for generator, found in ((self._copies, state["copies"]), (self._order, state["order"])):
            version, numbers, rest = found
            generator.setstate((version, tuple(numbers), rest))
        self._passes, self._resumed = [], dict(state) if state["inside"] else None
        self._begun = state.get("begun", self.epoch + bool(state["inside"]))
        if isinstance(self._source, Iterated) and state.get("loader") is not None:
            self._source.load_own(state["loader"])

    def _whole_state(self) -> dict[str, Any]:
        """Return the part of a state that is not that of an epoch."""
        state: dict[str, Any] = {name: getattr(self, name) for name in (*_COUNTERS, *_ITEM_COUNTERS)}
        state |= {"factor": self.factor, "auto": self.auto, "buffer": self.buffer, "mode": self.mode}
        inside = bool(self._passes)
        state |= {"inside": inside, "kind": type(self._source).__name__, "guard": self._flow.guard}
        if self._begun != self.epoch + inside:  # a pass within another has begun
            state["begun"] = self._begun
        if isinstance(self._source, Iterated) and not inside and (own := self._source.own_state()) is not None:
            state["loader"] = own
        return state | {"copies": self._copies.getstate(), "order": self._order.getstate()}

    # ------------------------------------------------------------ what clients see

    note = note_of("_flow")
    fresh = of_part("_flow.fresh", "Examples that were read.")
    seen = of_part("_flow.seen", "Examples that were handed over, echoes included.")
    dropped = of_part(
        "_flow.dropped",
        """Examples read or promised but not handed over: `end="drop"`, an incomplete last batch.""",
    )
    ratio = of_part("_meter.ratio", "R: `up` / `down`. A factor up to that costs no time; NaN if unknown.")
    up = of_part("_meter.up", "Seconds between fresh batches if nothing delays the workers; NaN if unknown.")
    down = of_part("_meter.down", "Seconds the loop takes for a batch, including assembly; NaN if unknown.")
    starved = of_part("_meter.waiting", "Share of time waiting for data in the last 64 batches, 0 to 1, or NaN.")

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
        now = self._now
        factor = float(self.factor if now is None or self._broadcast is None else now.factor)
        return self._flow.length(now, self.mode, factor, self.buffer)

    @property
    def next_length(self) -> float | None:
        """Expected number of batches in each later epoch; None if unknown."""
        return self._flow.whole_length(next_length(self.loader), self.mode, self.factor, self.buffer)

    @property
    def fill(self) -> int:
        """Number of examples waiting in the buffer, or of batches if those are echoed."""
        return 0 if self._now is None else len(self._now.buffer)

    @property
    def fill_bytes(self) -> int:
        """The memory that the buffer keeps alive, in bytes."""
        return 0 if self._now is None else self._now.buffer.nbytes

    def speed_up(self, factor: float) -> float:
        """Return the expected speed-up of this factor over 1; NaN while unknown.

        With workers it is the factor, at most R.
        """
        return self._meter.speed_up(factor)

    @property
    def stages(self) -> dict[str, float]:
        """Seconds per batch of each stage, by name.

        "read", "augment" and "collate" run in a worker, "batch" and "step" in the loop.
        """
        return self._meter.stages()

    @property
    def bottleneck(self) -> str:
        """The stage that slows the loop down; empty if unknown."""
        return self._advised()[0]

    @property
    def advice(self) -> str:
        """A sentence on what would help most; empty if unknown."""
        return self._advised()[1]

    def _advised(self) -> tuple[str, str]:
        augments = self._augment is not None or self._augment_batch is not None
        return advice(self._meter, self.factor, self.mode, augments)

    def __repr__(self) -> str:
        held = ", held by auto" if self.auto else ""
        known = "R is not known yet" if math.isnan(self.ratio) else f"R = {self.ratio:.3g}"
        return f"<{type(self).__name__}: factor {self.factor:g}{held}, mode {self.mode!r}, {known}>"

    # ------------------------------------------------------------ the loop

    def __iter__(self) -> Iterator[Any]:
        run, found = self._begin(place_of_loop(sys._getframe(1)))
        try:
            yield from self._made_by(run, found)
            with _passing:
                if run in self._passes:  # else a state was loaded meanwhile
                    self._passes = [one for one in self._passes if one is not run]
                    self.epoch = self._passes[-1].number if self._passes else self._begun
        finally:
            with _passing:
                self._left(run)

    def _made_by(self, run: EchoPass, found: dict[str, Any] | None) -> Iterator[Any]:
        arriving, clock = iter(run.source), self._clock
        if found is not None:
            self._flow.refill(run, found, arriving)
        while True:
            begun, run.waited = clock(), 0.0
            self._look(run)
            held, examples = self._flow.straight(run, arriving), list[Example]()
            if not held:
                examples = self._flow.gather(run, arriving)
                if not examples:
                    break
                held = [self._flow.made(run, examples)]
            guarded = run.whole and self._flow.guard == "version" and examples
            batch = held[0] if guarded else None  # keep no other reference, so that the loop can free the batch
            before = versions(batch) if guarded else []
            run.batches += 1
            with _passing:
                self._renew(run)
            run.room += -(-(self._flow.size or 1) // _GROWTH_DIVISOR)
            count = sum(one.count for one in examples)
            self.steps += 1
            self._flow.seen += count
            self.duplicates = len(examples) - len({one.key[:2] for one in examples})
            waited, handed = run.waited, clock()
            main = handed - begun - waited
            examples = examples if before else []
            if isinstance(run.source, Iterated):
                run.source.hand_over(last=not run.waits, shuffled=run.mode == SHUFFLED)
            yield held.pop()
            self._meter.handed(clock() - handed, main, waited)
            if before and versions(batch) != before:
                self._flow.spoiled(run, examples[0])
        next(arriving, None)  # lets a loader that has yielded its last batch end its epoch
        run.source.close()
        if not run.fresh:
            self._flow.say("The loader yielded nothing in this epoch: it may be exhausted.")

    def _begin(self, place: LoopPlace) -> tuple[EchoPass, dict[str, Any] | None]:
        """Return the next pass, and the state from which it continues, if any.

        Passes that the loop has left early end here, too if its iterator is still there.
        """
        with _passing:
            state, self._resumed = self._resumed, None
            if state is None:
                self.epoch, self._begun = self._begun, self._begun + 1
            for one in self._passes:
                if one.batches >= _TURNS_BATCHES and is_left(one.place, place):
                    one.running = False
            run = self._new_pass(self.epoch)
            run.place = place
            self._passes = [*(one for one in self._passes if one.running), run]
            self._reading = [*self._reading, run]
        if state is not None:
            run.factor, run.capacity = state["agreed"]
        self._agree(run, state is None)
        run.mode = self.mode if state is None else state["now"]
        run.room = self._first_room(run)
        self._ask(run)
        run.source.begin(run.number, run.whole, run.asked)
        return run, state

    def _new_pass(self, number: int) -> EchoPass:
        """Return a pass with a source that no other iterator reads."""
        free = all(one.source is not self._source for one in self._reading)
        source = self._source if free else open_source(self.loader, self._augment, self._seed)
        return EchoPass(source, number, self.mode, self._copies, self._order, self._max_bytes)

    def _left(self, run: EchoPass) -> None:
        """Note that the iterator of a pass is gone.

        A pass that was left early is the one that a checkpoint holds, unless it was within another one.
        """
        run.running = False
        self._reading = [one for one in self._reading if one is not run]
        if run in self._passes and any(one.running for one in self._passes):
            self._passes = [one for one in self._passes if one is not run]
            self.epoch = self._passes[-1].number

    def _renew(self, run: EchoPass) -> None:
        """Make a pass the newest, unless a state was loaded meanwhile."""
        if not run.running or run in self._passes[:-1]:
            run.running = True
            self._passes = [*(one for one in self._passes if one is not run), run]
            self.epoch = run.number

    def _first_room(self, run: EchoPass) -> int:
        return min(_START_BATCHES, math.ceil(run.factor)) * (self._flow.size or 1)

    def _look(self, run: EchoPass) -> None:
        """Apply the requested settings to the next batch of a pass."""
        before, step = run.factor, self.steps
        if self.auto:
            self.__dict__["factor"] = self._controller.next(self.factor, self._meter, step)
        elif self.schedule is not None:
            self._scheduled(self.schedule)
        self._agree(run, step % self._every == 0)
        self._ask(run)
        if run.factor != before:
            self._meter.changed()
            if not len(run.buffer):
                run.room = self._first_room(run)
            if self._broadcast is None:  # otherwise at the next epoch: workers of a stream read it at any time
                run.source.turned()

    def _ask(self, run: EchoPass) -> None:
        """State which copies to make of what is requested from now on."""
        run.asked.factor = run.factor if self._flow.in_workers(run.mode) else 1.0
        run.asked.intact = run.factor == 1.0 and not run.waits

    def _scheduled(self, schedule: Callable[[int], float]) -> None:
        try:
            value = Echo.factor.checked(schedule(self.steps), "factor")
            if not isinstance(value, float):
                raise TypeError(f"it returned {value!r:.60}")
            self.__dict__["factor"] = value
        except Exception as error:  # a schedule that fails must not affect the loop
            where = f"at step {self.steps}"
            self._flow.say(f"The schedule of the factor failed {where}, and {self.factor:g} stays: {error}")

    def _agree(self, run: EchoPass, now: bool) -> None:
        """Apply the requested settings, on several ranks those of rank 0, on all at once."""
        if self._broadcast is None:
            run.factor, run.capacity = self.factor, self.buffer
        elif now:
            wanted = self._broadcast((self.factor, self.buffer, self.mode))
            run.factor, run.capacity, mode = wanted
            self.__dict__.update(factor=run.factor, buffer=run.capacity, mode=mode)


def _ranks() -> tuple[int, int]:
    import torch

    group = torch.distributed
    return (group.get_world_size(), group.get_rank()) if group.is_available() and group.is_initialized() else (1, 0)
