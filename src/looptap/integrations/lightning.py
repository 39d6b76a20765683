"""A callback for `lightning.pytorch` and `pytorch_lightning`.

    from looptap.integrations.lightning import LightningCallback

    trainer = Trainer(..., callbacks=[LightningCallback("mnist")])

Events: ``step`` after each update of the weights, ``epoch``, ``evaluation``, ``log`` with what ``self.log`` says, and
``checkpoint``. A loss is what ``training_step`` returns, summed over the batches that were accumulated; with manual
optimization that returns none, what ``manual_backward`` was called on.
"""

from __future__ import annotations

import functools
import math
import os
import sys
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from looptap.agent.agent import Agent
from looptap.integrations import tee
from looptap.integrations.harmless import harmlessly
from looptap.integrations.training_estimate import EarlyStop
from looptap.integrations.training_run import (
    TrainingRun,
    ends_with,
    harmless,
    optimizer_and_schedule,
    summed,
    turned_loader,
)
from looptap.streams.errors import ControlError

_EVENTS = "on_train_batch_end", "on_train_epoch_end", "on_validation_end"


def _lightnings() -> tuple[ModuleType, ...]:
    """Return each Lightning that is loaded, or one."""
    names = ("lightning.pytorch", "pytorch_lightning")
    loaded = [name for name in names if name in sys.modules]
    if not loaded:
        loaded = [name for name in names if find_spec(name.partition(".")[0]) is not None][:1] or [names[-1]]
    return tuple(import_module(name) for name in loaded)


_LIGHTNINGS = _lightnings()


class LightningCallback(*(one.Callback for one in _LIGHTNINGS)):  # type: ignore[misc]  # which of two packages is loaded is known at run time
    """Raises the events of a Lightning `Trainer`, and offers its controls.

    ``name`` is the name of the run, by default the class of the module. ``options`` are those of `looptap.Agent`;
    ``agent`` is your own agent instead, which stays open. ``dirpath`` is the folder for checkpoints that clients ask
    for, by default the trainer's.

    Clients can stop the training like ``trainer.should_stop``, save a checkpoint, and set the learning rate and the
    factor of an `Echo` that feeds the trainer. Raises TypeError and ValueError for wrong arguments; later nothing
    raises into the training except ``on_stop``.
    """

    def __init__(
        self, name: str | None = None, *, agent: Agent | None = None, dirpath: str | None = None, **options: Any
    ) -> None:
        self._name, self._dirpath = name, dirpath
        self.run = TrainingRun("lightning", name, agent, options)
        self._step = 0
        self._stops_at_epochs = False  # rather than after a validation
        self._manual = False
        self._stored: dict[str, Any] | None = None
        for one in _LIGHTNINGS:
            ends_with(one.Trainer, "fit")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._name!r})"

    # ------------------------------------------------------------ begin and end

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Forget what was loaded for a training that has not started."""
        self._stored = None

    @harmless
    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Open the agent."""
        agent = self.run.begin(type(pl_module).__name__, lambda: dict(pl_module.hparams) or None, trainer)
        self.run.hear_first(self, LightningCallback.__bases__, trainer, *_EVENTS)
        self.run.expose(model=pl_module, state=trainer.state, echo=turned_loader(trainer.train_dataloader))
        self.run.expose_each("optimizer", [optimizer_and_schedule(one, None)[0] for one in trainer.optimizers])
        self.run.expose_each("scheduler", [config.scheduler for config in trainer.lr_scheduler_configs])
        self.run.checkpoint(self._save, at="step", together=True)
        self.run.at_end(tee.start(agent, ["lightning"]).stop)
        self._step = trainer.global_step
        self._manual = not pl_module.automatic_optimization
        harmlessly(self._expect, trainer)
        self.run.resume(self._stored, trainer.global_rank)

    @harmless
    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Close the agent."""
        self.run.end()

    @harmless
    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Close the agent, and say why."""
        self.run.end(f"the training ended with {type(exception).__name__}")

    # ------------------------------------------------------------ events

    @harmless
    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
        """Note the loss of a backward pass of a manual optimization."""
        if self.run.agent is not None and not pl_module.automatic_optimization:
            self.run.losses.append(loss.detach())

    @harmless
    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Raise ``step`` if this batch has updated the weights."""
        if self.run.agent is None:
            return
        returned = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if returned is not None and hasattr(returned, "detach"):
            if not pl_module.automatic_optimization:
                self.run.losses.clear()
            self.run.losses.append(returned.detach())
        self.run.batches.append(batch)
        updated, self._step = trainer.global_step != self._step, trainer.global_step
        if updated or self._manual:
            self.run.estimate.trained()
        if not updated:
            return
        losses, batches = self.run.updated()
        event: dict[str, Any] = {"step": self._step, "epoch": trainer.current_epoch, "batch_idx": batch_idx}
        event |= {"batch": batch, "batches": tuple(batches), "outputs": outputs, **summed(losses)}
        self.run.emit("step", event)
        self._stop(trainer)

    @harmless
    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Raise ``epoch``."""
        if self._stops_at_epochs:
            self.run.estimate.validated(trainer.callback_metrics)
        self.run.emit("epoch", {"epoch": trainer.current_epoch, "step": trainer.global_step})
        self._stop(trainer)

    @harmless
    def on_validation_batch_end(self, trainer: Any, pl_module: Any, *what: Any, **more: Any) -> None:
        """Count a batch of a validation, for the estimate of the remaining time."""
        self.run.estimate.validating()

    @harmless
    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Raise ``evaluation`` with the metrics, as early stopping sees them."""
        if self.run.agent is None or trainer.sanity_checking:
            return
        metrics = {**trainer.callback_metrics}
        if not self._stops_at_epochs:
            self.run.estimate.validated(metrics)
        event = {"step": trainer.global_step, "epoch": trainer.current_epoch, **metrics, "metrics": metrics}
        self.run.emit("evaluation", event)

    def _expect(self, trainer: Any) -> None:
        """Expose the estimate of the remaining time.

        With manual optimization it counts batches, since a batch may have several updates, or none; then a training
        that ends after a number of updates has no estimate.
        """
        if self._manual and trainer.max_steps >= 0:
            return
        every, epochs, early = trainer.val_check_batch, trainer.check_val_every_n_epoch, trainer.early_stopping_callback
        self._stops_at_epochs = bool(getattr(early, "_check_on_train_epoch_end", False))
        if epochs is not None:
            every = min(every, trainer.num_training_batches) * epochs
        if self._stops_at_epochs:
            every = trainer.num_training_batches
        every = every / trainer.accumulate_grad_batches if trainer.enable_validation or early is not None else math.inf
        stop = None
        if early is not None:
            stop = EarlyStop(
                metric=early.monitor,
                patience=early.patience,
                min_delta=early.min_delta,
                larger=early.mode == "max",
                like="lightning",
                set_patience=functools.partial(setattr, early, "patience"),
                good=early.stopping_threshold,
                diverged=early.divergence_threshold,
            )
        if self._manual:
            epochs = trainer.max_epochs if trainer.max_epochs is not None and trainer.max_epochs >= 0 else math.inf
            steps = trainer.num_training_batches * epochs - trainer.fit_loop.total_batch_idx - 1
        else:
            steps = trainer.estimated_stepping_batches - trainer.global_step
        self.run.expect(steps, math.ceil(every) if math.isfinite(every) else None, stop)

    # ------------------------------------------------------------ checkpoints

    @harmless
    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Raise ``checkpoint``."""
        self.run.emit("checkpoint", {"step": trainer.global_step, "epoch": trainer.current_epoch})

    def state_dict(self) -> dict[str, Any]:
        """Return the agent's state, for the checkpoint."""
        return self.run.state_dict("checkpoint")

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Note the agent's state, from which it resumes when the training starts."""
        self._stored = state_dict

    def _save(self) -> str:
        """Save a checkpoint, resumable like the trainer's own."""
        trainer = self.run.trainer
        if trainer is None:
            raise ControlError("the training has ended.")
        own = getattr(trainer.checkpoint_callback, "dirpath", None)
        folder = self._dirpath or own or os.path.join(trainer.default_root_dir, "checkpoints")
        path = os.path.join(folder, f"looptap-step={trainer.global_step}.ckpt")
        trainer.save_checkpoint(path)
        return path

    def _stop(self, trainer: Any) -> None:
        if self.run.stops:
            trainer.should_stop = True
