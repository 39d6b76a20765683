"""`Passes`: the iterators over a `Selection`, and what each has of its own."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from typing import Any

import numpy as np

from looptap.streams.loop.loop_place import LoopPlace, is_left
from looptap.training.sampling.in_flight import BatchesInFlight
from looptap.training.sampling.permutation_walk import Ints, PermutationWalk
from looptap.training.saved_state import require_state
from looptap.training.selection.selection_arguments import indices_in


class SamplingPass:
    """A pass over the instances, which the walk offers that all passes share.

    Passes may overlap. Together they offer all instances equally often, each as many as an epoch has.
    """

    __slots__ = ("again", "began", "ended", "flight", "given", "left", "length", "place", "running")

    def __init__(self, size: int) -> None:
        self.flight = BatchesInFlight(size)
        """Its batches on which no step was observed."""
        self.again = deque[Ints]()
        """Batches to draw again, since no step on them was observed."""
        self.left = self.given = 0
        """Instances still to be offered, and batches handed over."""
        self.length: int | None = None
        """All batches, where ranks have agreed on them."""
        self.began = 0
        """The steps before it."""
        self.place = LoopPlace()
        """Of its loop."""
        self.running = self.ended = False
        """False while it has no iterator: it is resumed, or was left early; True once all batches are read."""

    @property
    def over(self) -> bool:
        """True if it has had its last batch."""
        return not self.again and (self.left <= 0 if self.length is None else self.given >= self.length)

    @property
    def used(self) -> bool:
        """True if all batches are read, and a step was observed on each."""
        return self.ended and not self.flight.batches

    def unused(self) -> list[Ints]:
        """Return the batches that the loop, which is gone, has not trained on.

        One that reports each k-th step only leaves up to k - 1 of them at its end.
        """
        return [*self.flight.batches] if not self.ended or len(self.flight.batches) >= self.flight.most else []


_NO_STEP: tuple[Any, Ints] = (None, np.empty(0, np.int64))


class Passes:
    """The passes over a walk that have begun and not ended, the newest last.

    Knows which batches have had no step yet, and what is left of an epoch that a loop has left early.
    """

    def __init__(self, walk: PermutationWalk, size: int) -> None:
        self._walk, self._size, self._epoch_size = walk, size, len(walk.shard)
        self.epoch = 0
        """Epochs that have ended."""
        self.flight = BatchesInFlight(size)
        """The batches of the newest pass on which no step was observed."""
        self.resumes = False
        """True if the next iterator continues the pass of a state that was loaded."""
        self._passes: list[SamplingPass] = []
        self._given = 0  # batches of the last pass
        self._left = 0  # instances that the last pass has left; below 0, it has had some of the next
        self._left_at = 0  # the steps when an epoch was last left early
        self._asked = _NO_STEP  # the indices of this step, and the same converted

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        for one in self._passes:  # their iterators are not copied
            one.running, self._left = False, one.left

    @property
    def given(self) -> int:
        """Batches of this epoch that were drawn."""
        return self._passes[-1].given if self._passes else self._given

    def expected_length(self, kept: float, count: int) -> float:
        """Return the expected batches of this epoch, or of the next if none has begun.

        ``kept`` is the share of the instances that is drawn, ``count`` how many a batch has.
        """
        if not self._passes:
            return self._rest * kept / count
        now = self._passes[-1]
        if now.length is not None:
            return float(now.length)
        return now.given + len(now.again) + max(0, now.left) * kept / count

    # ------------------------------------------------------------ begin and end

    def open(self, place: LoopPlace, steps: int, begin: Callable[[], object]) -> SamplingPass:
        """Return the pass of a new iterator of the loop at ``place``.

        Calls ``begin`` unless it is within another pass, or continues one that was loaded.
        """
        if self.resumes:
            self.resumes, run = False, self._passes[-1]
            run.running, run.began, run.place = True, steps, place
            return run
        for one in [*self._passes]:
            if steps > one.began and is_left(one.place, place):
                self.leave(one)
        run = SamplingPass(self._size)
        run.began, run.place = steps, place
        if any(one.running for one in self._passes):  # within another one, whose place stays
            run.left = self._epoch_size
            self._passes = [*self._passes, run]
        else:
            run.again.extend(self._to_draw_again(steps))
            self.flight.clear()
            begin()
            run.left = self._left if run.again else self._rest  # else what is drawn again is the rest of an epoch
            self._passes = [run]
        self.flight, run.running = run.flight, True
        return run

    def end(self, run: SamplingPass) -> None:
        """Note that a pass has had its last batch, unless a state was loaded meanwhile."""
        run.ended = True
        if run in self._passes:
            self._left, self._given = run.left, run.given
            if len(self._passes) > 1 or run.used:  # else with the step on what workers have in hand
                self._drop(run)

    def leave(self, run: SamplingPass) -> None:
        """Note that the iterator of a pass is gone.

        One that was left early continues with the next, unless it was within another one.
        """
        run.running = False
        if run in self._passes:
            self._left = run.left
            if any(one.running for one in self._passes) or run.used:
                self._drop(run)

    def renew(self, run: SamplingPass) -> None:
        """Make a pass the newest, unless a state was loaded meanwhile."""
        if self._passes and self._passes[-1] is not run and (run in self._passes or not run.running):
            run.running = True
            self._passes = [*(one for one in self._passes if one is not run), run]
            self.flight = run.flight

    @property
    def _rest(self) -> int:
        """The instances of the coming epoch, or the rest of one that was left early."""
        return self._left if self._left > 0 else self._left + self._epoch_size

    def _drop(self, run: SamplingPass) -> None:
        """Forget a pass; one of which all batches are read was an epoch."""
        self._passes = [one for one in self._passes if one is not run]
        self.epoch += run.ended
        run.flight.clear()
        if self._passes:
            self.flight = self._passes[-1].flight

    def _to_draw_again(self, steps: int) -> list[Ints]:
        """Return the batches that the last pass has left without a step."""
        again = list[Ints]()
        for left in self._passes[-1:]:
            if steps != self._left_at:  # what workers had in hand is drawn again
                again += left.unused()
                self._left_at = steps  # without a step in between not once more: a loop may not observe any more
            again += left.again
            self.epoch += left.over and not again
        return again

    # ------------------------------------------------------------ in the step

    def ids(self, indices: Any) -> Ints:
        """Return the indices of a step as an array; converts them once in a step.

        Raises ValueError, TypeError for invalid ones.
        """
        if indices is not self._asked[0] or indices is None:
            oldest = self.flight.oldest(indices)
            self._asked = indices, indices_in(indices, self._size) if oldest is None else oldest
        return self._asked[1]

    def forget_step(self) -> None:
        """Have `ids` convert the indices that it gets next."""
        self._asked = _NO_STEP

    def arrived(self, ids: Ints) -> None:
        """Note a step on a batch, which may be the last of an epoch."""
        for one in reversed(self._passes):
            if one.flight.arrived(ids):
                if one.used:
                    self._drop(one)
                return

    def arrived_next(self, indices: Any) -> Ints | None:
        """Note a step on the batch that was drawn first, and return it.

        None if it is on another one, on the last of an epoch, or for what are no indices: call `ids` and `arrived`.
        """
        batches = self.flight.batches
        try:
            oldest = self.flight.oldest(indices)
        except Exception:
            return None
        if oldest is None or (len(batches) < 2 and (not self._passes or self._passes[-1].ended)):
            return None
        self._asked = _NO_STEP
        return batches.popleft()

    # ------------------------------------------------------------ state

    def state_dict(self, steps: int) -> dict[str, Any]:
        """Return the state of the pass that has had the newest batch and has not ended."""
        flying = [*self.flight.batches] if steps else []
        now = self._passes[-1] if self._passes else None
        again, length, left = (now.again, now.length, now.left) if now else ((), None, self._left)
        return {
            "epoch": self.epoch,
            "given": self.given - len(flying),
            "inside": bool(now or flying),
            "end": self._walk.walked + left,
            "length": length,
            "drawn": [one.copy() for one in (*flying, *again)],
        }

    def resume(self, state: dict[str, Any]) -> None:
        """Continue after the last step of ``state``; the walk is that of it already."""
        resumed = SamplingPass(self._size)
        resumed.left, resumed.given, resumed.length = state["end"] - self._walk.walked, state["given"], state["length"]
        resumed.again.extend(np.asarray(indices) for indices in state["drawn"])
        self.epoch, self.flight, self.resumes = state["epoch"], resumed.flight, state["inside"]
        self._passes = [resumed] if state["inside"] else []
        self._given, self._left = resumed.given, resumed.left

    def begin_again(self, epoch: int) -> None:
        """Continue at the beginning of an epoch."""
        self.epoch, self.flight, self.resumes = epoch, BatchesInFlight(self._size), False
        self._passes, self._left = [], 0


class SamplingIterator:
    """Iterator of a pass; an `Echo` keeps its state, and its batches in flight."""

    def __init__(
        self, pass_and_batches: Generator[Any], left: Callable[[SamplingPass], object], *, resumes: bool
    ) -> None:
        self._batches, self._left, self._resumes = pass_and_batches, left, resumes
        self._run: SamplingPass | None = None

    def __del__(self) -> None:
        if self._run is not None:
            self._left(self._run)

    def __iter__(self) -> SamplingIterator:
        return self

    def __next__(self) -> list[int]:
        if self._run is None:
            self._run = next(self._batches)
        found: list[int] = next(self._batches)
        return found

    def close(self) -> None:
        """Leave the pass; if all batches are read, they were used, in whatever order."""
        run, self._run = self._run, None
        self._batches.close()
        if run is not None:
            if run.ended:
                run.flight.clear()
            self._left(run)

    def state_dict(self) -> dict[str, Any]:
        """Return plain data for `load_state_dict`; empty if nothing is left."""
        run = self._run
        if run is None or (run.over and not run.flight.batches):
            return {}
        flight, again = ([one.tolist() for one in batches] for batches in (run.flight.batches, run.again))
        return {"left": run.left, "given": run.given, "length": run.length, "flight": flight, "again": again}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the pass that the Selection resumes, if any, as in ``state``.

        Raises ValueError for what no `state_dict` has returned.
        """
        if state:
            require_state(state, dict.fromkeys(("left", "given", "length", "flight", "again")), "such an iterator")
        if not self._resumes:
            return
        run = self._run = next(self._batches)
        if not state:
            return
        run.left, run.given, run.length = state["left"], state["given"], state["length"]
        run.again.clear()
        run.again.extend(np.asarray(one) for one in state["again"])
        run.flight.clear()
        for one in state["flight"]:
            run.flight.add(np.asarray(one))
