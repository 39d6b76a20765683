"""`Selection`: a batch sampler that chooses what to train on."""

from __future__ import annotations

import math
import sys
import time
import weakref
from collections.abc import Callable, Generator
from typing import Any, ClassVar

from looptap.streams.control import Control, for_queries
from looptap.streams.loop.loop_place import place_of_loop
from looptap.training.module_lock import ModuleLock
from looptap.training.of_part import note_of, of_part
from looptap.training.sampling.instance_table import InstanceTable
from looptap.training.sampling.per_example import criterion_of
from looptap.training.sampling.permutation_walk import Ints, PermutationWalk
from looptap.training.saved_state import require_state
from looptap.training.selection import selection_arguments as arguments
from looptap.training.selection.audit import Audit
from looptap.training.selection.features.features import features_of
from looptap.training.selection.learning import Learning
from looptap.training.selection.loss_weights import LossWeights
from looptap.training.selection.methods.catalog import METHODS, MethodControl
from looptap.training.selection.methods.method import Method
from looptap.training.selection.methods.side_assistant import SideAssistant
from looptap.training.selection.passes import Passes, SamplingIterator
from looptap.training.selection.sampler import Sampler
from looptap.training.selection.selection_state import SelectionState
from looptap.training.selection.shown_instances import ShownInstances, known_only
from looptap.training.selection.switch import AUTO, SWITCH_POSITIONS, StepTimes, Switch

_ROUNDING_BATCHES = 1e-6  # by which an expected length may be too long
_MAX_IDLE_SHARE = 0.25  # of the steps of an epoch in a row: in each epoch some are timed

_offering = ModuleLock()


class Selection:
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

    __looptap_panel__: tuple[tuple[Any, ...], ...] = (
        ("how well instances are rated", "self.rating"),
        ("kept fraction", "self.kept"),
        ("gain", "self.worth"),
        ("seconds", "self.seconds"),
        ("acceptance by class", "self.acceptance_by_class", "bars", 2.0),
        ("scores", "np.histogram(self.scores, 40)", "histogram", 2.0),
        ("steps since last seen", "np.histogram(self.ages, 40)", "histogram", 2.0),
        ("skipped most", "self.skipped_samples(9)", "", 10.0),
        ("kept most", "self.kept_samples(9)", "", 10.0),
    )
    """The charts that are drawn for its name: docs/charts.md."""

    catalog: ClassVar[dict[str, type[Method]]] = METHODS
    """The methods by name."""
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
        size = arguments.instances_of(data)
        self.shard = arguments.shard_of(size, rank, world)
        self.seed = [arguments.checked_whole("seed", seed, 0), rank]
        self.batch_size = arguments.batch_size_of(batch_size, len(self.shard))
        self.data, self.samples, self.rank, self.world = data, samples, rank, world
        self.epochs = None if epochs is None else arguments.checked_whole("epochs", epochs)
        self.features = None if features is None else features_of(features, size)
        if self.features is not None:
            self.learning_rate = self.features.learning_rate
        self.beside = SideAssistant(method) if arguments.flag("asynchronous", asynchronous) else None
        """The assistant beside the loop: its ``waiting`` batches, ``starved`` draws, ``dropped`` losses; None: none."""
        self.table = InstanceTable(size)
        """What is known of each instance."""
        self.walk = PermutationWalk(self.shard, [*self.seed, 1])  # unlike [0, 0], that is not default_rng(0)'s stream
        """The order in which instances are offered."""
        criterion, settings = criterion_of(loss), weakref.proxy(self)
        self._gate = Switch(int(_MAX_IDLE_SHARE * len(self.shard) / self.batch_size))
        self._times = StepTimes(self._gate, self.batch_size)
        self._sampler = Sampler(self.table, self.walk, self._gate, settings, self.beside, clock)
        self._passes = Passes(self.walk, size)
        self._weights = LossWeights(self.table, self._passes, self._sampler, criterion, clock)
        self._learning = Learning(self._sampler, criterion, len(self.shard))
        self._shown = ShownInstances(self._sampler, self._learning, data, samples)
        self._state = SelectionState(self._passes, self._sampler, self._learning, self._times)
        self._agree, self._clock = arguments.agreement(agree, world), clock
        self._position = switch  # of the switch, at the last step that was recorded
        self.switch, self.floor, self.method = switch, floor, method

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        for method in (self._sampler.method, *self._sampler.methods.values()):  # of a copy
            method.settings = weakref.proxy(self)

    # ------------------------------------------------------------ as a batch sampler

    def __iter__(self) -> SamplingIterator:
        return SamplingIterator(self._pass_and_batches(), self._passes.leave, resumes=self._passes.resumes)

    def _pass_and_batches(self) -> Generator[Any]:
        resumes, passes, sampler, walk = self._passes.resumes, self._passes, self._sampler, self.walk
        run = passes.open(place_of_loop(sys._getframe(1)), self.steps, self._begin)
        if self._agree is not None and not resumes:
            expected = len(run.again) + sampler.expected(max(0, run.left))
            run.length = max(1, math.ceil(self._agree(expected) - _ROUNDING_BATCHES))
        again, add = run.again, run.flight.add
        yield run
        while not run.over:  # runs on cold caches at each step: every line costs a microsecond
            with _offering:
                if again:
                    indices = again.popleft()
                else:
                    before = walk.walked
                    indices = sampler.batch()
                    run.left -= walk.walked - before
                passes.renew(run)
            run.given += 1
            add(indices)
            yield indices.tolist()
        passes.end(run)

    def __len__(self) -> int:
        return max(1, math.ceil(self.expected_length - _ROUNDING_BATCHES))

    @property
    def expected_length(self) -> float:
        """The expected number of batches in this epoch.

        Before an epoch they are those of the next. An epoch ends with the step on its last batch, which workers may
        have read long before.
        """
        return self._passes.expected_length(self.kept, self._sampler.count)

    @property
    def next_length(self) -> float:
        """The expected number of batches in each later epoch, at the current rate."""
        return len(self.shard) * self.kept / self._sampler.count

    drawn_size = of_part("_sampler.count", "The number of instances drawn for a batch.")

    # ------------------------------------------------------------ in the step

    def loss(self, indices: Any, outputs: Any, targets: Any) -> Any:
        """Return the loss of a batch, the mean over its examples, weighted.

        While all weigh alike it is torch's own, of ``reduction="mean"``, at no further cost.
        """
        return self._weights.loss(indices, outputs, targets)

    def mean(self, indices: Any, losses: Any) -> Any:
        """Return the weighted mean of ``losses``, a tensor of shape (n,).

        For a loss of one's own; `loss` computes those that are known.
        """
        return self._weights.mean(indices, losses)

    def observe(self, indices: Any, *, losses: Any = None, logits: Any = None, targets: Any = None) -> None:
        """Learn from the ``losses`` of a step, or from its outputs and targets.

        ``logits`` are the outputs of the model. Call it once a step, or once for each part of an accumulated step.
        Never raises: what is wrong stands in `note`.
        """
        gate, sampler, learning, passes = self._gate, self._sampler, self._learning, self._passes
        if gate.idle and self._passed_idly(indices, losses, logits, targets):
            return
        begun, scored, held, together = self._clock(), False, False, 0
        try:
            ids = passes.ids(indices)
            passes.arrived(ids)
            self.table.trained(ids)
            if gate.is_due or learning.held.full:
                together = len(learning.held)
                learning.settle()
            scored = sampler.method.learns or gate.scores()
            held = scored and learning.hold(ids, losses, logits, targets)
            if scored and not held:
                learning.add(ids, losses, logits, targets)
        except Exception as error:  # an observer must not end the loop
            sampler.fail(f"observe: {error}")
        passes.forget_step()
        ended = self._clock()
        cost, sampler.cost = max(0.0, sampler.cost + ended - begun), 0.0
        self._times.ended(ended, cost, scored=scored, held=held, together=together, skipped=self.skipped)
        self._position = self.switch
        gain = learning.gain.value if sampler.method.draws and gate.is_due else math.nan
        selected, on = sampler.selecting, gate.tested(gain, self.walk.walked <= len(self.shard), self._position)
        sampler.selecting = sampler.method.acts(on)
        if sampler.selecting and not selected:
            learning.settle()
            sampler.method.resume()
        if sampler.selecting or sampler.method.learns:
            gate.idle = 0

    def _passed_idly(self, indices: Any, losses: Any, logits: Any, targets: Any) -> bool:
        """Count a step on the batch drawn first if there is nothing else to do."""
        if self.switch is not self._position or (ids := self._passes.arrived_next(indices)) is None:
            return False
        self.table.trained(ids)
        if self._gate.passed():
            begun, learning = self._clock(), self._learning
            if not learning.hold(ids, losses, logits, targets) or learning.held.full:
                self._gate.idle = 0
            self._times.hold(self._clock() - begun)
        return True

    def close(self) -> None:
        """End an assistant that works beside the loop; there is nothing else to close."""
        if self.beside is not None:
            self.beside.close()

    def take_over(self, method: type[Method]) -> None:
        """Use ``method`` from the next draw on.

        What is known of the instances stays, and a method that was used before continues where it was.
        """
        self._sampler.take_over(method, self.epoch)
        self._learning.audit = Audit()

    def _begin(self) -> None:
        """Begin an epoch, or the rest of one."""
        self._learning.settle()
        if why := arguments.why_resized(self.data, self.table.size):
            self._sampler.say(why)
        self.table.recount()
        self._sampler.method.begin(self.epoch)
        self._times.begin()
        self._sampler.cost, self._gate.idle = 0.0, 0

    # ------------------------------------------------------------ state

    def state_dict(self) -> dict[str, Any]:
        """Return the state of this rank for a checkpoint, as tensors and plain data.

        Between two steps: batches that workers have in hand are drawn again after a resume.
        """
        return self._state.saved(self)

    def load_state_dict(self, state: dict[str, Any], *others: dict[str, Any]) -> None:
        """Continue at the next ``iter`` after the last step that was observed.

        On another number of ranks give the states of all that were: what is known of the instances is taken over, and
        the epoch begins again. Raises ValueError for the state of other data, ControlError for a method that lacks
        something here; nothing has changed then.
        """
        for one in (state, *others):
            require_state(one, self._state.saved(self) | {"methods": {}}, f"a {type(self).__name__}")
        self._state.load(self, state, *others)

    # ------------------------------------------------------------ what it does

    note = note_of("_sampler")
    epoch = of_part("_passes.epoch", "Epochs that have ended.")
    steps = of_part("table.steps", "Steps that were observed.")
    taken = of_part("_sampler.taken", "Instances that were drawn, in all.")
    given = of_part("_passes.given", "Batches of this epoch that were drawn.")
    selecting = of_part("_sampler.selecting", "True if instances are selected now; otherwise all are drawn alike.")
    seconds_spent = of_part("_times.spent", "Seconds that selection took, in all.")
    seconds_saved = of_part(
        "_times.saved", "Seconds that the skipped instances would have taken, in all, by the steps of their time."
    )
    seconds = of_part("_times.seconds", "Seconds saved and spent, for a chart.")
    step_seconds = of_part("_gate.step_seconds", "Seconds of a step without selection; NaN before the first.")
    cost_seconds = of_part("_gate.cost_seconds", "Seconds of selection in a step; NaN before the first.")
    threshold = of_part("_sampler.method.threshold", "T: an instance with a loss above it counts as important.")
    gamma = of_part(
        "_sampler.method.gamma",
        """The share of the draws that the assistant of "autoassist" decides.

        Its accuracy as of late; NaN with another method.
        """,
    )

    @property
    def why(self) -> str:
        """Why it selects, or why not."""
        method = self._sampler.method
        return self._gate.why if method.switched else method.why

    @property
    def elapsed(self) -> float | None:
        """The share of the plan that is done, 0 to 1; None without a plan."""
        return None if self.epochs is None else min(1.0, self.walk.walked / (self.epochs * len(self.shard)))

    @property
    def kept(self) -> float:
        """The share of newly offered instances that is trained on; 1 means all."""
        kept = self._learning.gain.kept
        return 1.0 if math.isnan(kept) or not self.selecting else kept

    @property
    def skipped(self) -> int:
        """The total number of instances that were offered and not drawn."""
        return self.walk.walked - self._sampler.taken

    # ------------------------------------------------------------ what it is worth

    gain = of_part(
        "_learning.gain.value",
        """G: how much more a selected instance teaches than a random one.

        As measured on those drawn lately; NaN while unknown.
        """,
    )
    net_gain = of_part(
        "_gate.net",
        """The gain after the cost of selection, at the last test of the switch.

        NaN before the first test, and while it is turned on or off by hand.
        """,
    )
    quality = of_part("_shown.quality", "How well instances are rated, over the newest 4,096 uniformly drawn ones.")
    accuracy = of_part(
        "_shown.quality.accuracy",
        """The share of uniformly drawn instances that were rated correctly.

        NaN before the first. Losses are heavy-tailed, so most instances are trivial: compare `majority`, or read `auc`.
        """,
    )
    majority = of_part(
        "_shown.quality.majority", "The accuracy of a constant answer, the more frequent one; NaN if unknown."
    )
    balanced_accuracy = of_part(
        "_shown.quality.balanced_accuracy",
        "The mean of the accuracies on important and trivial instances, or NaN.",
    )
    auc = of_part("_shown.quality.auc", "The chance that an important instance is rated above a trivial one, or NaN.")
    lift = of_part("_shown.quality.lift", "How much more frequent important instances are in the upper half, or NaN.")
    calibration = of_part(
        "_shown.calibration",
        """For each tenth of the ratings, their mean and the share that was important.

        An array of shape (10, 2), of as many rows as there are instances if these are fewer.
        """,
    )

    @property
    def worth(self) -> dict[str, float | None]:
        """The gain with and without the cost, for a chart; None if unknown."""
        return known_only({"gain G": self.gain, "net of cost": self.net_gain})

    @property
    def rating(self) -> dict[str, float | None]:
        """Accuracy, majority rate and AUC, for one chart; None if unknown."""
        return known_only({name: getattr(self.quality, name) for name in ("accuracy", "majority", "auc")})

    # ------------------------------------------------------------ the instances

    scores = of_part(
        "_shown.scores",
        """The newest scores of this rank's instances, or losses if there are no scores.

        Of more than 100,000 instances, those of every n-th.
        """,
    )
    ages = of_part(
        "_shown.ages",
        """For each seen instance of this rank, the steps since it was trained on.

        Of more than 100,000 instances, those of every n-th.
        """,
    )
    acceptance_by_class = of_part(
        "_shown.acceptance_by_class",
        "The mean probability with which instances of each class would be drawn now.",
    )

    @for_queries
    def easiest(self, count: int = 16) -> Ints:
        """Return the ``count`` instances that would be drawn least often now."""
        return self._shown.easiest(count)

    @for_queries
    def hardest(self, count: int = 16) -> Ints:
        """Return the ``count`` instances with the highest scores or losses."""
        return self._shown.hardest(count)

    @for_queries
    def skipped_samples(self, count: int = 9) -> list[dict[str, Any]]:
        """Return the instances drawn least often, at most 64, as rows.

        A row has ``image``, a thumbnail of the first part of the item that is one, its other parts, ``index``, the
        newest ``loss``, and ``drawn``, how often it was trained on. Of those drawn equally often the one that is least
        probable now comes first. They are read and decoded inside the query, on the loop's thread: ask for few, and
        seldom (``throttle=5``), if they are on a disk. What is not proven harmless to read is not read by a query, and
        its row says so, unless the data set was given as ``samples``. All random numbers stay as they are.
        """
        return self._shown.least_drawn(type(self).__name__, count)

    @for_queries
    def kept_samples(self, count: int = 9) -> list[dict[str, Any]]:
        """Return the instances drawn most often, in the form of `skipped_samples`."""
        return self._shown.most_drawn(type(self).__name__, count)

    def __repr__(self) -> str:
        doing = f"keeps {self.kept:.0%}" if self.selecting else "draws all alike"
        return f"<{type(self).__name__}: {self.method!r}, {doing}, epoch {self.epoch}, {self.why}>"
