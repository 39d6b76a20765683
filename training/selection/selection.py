"""`Selection`: a batch sampler that chooses what to train on."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from looptap.streams.control import Control
from looptap.training.sampling.per_example import PerExample, criterion_of
from looptap.training.sampling.permutation_walk import Accepted, Floats, Ints, everything
from looptap.training.selection import selection_arguments as arguments
from looptap.training.selection.asynchronous.side_assistant import SideAssistant
from looptap.training.selection.features.features import features_of
from looptap.training.selection.methods.autoassist import AutoAssist
from looptap.training.selection.methods.catalog import METHODS, MethodControl
from looptap.training.selection.methods.method import Method
from looptap.training.selection.selection_state import SelectionState
from looptap.training.selection.switch import AUTO, SWITCH_POSITIONS

_ROUNDING_BATCHES = 1e-6  # by which an expected length may be too long
_QUIETLY = np.errstate(all="ignore")  # warnings of numbers that are not finite: what is wrong stands in `note`


class Selection(SelectionState):
    """Draws batches, more often of what the model still learns from.

    ``data`` is a map-style data set, or its length. Give this to a DataLoader as its ``batch_sampler``, around
    ``WithIndex(dataset)``; compute the loss of a step with `mean`, and after the step say with `observe` what it was.
    ``method`` is one of `METHODS`; with the default, ``switch="auto"`` selects only while that pays. ``epochs`` is
    the plan: how often the data is walked. ``loss`` is "cross_entropy", "bce", "mse", a loss of torch.nn, or a function
    that returns `PerExample`, or losses alone, for outputs and targets. "autoassist" and "screener" need ``features``,
    an array (n, d), a function of indices that returns one, or one of `looptap.training.selection.features`; "rho"
    needs ``reference``, the losses of a model that was trained on other data. ``asynchronous`` "thread" or "process"
    lets the assistant of "autoassist" make batches and learn beside the loop, which never waits for it. On several
    ranks each has a shard, and all make the same number of steps: ``agree(number)`` returns the mean over the ranks.

    All batches are full: an epoch ends with the batch in which the last instance was offered. Nothing here draws from
    the global random numbers. What is wrong at construction raises ValueError, TypeError or ControlError; what is
    wrong later stands in `note`, and sampling is plain until the next test of the switch.

    >>> selection = Selection(8, batch_size=4)
    >>> sorted(index for batch in selection for index in batch)
    [0, 1, 2, 3, 4, 5, 6, 7]
    """

    method = MethodControl(choices=tuple(METHODS), default="norm", doc="how instances are drawn")
    switch = Control(choices=SWITCH_POSITIONS, default=AUTO, doc="select while it pays, always, or never")
    floor = Control(float, default=0.2, minimum=0.0, maximum=1.0, doc="the least probability of an instance")
    cap = Control(float, default=2.0, minimum=1.0, unit="mean losses", doc="the highest loss that counts")
    exponent = Control(
        float, default=1.0, minimum=0.0, maximum=1.0, doc="share of the bias that weights take away at the end"
    )
    learning_rate = Control(float, default=0.01, minimum=0.0, doc="that of an assistant")

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
        asynchronous: str | None = None,
        reference: Any = None,
        seed: int = 0,
        rank: int | None = None,
        world: int | None = None,
        agree: Callable[[float], float] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        rank, world = arguments.rank_and_world(rank, world)
        shard = arguments.shard_of(arguments.size_of(data), rank, world)
        seeds = [arguments.whole("seed", seed, 0), rank]
        super().__init__(arguments.size_of(data), shard, arguments.batch_size_of(batch_size, len(shard)), seeds)
        self.data, self.rank, self.world = data, rank, world
        self.epochs = None if epochs is None else arguments.whole("epochs", epochs)
        self.features = None if features is None else features_of(features, self.table.size)
        if self.features is not None:
            self.learning_rate = self.features.learning_rate
        if asynchronous is not None:
            self.beside = SideAssistant(asynchronous, method, self.features)
        self.reference = arguments.reference_of(reference, self.table.size)
        self._criterion, self._clock = criterion_of(loss), clock
        self._agree = arguments.agreement(agree, world)
        self._late: list[tuple[Ints, PerExample]] = []  # on a device, which is not waited for
        self._asked: tuple[Any, Ints] = None, shard[:0]  # the indices that `mean` got, converted
        self._chose = False
        self._cost = self._mark = 0.0
        self.switch, self.floor, self.method = switch, floor, method

    # ------------------------------------------------------------ as a batch sampler

    def __iter__(self) -> Iterator[list[int]]:
        if not self._resumed:
            self._begin()
        self._resumed = False
        turn = self._turn = self._turn + 1
        while self._again or not self._over():
            indices = self._again.popleft() if self._again else self._draw()
            self.given += 1
            self._flight.add(indices)
            yield indices.tolist()
            if turn != self._turn:
                self._say("Another loop began over this Selection: the earlier one ends. Make one for each loop.")
                return
        self._inside = False
        if not self._flight.batches:  # else the epoch ends with the step on what workers have in hand
            self.epoch += 1

    def __len__(self) -> int:
        return max(1, math.ceil(self.expected_length - _ROUNDING_BATCHES))

    @property
    def expected_length(self) -> float:
        """The batches of this epoch, as far as they can be foreseen.

        Before an epoch they are those of the next.
        """
        if self._length is not None and self._inside:
            return float(self._length)
        if not self._inside:
            return self._expected()
        rest = self._end - self.walk.walked
        return self.given + len(self._again) + max(0.0, rest * self.kept) / self.drawn_size

    @property
    def next_length(self) -> float:
        """The batches of each later epoch, at the present rate."""
        return len(self.shard) * self.kept / self.drawn_size

    @property
    def drawn_size(self) -> int:
        """The instances of a batch as it is drawn; "rho" trains on a part."""
        return min(self.batch_size * self._method.oversampling, len(self.shard))

    # ------------------------------------------------------------ in the step

    def mean(self, indices: Any, losses: Any) -> Any:
        """Return the weighted mean of ``losses``, a tensor of shape (n,)."""
        if self.table.plain and not self._method.chooses and losses.ndim == 1:
            return losses.mean()
        begun = self._clock()
        self._asked = None, self._asked[1]  # the loop may have refilled the same tensor
        try:
            ids = self._ids(indices)
            if tuple(losses.shape) != (len(ids),):
                raise ValueError(f"losses of shape {tuple(losses.shape)} for {len(ids)} indices")
            weights = self._weights(ids, losses)
        except Exception as error:  # the loop has to train on something
            self._fail(f"mean: {error}. The plain mean is taken.")
            return losses.mean()
        import torch

        scaled = torch.from_numpy(weights).to(losses.device, losses.dtype, non_blocking=True)
        self._cost += self._clock() - begun
        return (losses * scaled).mean()

    def choose(self, indices: Any, losses: Any) -> Any:
        """Return which examples of a batch to train on, as a tensor of booleans.

        For the methods that see the losses first, "selective-backprop" and "rho"; with the others all are. Give only
        those to `mean` and `observe` after it. Does not raise.
        """
        import torch

        begun = self._clock()
        try:
            ids = self._ids(indices)
            if self._method.chooses:
                weights = self._chosen(ids, losses)
                kept = weights > 0
                self.table.weight[ids] = weights * np.float32(np.count_nonzero(kept) / len(ids))
                self.table.plain, self._chose = False, True
                self.taken -= len(ids) - int(np.count_nonzero(kept))
                return torch.from_numpy(kept)
        except Exception as error:
            self._fail(f"choose: {error}. All are chosen.")
        finally:
            self._cost += self._clock() - begun
            self._asked = None, self._asked[1]
        return torch.ones(len(losses), dtype=torch.bool)

    def observe(self, indices: Any, *, losses: Any = None, logits: Any = None, targets: Any = None) -> None:
        """Learn from the ``losses`` of a step, or from its outputs and targets.

        ``logits`` are the outputs of the model. Call it once a step, or once for each part of an accumulated step.
        Never raises: what is wrong stands in `note`.
        """
        begun, scored = self._clock(), False
        try:
            ids = self._ids(indices)
            if self._flight.arrived(ids) and not self._flight.batches and not self._inside:
                self.epoch += 1
            self.steps += 1
            self.table.trained(ids, self.steps)
            if scored := self._method.learns or self._gate.scores():
                self._settle()
                found = arguments.per_example(len(ids), losses, logits, targets, self._criterion)
                if (labels := arguments.labels_of(len(ids), targets)) is not None:
                    self.table.label[ids] = labels
                self._late.append((ids, found))
                if not getattr(found.losses, "is_cuda", False):  # a device is waited for a step later
                    self._settle()
        except Exception as error:  # an observer must not end the loop
            self._fail(f"observe: {error}")
        self._asked, self._chose = (None, self._asked[1]), False
        ended = self._clock()
        cost, self._cost = max(0.0, self._cost + ended - begun), 0.0
        self.seconds_spent += cost
        if self._mark:
            self._gate.timed(max(0.0, ended - self._mark - cost), cost if scored else None)
            self._count_saved()
        self._mark = ended
        gain = self._gain.value if self._method.draws else math.nan
        on = self._gate.tested(gain, self.walk.walked <= len(self.shard), self.switch)
        self._selecting = self._method.acts(on, self.switch)

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

    def _begin(self) -> None:
        self._settle()
        if not self._inside:  # an epoch of which the last steps were not observed ends now
            self.epoch += bool(self._flight.batches)
        elif self.steps != self._left_at:  # it was left early: what workers had in hand is drawn again
            self._again.extendleft(reversed(self._flight.batches))
            self._left_at = self.steps  # without a step in between not once more: a loop may have ceased to observe
        self._flight.clear()
        self._say_if_resized()
        self.table.recount()
        self._method.begin(self.epoch)
        self._mark = self._cost = 0.0
        if self.walk.walked >= self._end:  # else the epoch before it was left early, and its rest comes first
            self._end += len(self.shard)
        self.given, self._inside, self._length = 0, True, None
        if self._agree is not None:
            self._length = max(1, math.ceil(self._agree(self._expected()) - _ROUNDING_BATCHES))

    def _over(self) -> bool:
        if not self._inside:
            return True
        return self.walk.walked >= self._end if self._length is None else self.given >= self._length

    def _draw(self) -> Ints:
        begun = self._clock()
        found = self._selected() if self._selecting else None
        if found is None:
            found = self.walk.take(self.drawn_size, everything)
            self.table.drawn_alike(found.indices)
        self.taken += len(found.indices)
        self._cost += self._clock() - begun
        return found.indices

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
            weights, predicted = method.weights(found.indices, found.probability), method.predicted(found.indices)
            self.table.drawn(found, weights, predicted)
        except Exception as error:
            self._fail(f"The method {self.method!r} failed: {error}. The plain mean is taken.")
            self.table.drawn_alike(found.indices)
        return found

    def _made_beside(self, beside: SideAssistant, method: AutoAssist) -> Accepted | None:
        """Return a batch of the assistant beside the loop; None if it has none ready."""
        made = beside.draw(method, self.shard, self.batch_size, [*self.seed, 4, self.steps])
        if beside.ended:
            self._say(f"The assistant ended ({beside.ended}): sampling is plain until the method is set again.")
        if made is None:
            return None
        self.features = method.features  # in memory that a process shares
        self.walk.walked += made.offered
        method.rated(made.accepted.indices, made.prediction)
        return made.accepted

    def _ids(self, indices: Any) -> Ints:
        """Return ``indices`` as an array; those of `mean` once more in `observe`."""
        if indices is not self._asked[0] or indices is None:
            oldest = self._flight.oldest(indices)
            self._asked = indices, arguments.indices_in(indices, self.table.size) if oldest is None else oldest
        return self._asked[1]

    def _weights(self, ids: Ints, losses: Any) -> Floats:
        weights = self.table.weight[ids]
        if self._chose:  # of a batch of which all were given, those that were not chosen have the weight 0
            return weights * np.float32(len(ids) / max(1, int(np.count_nonzero(weights))))
        if self._method.chooses:
            weights = weights * self._chosen(ids, losses)
            self.taken -= len(ids) - int(np.count_nonzero(weights))
        return weights

    @_QUIETLY
    def _chosen(self, ids: Ints, losses: Any) -> Floats:
        """Return the method's weights; raises ValueError for what would spoil the loss."""
        weights = self._method.choose(ids, arguments.finite_losses(len(ids), losses))
        if not np.isfinite(weights).all():
            raise ValueError(f"the method {self.method!r} gave weights that are not finite")
        return weights

    @_QUIETLY
    def _settle(self) -> None:
        """Process the losses and scores of the observed steps."""
        late, self._late = self._late, []
        for ids, found in late:
            try:
                ids, losses, scores = arguments.distinct(ids, found)
                kept, losses, scores = arguments.finite(ids, losses, scores)
                if len(kept) < len(ids):
                    self._fail("Losses that are not finite are left out.")
                if len(kept):
                    self._learn(kept, losses, scores)
            except Exception as error:  # neither the loop nor its checkpoint may end of it
                self._fail(f"observe: {error}")

    def _learn(self, ids: Ints, losses: Floats, scores: Floats | None) -> None:
        table, method = self.table, self._method
        predicted = table.prediction[ids]
        missing = predicted != predicted
        if missing.any():  # what was drawn alike has no prediction yet
            predicted[missing] = method.predicted(ids[missing])
            missing = predicted != predicted
        if method.draws and not missing.all():
            known = slice(None) if not missing.any() else ~missing
            drawn = table.probability[ids[known]]
            wanted = drawn if self._selecting else method.acceptance(ids[known]).probability
            self._gain.add(drawn=drawn, wanted=wanted, scores=(losses if scores is None else scores)[known])
        predicted[~table.uniform[ids]] = np.nan  # selected instances would flatter the audit
        if self.beside is None or method.name != AutoAssist.name:
            method.observe(ids, losses, scores)
        else:
            self.beside.learn(ids, losses, self.learning_rate)
        table.observed(ids, losses, scores)
        self._audit.add(predicted, losses, method.cut, method.threshold)

    @_QUIETLY
    def _expected(self) -> float:
        """Return how many batches an epoch would have now. Does not raise."""
        share = 1.0
        if self._selecting:
            try:
                found = float(self._method.acceptance(self.shard).probability.mean())
                share = 1.0 if math.isnan(found) else found
            except Exception as error:  # features that fail
                self._fail(f"The method {self.method!r} failed: {error}. Sampling is plain.")
        end = self._end + (len(self.shard) if self.walk.walked >= self._end else 0)
        return share * (end - self.walk.walked) / self.drawn_size

    def _fail(self, why: str) -> None:
        self._gate.fail(why)
        self._selecting = self._method.acts(False, self.switch)
        self._say(why)

    def take_over(self, method: type[Method]) -> None:
        """Use ``method`` from the next draw on.

        What is known of the instances stays, and a method that was used before continues where it was.
        """
        if method.name not in self._methods:
            self._methods[method.name] = method(self.table, self)
        if self.beside is not None:
            self.beside.close()
        self._method = self._methods[method.name]
        self._method.begin(self.epoch)
        self._audit.clear()
        self._selecting = self._method.acts(self._gate.on, self.switch)
