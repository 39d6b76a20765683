"""`ShownInstances`: what clients see of the instances of a `Selection`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from looptap.streams.control import checked_reader
from looptap.training.sampling.permutation_walk import Floats, Ints
from looptap.training.selection.audit import RatingQuality
from looptap.training.selection.learning import Learning
from looptap.training.selection.methods.method import Numbers
from looptap.training.selection.sampler import Sampler
from looptap.training.selection.samples import MAX_SAMPLES, read_proven_samples, read_samples

T = TypeVar("T")
_MAX_ARRAY_INSTANCES = 100_000  # of which an array of an observable has a number; of more, every n-th


class ShownInstances:
    """Arrays and samples for queries, each computed once at a step.

    ``samples`` is a data set that is read as it is; None: of ``data``, what is proven harmless to read.
    """

    def __init__(self, sampler: Sampler, learning: Learning, data: Any, samples: Any) -> None:
        self._sampler, self._learning, self._table = sampler, learning, sampler.table
        self._data, self._samples, self._shard = data, samples, sampler.walk.shard
        self._asked_at: Any = None  # the step and the method of which `_answers` are
        self._answers: dict[str, Any] = {}

    def once(self, name: str, compute: Callable[[], T]) -> T:
        """Return what ``compute`` returns, computed once for all who ask at one step."""
        method = self._sampler.method
        now = (self._table.steps, method, method.settings.floor, len(self._learning.audit))
        if now != self._asked_at:
            self._asked_at, self._answers = now, {}
        answers = self._answers
        if name not in answers:
            answers[name] = compute()
        found: T = answers[name]
        return found

    @property
    def quality(self) -> RatingQuality:
        """How well instances are rated."""
        return self.once("quality", self._learning.audit.quality)

    @property
    def calibration(self) -> Floats:
        """For each tenth of the ratings, their mean and the share that was important."""
        return self.once("calibration", self._learning.audit.calibration)

    @property
    def scores(self) -> Floats:
        """The newest scores that are known."""
        known = self._sampler.method.predicted(self._some)
        return known[np.isfinite(known)]

    @property
    def ages(self) -> Ints:
        """For each seen instance, the steps since it was trained on."""
        last = self._table.last[self._some]
        return self._table.steps - last[last >= 0]

    @property
    def importance(self) -> Numbers:
        """The known numbers by which instances are drawn."""
        found = self._sampler.method.importance(self._some)
        return found[np.isfinite(found)]

    @property
    def _some(self) -> Ints:
        """The instances of which an observable that is an array has a number."""
        return self._shard[:: -(-len(self._shard) // _MAX_ARRAY_INSTANCES)]

    def _acceptance(self) -> Floats:
        """Return the present probability of each instance of the shard."""
        return self.once("acceptance", lambda: self._sampler.method.acceptance(self._shard).probability)

    @property
    def acceptance_by_class(self) -> dict[int, float]:
        """The mean probability of each class."""
        return self.once("by class", self._acceptance_by_class)

    def _acceptance_by_class(self) -> dict[int, float]:
        labels = self._table.label[self._shard]
        known = labels >= 0
        classes, place = np.unique(labels[known], return_inverse=True)  # a label may be a large number
        means = np.bincount(place, self._acceptance()[known]) / np.bincount(place)
        return dict(zip(classes.tolist(), means.tolist(), strict=True))

    def easiest(self, count: int) -> Ints:
        """Return the ``count`` instances that would be drawn least often now."""
        return self._shard[np.argsort(self._acceptance(), kind="stable")[:count]]

    def hardest(self, count: int) -> Ints:
        """Return the ``count`` instances with the highest scores or losses."""
        known = np.nan_to_num(self._sampler.method.predicted(self._shard), nan=-np.inf)
        return self._shard[np.argsort(-known, kind="stable")[:count]]

    # ------------------------------------------------------------ samples

    def least_drawn(self, owner: str, count: int) -> list[dict[str, Any]]:
        """Return the samples drawn least often, for an ``owner`` that errors name."""
        return self._by_draws(owner, count, 1)

    def most_drawn(self, owner: str, count: int) -> list[dict[str, Any]]:
        """Return the samples drawn most often."""
        return self._by_draws(owner, count, -1)

    def _by_draws(self, owner: str, count: int, sign: int) -> list[dict[str, Any]]:
        self._check(owner, count)

        def read() -> list[dict[str, Any]]:
            rank = sign * (self._table.seen[self._shard] + self._acceptance() / 2)
            first = np.argpartition(rank, count - 1)[:count] if count < len(rank) else np.arange(len(rank))
            return self._rows(self._shard[first[np.argsort(rank[first], kind="stable")]])

        return self.once(f"samples {sign * count}", read)

    def most_important(self, owner: str, count: int) -> list[dict[str, Any]]:
        """Return the samples with the highest priority, with the priority."""
        return self._by_importance(owner, count, -1)

    def least_important(self, owner: str, count: int) -> list[dict[str, Any]]:
        """Return the samples with the lowest priority, with the priority."""
        return self._by_importance(owner, count, 1)

    def _by_importance(self, owner: str, count: int, sign: int) -> list[dict[str, Any]]:
        self._check(owner, count)

        def read() -> list[dict[str, Any]]:
            known = self._sampler.method.importance(self._shard)
            first = np.argsort(sign * known, kind="stable")[:count]  # NaN comes last
            return [
                {"priority": None if math.isnan(value) else float(f"{value:.4g}"), **row}
                for value, row in zip(known[first].tolist(), self._rows(self._shard[first]), strict=True)
            ]

        return self.once(f"ranked {sign * count}", read)

    def _check(self, owner: str, count: int) -> None:
        """Raise ValueError for a wrong count, TypeError if there is no data set."""
        if not isinstance(count, int) or not 0 < count <= MAX_SAMPLES:
            raise ValueError(f"count={count!r} must be a whole number from 1 to {MAX_SAMPLES}.")
        if self._samples is None and not hasattr(type(self._data), "__getitem__"):
            raise TypeError(f"{owner}({self._data!r}) has no data set to read from: pass it instead of its length.")

    def _rows(self, ids: Ints) -> list[dict[str, Any]]:
        """Return a row for each sample: its parts, index, newest loss and draws."""
        checked = checked_reader() if self._samples is None else None
        if checked is None:
            found = read_samples(self._data if self._samples is None else self._samples, ids)
        else:
            found = read_proven_samples(self._data, ids, checked)
        return [
            {
                **row,
                "drawn": int(self._table.seen[index]),
                "loss": round(float(self._table.loss[index]), 4) + 0.0,
                "index": int(index),
            }
            for index, row in zip(ids, found, strict=True)
        ]


def known_only(numbers: dict[str, float]) -> dict[str, float | None]:
    """Return ``numbers`` with None in place of NaN, for a chart."""
    return {name: None if math.isnan(value) else value for name, value in numbers.items()}
