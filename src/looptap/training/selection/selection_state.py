"""`SelectionState`: the part of a `Selection` that a checkpoint keeps."""

from __future__ import annotations

import contextlib
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from looptap.streams.errors import ControlError
from looptap.training.sampling.in_flight import BatchesInFlight
from looptap.training.sampling.permutation_walk import Ints
from looptap.training.saved_state import require_state
from looptap.training.selection.features.features import Features
from looptap.training.selection.honest_gain import HonestGain
from looptap.training.selection.methods.catalog import METHODS
from looptap.training.selection.methods.method import Method
from looptap.training.selection.passes import SamplingPass
from looptap.training.selection.shown_instances import SelectionObservables


class SelectionState(SelectionObservables):
    """What continues after a resume: the walk, the table, the methods and the switch."""

    catalog: ClassVar[dict[str, type[Method]]] = METHODS
    """The methods by name."""
    rank: int
    world: int
    switch: str
    cap: float
    exponent: float
    learning_rate: float
    features: Features | None

    def __init__(self, size: int, shard: Ints, batch_size: int, seed: list[int]) -> None:
        super().__init__(size, shard, batch_size, seed)
        self._flight = BatchesInFlight(size)
        self._methods: dict[str, Method] = {}  # those that were used: each continues where it was
        self._resumed = False  # True if the next iterator continues the pass of a state that was loaded
        self._left_at = 0  # the steps when an epoch was last left early

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        for method in (self._method, *self._methods.values()):  # of a copy
            method.settings = weakref.proxy(self)
        for one in self._passes:  # their iterators are not copied
            one.running, self._left = False, one.left

    @property
    def _rest(self) -> int:
        """The instances of the coming epoch, or the rest of one that was left early."""
        return self._left if self._left > 0 else self._left + len(self.shard)

    def _drop(self, run: SamplingPass) -> None:
        """Forget a pass; one of which all batches are read was an epoch."""
        self._passes = [one for one in self._passes if one is not run]
        self.epoch += run.ended
        run.flight.clear()
        if self._passes:
            self._flight = self._passes[-1].flight

    def _renew(self, run: SamplingPass) -> None:
        """Make a pass the newest, unless a state was loaded meanwhile."""
        if run in self._passes or not run.running:
            run.running = True
            self._passes = [*(one for one in self._passes if one is not run), run]
            self._flight = run.flight

    def state_dict(self) -> dict[str, Any]:
        """Return the state of this rank, as tensors and plain data."""
        flying = [*self._flight.batches] if self.steps else []
        given, left, length, again = self.given, self._left, None, deque[Ints]()
        if self._passes:
            given, left, length, again = (now := self._passes[-1]).given, now.left, now.length, now.again
        state = {
            "size": self.table.size, "rank": self.rank, "world": self.world, "epoch": self.epoch, "steps": self.steps,
            "given": given - len(flying), "inside": bool(self._passes or flying), "end": self.walk.walked + left,
            "length": length, "drawn": [one.copy() for one in (*flying, *again)], "taken": self.taken,
            "seconds_spent": self.seconds_spent, "seconds_saved": self.seconds_saved, "walk": self.walk.state_dict(),
            "table": self.table.state_dict(np.unique(self.shard)), "sums": list(self.table.sums),
            "method": self.method, "methods": {name: one.state_dict() for name, one in self._methods.items()},
            "gain": self._learning.gain.state_dict(), "switch": self.switch, "gate": self._gate.state_dict(),
            "selecting": self._selecting, "floor": self.floor, "cap": self.cap, "exponent": self.exponent,
            "learning_rate": self.learning_rate,
        }  # fmt: skip
        found: dict[str, Any] = _mapped(state, np.ndarray, _tensor)
        return found

    def load_state_dict(self, state: dict[str, Any], *others: dict[str, Any]) -> None:
        """Continue at the next ``iter`` after the last step that was observed.

        On another number of ranks give the states of all that were: what is known of the instances is taken over, and
        the epoch begins again. Raises ValueError for the state of other data, ControlError for a method that lacks
        something here; nothing has changed then.
        """
        owner = f"a {type(self).__name__}"
        for one in (state, *others):
            require_state(one, SelectionState.state_dict(self) | {"methods": {}}, owner)
        state, *rest = (_mapped(one, object, _array) for one in (state, *others))
        others = tuple(rest)
        for one in (state, *others):
            if one["size"] != self.table.size:
                raise ValueError(f"The state is that of {one['size']:,} instances; here are {self.table.size:,}.")
        if unknown := {state["method"], *state["methods"]} - self.catalog.keys():
            raise ValueError(f"The state is of the method {min(unknown)!r}; here are {', '.join(self.catalog)}.")
        HonestGain().load_state_dict(state["gain"])
        self.catalog[state["method"]].require(self)
        require_state(state, {"methods": {state["method"]: {}}}, owner)
        for name, known in state["methods"].items():
            with contextlib.suppress(ControlError):  # it was used before, and lacks something here
                self.catalog[name].require(self)
                self.make(self.catalog[name]).load_state_dict(known)  # raises before anything has changed
        for one in (state, *others):
            self.table.load_state_dict(one["table"])
        for name in ("switch", "floor", "cap", "exponent", "learning_rate", "epoch", "steps", "method"):
            setattr(self, name, state[name])
        self._methods = {state["method"]: self._method}
        for name, known in state["methods"].items():
            if name not in self._methods:
                try:
                    self.catalog[name].require(self)
                except ControlError:  # it was used before, and lacks something here
                    continue
                self._methods[name] = self.make(self.catalog[name])
            self._methods[name].load_state_dict(known)
        self._learning.gain.load_state_dict(state["gain"])
        self._gate.load_state_dict(state["gate"])
        self._selecting, self.taken = state["selecting"], state["taken"]
        self.seconds_spent, self.seconds_saved = state["seconds_spent"], state["seconds_saved"]
        self._flight = BatchesInFlight(self.table.size)
        if (state["rank"], state["world"]) != (self.rank, self.world):
            if len(others) + 1 != state["world"]:
                self._say(f"Of {state['world']} ranks the states of {len(others) + 1} were given: the others are new.")
            self._passes, self._resumed, self._left = [], False, 0
            self.walk.walked = self.epoch * len(self.shard)
            self._skipped = self.skipped
            return
        self.table.sums = list(state["sums"])
        self.walk.load_state_dict(state["walk"])
        self._skipped = self.skipped
        self._given, self._left = state["given"], state["end"] - self.walk.walked
        resumed = SamplingPass(self.table.size)
        resumed.left, resumed.given, resumed.length = self._left, self._given, state["length"]
        self._flight = resumed.flight
        self._passes, self._resumed = [resumed] if state["inside"] else [], state["inside"]
        resumed.again.extend(np.asarray(indices) for indices in state["drawn"])


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
