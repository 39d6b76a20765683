"""`Sampler`: draws batches by the method that is set, or all alike."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from looptap.streams.errors import ControlError
from looptap.training.noted import Noted
from looptap.training.sampling.instance_table import InstanceTable
from looptap.training.sampling.permutation_walk import Accepted, Floats, Ints, PermutationWalk
from looptap.training.selection.methods.autoassist import AutoAssist
from looptap.training.selection.methods.method import Method, Settings
from looptap.training.selection.methods.side_assistant import SideAssistant
from looptap.training.selection.switch import Switch

QUIETLY = np.errstate(all="ignore")
"""Warnings of numbers that are not finite: what is wrong stands in `note`."""


class Sampler(Noted):
    """Draws batches from ``walk``: by its method while it selects, else all alike.

    Nothing here raises into the loop: what fails stands in `note`, and sampling is plain up to the next test of the
    switch. ``settings`` must not keep this object alive.
    """

    def __init__(
        self,
        table: InstanceTable,
        walk: PermutationWalk,
        gate: Switch,
        settings: Settings,
        beside: SideAssistant | None,
        clock: Callable[[], float],
    ) -> None:
        self.table, self.walk, self.gate, self.beside, self._clock = table, walk, gate, beside, clock
        self.methods: dict[str, Method] = {}
        """Those that were used: each continues where it was."""
        self.method = Method(table, settings)
        """The one that is set."""
        self.selecting = False
        """Whether it draws; else all are drawn alike."""
        self.taken = 0
        """Instances that were drawn, in all."""
        self.cost = 0.0
        """Seconds of selection in this step so far."""

    @property
    def count(self) -> int:
        """The number of instances drawn for a batch."""
        return self.method.batch_count if self.selecting else self.method.settings.batch_size

    def take_over(self, kind: type[Method], epoch: int) -> None:
        """Use a method of this ``kind`` from the next draw on."""
        if kind.name not in self.methods:
            self.methods[kind.name] = kind(self.table, self.method.settings)
        if self.beside is not None:
            self.beside.close()
        self.method = self.methods[kind.name]
        self.method.begin(epoch)
        self.selecting = self.method.acts(self.gate.on)
        self.gate.idle = 0

    def fail(self, why: str) -> None:
        """Turn the switch off up to its next test, and say why."""
        self.gate.fail(why)
        self.selecting = self.method.acts(False)
        self._say(why)

    def say(self, text: str) -> None:
        """Put ``text`` into `note`, and warn of it."""
        self._say(text)

    # ------------------------------------------------------------ a batch

    def batch(self) -> Ints:
        """Return the instances of the next batch."""
        indices = self._chosen() if self.selecting else None
        if indices is None:
            indices = self.walk.following(self.count)
            if not self.table.plain:
                self.table.drawn_alike(indices)
        self.taken += len(indices)
        return indices

    @QUIETLY
    def _chosen(self) -> Ints | None:
        """Return a batch as the method draws it; None if that failed."""
        begun, method = self._clock(), self.method
        try:
            if self.beside is not None and isinstance(method, AutoAssist):
                found = self._made_beside(self.beside, method)
            else:
                found = method.draw(self.walk, self.count)
        except Exception as error:  # a method that fails must not end the loop
            self.fail(f"The method {method.name!r} failed: {error}. Sampling is plain.")
            found = None
        if found is not None:
            self._note_weights(method, found)
        self.cost += self._clock() - begun
        return None if found is None else found.indices

    def _note_weights(self, method: Method, found: Accepted) -> None:
        try:
            weights = method.weights(found.indices, found.probability)
            self.table.drawn(found, weights, method.predicted(found.indices) if method.predicts else None)
        except Exception as error:
            self.fail(f"The method {method.name!r} failed: {error}. The plain mean is taken.")
            self.table.drawn_alike(found.indices)

    def _made_beside(self, beside: SideAssistant, method: AutoAssist) -> Accepted | None:
        """Return a batch of the assistant beside the loop; None if it has none ready."""
        settings = method.settings
        made = beside.draw(method, settings.shard, settings.batch_size, [*settings.seed, 4, self.table.steps])
        if beside.ended:
            self._say(f"The assistant ended ({beside.ended}): sampling is plain until you set the method again.")
        if made is None:
            return None
        self.walk.walked += made.offered
        method.rated(made.accepted.indices, made.prediction)
        return made.accepted

    @QUIETLY
    def expected(self, instances: int) -> float:
        """Return how many batches a pass over so many would have."""
        share = 1.0
        if self.selecting:
            try:
                found = float(self.method.acceptance(self.walk.shard).probability.mean())
                share = 1.0 if math.isnan(found) else found
            except Exception as error:  # features that fail
                self.fail(f"The method {self.method.name!r} failed: {error}. Sampling is plain.")
        return share * instances / self.count

    def teach(self, ids: Ints, losses: Floats, scores: Floats | None) -> None:
        """Have the method, or its assistant beside the loop, learn from a step."""
        if self.beside is None or not isinstance(self.method, AutoAssist):
            self.method.observe(ids, losses, scores)
        else:
            self.beside.learn(ids, losses, self.method.settings.learning_rate)

    # ------------------------------------------------------------ state

    def restored(self, catalog: dict[str, type[Method]], name: str, states: dict[str, Any]) -> dict[str, Method]:
        """Return methods that continue from ``states``.

        One that lacks something is left out, and raises ControlError if it has this ``name``. Raises ValueError for the
        state of another method. Nothing has changed then.
        """
        settings, found = self.method.settings, dict[str, Method]()
        for one, state in states.items():
            with contextlib.nullcontext() if one == name else contextlib.suppress(ControlError):
                catalog[one].require(settings)
                found[one] = catalog[one](self.table, settings)
                found[one].load_state_dict(state)
        return found
