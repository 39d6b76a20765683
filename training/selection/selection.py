"""`Selection`: a batch sampler that draws more often what the model still learns from."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from looptap.streams.control import Control
from looptap.training.instances import merge_copies
from looptap.training.sampling.per_example import PerExample, criterion_of
from looptap.training.sampling.permutation_walk import Accepted, Bools, Floats, Ints, everything
from looptap.training.selection import selection_arguments as arguments
from looptap.training.selection.asynchronous.side_assistant import SideAssistant
from looptap.training.selection.features.features import features_of
from looptap.training.selection.methods.autoassist import AutoAssist
from looptap.training.selection.methods.catalog import METHODS
from looptap.training.selection.methods.method import Method
from looptap.training.selection.selection_observables import SelectionObservables
from looptap.training.selection.switch import AUTO, SWITCH_POSITIONS


class MethodControl(Control):
    """A method by its name; what is known of the instances stays. One that lacks something is refused."""

    def __set__(self, instance: Any, value: Any) -> None:
        method = METHODS[self.checked(value, self.name)]
        method.require(instance)
        super().__set__(instance, value)
        instance.take_over(method)


class Selection(SelectionObservables):
    """Draws batches of a map-style data set, more often those instances that the model still learns from.

    ``data`` is the data set, or its length. Give this to a DataLoader as its ``batch_sampler``, around
    ``WithIndex(dataset)``; compute the loss of a step with `mean`, and after the step say with `observe` what it was.
    ``method`` is one of `METHODS`; with the default, ``switch="auto"`` selects only while that pays. ``epochs`` is
    the plan: how often the data is walked. ``features`` are what an assistant sees: an array (n, d), a function of
    indices that returns one, or one of those of `looptap.training.selection.features`. ``asynchronous`` "thread" or
    "process" lets the assistant of "autoassist" make batches and learn beside the loop, which never waits for it.
    ``loss`` is "cross_entropy", "bce", "mse", a loss of torch.nn, or a function that returns `PerExample` for outputs
    and targets. On several ranks each has a shard, and all make the same number of steps: ``agree(number)`` returns
    the mean over the ranks, by default by torch.distributed.

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
        seed: int = 0,
        rank: int | None = None,
        world: int | None = None,
        agree: Callable[[float], float] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        rank, world = arguments.rank_and_world(rank, world)
        shard = arguments.shard_of(arguments.size_of(data), rank, world)
        super().__init__(arguments.size_of(data), shard, arguments.batch_size_of(batch_size, len(shard)), [seed, rank])
        self.data, self.rank, self.world = data, rank, world
        self.epochs = None if epochs is None else arguments.whole("epochs", epochs)
        self.features = None if features is None else features_of(features, self.table.size)
        if self.features is not None:
            self.learning_rate = self.features.learning_rate
        if asynchronous is not None:
            self.beside = SideAssistant(asynchronous, method, self.features)
        self._criterion, self._clock = criterion_of(loss), clock
        self._agree = agree or (arguments.mean_over_ranks if world > 1 else None)
        self._length: int | None = None  # batches of this epoch, where ranks have agreed on them
        self._drawn = deque[Ints]()  # batches that were drawn, and not observed yet
        self._again = deque[Ints]()  # of those, what is drawn again after a resume
        self._late: list[tuple[Ints, PerExample]] = []  # on a device, which is not waited for
        self._methods: dict[type[Method], Method] = {}  # those that were used: each continues where it was
        self._resumed, self._cost, self._mark = False, 0.0, 0.0
        self.switch, self.floor, self.method = switch, floor, method

    # ------------------------------------------------------------ as a batch sampler

    def __iter__(self) -> Iterator[list[int]]:
        if self._resumed:
            self._resumed = False
        else:
            self._begin()
        turn = self._turn = self._turn + 1
        while self._again or not self._over():
            indices = self._again.popleft() if self._again else self._draw()
            self.given += 1
            self._drawn.append(indices)
            yield indices.tolist()
            if turn != self._turn:  # the loop iterates again before the end
                return
        self.epoch += 1
        self._inside = False

    def __len__(self) -> int:
        return max(1, round(self.expected_length))

    @property
    def expected_length(self) -> float:
        """The batches of this epoch, as far as they can be foreseen; before an epoch, those of the next."""
        if self._length is not None and self._inside:
            return float(self._length)
        if not self._inside:
            return self._expected(self.shard) / self.batch_size
        rest = self._end - self.walk.walked
        return self.given + len(self._again) + max(0.0, rest * self.kept) / self.batch_size

    @property
    def next_length(self) -> float:
        """The batches of each later epoch, at the present rate."""
        return len(self.shard) * self.kept / self.batch_size

    @property
    def drawn_again(self) -> int:
        """The batches that the next ``iter`` draws again after a resume, since no step on them was observed."""
        return len(self._again)

    # ------------------------------------------------------------ in the step

    def mean(self, indices: Any, losses: Any) -> Any:
        """Return the mean of ``losses``, a tensor of shape (n,), with the weights of the method."""
        begun = self._clock()
        try:
            ids = arguments.indices_in(indices, self.table.size)
            if losses.shape != (len(ids),):
                raise ValueError(f"losses of shape {tuple(losses.shape)} for {len(ids)} indices")
            weights = self.table.weight[ids]
            if self._method.chooses:
                weights = weights * self._chosen(ids, losses)
        except Exception as error:  # the loop has to train on something
            self._fail(f"mean: {error}. The plain mean is taken.")
            return losses.mean()
        self._cost += self._clock() - begun
        if (weights == 1.0).all():
            return losses.mean()
        import torch

        scaled = torch.from_numpy(weights).to(losses.device, losses.dtype, non_blocking=True)
        return (losses * scaled).mean()

    def choose(self, indices: Any, losses: Any) -> Bools:
        """Return which examples of a batch are worth a backward pass, as an array of booleans of shape (n,).

        All, but for the methods "selective-backprop" and "rho", which see the losses first.
        """
        return self._chosen(arguments.indices_in(indices, self.table.size), losses) > 0

    def observe(self, indices: Any, *, losses: Any = None, logits: Any = None, targets: Any = None) -> None:
        """Learn from a step on ``indices``: from its ``losses``, or its ``logits`` (outputs) and ``targets``.

        Call it once a step, or once for each part of an accumulated step. Never raises: what is wrong stands in `note`.
        """
        begun = self._clock()
        scored = False
        try:
            ids = arguments.indices_in(indices, self.table.size)
            self._arrived(ids)
            self.steps += 1
            if scored := not self._method.switched or self._gate.scores():
                self._settle()
                found = arguments.per_example(len(ids), losses, logits, targets, self._criterion)
                self._label(ids, targets)
                self._late.append((ids, found))
                if not getattr(found.losses, "is_cuda", False):  # a device is waited for a step later
                    self._settle()
            else:
                self.table.trained(ids, self.steps)
        except Exception as error:  # an observer must not end the loop
            self._fail(f"observe: {error}")
        self._selecting = self._gate.tested(self._gain.value, self.epoch == 0, self.switch) or not self._method.switched
        ended = self._clock()
        cost, self._cost = self._cost + ended - begun, 0.0
        if self._mark:
            self._gate.timed(max(0.0, ended - self._mark - cost), cost if scored else None)
            self.seconds_spent += cost
        self._mark = ended

    def close(self) -> None:
        """End an assistant that works beside the loop; there is nothing else to close."""
        if self.beside is not None:
            self.beside.close()

    # ------------------------------------------------------------ a resumed run

    def state_dict(self) -> dict[str, Any]:
        """Return the state of this rank for a checkpoint, as arrays and plain data.

        Between two steps: batches that workers have in hand are drawn again after a resume.
        """
        self._settle()
        return {
            "size": self.table.size, "rank": self.rank, "world": self.world, "epoch": self.epoch, "steps": self.steps,
            "given": self.given - len(self._drawn), "inside": self._inside, "end": self._end, "length": self._length,
            "drawn": [indices.copy() for indices in (*self._drawn, *self._again)], "seconds_spent": self.seconds_spent,
            "walk": self.walk.state_dict(), "table": self.table.state_dict(np.unique(self.shard)),
            "method": self.method, "of_method": self._method.state_dict(), "gain": self._gain.state_dict(),
            "switch": self.switch, "gate": self._gate.state_dict(), "selecting": self._selecting,
            "floor": self.floor, "cap": self.cap, "exponent": self.exponent, "learning_rate": self.learning_rate,
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any], *others: dict[str, Any]) -> None:
        """Continue at the next ``iter`` after the last step that was observed. Raises ValueError.

        On another number of ranks give the states of all that were: what is known of the instances is taken over, and
        the epoch begins again.
        """
        METHODS[state["method"]].require(self)
        for one in (state, *others):
            if one["size"] != self.table.size:
                raise ValueError(f"The state is that of {one['size']:,} instances; here are {self.table.size:,}.")
            self.table.load_state_dict(one["table"])
        for name in ("switch", "floor", "cap", "exponent", "learning_rate", "method", "epoch", "steps"):
            setattr(self, name, state[name])
        self._method.load_state_dict(state["of_method"])
        self._gain.load_state_dict(state["gain"])
        self._gate.load_state_dict(state["gate"])
        self._selecting, self.seconds_spent = state["selecting"], state["seconds_spent"]
        self._drawn.clear()
        if (state["rank"], state["world"]) != (self.rank, self.world):
            if len(others) + 1 != state["world"]:
                self._say(f"Of {state['world']} ranks the states of {len(others) + 1} were given: the others are new.")
            self._inside = self._resumed = False
            return
        self.walk.load_state_dict(state["walk"])
        self.given, self._inside, self._end, self._length = (
            state["given"], state["inside"], state["end"], state["length"],
        )  # fmt: skip
        self._resumed = self._inside
        self._again = deque(np.asarray(indices) for indices in state["drawn"]) if self._inside else deque()

    # ------------------------------------------------------------ inside

    def _begin(self) -> None:
        self._settle()
        self._drawn.clear()
        self._again.clear()
        self.table.recount()
        self._method.begin(self.epoch)
        self._mark = self._cost = 0.0
        if self.walk.walked >= self._end:  # else the epoch before it was left early, and its rest comes first
            self._end += len(self.shard)
        self.given, self._inside, self._length = 0, True, None
        if self._agree is not None:
            self._length = max(1, round(self._agree(self._expected(self.shard) / self.batch_size)))

    def _over(self) -> bool:
        return self.walk.walked >= self._end if self._length is None else self.given >= self._length

    def _draw(self) -> Ints:
        begun = self._clock()
        try:
            found = self._accepted()
        except Exception as error:  # a method that fails must not end the loop
            self._fail(f"The method {self.method!r} failed: {error}. Sampling is plain.")
            found = self.walk.take(self.batch_size, everything)
        self.table.drawn(found, *self._described(found))
        self.taken += len(found.indices)
        self._cost += self._clock() - begun
        return found.indices

    def _accepted(self) -> Accepted:
        if not self._selecting:
            return self.walk.take(self.batch_size, everything)
        if self.beside is not None and isinstance(self._method, AutoAssist):
            return self._made_beside(self.beside, self._method)
        return self.walk.take(self.batch_size, self._method.acceptance, ahead=self._method.ahead)

    def _made_beside(self, beside: SideAssistant, method: AutoAssist) -> Accepted:
        """Return a batch of the assistant beside the loop; a plain one if it has none ready."""
        made = beside.draw(method, self.shard, self.batch_size, [self.table.size, self.rank, self.steps])
        if beside.ended:
            self._say(f"The assistant ended ({beside.ended}): sampling is plain until the method is set again.")
        if made is None:
            return self.walk.take(self.batch_size, everything)
        self.features = method.features  # in memory that a process shares
        self.walk.walked += made.offered
        method.rated(made.accepted.indices, made.prediction)
        return made.accepted

    def _described(self, found: Accepted) -> tuple[Floats, Floats]:
        """Return the weights of what was drawn, and how important it is thought to be."""
        try:
            weights = self._method.weights(found.indices, found.probability)
            return weights, self._method.predicted(found.indices)
        except Exception as error:
            self._fail(f"The method {self.method!r} failed: {error}. The plain mean is taken.")
            return np.ones(len(found.indices), np.float32), np.full(len(found.indices), np.nan, np.float32)

    def _chosen(self, ids: Ints, losses: Any) -> Floats:
        """Return weights that make the mean over a batch that over what is chosen of it."""
        chosen = self._method.choose(ids, arguments.array_of(losses))
        share = np.count_nonzero(chosen) / len(ids)
        return chosen.astype(np.float32) / np.float32(share or 1)

    def _arrived(self, ids: Ints) -> None:
        """Forget the batches up to the one of ``ids``: they were delivered."""
        if not len(ids):
            return
        for place, batch in enumerate(self._drawn):
            if ids[0] in batch:
                for _ in range(place + 1):
                    self._drawn.popleft()
                return

    def _label(self, ids: Ints, targets: Any) -> None:
        if targets is not None and targets.ndim == 1 and not targets.is_floating_point() and not targets.is_cuda:
            self.table.label[ids] = targets.numpy()

    def _settle(self) -> None:
        """Take in the losses and scores of the steps that were observed."""
        late, self._late = self._late, []
        for ids, found in late:
            unique, values = merge_copies(
                ids, np.stack([arguments.array_of(one) for one in found if one is not None], 1)
            )
            good = np.isfinite(values).all(1)
            if not good.all():
                self._fail(f"{np.count_nonzero(~good)} losses of a step are not finite: they are left out.")
            if good.any():
                losses, *scores = values[good].astype(np.float32).T
                self._learn(unique[good], losses, scores[0] if scores else None)

    def _learn(self, ids: Ints, losses: Floats, scores: Floats | None) -> None:
        table, method = self.table, self._method
        known = np.isfinite(table.prediction[ids])
        if known.any():
            seen, values = ids[known], losses if scores is None else scores
            wanted = method.acceptance(seen).probability
            self._gain.add(drawn=table.probability[seen], wanted=wanted, scores=values[known])
        uniform = table.uniform[ids]
        self._audit.add(table.prediction[ids[uniform]], losses[uniform])
        if self.beside is None or method.name != AutoAssist.name:
            method.observe(ids, losses, scores)
        else:
            self.beside.learn(ids, losses, self.learning_rate)
        table.observed(ids, losses, scores, step=self.steps)

    def _expected(self, ids: Ints) -> float:
        """Return how many of ``ids`` would be accepted now."""
        if not self._selecting:
            return float(len(ids))
        return float(self._method.acceptance(ids).probability.sum())

    def _fail(self, why: str) -> None:
        self._gate.fail(why)
        self._selecting = not self._method.switched
        self._say(why)

    def take_over(self, method: type[Method]) -> None:
        """Use ``method`` from the next draw on, with what is known of the instances."""
        if self.beside is not None:
            self.beside.close()
        self._method = self._methods.get(method) or self._methods.setdefault(method, method(self.table, self))
        self._method.begin(self.epoch)
        self._audit.clear()
        self._selecting = not self._method.switched or self._gate.on
