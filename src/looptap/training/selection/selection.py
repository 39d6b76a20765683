"""`Selection`: a batch sampler that chooses what to train on."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Generator
from types import FrameType
from typing import Any

import numpy as np

from looptap.streams.control import Control
from looptap.streams.forwarding import facade
from looptap.streams.loop.loop_place import is_left, place_of_loop
from looptap.training.module_lock import ModuleLock
from looptap.training.sampling.per_example import CrossEntropy, criterion_of
from looptap.training.sampling.permutation_walk import Accepted, Floats, Ints
from looptap.training.sampling.small_batches import HeldSteps
from looptap.training.selection import selection_arguments as arguments
from looptap.training.selection.audit import Audit
from looptap.training.selection.features.features import features_of
from looptap.training.selection.loss_weights import NOTHING_ASKED, SelectionLoss
from looptap.training.selection.methods.autoassist import AutoAssist
from looptap.training.selection.methods.catalog import METHODS, MethodControl
from looptap.training.selection.methods.method import Method
from looptap.training.selection.methods.side_assistant import SideAssistant
from looptap.training.selection.passes import SamplingIterator, SamplingPass
from looptap.training.selection.switch import AUTO, SWITCH_POSITIONS

_ROUNDING_BATCHES = 1e-6  # by which an expected length may be too long
_QUIETLY = np.errstate(all="ignore")  # warnings of numbers that are not finite: what is wrong stands in `note`

_drawing = ModuleLock()


@facade
class Selection(SelectionLoss):
    """Draws instances that the model still learns from more often.

    ``data`` is a map-style data set, or its length. Pass this to a DataLoader of ``WithIndex(dataset)`` as its
    ``batch_sampler``; compute the loss of a step with `loss`, and report it after the step with `observe`. ``method``
    is one of `METHODS`; with the default, ``switch="auto"`` selects only while this pays off. ``epochs`` is the planned
    number of epochs. ``loss`` is "cross_entropy", "bce", "mse", a loss of torch.nn, or a function that returns
    `PerExample`, or losses alone, for outputs and targets. "autoassist" needs ``features``, an array (n, d), a function
    of indices that returns one, or one of `looptap.training.selection.features`. ``asynchronous=True`` has the
    assistant of "autoassist" make batches and learn in a thread beside the loop, which never waits for it. Queries see
    the instances of ``data`` that are proven harmless to read, and all of ``samples``, a data set in the same order
    that is read as it is. On several ranks, each rank has a shard, and all make the same number of steps:
    ``agree(number)`` returns the mean over the ranks.

    All batches are full: an epoch ends with the batch in which the last instance was offered. Nothing here draws from
    the global random numbers. Wrong arguments raise ValueError, TypeError or ControlError at construction. Later
    problems are reported in `note`, and sampling is uniform until the next test of the switch.

    >>> selection = Selection(8, batch_size=4)
    >>> sorted(index for batch in selection for index in batch)
    [0, 1, 2, 3, 4, 5, 6, 7]
    """

    method = MethodControl(choices=tuple(METHODS), default="norm", doc="how instances are drawn")
    switch = Control(choices=SWITCH_POSITIONS, default=AUTO, doc="select while it pays, always, or never")
    floor = Control(float, default=0.2, minimum=0.0, maximum=1.0, doc="the lowest probability of an instance")
    cap = Control(float, default=2.0, minimum=1.0, unit="mean losses", doc="the highest loss that counts")
    exponent = Control(
        float, default=1.0, minimum=0.0, maximum=1.0, doc="share of the bias that weights correct at the end"
    )
    learning_rate = Control(float, default=0.01, minimum=0.0, doc="learning rate of the assistant")

    def __init__(
        self,
        data: Any,
        batch_size: int = 64,
        method: str = "norm",
        *,
        epochs: int | None = None,
        loss: Any = "cross_entropy",
        switch: str = AUTO,
        floor: float = 0.2,
        features: Any = None,
        asynchronous: bool = False,
        samples: Any = None,
        seed: int = 0,
        rank: int | None = None,
        world: int | None = None,
        agree: Callable[[float], float] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        rank, world = arguments.rank_and_world(rank, world)
        shard = arguments.shard_of(arguments.size_of(data), rank, world)
        seeds = [arguments.whole("seed", seed, 0), rank]
        batch_size = arguments.batch_size_of(batch_size, len(shard))
        super().__init__(arguments.size_of(data), shard, batch_size, seeds, criterion_of(loss), clock)
        self.data, self.samples, self.rank, self.world = data, samples, rank, world
        self.epochs = None if epochs is None else arguments.whole("epochs", epochs)
        self.features = None if features is None else features_of(features, self.table.size)
        if self.features is not None:
            self.learning_rate = self.features.learning_rate
        if arguments.flag("asynchronous", asynchronous):
            self.beside = SideAssistant(method)
        self._agree = arguments.agreement(agree, world)
        self._position = switch  # of the switch, at the last step that was recorded
        self._mark = 0.0
        self._held, self._held_cost = HeldSteps(), 0.0  # steps while it is off, and the seconds of selection in them
        self.switch, self.floor, self.method = switch, floor, method

    # ------------------------------------------------------------ as a batch sampler

    def __iter__(self) -> SamplingIterator:
        return SamplingIterator(self._pass_and_batches(), self._left_by, resumes=self._resumed)

    def _pass_and_batches(self) -> Generator[Any]:
        run = self._next_pass(sys._getframe(1))
        walk, again, add = self.walk, run.again, run.flight.add
        yield run
        while not run.over:  # runs on cold caches at each step: every line costs a microsecond
            with _drawing:
                if again:
                    indices = again.popleft()
                else:
                    before = walk.walked
                    indices = self._draw()
                    run.left -= walk.walked - before
                if self._passes and self._passes[-1] is not run:
                    self._renew(run)
            run.given += 1
            add(indices)
            yield indices.tolist()
        self._end(run)

    def __len__(self) -> int:
        return max(1, math.ceil(self.expected_length - _ROUNDING_BATCHES))

    @property
    def expected_length(self) -> float:
        """The expected number of batches in this epoch.

        Before an epoch they are those of the next. An epoch ends with the step on its last batch, which workers may
        have read long before.
        """
        if not self._passes:
            return self._rest * self.kept / self.drawn_size
        now = self._passes[-1]
        if now.length is not None:
            return float(now.length)
        return now.given + len(now.again) + max(0, now.left) * self.kept / self.drawn_size

    @property
    def next_length(self) -> float:
        """The expected number of batches in each later epoch, at the current rate."""
        return len(self.shard) * self.kept / self.drawn_size

    @property
    def drawn_size(self) -> int:
        """The number of instances drawn for a batch."""
        return self.batch_size

    # ------------------------------------------------------------ in the step

    def observe(self, indices: Any, *, losses: Any = None, logits: Any = None, targets: Any = None) -> None:
        """Learn from the ``losses`` of a step, or from its outputs and targets.

        ``logits`` are the outputs of the model. Call it once a step, or once for each part of an accumulated step.
        Never raises: what is wrong stands in `note`.
        """
        if self._gate.idle and self._passed_idly(indices, losses, logits, targets):
            return
        begun, scored, held, together, gate = self._clock(), False, False, 0, self._gate
        try:
            ids = self._ids(indices)
            self._arrived(ids)
            self.steps += 1
            self.table.trained(ids, self.steps)
            if gate.is_due or self._held.full:
                together = len(self._held)
                self._settle()
            scored = self._method.learns or gate.scores()
            held = scored and self._hold(ids, losses, logits, targets)
            if scored and not held:
                self._settle()
                found = arguments.per_example(len(ids), losses, logits, targets, self._criterion)
                if (labels := arguments.labels_of(len(ids), targets)) is not None:
                    self.table.label[ids] = labels
                self._learning.add(ids, found)
                if not getattr(found.losses, "is_cuda", False):  # a device is waited for a step later
                    self._settle()
        except Exception as error:  # an observer must not end the loop
            self._fail(f"observe: {error}")
        self._asked = NOTHING_ASKED
        ended = self._clock()
        cost, self._cost = max(0.0, self._cost + ended - begun), 0.0
        self.seconds_spent += cost
        if held or together:
            self._held_cost += cost
        if together:
            gate.held(self._held_cost / together)
            self._held_cost = 0.0
        if self._mark:
            gate.timed(max(0.0, ended - self._mark - cost) / (1 + gate.idled), cost if scored and not held else None)
            self._count_saved()
        self._mark, self._position = ended, self.switch
        gain = self._learning.gain.value if self._method.draws and gate.is_due else math.nan
        on = gate.tested(gain, self.walk.walked <= len(self.shard), self._position)
        selecting, self._selecting = self._selecting, self._method.acts(on, self.switch)
        if self._selecting and not selecting:
            self._settle()
            self._method.resume()
        if self._selecting or self._method.learns:
            gate.idle = 0

    def _passed_idly(self, indices: Any, losses: Any, logits: Any, targets: Any) -> bool:
        """Count a step on the batch drawn first if there is nothing else to do."""
        if self.switch is not self._position:
            return False
        batches = self._flight.batches
        try:
            oldest = self._flight.oldest(indices)
            ends = len(batches) < 2 and self._passes[-1].ended
        except Exception:  # no indices: `observe` says so
            return False
        if oldest is None or ends:
            return False
        batches.popleft()
        self.steps += 1
        self.table.trained(oldest, self.steps)
        self._asked = NOTHING_ASKED
        if self._gate.passed():
            begun = self._clock()
            if not self._hold(oldest, losses, logits, targets) or self._held.full:
                self._gate.idle = 0
            self._held_cost += self._clock() - begun
        return True

    def close(self) -> None:
        """End an assistant that works beside the loop; there is nothing else to close."""
        if self.beside is not None:
            self.beside.close()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of this rank for a checkpoint, as tensors and plain data.

        Between two steps: batches that workers have in hand are drawn again after a resume.
        """
        self._settle()
        return super().state_dict()

    # ------------------------------------------------------------ inside

    def _next_pass(self, frame: FrameType) -> SamplingPass:
        """Return the pass of a new iterator, which ``frame`` asks for a batch."""
        place = place_of_loop(frame)
        if self._resumed:
            self._resumed, run = False, self._passes[-1]
            run.running, run.began, run.place = True, self.steps, place
            return run
        for one in [*self._passes]:
            if self.steps > one.began and is_left(one.place, place):
                self._left_by(one)
        run = SamplingPass(self.table.size)
        run.began, run.place = self.steps, place
        if any(one.running for one in self._passes):  # within another one, whose place stays
            run.left = len(self.shard)
            self._passes = [*self._passes, run]
        else:
            run.again.extend(self._begin())
            run.left = self._left if run.again else self._rest  # else what is drawn again is the rest of an epoch
            self._passes = [run]
        self._flight, run.running = run.flight, True
        if self._agree is not None:
            expected = len(run.again) + self._expected(max(0, run.left))
            run.length = max(1, math.ceil(self._agree(expected) - _ROUNDING_BATCHES))
        return run

    def _end(self, run: SamplingPass) -> None:
        """Note that a pass has had its last batch, unless a state was loaded meanwhile."""
        run.ended = True
        if run in self._passes:
            self._left, self._given = run.left, run.given
            if len(self._passes) > 1 or run.used:  # else with the step on what workers have in hand
                self._drop(run)

    def _left_by(self, run: SamplingPass) -> None:
        """Note that the iterator of a pass is gone.

        One that was left early continues with the next, unless it was within another one.
        """
        run.running = False
        if run in self._passes:
            self._left = run.left
            if any(one.running for one in self._passes) or run.used:
                self._drop(run)

    def _arrived(self, ids: Ints) -> None:
        """Note a step on a batch, which may be the last of an epoch."""
        for one in reversed(self._passes):
            if one.flight.arrived(ids):
                if one.used:
                    self._drop(one)
                return

    def _begin(self) -> list[Ints]:
        """Begin an epoch, or the rest of one; return the batches to draw again."""
        self._settle()
        again = list[Ints]()
        for left in self._passes[-1:]:
            if self.steps != self._left_at:  # what workers had in hand is drawn again
                again += left.unused()
                self._left_at = self.steps  # without a step in between not once more: a loop may not observe any more
            again += left.again
            self.epoch += left.over and not again
        self._flight.clear()
        self._say_if_resized()
        self.table.recount()
        self._method.begin(self.epoch)
        self._mark, self._cost, self._held_cost, self._gate.idle = 0.0, 0.0, 0.0, 0
        return again

    def _draw(self) -> Ints:
        if self._selecting:
            begun = self._clock()
            found = self._selected()
            self._cost += self._clock() - begun
            if found is not None:
                self.taken += len(found.indices)
                return found.indices
        indices = self.walk.following(self.drawn_size)
        if not self.table.plain:
            self.table.drawn_alike(indices)
        self.taken += len(indices)
        return indices

    @_QUIETLY
    def _selected(self) -> Accepted | None:
        """Return the next batch as the method draws it; None if that failed."""
        method = self._method
        try:
            if self.beside is not None and isinstance(method, AutoAssist):
                found = self._made_beside(self.beside, method)
            else:
                found = method.draw(self.walk, self.drawn_size)
        except Exception as error:  # a method that fails must not end the loop
            self._fail(f"The method {self.method!r} failed: {error}. Sampling is plain.")
            return None
        if found is None:
            return None
        try:
            weights = method.weights(found.indices, found.probability)
            self.table.drawn(found, weights, method.predicted(found.indices) if method.predicts else None)
        except Exception as error:
            self._fail(f"The method {self.method!r} failed: {error}. The plain mean is taken.")
            self.table.drawn_alike(found.indices)
        return found

    def _made_beside(self, beside: SideAssistant, method: AutoAssist) -> Accepted | None:
        """Return a batch of the assistant beside the loop; None if it has none ready."""
        made = beside.draw(method, self.shard, self.batch_size, [*self.seed, 4, self.steps])
        if beside.ended:
            self._say(f"The assistant ended ({beside.ended}): sampling is plain until you set the method again.")
        if made is None:
            return None
        self.walk.walked += made.offered
        method.rated(made.accepted.indices, made.prediction)
        return made.accepted

    def _hold(self, ids: Ints, losses: Any, logits: Any, targets: Any) -> bool:
        """Keep the outputs of a step for later; False if it has to be scored now."""
        gate = self._gate
        if not gate.holds or self._selecting or self._method.learns:
            return False
        known = losses is None and isinstance(self._criterion, CrossEntropy)
        held = known and self._held.add(ids, logits, targets)
        gate.hold(held)
        return held

    @_QUIETLY
    def _settle(self) -> None:
        """Process the losses and scores of the observed steps."""
        if len(self._held):
            self._score_held()
        self._learning.settle(self._learn, self._fail)

    def _score_held(self) -> None:
        ids, logits, targets, steps = self._held.taken()
        try:
            found = arguments.per_example(len(ids), None, logits, targets, self._criterion)
            self.table.label[ids] = targets.numpy()
            self._learning.add(ids, found, steps)
        except Exception as error:
            self._fail(f"observe: {error}")

    def _learn(self, ids: Ints, losses: Floats, scores: Floats | None, steps: int) -> None:
        self._learning.enter(self._method, self._selecting, self._teach, ids, losses, scores, steps)

    def _teach(self, ids: Ints, losses: Floats, scores: Floats | None) -> None:
        if self.beside is None or self._method.name != AutoAssist.name:
            self._method.observe(ids, losses, scores)
        else:
            self.beside.learn(ids, losses, self.learning_rate)

    @_QUIETLY
    def _expected(self, instances: int) -> float:
        """Return how many batches a pass over so many would have. Does not raise."""
        share = 1.0
        if self._selecting:
            try:
                found = float(self._method.acceptance(self.shard).probability.mean())
                share = 1.0 if math.isnan(found) else found
            except Exception as error:  # features that fail
                self._fail(f"The method {self.method!r} failed: {error}. Sampling is plain.")
        return share * instances / self.drawn_size

    def take_over(self, method: type[Method]) -> None:
        """Use ``method`` from the next draw on.

        What is known of the instances stays, and a method that was used before continues where it was.
        """
        if method.name not in self._methods:
            self._methods[method.name] = self.make(method)
        if self.beside is not None:
            self.beside.close()
        self._method = self._methods[method.name]
        self._method.begin(self.epoch)
        self._learning.audit = Audit()
        self._selecting = self._method.acts(self._gate.on, self.switch)
        self._gate.idle = 0
