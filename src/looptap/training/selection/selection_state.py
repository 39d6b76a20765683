"""`SelectionState`: what a checkpoint keeps of a `Selection`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from looptap.training.saved_state import require_state
from looptap.training.selection.honest_gain import HonestGain
from looptap.training.selection.learning import Learning
from looptap.training.selection.passes import Passes
from looptap.training.selection.sampler import Sampler
from looptap.training.selection.switch import StepTimes

_SETTINGS = ("switch", "floor", "cap", "exponent", "learning_rate", "method")  # in the order in which they are set


class SelectionState:
    """Saves and restores the parts of a `Selection`, which is the ``owner`` here."""

    def __init__(self, passes: Passes, sampler: Sampler, learning: Learning, times: StepTimes) -> None:
        self._passes, self._sampler, self._learning, self._times = passes, sampler, learning, times
        self._table, self._walk, self._gate = sampler.table, sampler.walk, sampler.gate

    def saved(self, owner: Any) -> dict[str, Any]:
        """Return the state of this rank, as tensors and plain data."""
        self._learning.settle()
        sampler, table = self._sampler, self._table
        state = self._passes.state_dict(table.steps) | {
            "size": table.size,
            "rank": owner.rank,
            "world": owner.world,
            "steps": table.steps,
            "taken": sampler.taken,
            "walk": self._walk.state_dict(),
            "table": table.state_dict(np.unique(self._walk.shard)),
            "sums": list(table.sums),
            "methods": {name: one.state_dict() for name, one in sampler.methods.items()},
            "gain": self._learning.gain.state_dict(),
            "gate": self._gate.state_dict(),
            "selecting": sampler.selecting,
            "seconds_spent": self._times.spent,
            "seconds_saved": self._times.saved,
            **{name: getattr(owner, name) for name in _SETTINGS},
        }
        found: dict[str, Any] = _mapped(state, np.ndarray, _tensor)
        return found

    def load(self, owner: Any, *states: dict[str, Any]) -> None:
        """Continue from the first of ``states``, with what all of them know.

        Raises ValueError, ControlError; nothing has changed then.
        """
        sampler, catalog = self._sampler, owner.catalog
        state, *others = (_mapped(one, object, _array) for one in states)
        for one in (state, *others):
            if one["size"] != self._table.size:
                raise ValueError(f"The state is that of {one['size']:,} instances; here are {self._table.size:,}.")
        if unknown := {state["method"], *state["methods"]} - catalog.keys():
            raise ValueError(f"The state is of the method {min(unknown)!r}; here are {', '.join(catalog)}.")
        HonestGain().load_state_dict(state["gain"])
        catalog[state["method"]].require(owner)
        require_state(state, {"methods": {state["method"]: {}}}, f"a {type(owner).__name__}")
        sampler.restored(catalog, state["method"], state["methods"])  # the last that raises: only then anything changes
        for one in (state, *others):
            self._table.load_state_dict(one["table"])
        self._table.steps, self._passes.epoch = state["steps"], state["epoch"]
        self._times.spent, self._times.saved = state["seconds_spent"], state["seconds_saved"]
        for name in _SETTINGS:
            setattr(owner, name, state[name])
        sampler.methods = sampler.restored(catalog, state["method"], state["methods"])
        sampler.method, sampler.selecting = sampler.methods[state["method"]], state["selecting"]
        sampler.taken = state["taken"]
        self._learning.gain.load_state_dict(state["gain"])
        self._gate.load_state_dict(state["gate"])
        if (state["rank"], state["world"]) == (owner.rank, owner.world):
            self._table.sums = list(state["sums"])
            self._walk.load_state_dict(state["walk"])
            self._passes.resume(state)
        else:
            if len(states) != state["world"]:
                sampler.say(f"Of {state['world']} ranks the states of {len(states)} were given: the others are new.")
            self._passes.begin_again(state["epoch"])
            self._walk.walked = state["epoch"] * len(self._walk.shard)
        self._times.skipped = self._walk.walked - sampler.taken


def _tensor(array: Any) -> Any:
    import torch

    return torch.from_numpy(array)  # torch.load reads tensors from any file, arrays only from one that it trusts


def _array(value: Any) -> Any:
    return value.detach().cpu().numpy() if hasattr(value, "detach") else value


def _mapped(value: Any, kind: type, function: Callable[[Any], Any]) -> Any:
    """Return plain data with each item of ``kind`` replaced by ``function`` of it."""
    if isinstance(value, dict):
        return {name: _mapped(item, kind, function) for name, item in value.items()}
    if isinstance(value, list):
        return [_mapped(item, kind, function) for item in value]
    return function(value) if isinstance(value, kind) else value
