"""`Prioritized`: a batch sampler that prefers the examples that move the loss."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from looptap.streams.control import Control, for_queries
from looptap.streams.errors import ControlError
from looptap.streams.preserving.module_state import unwrapped
from looptap.training.of_part import of_part
from looptap.training.prioritized.average_gradient import AverageGradient
from looptap.training.prioritized.layer_plan import ShardedModelError, why_sharded
from looptap.training.prioritized.methods.priority_methods import PRIORITY_METHODS
from looptap.training.prioritized.methods.priority_trends import PriorityTrends
from looptap.training.prioritized.methods.published import SELECTIVE, VARIANTS, Published
from looptap.training.prioritized.methods.renewals import Renewals
from looptap.training.prioritized.priority_source import PrioritySource
from looptap.training.sampling.permutation_walk import Bools, Floats, Ints
from looptap.training.saved_state import require_state
from looptap.training.selection import selection_arguments as arguments
from looptap.training.selection.methods.catalog import MethodControl
from looptap.training.selection.methods.method import Method
from looptap.training.selection.selection import Selection
from looptap.training.selection.shown_instances import known_only

TOP_SHARE = (0.01, 0.05, 0.10)
"""The shares of the examples whose part in all priority is shown."""
_TINY_SHARE = 0.002  # k and r up to it are known to diverge


class ShareControl(Control):
    """A share of the examples, between 0 and 1; k and r together are at most 1."""

    def __set__(self, instance: Any, value: Any) -> None:
        found = self.checked(value, self.name)
        if not 0 < found < 1:
            raise ControlError(
                f"{self.name} = {value!r} must be between 0 and 1, such as 0.01: a share of the examples."
            )
        other = "r" if self.name == "k" else "k"
        if found + instance.__dict__.get(other, 0.0) > 1:
            raise ControlError(
                f"{self.name} = {value!r} with {other} = {getattr(instance, other)!r}: k + r must be at most 1, since "
                "they are shares of the examples that a step computes."
            )
        super().__set__(instance, found)


class VariantControl(Control):
    """A variant of PGD; "S" is one for a single rank."""

    def __set__(self, instance: Any, value: Any) -> None:
        found = self.checked(value, self.name)
        if found == SELECTIVE and instance.__dict__.get("world", 1) > 1:
            raise ControlError(
                "variant = 'S' steps along the gradients of the top alone, and several ranks average those of all: "
                "take 'A', or one rank."
            )
        super().__set__(instance, found)


class Prioritized(Selection):
    """Draws examples that move the loss more often.

    ``data`` is a map-style data set, or its length; ``model`` the module, or None for methods without priorities. Pass
    this to a DataLoader of ``WithIndex(dataset)`` as its ``batch_sampler``. In a step, call `backward` with the losses
    of single examples instead of ``loss.backward()``, and then `observe`. ``method``:

    - ``"norm"``, the default: by the gradient norm at the model's output, as `Selection`, and only while it pays.
    - ``"loss"``: in proportion to the newest loss, weighted so that gradients stay unbiased.
    - ``"published"``: PGD, prioritized gradient descent, with the top ratio ``k``, the renewal ratio ``r``, and
      ``lam``, how much of a trend is kept; ``variant`` "A" or "S". A batch has (r + k) N examples of the N of this
      rank, whatever ``batch_size`` is.
    - ``"repaired"``: the same with a gbar that forgets fast, and is not fed by the examples of high priority.
    - ``"uniform"``: all alike.

    ``exact`` is the method of `ExactPriorities` for the priorities. All methods except hooks of the layers, which
    "auto" prefers, need ``inputs`` and ``targets`` in `backward`. The other arguments are those of `Selection`; ranks,
    random numbers and errors are treated in the same way.

    >>> prioritized = Prioritized(8, None, batch_size=4)
    >>> sorted(index for batch in prioritized for index in batch)
    [0, 1, 2, 3, 4, 5, 6, 7]
    """

    __looptap_panel__ = (
        ("priorities", "np.histogram(self.priorities, 40)", "histogram", 2.0),
        ("share of the top", "self.concentration"),
        ("estimated against renewed", "self.estimation"),
        ("gain", "self.worth"),
        ("gradient work", "self.work"),
        ("seconds", "self.seconds"),
        ("steps since last seen", "np.histogram(self.ages, 40)", "histogram", 2.0),
        ("most important", "self.important_samples(9)", "", 10.0),
        ("least important", "self.unimportant_samples(9)", "", 10.0),
    )
    """The charts that are drawn for its name: docs/charts.md."""

    catalog: ClassVar[dict[str, type[Method]]] = PRIORITY_METHODS
    method = MethodControl(choices=tuple(PRIORITY_METHODS), default="norm", doc="how examples are drawn")
    k = ShareControl(float, default=0.01, minimum=0.0, maximum=1.0, doc="share of the examples computed for priority")
    r = ShareControl(float, default=0.01, minimum=0.0, maximum=1.0, doc="share of the examples computed in turn")
    lam = Control(float, default=0.8, minimum=0.0, maximum=1.0, doc="share of a trend that a new measurement keeps")
    variant = VariantControl(choices=VARIANTS, default="A", doc="step along all gradients (A), or those of the top (S)")
    learning_rate = 0.0  # of an assistant, which is none of these methods

    def __init__(
        self,
        data: Any,
        model: Any,
        batch_size: int = 64,
        method: str = "norm",
        *,
        k: float = 0.01,
        r: float = 0.01,
        lam: float = 0.8,
        variant: str = "A",
        exact: str = "auto",
        epochs: int | None = None,
        loss: Any = "cross_entropy",
        switch: str = "auto",
        floor: float = 0.2,
        samples: Any = None,
        seed: int = 0,
        rank: int | None = None,
        world: int | None = None,
        agree: Callable[[float], float] | None = None,
    ) -> None:
        self.k, self.r, self.lam = k, r, lam
        self.trends = PriorityTrends(arguments.instances_of(data))
        """The newest exact priority of each example, and its trend."""
        self.average: AverageGradient | None = None
        """gbar, the average gradient; None before a method needs it."""
        self.gradient_work = 0
        """Gradients of single examples that were computed, in all, with those of initial passes."""
        self.communication_seconds = 0.0
        """Seconds that communication of the method took beside that of plain training, in all."""
        self.renewals = Renewals()
        """How well estimated priorities fit those that were measured after."""
        self._source: PrioritySource | None = None
        try:
            self._source = None if model is None else PrioritySource(model, loss, exact)
        except ShardedModelError:  # methods without priorities need no gradients
            if exact != "auto":
                raise
        self.model: Any = None if model is None else unwrapped(model)
        self._stepped: Any = None  # the losses of the last `backward`, for `observe`
        self.feeds_average = True
        """Whether `backward` updates `average`; False: it is updated elsewhere."""
        self.reduced: Any = None
        """On several ranks, a `ReducedGradients`: DDP's buckets are averaged, not copies of ``.grad``."""
        super().__init__(
            data, batch_size, method, epochs=epochs, loss=loss, switch=switch, floor=floor, samples=samples, seed=seed,
            rank=rank, world=world, agree=agree,
        )  # fmt: skip
        self.variant = variant
        self._learning.compare = self.renewals.add
        if self._agree is not None:
            self._agree = self._timed(self._agree)

    # ------------------------------------------------------------ in the step

    def backward(self, indices: Any, losses: Any, *, scale: Any = 1.0, inputs: Any = None, targets: Any = None) -> None:
        """Go back from the ``losses`` (n,) of a step, in place of ``loss.backward()``.

        With a method without priorities this is ``(mean(indices, losses) * scale).backward()``. Else priorities are
        computed in the same backward pass, gbar is updated, and ``.grad`` is what the method steps along; None in its
        initial passes, with which optimizers leave the parameters alone. ``scale`` is a GradScaler, which gets zeros in
        them, or its ``get_scale()``. ``inputs``, what the model was called with, and ``targets`` are for models whose
        layers hooks do not know. Raises only what a plain backward pass raises.
        """
        method, begun = self._sampler.method, None
        self._stepped = losses.detach()
        scaler = scale if hasattr(scale, "get_scale") else None
        if scaler is not None:  # it has a scale from its first use on
            scale = float(scaler.scale(self._stepped.new_ones(())))
        if isinstance(method, Published) and self.selecting:
            begun = self._prepared(indices, losses)
        if begun is None:
            (self.mean(indices, losses) * scale).backward()
            return
        ids, renewed = begun
        assert isinstance(method, Published)
        assert self._source is not None
        assert self.average is not None
        step = self._source.step(method, self.average.tensors, losses, renewed, scale, inputs, targets)
        if step.why:
            self._sampler.say(step.why)
        if scaler is not None:
            _fill_with_zeros(self.model)
        try:
            if self.feeds_average and step.gradients is not None:
                self.average.decay = method.average_decay(len(ids))
                self.average.update(self._reduced(method, scale) or step.gradients)
            if step.priorities is not None:
                self._learn_priorities(method, ids, renewed, step.priorities)
            method.computed(len(ids))
        except Exception as error:  # the gradient is there already
            self._sampler.say(f"backward: {error}")

    def observe(self, indices: Any, *, losses: Any = None, logits: Any = None, targets: Any = None) -> None:
        """Learn from a step, like `Selection.observe`.

        By default it learns from the losses that `backward` got. "norm" is best with ``logits`` and
        ``targets``. Never raises: what is wrong stands in `note`.
        """
        if losses is None and logits is None:
            losses = self._stepped
        if self._stepped is None and isinstance(self._sampler.method, Published) and self.selecting:
            self._sampler.say(
                f"The method {self.method!r} needs prioritized.backward(indices, losses) in place of loss.backward(): "
                "without priorities, examples come in turn."
            )
        self._stepped = None
        with contextlib.suppress(TypeError):  # said by what follows
            self.gradient_work += len(indices)
        super().observe(indices, losses=losses, logits=logits, targets=targets)

    def close(self) -> None:
        """Take the hooks off the model."""
        super().close()
        if self._source is not None:
            self._source.close()

    # ------------------------------------------------------------ as a batch sampler

    drawn_size = of_part(
        "_sampler.count", 'The number of examples in a batch: (r + k) N with "published" and "repaired".'
    )

    def take_over(self, method: type[Method]) -> None:
        """Use ``method`` from the next draw on."""
        if issubclass(method, Published) and self.average is None:
            self.average = AverageGradient(self.model.parameters(), 1 - self.k - self.r)
        super().take_over(method)
        self.renewals.clear()
        sampler, now = self._sampler, self._sampler.method
        if isinstance(now, Published):
            now.forgive()
            sampler.selecting = now.acts(self._gate.on)
            if self.k > self.r or max(self.k, self.r) <= _TINY_SHARE:
                sampler.say(
                    f"k={self.k:g} with r={self.r:g}: known to diverge where k is above r, and where both are tiny. "
                    "Take a larger r, such as k=0.001 with r=0.01."
                )
        self._open_source()

    def _begin(self) -> None:
        if isinstance(self._sampler.method, Published) and (why := self.sharding):  # since the method was set
            self._sampler.say(f"{why} Examples are drawn by 'norm' from here on.")
            self.method = "norm"
        super()._begin()
        self._open_source()  # layers may have been frozen since

    def _open_source(self) -> None:
        if self._source is not None:
            self._source.close()
            if isinstance(self._sampler.method, Published) and self.average is not None:
                self._source.open(self.average.tensors)

    # ------------------------------------------------------------ state

    def state_dict(self) -> dict[str, Any]:
        """Return the state of this rank for a checkpoint, as tensors and plain data."""
        known = self.shard[self.trends.priority[self.shard] == self.trends.priority[self.shard]]
        return super().state_dict() | {
            "k": self.k, "r": self.r, "lam": self.lam, "variant": self.variant, "gradient_work": self.gradient_work,
            "trends": self.trends.state_dict(np.unique(known)),
            "average": None if self.average is None else self.average.state_dict(),
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any], *others: dict[str, Any]) -> None:
        """Continue at the next ``iter`` after the last step that was observed.

        As `Selection.load_state_dict`; what is known of priorities is taken over from all ranks.
        """
        for one in (state, *others):
            require_state(one, self.state_dict() | {"methods": {}, "average": None}, "a Prioritized")
        average = None
        if state["average"] is not None and self._source is not None:
            average = AverageGradient(self.model.parameters(), decay=0.0)
            average.load_state_dict(state["average"])
        super().load_state_dict(state, *others)
        if average is not None:
            self.average = average
        for one in (state, *others):
            self.trends.load_state_dict(one["trends"])
        self.__dict__.update({name: state[name] for name in ("k", "r", "lam", "variant", "gradient_work")})
        self._open_source()

    # ------------------------------------------------------------ what clients see

    @property
    def why(self) -> str:
        """Why it prioritizes, or why not."""
        return super().why

    priorities = of_part(
        "_shown.importance",
        """The known priorities of this rank's examples, by which they are drawn.

        Of "published" and "repaired" the estimated priorities, of the others the newest scores or losses. Of more than
        100,000 examples, those of every n-th.
        """,
    )

    @property
    def concentration(self) -> dict[str, float | None]:
        """The share of all positive priority in the top 1, 5 and 10%; None if unknown."""
        found = -np.sort(-np.maximum(self.priorities, 0).astype(np.float64))
        total = float(found.sum())
        return {
            f"top {share:.0%}": float(found[: max(1, round(share * len(found)))].sum()) / total if total > 0 else None
            for share in TOP_SHARE
        }

    @property
    def share_negative(self) -> float:
        """The share of known priorities below 0; NaN if none is known."""
        found = self.priorities
        return float((found < 0).mean()) if len(found) else math.nan

    @property
    def staleness(self) -> float:
        """The median number of steps since an example was computed, or NaN."""
        ages = self.ages
        return float(np.median(ages)) if len(ages) else math.nan

    @for_queries
    def important_samples(self, count: int = 9) -> list[dict[str, Any]]:
        """Return the examples with the highest priority, at most 64, as rows.

        Like `skipped_samples`, with the ``priority``; those without one come last.
        """
        return self._shown.most_important(type(self).__name__, count)

    @for_queries
    def unimportant_samples(self, count: int = 9) -> list[dict[str, Any]]:
        """Return the examples with the lowest priority, like `important_samples`."""
        return self._shown.least_important(type(self).__name__, count)

    @property
    def rank_correlation(self) -> float:
        """Spearman's correlation of estimated and later measured priorities, or NaN.

        On the newest of the examples that were computed whatever their priority.
        """
        return self._shown.once(f"correlation {self.renewals.count}", self.renewals.rank_correlation)

    @property
    def lift(self) -> float:
        """How much higher the measured priority of the top tenth is than the mean.

        The tenth that was estimated highest, and the ratio of the means. On the examples of `rank_correlation`;
        NaN: unknown, or the mean is not positive.
        """
        return self._shown.once(f"lift {self.renewals.count}", self.renewals.lift)

    @property
    def estimation(self) -> dict[str, float | None]:
        """The rank correlation and the lift, for a chart; None if unknown."""
        return known_only({"rank correlation": self.rank_correlation, "lift": self.lift})

    @property
    def work_saved(self) -> float:
        """The share of gradients saved compared with as many plain epochs.

        NaN before the first step.
        """
        return 1 - self.gradient_work / self.walk.walked if self.walk.walked and self.gradient_work else math.nan

    @property
    def work(self) -> dict[str, int]:
        """The numbers of gradients computed and left out, for a chart."""
        return {"computed": self.gradient_work, "left out": self.skipped}

    @property
    def way(self) -> str:
        """How priorities are computed, as `ExactPriorities` names it; "" without a model."""
        return "" if self._source is None else self._source.way

    @property
    def sharding(self) -> str:
        """Why no rank has whole gradients, as under FSDP; "" if each has them."""
        return "" if self.model is None else why_sharded(self.model)

    # ------------------------------------------------------------ inside

    def _prepared(self, indices: Any, losses: Any) -> tuple[Ints, Bools] | None:
        """Return the indices of a batch, and which are S; None: the plain mean is taken."""
        try:
            ids = self._passes.ids(indices)
            if tuple(losses.shape) != (len(ids),):
                raise ValueError(f"losses of shape {tuple(losses.shape)} for {len(ids)} indices")
            if not bool(losses.isfinite().all()):
                raise ValueError("losses that are not finite")
        except Exception as error:  # the loop has to train on something
            self._sampler.say(f"backward: {str(error).rstrip('.')}. The plain mean is taken.")
            return None
        return ids, self.table.uniform[ids]

    def _reduced(self, method: Published, scale: float) -> Any:
        """Return the mean gradients over the ranks; None: take what was found here.

        "repaired" averages the gradients of S, of which DDP has no bucket: each rank has a gbar of its own then.
        """
        if self.reduced is None or method.from_renewed or scale != 1.0:
            return None
        return self.reduced.taken()

    def _learn_priorities(self, method: Published, ids: Ints, renewed: Bools, priorities: Floats) -> None:
        if not np.isfinite(priorities).all():
            raise ValueError("priorities that are not finite are left out")
        unique, places = np.unique(ids, return_index=True)
        self.renewals.add(self.trends.estimate(ids[renewed], method.step), priorities[renewed])
        self.trends.learn(unique, priorities[places], method.step, self.lam)

    def _timed(self, agree: Callable[[float], float]) -> Callable[[float], float]:
        """Return ``agree`` with its seconds counted: it is all that the methods send."""

        def timed(number: float) -> float:
            begun = time.perf_counter()
            try:
                return agree(number)
            finally:
                self.communication_seconds += time.perf_counter() - begun

        return timed


def _fill_with_zeros(model: Any) -> None:
    """Give a model without gradients those that `GradScaler.step` asks for."""
    trained = [one for one in model.parameters() if one.requires_grad]
    if all(one.grad is None for one in trained):
        for one in trained:
            one.grad = one.detach().new_zeros(one.shape)
