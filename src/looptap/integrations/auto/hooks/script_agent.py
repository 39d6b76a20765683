"""`ScriptAgent`: the agent of a script, and the observables of its events."""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable
from functools import partial
from types import FrameType, SimpleNamespace
from typing import Any

from looptap.agent.agent import (
    Agent,
    before_end,
    emit_found,
    exposed_as,
    is_asked,
    is_idle,
    looks_next,
    name_events,
    only_counts,
    search_names,
)
from looptap.integrations.auto.hooks.evaluations import LOSS_NAMES
from looptap.integrations.auto.hooks.passes import EPOCH
from looptap.integrations.auto.hooks.updates import ThreadUpdate
from looptap.integrations.auto.sight.found_names import UnknownValue, found_names
from looptap.integrations.auto.sight.known_optimizers import MAX_NAMED_COUNT, KnownOptimizer, KnownOptimizers
from looptap.integrations.auto.sight.models import name_of
from looptap.integrations.auto.sight.root_inputs import NAMES, ModelInputs
from looptap.integrations.harmless import say_once
from looptap.streams.events import FoundObservables, lazy

STEP, SKIPPED = "step", "skipped"
FindLoss = Callable[[str, FrameType], Any]
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

    def is_idle(self) -> bool:
        """Return True if nothing is asked of updates."""
        return self._agent is not None and not self._inputs and is_idle(self._agent, STEP)

    def counts(self, update: ThreadUpdate) -> bool:
        """Count an update of which nothing is asked; return False if something is."""
        if not self.is_idle():
            return False
        assert self._agent is not None
        only_counts(self._agent, STEP, True)
        update.steps += 1
        update.backwards = 0
        update.forget()
        if update.is_slow:
            update.wake()
        if update.passes.note_update():
            self.raise_event(EPOCH, update)
        return True

    def raise_event(
        self, event: str, update: ThreadUpdate, optimizer: Any = None, *, last: bool = True,
        loss: FindLoss | None = None, values: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
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
            update.forget()
            if self._inputs:
                self._inputs.forget(_any_model if known is None else known.trains)
            if event == STEP and update.passes.note_update():
                self.raise_event(EPOCH, update)

    # ------------------------------------------------------------ observables

    def _observables(
        self, agent: Agent, event: str, update: ThreadUpdate, optimizer: Any, known: KnownOptimizer | None,
        find_loss: FindLoss | None, values: dict[str, Any] | None,
    ) -> FoundObservables:  # fmt: skip
        frame = sys._getframe(1)  # not this one: it would hold itself, and with it the frames of the script
        if known is None and len(self.optimizers.by_id) == 1:
            (known,) = [*self.optimizers.by_id.values()]
            optimizer = known.reference()
        special: dict[str, Callable[[], Any]] = {"model": lambda: _model(known, update, frame)}
        if optimizer is not None:
            special["optimizer"] = lambda: optimizer
        losses = update.unscaled_losses() if event in UPDATES else []
        otherwise: dict[str, Any] = {"step": update.steps}
        if losses:
            own = tuple(losses)
            otherwise |= {"losses": own, "looptap": SimpleNamespace(losses=own)}
        found = found_names(special, frame, update.at_backward, otherwise, ended=update.ended)
        if event not in UPDATES:
            found["guess"] = values is None
            found.update(values or {})
            if find_loss is not None:
                special.update({name: partial(find_loss, name, frame) for name in LOSS_NAMES})
            return found
        if update.data_seconds is None:
            found.unknown["data_seconds"] = "no DataLoader has given a batch for this step: data_seconds is unknown."
        else:
            found["data_seconds"] = update.data_seconds
        try:
            loss = update.loss(losses, optimizer)
        except UnknownValue as error:
            loss, found.unknown["loss"] = None, str(error)
        if loss is not None:
            found["loss"] = loss
            if known is not None and self.optimizers.several:
                self._name_losses(found, special, update, known, losses)
        special.update({name: self._reader(name, found, known, frame) for name in NAMES})
        if looks_next(agent, event):  # what it finds is in the history, and in the list of modules
            found.load(("loss", "model"))
        return found

    def _name_losses(
        self, found: FoundObservables, special: dict[str, Callable[[], Any]], update: ThreadUpdate,
        known: KnownOptimizer, losses: list[Any],
    ) -> None:  # fmt: skip
        """Give each optimizer of this update its own loss; the others have none."""
        found.varying = self.optimizers.loss_names()
        if len(update.stepped) < 2:
            found[known.loss_name] = found["loss"]
            return
        for one, optimizer in self.optimizers.few():
            if id(optimizer) not in update.stepped:
                continue
            if len(losses) == 1:
                found[one.loss_name] = losses[0]
            else:
                special[one.loss_name] = partial(_present, one.loss_name, partial(update.loss_of, losses, optimizer))

    def _reader(
        self, name: str, found: FoundObservables, known: KnownOptimizer | None, frame: FrameType
    ) -> Callable[[], Any]:
        """Return a function that reads an input of the model."""

        def read() -> Any:
            parts = [] if known is None else [module for _, module in known.parts(frame)]
            inputs = self._inputs.of(parts or [found["model"]])
            if not inputs.ask():
                found.coming.add(name)
            return inputs.read(name)

        return read

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
            name = "optimizer" if alone else one.name
            exposed[name] = lazy(one.reference)
            if one.scheduler is not None:
                exposed["scheduler" if alone else f"{name}_scheduler"] = lazy(one.scheduler)
            parts = one.parts(frame)
            for part, model in parts:
                called = part if len(parts) > 1 else "model" if alone else name_of(model, frame, "")
                if called:
                    exposed[called] = lazy(weakref.ref(model))
        agent.expose(**exposed)

    def _forked(self) -> None:
        """Forget the parent's agent: a child that trains has one of its own."""
        self._agent, self._failed, self._lock = None, False, threading.RLock()


def _model(known: KnownOptimizer | None, update: ThreadUpdate, frame: FrameType) -> Any:
    """Return the model of an optimizer, or one in sight. Raises KeyError."""
    model = None if known is None else known.model(frame)
    return _present("model", lambda: update.model_in_sight.get(frame) if model is None else model)


def _present(name: str, read: Callable[[], Any]) -> Any:
    if (found := read()) is None:
        raise KeyError(name)
    return found


def _any_model(model: Any) -> bool:
    return True
