"""The observables of a `Selection`, which a query or a chart reads."""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Callable
from numbers import Integral
from typing import Any, TypeVar

import numpy as np

from looptap.streams.control import checked_reader, for_queries
from looptap.training.noted import Noted
from looptap.training.sampling.instance_table import InstanceTable
from looptap.training.sampling.permutation_walk import Floats, Ints, PermutationWalk
from looptap.training.selection.audit import RatingQuality
from looptap.training.selection.learning import Learning
from looptap.training.selection.methods.method import Method
from looptap.training.selection.methods.side_assistant import SideAssistant
from looptap.training.selection.passes import SamplingPass
from looptap.training.selection.samples import MAX_SAMPLES, read_proven_samples, read_samples
from looptap.training.selection.switch import Switch

T = TypeVar("T")
_MAX_IDLE_SHARE = 0.25  # of the steps of an epoch in a row: in each epoch some are timed
_MAX_ARRAY_INSTANCES = 100_000  # of which an array of an observable has a number; of more, every n-th


class SelectionObservables(Noted):
    """The part of a `Selection` that clients read: numbers, arrays and samples."""

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

    data: Any
    samples: Any
    epochs: int | None
    method: str
    floor: float

    def __init__(self, size: int, shard: Ints, batch_size: int, seed: list[int]) -> None:
        self.batch_size, self.shard, self.seed = batch_size, shard, seed
        self.table = InstanceTable(size)
        """What is known of each instance."""
        self.walk = PermutationWalk(shard, [*seed, 1])  # unlike [0, 0], that is not the stream of default_rng(0)
        """The order in which instances are offered."""
        self.epoch = 0
        """Epochs that have ended."""
        self.steps = 0
        """Steps that were observed."""
        self.taken = 0
        """Instances that were drawn, in all."""
        self.seconds_spent = 0.0
        """Seconds that selection took, in all."""
        self.seconds_saved = 0.0
        """Seconds that the skipped instances would have taken, in all, by the steps of their time."""
        self.beside: SideAssistant | None = None
        """The assistant beside the loop: its ``waiting`` batches, ``starved`` draws, ``dropped`` losses; None: none."""
        self._learning, self._gate = (
            Learning(self.table, len(shard)),
            Switch(int(_MAX_IDLE_SHARE * len(shard) / batch_size)),
        )
        self._method = self.make(Method)
        self._selecting = False
        self._passes: list[SamplingPass] = []  # those that have begun and not ended, the newest last
        self._given = 0  # batches of the last pass
        self._left = 0  # instances that the last pass has left; below 0, it has had some of the next
        self._skipped = 0  # instances, at the step before
        self._asked_at: Any = None  # the step and the method of which `_answers` are
        self._answers: dict[str, Any] = {}

    def make(self, method: type[Method]) -> Method:
        """Return a new ``method``, whose settings are this object's.

        It does not keep this object alive.
        """
        settings: Any = weakref.proxy(self)
        return method(self.table, settings)

    # ------------------------------------------------------------ what it does

    @property
    def given(self) -> int:
        """Batches of this epoch that were drawn."""
        return self._passes[-1].given if self._passes else self._given

    @property
    def selecting(self) -> bool:
        """True if instances are selected now; otherwise all are drawn alike."""
        return self._selecting

    @property
    def why(self) -> str:
        """Why it selects, or why not."""
        if self._method.switched:
            return self._gate.why
        if self._method.draws:
            return f"{self.method!r} always selects"
        return "all are drawn alike"

    @property
    def elapsed(self) -> float | None:
        """The share of the plan that is done, 0 to 1; None without a plan."""
        return None if self.epochs is None else min(1.0, self.walk.walked / (self.epochs * len(self.shard)))

    @property
    def kept(self) -> float:
        """The share of newly offered instances that is trained on; 1 means all."""
        kept = self._learning.gain.kept
        return 1.0 if math.isnan(kept) or not self._selecting else kept

    @property
    def skipped(self) -> int:
        """The total number of instances that were offered and not drawn."""
        return self.walk.walked - self.taken

    @property
    def step_seconds(self) -> float:
        """Seconds of a step without selection; NaN before the first."""
        return self._gate.step_seconds

    @property
    def cost_seconds(self) -> float:
        """Seconds of selection in a step; NaN before the first."""
        return self._gate.cost_seconds

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds saved and spent, for a chart."""
        return {"saved": self.seconds_saved, "spent": self.seconds_spent}

    # ------------------------------------------------------------ what it is worth

    @property
    def gain(self) -> float:
        """G: how much more a selected instance teaches than a random one.

        As measured on those drawn lately; NaN while unknown.
        """
        return self._learning.gain.value

    @property
    def net_gain(self) -> float:
        """The gain after the cost of selection, at the last test of the switch.

        NaN before the first test, and while it is turned on or off by hand.
        """
        return self._gate.net

    @property
    def worth(self) -> dict[str, float | None]:
        """The gain with and without the cost, for a chart; None if unknown."""
        return {"gain G": _known(self.gain), "net of cost": _known(self.net_gain)}

    @property
    def threshold(self) -> float:
        """T: an instance with a loss above it counts as important."""
        return self._method.threshold

    @property
    def gamma(self) -> float:
        """The share of the draws that the assistant of "autoassist" decides.

        Its accuracy as of late; NaN with another method.
        """
        return self._method.gamma

    @property
    def quality(self) -> RatingQuality:
        """How well instances are rated, over the newest 4,096 uniformly drawn ones."""
        return self._once("quality", lambda: self._learning.audit.quality())

    @property
    def rating(self) -> dict[str, float | None]:
        """Accuracy, majority rate and AUC, for one chart; None if unknown."""
        found = self.quality
        return {name: _known(getattr(found, name)) for name in ("accuracy", "majority", "auc")}

    @property
    def accuracy(self) -> float:
        """The share of uniformly drawn instances that were rated correctly.

        NaN before the first. Losses are heavy-tailed, so most instances are trivial: compare `majority`, or read `auc`.
        """
        return self.quality.accuracy

    @property
    def majority(self) -> float:
        """The accuracy of a constant answer, the more frequent one; NaN if unknown."""
        return self.quality.majority

    @property
    def balanced_accuracy(self) -> float:
        """The mean of the accuracies on important and trivial instances, or NaN."""
        return self.quality.balanced_accuracy

    @property
    def auc(self) -> float:
        """The chance that an important instance is rated above a trivial one, or NaN."""
        return self.quality.auc

    @property
    def lift(self) -> float:
        """How much more frequent important instances are in the upper half, or NaN."""
        return self.quality.lift

    @property
    def calibration(self) -> Floats:
        """For each tenth of the ratings, their mean and the share that was important.

        An array of shape (10, 2), of as many rows as there are instances if these are fewer.
        """
        return self._once("calibration", lambda: self._learning.audit.calibration())

    # ------------------------------------------------------------ the instances

    @property
    def scores(self) -> Floats:
        """The newest scores of this rank's instances, or losses if there are no scores.

        Of more than 100,000 instances, those of every n-th.
        """
        known = self._method.predicted(thinned(self.shard))
        return known[np.isfinite(known)]

    @property
    def ages(self) -> Ints:
        """For each seen instance of this rank, the steps since it was trained on.

        Of more than 100,000 instances, those of every n-th.
        """
        last = self.table.last[thinned(self.shard)]
        return self.steps - last[last >= 0]

    @property
    def acceptance_by_class(self) -> dict[int, float]:
        """The mean probability with which instances of each class would be drawn now."""
        return self._once("by class", self._acceptance_by_class)

    @for_queries
    def easiest(self, count: int = 16) -> Ints:
        """Return the ``count`` instances that would be drawn least often now."""
        return self.shard[np.argsort(self._acceptance(), kind="stable")[:count]]

    @for_queries
    def hardest(self, count: int = 16) -> Ints:
        """Return the ``count`` instances with the highest scores or losses."""
        known = np.nan_to_num(self._method.predicted(self.shard), nan=-np.inf)
        return self.shard[np.argsort(-known, kind="stable")[:count]]

    @for_queries
    def skipped_samples(self, count: int = 9) -> list[dict[str, Any]]:
        """Return the instances drawn least often, at most 64, as rows.

        A row has ``image``, a thumbnail of the first part of the item that is one, its other parts, ``index``, the
        newest ``loss``, and ``drawn``, how often it was trained on. Of those drawn equally often the one that is least
        probable now comes first. They are read and decoded inside the query, on the loop's thread: ask for few, and
        seldom (``throttle=5``), if they are on a disk. What is not proven harmless to read is not read by a query, and
        its row says so, unless the data set was given as ``samples``. All random numbers stay as they are.
        """
        return self._samples(count, 1)

    @for_queries
    def kept_samples(self, count: int = 9) -> list[dict[str, Any]]:
        """Return the instances drawn most often, in the form of `skipped_samples`."""
        return self._samples(count, -1)

    def _count_saved(self) -> None:
        """Add the time of what was skipped since the step before."""
        new, self._skipped = self.skipped - self._skipped, self.skipped
        self.seconds_saved += new / self.batch_size * self._gate.step_seconds

    def _samples(self, count: int, sign: int) -> list[dict[str, Any]]:
        self._check_samples(count)
        return self._once(f"samples {sign * count}", lambda: self._read(count, sign))

    def _check_samples(self, count: int) -> None:
        """Raise ValueError for a wrong count, TypeError if there is no data set."""
        if not isinstance(count, int) or not 0 < count <= MAX_SAMPLES:
            raise ValueError(f"count={count!r} must be a whole number from 1 to {MAX_SAMPLES}.")
        if self.samples is None and not hasattr(type(self.data), "__getitem__"):
            raise TypeError(
                f"{type(self).__name__}({self.data!r}) has no data set to read from: pass it instead of its length."
            )

    def _read(self, count: int, sign: int) -> list[dict[str, Any]]:
        rank = sign * (self.table.seen[self.shard] + self._acceptance() / 2)
        first = np.argpartition(rank, count - 1)[:count] if count < len(rank) else np.arange(len(rank))
        return self._rows(self.shard[first[np.argsort(rank[first], kind="stable")]])

    def _rows(self, ids: Ints) -> list[dict[str, Any]]:
        checked = checked_reader() if self.samples is None else None
        if checked is None:
            found = read_samples(self.data if self.samples is None else self.samples, ids)
        else:
            found = read_proven_samples(self.data, ids, checked)
        return [
            {
                **row,
                "drawn": int(self.table.seen[index]),
                "loss": round(float(self.table.loss[index]), 4) + 0.0,
                "index": int(index),
            }
            for index, row in zip(ids, found, strict=True)
        ]

    def _say_if_resized(self) -> None:
        """Note that the data set has another length now. Does not raise."""
        with contextlib.suppress(Exception):  # of the data set
            size = self.data if isinstance(self.data, Integral) else len(self.data)
            if size != self.table.size:
                self._say(
                    f"The data set has {size:,} instances now, and had {self.table.size:,}: new ones are never "
                    "drawn, and missing ones still are. Create a new Selection."
                )

    def _acceptance_by_class(self) -> dict[int, float]:
        labels = self.table.label[self.shard]
        known = labels >= 0
        classes, place = np.unique(labels[known], return_inverse=True)  # a label may be a large number
        means = np.bincount(place, self._acceptance()[known]) / np.bincount(place)
        return dict(zip(classes.tolist(), means.tolist(), strict=True))

    def _acceptance(self) -> Floats:
        """Return the present probability of each instance of the shard."""
        return self._once("acceptance", lambda: self._method.acceptance(self.shard).probability)

    def _once(self, name: str, compute: Callable[[], T]) -> T:
        """Return what ``compute`` returns, computed once for all who ask at one step."""
        now = (self.steps, self._method, self.floor, len(self._learning.audit))
        if now != self._asked_at:
            self._asked_at, self._answers = now, {}
        answers = self._answers
        if name not in answers:
            answers[name] = compute()
        found: T = answers[name]
        return found

    def __repr__(self) -> str:
        doing = f"keeps {self.kept:.0%}" if self._selecting else "draws all alike"
        return f"<{type(self).__name__}: {self.method!r}, {doing}, epoch {self.epoch}, {self.why}>"


def _known(number: float) -> float | None:
    return None if math.isnan(number) else number


def thinned(shard: Ints) -> Ints:
    """Return the instances of which an observable that is an array has a number."""
    return shard[:: -(-len(shard) // _MAX_ARRAY_INSTANCES)]
