"""`SamplingPass`: what one iterator over a `Selection` has of its own."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from typing import Any

import numpy as np

from looptap.streams.loop.loop_place import LoopPlace
from looptap.training.sampling.in_flight import BatchesInFlight
from looptap.training.sampling.permutation_walk import Ints
from looptap.training.saved_state import require_state


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
