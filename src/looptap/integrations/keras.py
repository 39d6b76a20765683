"""A callback for `keras.Model.fit` on torch, with the loss of each step.

    from looptap.integrations.keras import KerasCallback

    model.fit(x, y, callbacks=[KerasCallback("mnist")])

Events: ``step`` after each update of the weights, ``epoch``, ``evaluation`` and ``log``. The ``loss`` of a step is what
``compute_loss`` returned, the mean of the batches that the optimizer accumulated; Keras itself hands its callbacks a
running mean, which is in ``logs``.
"""

from __future__ import annotations

import functools
import os
import sys
from types import FrameType
from typing import Any

import keras

from looptap.agent.agent import Agent
from looptap.integrations.callers import argument_of, caller_of
from looptap.integrations.noted_method import NotedMethod
from looptap.integrations.training_estimate import EarlyStop
from looptap.integrations.training_run import TrainingRun, ends_with, harmless
from looptap.streams.errors import ControlError

_EVENTS = "on_train_batch_end", "on_epoch_end", "on_test_end"


class KerasCallback(keras.callbacks.Callback):  # type: ignore[misc]  # keras is not seen by the type checker
    """Raises the events of `keras.Model.fit`, and offers its controls.

    ``name`` is the name of the run, by default the model's. ``options`` are those of `looptap.Agent`; ``agent`` is your
    own agent instead, which stays open. ``checkpoints`` is a folder for checkpoints that clients ask for; without it
    there are none.

    Clients can stop the training like ``model.stop_training``, save a checkpoint, and set the learning rate. Raises
    RuntimeError on a backend other than torch, TypeError and ValueError for wrong arguments; later nothing raises into
    the training except ``on_stop``.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        agent: Agent | None = None,
        checkpoints: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        if keras.backend.backend() != "torch":
            raise RuntimeError(
                f"Keras computes with {keras.backend.backend()!r}, and looptap sees torch alone: set "
                "KERAS_BACKEND=torch before keras is imported."
            )
        self._name, self._checkpoints = name, checkpoints
        self.run = TrainingRun("keras", name, agent, options)
        self._epoch = self._step = 0
        self._tested = False  # whether this epoch has had a validation
        self._parts_count = 1  # batches of an update
        self._batches_count: int | None = None  # so far, of this training and of those that it resumes
        ends_with(keras.Model, "fit")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._name!r})"

    @harmless
    def on_train_begin(self, logs: Any = None) -> None:
        """Open the agent, and begin to note losses."""
        model = self.model
        agent = self.run.begin(model.name, trainer=model)
        self._epoch = self._step = 0
        self._tested, self._batches_count = False, None
        callbacks = caller_of(sys._getframe(), keras.callbacks.CallbackList)
        if callbacks is not None:
            self.run.hear_first(self, KerasCallback.__bases__, callbacks, *_EVENTS)
        self.run.expose(model=model, optimizer=model.optimizer)
        self.run.at_end(NotedMethod(model, "compute_loss", self._note).stop)
        rate = getattr(model.optimizer, "_learning_rate", None)
        if isinstance(rate, keras.Variable):
            agent.control(
                "optimizer.lr", lambda: float(rate.value), rate.assign, minimum=0, at="step", doc="the learning rate"
            )
        if self._checkpoints is not None:
            self.run.checkpoint(self._save, at="step")

    @harmless
    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Note the number of the epoch; before the first, how far the model has come."""
        self._epoch = epoch
        if self._batches_count is not None:
            return
        optimizer = self.model.optimizer  # now: another callback may have restored the model at the beginning
        self._parts_count = getattr(optimizer, "gradient_accumulation_steps", None) or 1
        self._batches_count = int(getattr(optimizer, "_iterations", 0))
        self._step = self._batches_count // self._parts_count
        frame = sys._getframe()
        counts = {"step": self._step, "log": self._batches_count, "epoch": epoch}
        self.run.count_from({**counts, "evaluation": _validations(frame, epoch)})
        batches, epochs = self.params.get("steps"), self.params.get("epochs")
        if batches and epochs:
            ahead = (self._batches_count + batches * (epochs - epoch)) // self._parts_count
            self.run.expose(max_steps=ahead)
            if self.model.steps_per_execution == 1:
                self._expect(ahead - self._step, batches, epoch, frame)

    def _expect(self, steps: int, batches: int, epoch: int, frame: FrameType) -> None:
        """Expose the estimate of the remaining time, from ``epoch`` on."""
        validates = argument_of(frame, "fit", "validation_data") is not None
        often = argument_of(frame, "fit", "validation_freq") if validates else None
        callbacks = getattr(caller_of(frame, keras.callbacks.CallbackList), "callbacks", ())
        early = next((one for one in callbacks if isinstance(one, keras.callbacks.EarlyStopping)), None)
        if early is not None and not early.monitor.startswith("val_"):
            often = 1  # a metric of the training has a value at each epoch
        if not isinstance(often, int):
            self.run.expect(steps)
            return
        stop = None if early is None else self._early_stop(early, often, epoch)
        self.run.expect(steps, batches * often / self._parts_count, stop)

    def _early_stop(self, early: Any, often: int, epoch: int) -> EarlyStop:
        return EarlyStop(
            metric=early.monitor,
            patience=early.patience,
            min_delta=early.min_delta,
            larger=_larger_is_better(early, self.model),
            like="keras",
            set_patience=functools.partial(setattr, early, "patience"),
            baseline=early.baseline,
            warm_up=max(0, early.start_from_epoch // often - epoch // often),
        )

    @harmless
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Raise ``step``, and ``log`` with the running means."""
        if self.run.agent is None:
            return
        self._batches_count = (self._batches_count or 0) + 1
        updated = self._batches_count % self._parts_count == 0
        self._step = self._batches_count // self._parts_count
        logs = dict(logs or {})
        self.run.log({"epoch": self._epoch, **logs}, self._step)
        if updated:
            noted, _ = self.run.updated()
            event = {"step": self._step, "epoch": self._epoch, "batch_idx": batch, **update_of(noted), "logs": logs}
            self.run.estimate.trained()
            self.run.emit("step", event)
            self._stop()

    @harmless
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Raise ``epoch`` with its metrics."""
        logs = dict(logs or {})
        if self._tested or self.run.estimate.stops_early:
            self.run.estimate.validated(logs)
        self._tested = False
        self.run.emit("epoch", {"step": self._step, **logs, "epoch": epoch, "logs": logs})
        self._stop()

    @harmless
    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        """Count a batch of a validation, for the estimate of the remaining time."""
        self.run.estimate.validating()

    @harmless
    def on_test_end(self, logs: Any = None) -> None:
        """Raise ``evaluation`` with the metrics."""
        self._tested = True
        metrics = dict(logs or {})
        event = {"step": self._step, "epoch": self._epoch, **metrics, "metrics": metrics}
        self.run.emit("evaluation", event)

    @harmless
    def on_train_end(self, logs: Any = None) -> None:
        """Close the agent, and leave the model as it was."""
        self.run.end()

    @harmless
    def _note(self, loss: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        """Note a loss that is computed in training, and what from."""
        given = {**dict(zip(("x", "y", "y_pred"), arguments, strict=False)), **keywords}
        if given.get("training", True):
            x, y = given.get("x"), given.get("y")
            del self.run.losses[: max(0, len(self.run.losses) + 1 - self._parts_count)]
            self.run.losses.append(
                {"loss": loss.detach(), "x": x, "y": y, "y_pred": given.get("y_pred"), "batch": (x, y)}
            )

    def _save(self) -> str:
        if self.run.agent is None or self._checkpoints is None:
            raise ControlError("the training has ended.")
        os.makedirs(self._checkpoints, exist_ok=True)
        path = os.path.join(self._checkpoints, f"step={self._step}.keras")
        self.model.save(path)
        self.run.emit("checkpoint", {"step": self._step, "epoch": self._epoch, "path": path})
        return path

    def _stop(self) -> None:
        if self.run.stops:
            self.model.stop_training = True


def update_of(noted: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what an update computed, from what was noted of each of its batches."""
    if not noted:
        return {}
    losses = tuple(one["loss"] for one in noted)
    loss = losses[0] if len(losses) == 1 else sum(losses) / len(losses)
    return {**noted[-1], "loss": loss, "losses": losses, "batches": tuple(one["batch"] for one in noted)}


def _validations(frame: FrameType, epochs: int) -> int:
    """Return how often ``fit`` validates in its first epochs."""
    if argument_of(frame, "fit", "validation_data") is None:
        return 0
    often = argument_of(frame, "fit", "validation_freq")
    return epochs // often if isinstance(often, int) else sum(one <= epochs for one in often or ())


def _larger_is_better(early: Any, model: Any) -> bool:
    """Return what Keras finds out at the end of the first epoch."""
    if early.mode != "auto":
        return bool(early.mode == "max")
    name, metrics = early.monitor.removeprefix("val_"), list(model.metrics)
    metrics += [part for one in metrics for part in getattr(one, "metrics", ())]
    return any(one.name == name and getattr(one, "_direction", "") == "up" for one in metrics)
