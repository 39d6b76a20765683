"""`Learning`: what the steps of a run say of its instances and of the selection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from looptap.training.sampling.instance_table import InstanceTable
from looptap.training.sampling.per_example import Criterion, CrossEntropy, PerExample
from looptap.training.sampling.permutation_walk import Bools, Floats, Ints
from looptap.training.sampling.small_batches import HeldSteps
from looptap.training.selection import selection_arguments as arguments
from looptap.training.selection.audit import Audit
from looptap.training.selection.honest_gain import LEAST_PROBABILITY, HonestGain
from looptap.training.selection.methods.method import Method
from looptap.training.selection.sampler import QUIETLY, Sampler


class Learning:
    """Enters the losses and scores of steps: in the table, the gain and the audit.

    Outputs on a device are not waited for: they are read with the next step. Small ones in memory may be held, and
    worked on together.
    """

    def __init__(self, sampler: Sampler, criterion: Criterion, epoch_size: int) -> None:
        self.table: InstanceTable = sampler.table
        self._sampler, self._criterion, self._epoch_size = sampler, criterion, epoch_size
        self.gain, self.audit = HonestGain(), Audit()
        self.compare: Callable[[Floats, Floats], object] | None = None
        """Gets what was predicted of uniformly drawn instances, and what was measured."""
        self.held = HeldSteps()
        """Steps whose outputs are worked on together, while nothing is selected."""
        self._late: list[tuple[Ints, PerExample, int]] = []

    def add(self, ids: Ints, losses: Any, logits: Any, targets: Any) -> None:
        """Add a step. Raises ValueError or TypeError if these are no outputs of it."""
        self.settle()
        found = arguments.per_example(len(ids), losses, logits, targets, self._criterion)
        if (labels := arguments.class_labels(len(ids), targets)) is not None:
            self.table.label[ids] = labels
        self._late.append((ids, found, 1))
        if not getattr(found.losses, "is_cuda", False):
            self.settle()

    def hold(self, ids: Ints, losses: Any, logits: Any, targets: Any) -> bool:
        """Keep the outputs of a step for later; False if it has to be added now."""
        gate, sampler = self._sampler.gate, self._sampler
        if not gate.holds or sampler.selecting or sampler.method.learns:
            return False
        known = losses is None and isinstance(self._criterion, CrossEntropy)
        held = known and self.held.add(ids, logits, targets)
        gate.hold(held)
        return held

    @QUIETLY
    def settle(self) -> None:
        """Enter the steps that were added or held. Does not raise."""
        if len(self.held):
            self._release()
        late, self._late = self._late, []
        for ids, found, steps in late:
            try:
                ids, losses, scores = arguments.distinct(ids, found)
                kept, losses, scores = arguments.finite(ids, losses, scores)
                if len(kept) < len(ids):
                    self._sampler.fail("Losses that are not finite are left out.")
                if len(kept):
                    self._enter(kept, losses, scores, steps)
            except Exception as error:  # neither the loop nor its checkpoint may end of it
                self._sampler.fail(f"observe: {error}")

    def _release(self) -> None:
        ids, logits, targets, steps = self.held.taken()
        try:
            found = arguments.per_example(len(ids), None, logits, targets, self._criterion)
            self.table.label[ids] = targets.numpy()
            self._late.append((ids, found, steps))
        except Exception as error:
            self._sampler.fail(f"observe: {error}")

    def _enter(self, ids: Ints, losses: Floats, scores: Floats | None, steps: int) -> None:
        """Enter what a step, or several together, say of distinct instances.

        The method learns before the table knows it.
        """
        table, method, selecting = self.table, self._sampler.method, self._sampler.selecting
        predicted, known = self._predicted(method, ids)
        measured = losses if scores is None else scores
        if self.compare is not None:
            alike = table.uniform[ids]
            self.compare(predicted[alike], measured[alike])
        if method.draws:
            counted = known if selecting else self._fresh(ids, known)
            some = slice(None) if counted is None else counted
            drawn = table.probability[ids[some]]
            wanted = drawn if selecting else method.acceptance(ids[some]).probability
            wanted = np.maximum(wanted, LEAST_PROBABILITY)
            weights = method.correction(ids[some], wanted)
            self.gain.add(drawn=drawn, wanted=wanted, weights=weights, scores=measured[some].copy(), steps=steps)
        judged = table.uniform[ids]  # selected instances would flatter the audit
        if known is not None:
            judged &= known
        self._sampler.teach(ids, losses, scores)
        table.observed(ids, losses, scores)
        self.audit.add(predicted[judged], losses[judged], method.cut, method.threshold)

    def _fresh(self, ids: Ints, known: Bools | None) -> Bools:
        """Return which of ``ids`` were scored less than an epoch ago.

        While it selects, the instances that count most are seen again sooner than in an epoch, and all steps are
        scored. While all are drawn alike, older scores would make the gain of turning it on look too low. How old the
        score of an instance is does not depend on the score, so that those that are left are a fair sample.
        """
        fresh: Bools = self.table.trained_instances - self.table.scored_at[ids] < self._epoch_size
        return fresh if known is None else fresh & known

    def _predicted(self, method: Method, ids: Ints) -> tuple[Floats, Bools | None]:
        """Return the predictions at the draw, and which are known; None: all."""
        predicted = self.table.prediction[ids] if method.predicts else method.predicted(ids)
        unknown = predicted != predicted
        if method.predicts and np.count_nonzero(unknown):  # what was drawn alike has no prediction yet
            predicted[unknown] = method.predicted(ids[unknown])
            unknown = predicted != predicted
        return predicted, ~unknown if np.count_nonzero(unknown) else None
