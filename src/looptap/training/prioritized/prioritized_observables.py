"""The observables of a `Prioritized`, which a query or a chart reads."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from looptap.streams.control import for_queries
from looptap.training.prioritized.average_gradient import AverageGradient
from looptap.training.prioritized.methods.priority_trends import PriorityTrends
from looptap.training.prioritized.methods.published import Published
from looptap.training.prioritized.methods.renewals import Renewals
from looptap.training.sampling.permutation_walk import Ints
from looptap.training.selection.selection import Selection
from looptap.training.selection.shown_instances import thinned

Numbers: TypeAlias = npt.NDArray[np.floating[Any]]
TOP_SHARE = (0.01, 0.05, 0.10)
"""The shares of the examples whose part in all priority is shown."""


class PrioritizedObservables(Selection):
    """The part of a `Prioritized` that clients read, besides that of a `Selection`."""

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

    trends: PriorityTrends
    """The newest exact priority of each example, and its trend."""
    average: AverageGradient | None = None
    """gbar, the average gradient; None before a method needs it."""
    gradient_work = 0
    """Gradients of single examples that were computed, in all, with those of initial passes."""
    communication_seconds = 0.0
    """Seconds that communication of the method took beside that of plain training, in all."""
    renewals: Renewals
    """How well estimated priorities fit those that were measured after."""

    @property
    def why(self) -> str:
        """Why it prioritizes, or why not."""
        method = self._method
        if not isinstance(method, Published):
            return super().why
        if not self._selecting:
            return "turned off by hand" if not method.diverged else "the loss of three rounds was too high"
        if method.initial_pass < 2:
            return f"{self.method!r} makes initial pass {method.initial_pass + 1} of 2, without a step"
        return f"{self.method!r} always prioritizes"

    # ------------------------------------------------------------ the examples

    @property
    def priorities(self) -> Numbers:
        """The known priorities of this rank's examples, by which they are drawn.

        Of "published" and "repaired" the estimated priorities, of the others the newest scores or losses. Of more than
        100,000 examples, those of every n-th.
        """
        found = self._importance(thinned(self.shard))
        return found[np.isfinite(found)]

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
        return self._ranked_samples(count, -1)

    @for_queries
    def unimportant_samples(self, count: int = 9) -> list[dict[str, Any]]:
        """Return the examples with the lowest priority, like `important_samples`."""
        return self._ranked_samples(count, 1)

    # ------------------------------------------------------------ what it is worth

    @property
    def rank_correlation(self) -> float:
        """Spearman's correlation of estimated and later measured priorities, or NaN.

        On the newest of the examples that were computed whatever their priority.
        """
        return self._once(f"correlation {self.renewals.count}", self.renewals.rank_correlation)

    @property
    def lift(self) -> float:
        """How much higher the measured priority of the top tenth is than the mean.

        The tenth that was estimated highest, and the ratio of the means. On the examples of `rank_correlation`;
        NaN: unknown, or the mean is not positive.
        """
        return self._once(f"lift {self.renewals.count}", self.renewals.lift)

    @property
    def estimation(self) -> dict[str, float | None]:
        """The rank correlation and the lift, for a chart; None if unknown."""
        found = {"rank correlation": self.rank_correlation, "lift": self.lift}
        return {name: None if math.isnan(value) else value for name, value in found.items()}

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

    # ------------------------------------------------------------ inside

    def _timed(self, agree: Callable[[float], float]) -> Callable[[float], float]:
        """Return ``agree`` with its seconds counted: it is all that the methods send."""

        def timed(number: float) -> float:
            begun = time.perf_counter()
            try:
                return agree(number)
            finally:
                self.communication_seconds += time.perf_counter() - begun

        return timed

    def _importance(self, ids: Ints) -> Numbers:
        method = self._method
        return self.trends.estimate(ids, method.step) if isinstance(method, Published) else method.predicted(ids)

    def _ranked_samples(self, count: int, sign: int) -> list[dict[str, Any]]:
        self._check_samples(count)

        def read() -> list[dict[str, Any]]:
            known = self._importance(self.shard)
            first = np.argsort(sign * known, kind="stable")[:count]  # NaN comes last
            rows = self._rows(self.shard[first])
            return [
                {"priority": None if math.isnan(value) else float(f"{value:.4g}"), **row}
                for value, row in zip(known[first].tolist(), rows, strict=True)
            ]

        return self._once(f"ranked {sign * count}", read)
