"""What looptap itself knows of an event of a script, computed when read."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cached_property
from types import FrameType, SimpleNamespace
from typing import Any

from looptap.integrations.auto.hooks.updates import ThreadUpdate
from looptap.integrations.auto.sight.found_names import UnknownValue
from looptap.integrations.auto.sight.known_optimizers import KnownOptimizer, KnownOptimizers
from looptap.integrations.auto.sight.root_inputs import ModelInputs
from looptap.streams.events import FoundObservables

FindLoss = Callable[[str, FrameType], Any]


class EventValues:
    """What an event has that is no update: ``find_loss`` finds its loss."""

    def __init__(
        self,
        update: ThreadUpdate,
        optimizer: Any,
        known: KnownOptimizer | None,
        optimizers: KnownOptimizers,
        inputs: ModelInputs,
        frame: FrameType,
        find_loss: FindLoss | None,
    ) -> None:
        if known is None and len(optimizers.by_id) == 1:
            (known,) = [*optimizers.by_id.values()]
            optimizer = known.reference()
        self.update, self.optimizer, self.known, self.optimizers = update, optimizer, known, optimizers
        self.inputs, self.frame, self.find_loss = inputs, frame, find_loss
        self.names: Collection[str] = self.readers
        """Names that have these values, if there are any."""

    def read(self, name: str, found: FoundObservables) -> Any:
        """Return the value of a name for ``found``, the observables of the event.

        Raises KeyError if there is none, and UnknownValue.
        """
        reader = self.readers.get(name)
        value = self.loss_of(name, found) if reader is None else reader(self, name, found)
        if value is None:
            raise KeyError(name)
        return value

    def loss_of(self, name: str, found: FoundObservables) -> Any:
        """Return the loss of one of several optimizers; None if it has not stepped."""

    def otherwise(self, name: str) -> Any:
        """Return the value of a name that the script may have, too, or None."""
        return self.update.steps if name == "step" else None

    def _model(self, name: str, found: FoundObservables) -> Any:
        model = None if self.known is None else self.known.model(self.frame)
        return self.update.model_in_sight.get(self.frame) if model is None else model

    def _optimizer(self, name: str, found: FoundObservables) -> Any:
        return self.optimizer

    def _loss(self, name: str, found: FoundObservables) -> Any:
        return None if self.find_loss is None else self.find_loss(name, self.frame)

    readers: dict[str, Callable[[Any, str, FoundObservables], Any]] = {  # noqa: RUF012 - never changed
        "model": _model,
        "optimizer": _optimizer,
        "loss": _loss,
        "losses": _loss,
    }


class UpdateValues(EventValues):
    """What an update of a model has."""

    @cached_property
    def losses(self) -> list[Any]:
        """The loss of each backward pass."""
        return self.update.unscaled_losses()

    def otherwise(self, name: str) -> Any:
        """Return the value of a name that the script may have, too, or None."""
        if name not in ("losses", "looptap") or not self.losses:
            return super().otherwise(name)
        own = tuple(self.losses)
        return own if name == "losses" else SimpleNamespace(losses=own)

    def _loss(self, name: str, found: FoundObservables) -> Any:
        return self.update.loss(self.losses, self.optimizer)

    def loss_of(self, name: str, found: FoundObservables) -> Any:
        """Return the loss of one of several optimizers; None if it has not stepped."""
        update, losses = self.update, self.losses
        if len(update.stepped) < 2:
            return found["loss"] if self.known is not None and name == self.known.loss_name else None
        update.at_backward.want(name)
        named = [optimizer for one, optimizer in self.optimizers.few() if name == one.loss_name]
        stepped = [optimizer for optimizer in named if id(optimizer) in update.stepped]
        if not stepped or len(losses) == 1:
            return losses[0] if stepped else None
        return update.loss_of(losses, stepped[0])

    def _data_seconds(self, name: str, found: FoundObservables) -> Any:
        if self.update.data_seconds is None:
            raise UnknownValue("no DataLoader has given a batch for this step: data_seconds is unknown.")
        return self.update.data_seconds

    def _input(self, name: str, found: FoundObservables) -> Any:
        parts = [] if self.known is None else [module for _, module in self.known.parts(self.frame)]
        inputs = self.inputs.of(parts or [found["model"]])
        if not inputs.ask():
            found.coming.add(name)
        return inputs.read(name)

    readers = {  # noqa: RUF012 - never changed
        "model": EventValues._model,
        "optimizer": EventValues._optimizer,
        "loss": _loss,
        "data_seconds": _data_seconds,
        "x": _input,
        "y": _input,
        "inputs": _input,
    }
