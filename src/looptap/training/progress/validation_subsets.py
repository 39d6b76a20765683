"""Insert validations on small subsets, so that forecasts begin early. Opt-in.

A run with them ends bit-identical to one without (looptap.streams.preserving.untouched). Effects that cannot be undone
switch them off. Source: Dong & Luo 2024.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from looptap.streams.preserving.untouched import untouched
from looptap.training.collectives import all_reduce
from looptap.training.progress.arguments import check_counts, seed_of
from looptap.training.progress.forecast.metrics import Metric
from looptap.training.progress.plan import insertion

MAX_PART = 0.05
"""P1: the share of a cycle that inserted validations may take; above it they are switched off."""
_LOADER_OPTIONS = ("collate_fn", "num_workers", "pin_memory", "pin_memory_device")
_WORKER_OPTIONS = ("worker_init_fn", "multiprocessing_context", "prefetch_factor", "timeout")
_INSTANCES_PER_PROCESSOR = 20_000.0


class Inserting:
    """Validations on subsets of ``validation``, a loader of map-style data.

    ``evaluate(loader)`` validates ``model`` on a loader of the subset and returns the metric, or the metric and the
    standard deviation of one instance's. ``accumulate`` is the number of batches of an optimizer step, ``processors``
    the number of CPUs and GPUs that the job uses. With ``speed_batches`` (5 in the paper), that many batches are
    validated before the first step, so that the speed of validation is known from the start; the first of them does not
    count. Raises TypeError for data that cannot be indexed, and TypeError or ValueError for other invalid arguments.
    """

    def __init__(
        self,
        evaluate: Callable[[Any], Any],
        model: Any,
        validation: Any,
        *,
        accumulate: int = 1,
        processors: int | None = None,
        speed_batches: int | None = None,
        seed: int = 0,
    ) -> None:
        data = getattr(validation, "dataset", None)
        if data is None or not hasattr(data, "__getitem__") or not hasattr(data, "__len__"):
            raise TypeError(
                f"Validations are inserted on random subsets of map-style data, and {type(validation).__name__} has "
                "none: give a DataLoader whose data set has a length and can be indexed."
            )
        if not len(data):
            raise ValueError("The validation set is empty: there is no subset to validate.")
        if not callable(evaluate):
            raise TypeError(f"evaluate={evaluate!r:.60} must be a function of a loader, which returns the metric.")
        if not hasattr(model, "modules") or not hasattr(model, "buffers"):
            raise TypeError(f"model={model!r:.60} must be the module that is validated.")
        check_counts(accumulate=accumulate, processors=processors, speed_batches=speed_batches)
        self._evaluate, self._model, self._loader, self._data = evaluate, model, validation, data
        self._accumulate, self._speed_batches = accumulate, speed_batches or 0
        self.cost = _INSTANCES_PER_PROCESSOR * (processors or os.cpu_count() or 1)
        """C of Dong & Luo 2024: the bound of their cost, in instances."""
        self._rng = np.random.default_rng(seed_of(seed))
        self.first, self.subset = 0, 0
        self.seconds = 0.0
        """Seconds spent on inserted validations so far."""
        self.reason = ""
        """Why they were switched off; empty while they are on."""
        self._batches = self._since = self._point = 0
        self._places: set[int] = set()
        self._in_cycle, self._cycle_began, self._whole = 0.0, time.perf_counter(), float(len(data))
        self._buffers: list[Any] | None = None

    def begin(self, batches: int | None, batch: float, validation: float) -> None:
        """Plan for ``batches`` between validations. Raises ValueError if it is unknown."""
        if not batches:
            raise ValueError(
                "Validations are inserted at planned steps, and the number of batches between two validations of the "
                "loop is unknown: pass validate_every=, or a training loader that has a length."
            )
        self._batches = batches
        size = float(getattr(self._loader, "batch_size", None) or 1)
        self.first, self.subset = insertion(batches * batch, batch, validation or self._whole, size, self.cost)
        self._plan()

    @property
    def ahead(self) -> list[int]:
        """Numbers of validations inserted before each of the next raw points."""
        return [] if self.reason else [round(0.8**j * self.first) for j in range(30)]

    def _plan(self) -> None:
        count = round(0.8**self._point * self.first)
        step = self._accumulate
        places = {round(self._batches * (i + 1) / (count + 1) / step) * step for i in range(count)}
        self._places = {place for place in places if 0 < place < self._batches}

    def due(self) -> bool:
        """Count a batch; return True if a validation is inserted after it."""
        self._since += 1
        return not self.reason and self._since in self._places

    def next_point(self, batches: float | None = None) -> None:
        """Begin the next cycle after a raw point, with fewer insertions.

        It has about ``batches``, if that is no longer what it was; several ranks, whose lengths may differ, keep that.
        """
        if batches and _ranks() is None:
            self._batches = max(1, round(batches))
        cycle = time.perf_counter() - self._cycle_began
        share = self._in_cycle / max(cycle - self._in_cycle, 1e-9)
        if self._since and self._any(share > MAX_PART) and not self.reason:
            self.reason = (
                f"Inserted validations took {share:.1%} of the time between two validations, more than {MAX_PART:.0%}: "
                "they are turned off."
            )
        self._since, self._point, self._in_cycle = 0, self._point + 1, 0.0
        self._cycle_began = time.perf_counter()
        self._plan()

    @property
    def place(self) -> float:
        """Position between two raw points, 0 to 1."""
        return min(self._since / self._batches, 0.999)

    def run(self) -> tuple[float, float, float] | None:
        """Validate a new subset; return (metric, variance, size), or None if it fails."""
        found = self._validated(self.subset)
        if found is None:
            return None
        value, spread = found[0]
        variance = (spread**2 if spread is not None else value**2) / self.subset
        return value, variance, float(self.subset)

    def first_speed(self) -> float | None:
        """Validate the first batches, once; return instances per second, or None."""
        batches, self._speed_batches = self._speed_batches, 0
        size = getattr(self._loader, "batch_size", None) or 1
        found = self._validated(min(batches * size, len(self._data))) if batches and not self.reason else None
        if found is None or len(done := found[1]) < 2 or not done[-1] > done[0]:
            return None
        return float((len(done) - 1) * size / (done[-1] - done[0]))

    def _validated(self, size: int) -> tuple[tuple[float, float | None], list[float]] | None:
        """Validate a random subset; return the metric, its spread, and batch times."""
        begun = time.perf_counter()
        chosen = self._rng.choice(len(self._data), size=size, replace=False).tolist()
        done: list[float] = []
        try:
            with untouched(self._model) as kept:
                found = self._evaluate(subset_loader(self._loader, chosen, lambda: done.append(time.perf_counter())))
                if name := kept.changed():
                    self.reason = (
                        f"The model changes its {name} while it is validated, which cannot be restored: no "
                        "more validations are inserted."
                    )
            value, spread = found if isinstance(found, tuple) else (found, None)
            return (float(value), None if spread is None else float(spread)), done
        except Exception as error:  # the loop continues without them
            self.reason = f"An inserted validation raised {type(error).__name__}: {error}. They are turned off."
            return None
        finally:
            taken = time.perf_counter() - begun
            self.seconds += taken
            self._in_cycle += taken
            self._agree()

    def variance(self, value: float, spread: float, metric: Metric) -> float:
        """Return the variance of ``value``, measured on a subset without replacement."""
        if metric.kind in ("error", "accuracy"):
            whole = 1.0 if value <= 1 else 100.0  # a share, or per cent
            spread = value * (whole - value) / self.subset
        return max(0.0, spread * (1 - self.subset / self._whole))

    def _agree(self) -> None:
        """Share a reason with all ranks: one that validates alone would wait forever."""
        if self._any(bool(self.reason)) and not self.reason:
            self.reason = "Another rank has switched inserted validations off."

    @staticmethod
    def _any(flag: bool) -> bool:
        """Return True if ``flag`` is set on any rank; call on all ranks at the same step."""
        torch = _ranks()
        if torch is None:
            return flag
        nccl = "nccl" in torch.distributed.get_backend()
        said = torch.tensor(float(flag), device=torch.cuda.current_device() if nccl else "cpu")
        return bool(all_reduce(said, "MAX"))


def subset_loader(loader: Any, chosen: list[int], done: Callable[[], object]) -> Any:
    """Return a loader like ``loader`` of the ``chosen`` instances, with its workers.

    It calls ``done`` after each batch.
    """
    from torch.utils.data import DataLoader, Subset

    class Watched(DataLoader[Any]):  # type: ignore[misc]  # torch is not read by the type checker
        def __iter__(self) -> Any:
            for batch in super().__iter__():
                yield batch
                done()

    kept = {name: getattr(loader, name) for name in _LOADER_OPTIONS if getattr(loader, name, None)}
    if kept.get("num_workers"):
        kept |= {name: getattr(loader, name) for name in _WORKER_OPTIONS if getattr(loader, name, None) is not None}
    return Watched(Subset(loader.dataset, chosen), batch_size=getattr(loader, "batch_size", None) or 1, **kept)


def _ranks() -> Any:
    """Return torch if the job has a process group; else None."""
    torch = sys.modules.get("torch")
    group = getattr(torch, "distributed", None)
    return torch if group is not None and group.is_available() and group.is_initialized() else None
