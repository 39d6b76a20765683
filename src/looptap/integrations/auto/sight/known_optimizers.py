"""The optimizers that have stepped, and their models: found once, held weakly."""

from __future__ import annotations

import sys
import weakref
from types import FrameType
from typing import Any

from looptap.integrations.auto.sight.models import models_trained_by, name_in_job, scheduler_of

MAX_NAMED_COUNT = 8
"""Optimizers that have names of their own; a loop with one for each parameter has hundreds."""
MAX_LOOKS = 8
"""Backward passes after which gradients are looked for that are absent before."""
RETRY_EVENTS = 100
"""Events until a model that was not in sight is searched for again."""


class KnownOptimizer:
    """An optimizer that has stepped."""

    def __init__(self, optimizer: Any, frame: FrameType | None, taken: set[str]) -> None:
        self.reference: weakref.ref[Any] = weakref.ref(optimizer)
        name = name_in_job(optimizer, frame)
        self.name = name if name not in taken else next(n for i in range(2, 1000) if (n := f"{name}{i}") not in taken)
        """The job's name for it, made different from the others."""
        self.loss_name = f"loss/{self.name}"
        scheduler = scheduler_of(optimizer, frame)
        self.scheduler: weakref.ref[Any] | None = None if scheduler is None else weakref.ref(scheduler)
        self._parts: list[tuple[str, weakref.ref[Any]]] = []
        self._search_in = 0
        self.keeps_gradients = False
        """True once a gradient of its parameters was seen after a backward pass: some loops keep them elsewhere."""
        self.looks_left = MAX_LOOKS
        self.parts(frame)

    def parts(self, frame: FrameType | None) -> list[tuple[str, Any]]:
        """Return the modules that it trains, by the job's names; none if out of sight."""
        living = self._living()
        if not living:
            self._search_in -= 1
            optimizer = self.reference()
            if self._search_in < 0 and optimizer is not None:
                self._search_in = RETRY_EVENTS
                living = models_trained_by(optimizer, frame)
                self._parts = [(name, weakref.ref(model)) for name, model in living]
        return living

    def model(self, frame: FrameType | None) -> Any:
        """Return the model that it trains; None if that is in sight of no frame.

        Of several modules it is the one that the job calls so, else one that holds them, for as long as the caller
        keeps it.
        """
        parts = self.parts(frame)
        if (named := dict(parts).get("model")) is not None:
            return named
        if len(parts) > 1:
            return sys.modules["torch"].nn.ModuleDict({name.replace(".", "_"): module for name, module in parts})
        return parts[0][1] if parts else None

    def is_done(self) -> bool:
        """Return True if its model is gone: another training may follow this one."""
        return bool(self._parts) and not self._living()

    def evaluates(self) -> bool:
        """Return True if its model is in evaluation mode."""
        return False in [vars(model).get("training") for _, model in self._living()[:1]]

    def trains(self, module: Any) -> bool:
        """Return True if this is its model, or a part of that."""
        return any(model is module for _, model in self._living())

    def _living(self) -> list[tuple[str, Any]]:
        return [(name, model) for name, reference in self._parts if (model := reference()) is not None]


class KnownOptimizers:
    """All optimizers that have stepped and are still there."""

    def __init__(self) -> None:
        self.by_id: dict[int, KnownOptimizer] = {}

    def get(self, optimizer: Any) -> KnownOptimizer | None:
        """Return what is known of an optimizer; None before its first step."""
        known = self.by_id.get(id(optimizer))
        return known if known is not None and known.reference() is optimizer else None

    def add(self, optimizer: Any, frame: FrameType | None) -> KnownOptimizer:
        """Add an optimizer that steps for the first time."""
        for key, old in [*self.by_id.items()]:
            if old.reference() is None or old.is_done():  # torch's optimizers live on until the garbage collection
                del self.by_id[key]
        taken = {known.name for known in self.by_id.values()}
        known = self.by_id[id(optimizer)] = KnownOptimizer(optimizer, frame, taken)
        return known

    def few(self) -> list[tuple[KnownOptimizer, Any]]:
        """Return each of them with the optimizer itself, unless there are hundreds."""
        if len(self.by_id) > MAX_NAMED_COUNT:
            return []
        found = [(known, known.reference()) for known in [*self.by_id.values()]]
        return [(known, optimizer) for known, optimizer in found if optimizer is not None]

    def evaluate(self) -> frozenset[int]:
        """Return the optimizers, by id, whose models are in evaluation mode."""
        few = [*self.by_id.items()] if len(self.by_id) <= MAX_NAMED_COUNT else []
        return frozenset([key for key, known in few if known.evaluates()])

    def evaluate_as(self, before: frozenset[int]) -> bool:
        """Return True if those models evaluate that did ``before``, but for some gone."""
        return self.evaluate() == before.intersection([key for key, one in [*self.by_id.items()] if not one.is_done()])

    def loss_names(self) -> frozenset[str]:
        """Return the names of their own losses, if they need some."""
        return frozenset([known.loss_name for known, _ in self.few()] if self.several else ())

    @property
    def several(self) -> bool:
        """True if their losses need names: there are several, but not hundreds."""
        return 1 < len(self.by_id) <= MAX_NAMED_COUNT

    def trains(self, module: Any) -> bool:
        """Return True if one of them trains this module as its model."""
        return any(known.trains(module) for known in [*self.by_id.values()])
