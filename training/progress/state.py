"""A run that goes on in another process: what is kept of a `Progress`, as plain data, and how one takes it over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from looptap.training.progress.clock_ledger import TRAIN

if TYPE_CHECKING:
    from looptap.training.progress.progress import Progress


def taken(progress: Progress) -> dict[str, Any]:
    """See `Progress.state_dict`."""
    progress._flush()
    estimator = progress._estimator
    plan = estimator.plan
    return {
        "epoch": progress.epoch, "steps": progress.steps, "in_epoch": progress._in_epoch, "elapsed": progress.elapsed,
        "length": progress._length, "size": progress._sizes.mean, "validation": progress._validation,
        "done": plan.done, "since": plan.since, "checked": plan.checked, "trained": progress._ledger.counts[TRAIN],
        "seen": [list(one) for one in estimator.seen],
        "shares": list(estimator.shares()),
    }  # fmt: skip


def given(progress: Progress, state: dict[str, Any]) -> None:
    """See `Progress.load_state_dict`."""
    progress.epoch, progress.steps, progress._resumed = state["epoch"], state["steps"], state["in_epoch"]
    progress._from = progress.steps - progress._resumed
    progress._counted = progress._sized = progress.steps
    progress._before, progress._length = state["elapsed"], progress._length or state["length"]
    progress._sizes.known(state["size"])
    progress._size = progress._sizes.mean
    progress._validation = progress._validation or state["validation"]
    estimator = progress._estimator
    plan = estimator.plan
    plan.done, plan.since, plan.checked = state["done"], state["since"], state["checked"]
    estimator.seen = [(float(x), float(value), float(variance)) for x, value, variance in state["seen"]]
    estimator.ratio, estimator.rest = state["shares"]
    progress._ledger.resume(state["trained"])
    estimator.changed()
    progress._asked = None
