"""`Learning`: what the steps of a run say of its instances and of the selection."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from looptap.training.sampling.instance_table import InstanceTable
from looptap.training.sampling.per_example import PerExample
from looptap.training.sampling.permutation_walk import Bools, Floats, Ints
from looptap.training.selection import selection_arguments as arguments
from looptap.training.selection.audit import Audit
from looptap.training.selection.honest_gain import LEAST_PROBABILITY, HonestGain
from looptap.training.selection.methods.method import Method


class Learning:
    """Enters the losses and scores of steps: in the table, the gain and the audit."""

    def __init__(self, table: InstanceTable, epoch: int) -> None:
        self.table = table
        self._epoch = epoch  # instances that an epoch offers
        self.gain, self.audit = HonestGain(), Audit()
        self._late: list[tuple[Ints, PerExample, int]] = []  # on a device, which is not waited for

    def add(self, ids: Ints, found: PerExample, steps: int = 1) -> None:
        """Add a step, or several together, read at the next `settle`."""
        self._late.append((ids, found, steps))

    def settle(self, learn: Callable[[Ints, Floats, Floats | None, int], None], fail: Callable[[str], None]) -> None:
        """Read the steps that were added, and ``learn`` them.

        Does not raise, but calls ``fail``.
        """
        if not self._late:
            return
        late, self._late = self._late, []
        for ids, found, steps in late:
            try:
                ids, losses, scores = arguments.distinct(ids, found)
                kept, losses, scores = arguments.finite(ids, losses, scores)
                if len(kept) < len(ids):
                    fail("Losses that are not finite are left out.")
                if len(kept):
                    learn(kept, losses, scores, steps)
            except Exception as error:  # neither the loop nor its checkpoint may end of it
                fail(f"observe: {error}")

    def enter(
        self,
        method: Method,
        selecting: bool,
        teach: Callable[[Ints, Floats, Floats | None], None],
        ids: Ints,
        losses: Floats,
        scores: Floats | None,
        steps: int = 1,
    ) -> None:
        """Enter what a step, or several together, say of distinct instances.

        ``teach`` is called with what a method, or an assistant beside the loop, is to learn, before the table knows it.
        """
        table = self.table
        predicted, known = self._predicted(method, ids)
        if method.draws:
            counted = known if selecting else self._fresh(ids, known)
            some = slice(None) if counted is None else counted
            drawn = table.probability[ids[some]]
            wanted = drawn if selecting else method.acceptance(ids[some]).probability
            wanted = np.maximum(wanted, LEAST_PROBABILITY)
            weights = method.correction(ids[some], wanted)
            slopes = (losses if scores is None else scores)[some].copy()
            self.gain.add(drawn=drawn, wanted=wanted, weights=weights, scores=slopes, steps=steps)
        judged = table.uniform[ids]  # selected instances would flatter the audit
        if known is not None:
            judged &= known
        teach(ids, losses, scores)
        table.observed(ids, losses, scores)
        self.audit.add(predicted[judged], losses[judged], method.cut, method.threshold)

    def _fresh(self, ids: Ints, known: Bools | None) -> Bools:
        """Return which of ``ids`` were scored less than an epoch ago.

        While it selects, the instances that count most are seen again sooner than in an epoch, and all steps are
        scored. While all are drawn alike, older scores would make the gain of turning it on look too low. How old the
        score of an instance is does not depend on the score, so that those that are left are a fair sample.
        """
        fresh: Bools = self.table.trained_instances - self.table.scored_at[ids] < self._epoch
        return fresh if known is None else fresh & known

    def _predicted(self, method: Method, ids: Ints) -> tuple[Floats, Bools | None]:
        """Return the predictions at the draw, and which are known; None: all."""
        predicted = self.table.prediction[ids] if method.predicts else method.predicted(ids)
        unknown = predicted != predicted
        if method.predicts and np.count_nonzero(unknown):  # what was drawn alike has no prediction yet
            predicted[unknown] = method.predicted(ids[unknown])
            unknown = predicted != predicted
        return predicted, ~unknown if np.count_nonzero(unknown) else None
