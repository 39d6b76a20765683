"""`ScriptAgent`: the agent of a script, and the observables of its events."""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

from looptap.agent.agent import (
    Agent,
    before_end,
    emit_found,
    exposed_as,
    is_asked,
    keep_numbers,
    looks_next,
    name_events,
    next_rests,
    only_counts,
    purse_of,
    search_names,
)
from looptap.agent.loop.overhead_budget import OverheadBudget
from looptap.agent.loop.sight.frames import NearestFrame, find_all
from looptap.integrations.auto.hooks.event_values import EventValues, FindLoss, UpdateValues
from looptap.integrations.auto.hooks.passes import EPOCH
from looptap.integrations.auto.hooks.updates import Rest, ThreadUpdate
from looptap.integrations.auto.sight.found_names import ScriptNames
from looptap.integrations.auto.sight.known_optimizers import MAX_NAMED_COUNT, KnownOptimizer, KnownOptimizers
from looptap.integrations.auto.sight.models import name_in_job
from looptap.integrations.auto.sight.root_inputs import ModelInputs
from looptap.integrations.harmless import say_once
from looptap.streams.events import FoundObservables, lazy

STEP, SKIPPED = "step", "skipped"
_NO_NUMBERS = frozenset({"model", "optimizer", "x", "y", "inputs"})
UPDATES = (STEP, SKIPPED)
"""Events that carry a loss and a batch; the others are guesses."""


class ScriptAgent:
    """The agent of this process, which ``start`` makes at the first event.

    Any thread. Never raises, except for `looptap stop`.
    """

    def __init__(self, start: Callable[[], Agent], at_end: Callable[[], None] | None = None) -> None:
        self._start, self._at_end = start, at_end
        self._agent: Agent | None = None
        self._failed = False
        self._lock = threading.RLock()
        self.optimizers = KnownOptimizers()
        self._inputs = ModelInputs()
        self._nearest = NearestFrame()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forked)

    @property
    def started(self) -> bool:
        """True from the first event on."""
        return self._agent is not None

    def meet(self, optimizer: Any) -> None:
        """Get to know an optimizer that has stepped, once there is an agent."""
        known = self.optimizers
        if self._agent is not None and known.get(optimizer) is None and len(known.by_id) <= MAX_NAMED_COUNT:
            self._meet(optimizer, sys._getframe())

    def open(self) -> Agent | None:
        """Return the agent, made now if there is none; None if it cannot be."""
        self._meet(None, sys._getframe())
        return self._agent

    def frame_for(self, event: str) -> FrameType | None:
        """Return the frame to read the script's variables from, if a query asks."""
        return sys._getframe() if self._agent is not None and is_asked(self._agent, event) else None

    def next_rests(self) -> tuple[bool, tuple[str, ...] | None]:
        """Return whether the next update only counts, and which numbers are to be kept.

        These are None if it only counts.
        """
        if self._agent is None:
            return False, None
        rests, numbers = next_rests(self._agent, STEP)
        return rests, () if self._inputs and numbers is None else numbers

    def purse(self) -> OverheadBudget | None:
        """Return what work on updates is paid from, if queries are evaluated at them."""
        return None if self._agent is None else purse_of(self._agent, STEP)

    def counts(self, update: ThreadUpdate, rest: Rest, optimizer: Any) -> bool:
        """Raise the event of an update at rest; return False if more is asked of it."""
        agent, update.backwards = self._agent, 0
        assert agent is not None
        if rest.numbers is None:
            if not only_counts(agent, STEP):
                return False
            update.steps += 1
            self._end(STEP, update, None)
        elif self._keeps(agent, update, rest.numbers):
            self._end(STEP, update, self.optimizers.get(optimizer))
        else:
            self.raise_event(STEP, update, optimizer)
        update.end_rested()
        return True

    def _keeps(self, agent: Agent, update: ThreadUpdate, names: tuple[str, ...]) -> bool:
        """Keep the numbers of an update, if no more is asked of it; return False else."""
        if not _NO_NUMBERS.isdisjoint(names):
            return False
        numbers = {}
        if others := [name for name in names if name not in ("loss", "data_seconds")]:
            numbers = find_all(self._nearest.frame(), others)
        if "step" in names:
            numbers.setdefault("step", update.steps + 1)
        if "data_seconds" in names:
            numbers["data_seconds"] = update.data_seconds
        if "loss" in names:
            numbers["loss"] = update.rested_loss()
        if any([number is None for number in numbers.values()]):
            return False
        kept = keep_numbers(agent, STEP, **numbers) is None
        update.steps += kept
        return kept

    def raise_event(
        self,
        event: str,
        update: ThreadUpdate,
        optimizer: Any = None,
        *,
        last: bool = True,
        loss: FindLoss | None = None,
        values: dict[str, Any] | None = None,
    ) -> None:
        """Raise an event of the thread of ``update``; ``optimizer`` has made it.

        What was noted for it is released, unless it is not the ``last`` one. ``loss`` finds one where the event is
        no update; ``values`` are those of an event that a framework has announced.
        """
        announced = values is None and update.announces(event)
        known = None if optimizer is None else self.optimizers.get(optimizer)
        if self._agent is None or (known is None and optimizer is not None):
            known = self._meet(optimizer, sys._getframe())
        agent = self._agent
        if event == STEP:
            update.steps += 1
        counted = update.counted > 0 and event in UPDATES
        if agent is not None and not (announced or only_counts(agent, event, counted)):
            emit_found(agent, event, partial(self._observables, agent, event, update, optimizer, known, loss, values))
        if event in UPDATES and last:
            self._end(event, update, known)

    def _end(self, event: str, update: ThreadUpdate, known: KnownOptimizer | None) -> None:
        """Release what was noted for an update; raise the event of an epoch it ends."""
        update.forget()
        if self._inputs:
            self._inputs.forget(_any_model if known is None else known.trains)
        if event == STEP and update.passes.note_update():
            self.raise_event(EPOCH, update)

    # ------------------------------------------------------------ observables

    def _observables(
        self,
        agent: Agent,
        event: str,
        update: ThreadUpdate,
        optimizer: Any,
        known: KnownOptimizer | None,
        find_loss: FindLoss | None,
        values: dict[str, Any] | None,
    ) -> FoundObservables:
        frame = sys._getframe(1)  # not this one: it would hold itself, and with it the frames of the script
        kind = UpdateValues if event in UPDATES else EventValues
        own = kind(update, optimizer, known, self.optimizers, self._inputs, frame, find_loss)
        found = ScriptNames(own, frame, update.at_backward, update.ended).found
        if event not in UPDATES:
            found["guess"] = values is None
            found.update(values or {})
            return found
        found.began = update.began
        if self.optimizers.several:
            found.varying = self.optimizers.loss_names()
        if looks_next(agent, event):  # what it finds is in the history, and in the list of modules
            found.load(("loss", "model", "data_seconds", *found.varying))
        return found

    # ------------------------------------------------------------ the agent

    def _meet(self, optimizer: Any, frame: FrameType) -> KnownOptimizer | None:
        """Start the agent with the first update, and get to know an optimizer."""
        with self._lock:
            if self._agent is None and not self._failed:
                try:
                    self._agent = self._start()
                    name_events(self._agent, "batch", STEP)
                    search_names(self._agent)
                    if self._at_end is not None:
                        before_end(self._agent, self._at_end)
                except Exception as error:
                    self._failed = True
                    say_once(error)
            if optimizer is None or self._agent is None:
                return None
            known = self.optimizers.get(optimizer)
            if known is None:
                known = self.optimizers.add(optimizer, frame)
                if self.optimizers.several or len(self.optimizers.by_id) == 1:
                    self._expose(known, frame)
            return known

    def _expose(self, known: KnownOptimizer, frame: FrameType) -> None:
        """Expose an optimizer's controls and learning rate, without keeping it alive.

        It is ``optimizer`` while it is alone; of several, each has the name that the job has for it, as has its model.
        """
        agent = self._agent
        assert agent is not None
        alone = len(self.optimizers.by_id) == 1
        taken = () if alone else ("optimizer", "scheduler")
        exposed: dict[str, Any] = {name: None for name in taken if exposed_as(agent, name) is not None}
        for one in [known] if alone else [*self.optimizers.by_id.values()]:
            name, schedule = ("optimizer", "scheduler") if alone else (one.name, f"{one.name}_scheduler")
            exposed[name] = lazy(one.reference)
            if one.scheduler is not None:
                exposed[schedule] = lazy(one.scheduler)
            parts = one.parts(frame)
            for part, model in parts:
                called = part if len(parts) > 1 else "model" if alone else name_in_job(model, frame, "")
                if called:
                    exposed[called] = lazy(weakref.ref(model))
        agent.expose(**exposed)

    def _forked(self) -> None:
        """Forget the parent's agent: a child that trains has one of its own."""
        self._agent, self._failed, self._lock = None, False, threading.RLock()


def _any_model(model: Any) -> bool:
    return True
