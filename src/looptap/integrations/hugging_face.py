"""A callback for the `Trainer` of transformers, with the loss of each step.

    from looptap.integrations.hugging_face import HuggingFaceCallback

    trainer = Trainer(..., callbacks=[HuggingFaceCallback("bert-tiny")])

Events: ``step`` after each update of the weights, where the gradients still stand; ``step_end`` where the trainer has
finished it and may save; ``epoch``, ``evaluation``, ``log`` and ``checkpoint``. Transformers hands its callbacks no
loss: it is what ``training_step`` returns, summed over the batches that were accumulated.
"""

from __future__ import annotations

import functools
import math
import sys
from typing import Any

import transformers
from transformers import EarlyStoppingCallback, TrainerCallback

from looptap.agent.agent import Agent
from looptap.integrations.callers import caller_of
from looptap.integrations.harmless import harmlessly
from looptap.integrations.noted_method import NotedMethod
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

STATE = "looptap"
"""The place of the agent's state among those of callbacks, in ``trainer_state.json``."""
_EVENTS = "on_optimizer_step", "on_step_end", "on_epoch_end", "on_evaluate", "on_log", "on_save"


class HuggingFaceCallback(TrainerCallback):  # type: ignore[misc]  # transformers is not seen by the type checker
    """Raises the events of a `transformers.Trainer`, and offers its controls.

    ``name`` is the name of the run, by default the trainer's ``run_name``, else the last part of its ``output_dir``.
    ``options`` are those of `looptap.Agent`; ``agent`` is your own agent instead, which stays open.

    Clients can stop the training as an early stop does, save a checkpoint like the trainer's own, and set the learning
    rate and the factor of an `Echo` that feeds the trainer. Raises TypeError and ValueError for wrong arguments; later
    nothing raises into the training except ``on_stop``.
    """

    def __init__(self, name: str | None = None, *, agent: Agent | None = None, **options: Any) -> None:
        self._name = name
        self.run = TrainingRun("transformers", name, agent, options)
        self._logs: dict[str, Any] = {}
        self._finished = self._epoch_ends = False
        ends_with(transformers.Trainer, "train")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._name!r})"

    # ------------------------------------------------------------ begin and end

    @harmless
    def on_train_begin(self, args: Any, state: Any, control: Any, **what: Any) -> None:
        """Open the agent, and begin to note losses."""
        trainer = caller_of(sys._getframe(1), transformers.Trainer)
        self.run.begin(args.run_name or args.output_dir, args.to_dict, trainer)
        self._logs, self._finished, self._epoch_ends = {}, False, False
        optimizer, schedule = optimizer_and_schedule(what.get("optimizer"), what.get("lr_scheduler"))
        self.run.expose(model=what.get("model"), optimizer=optimizer, scheduler=schedule)
        self.run.expose(state=state, echo=turned_loader(what.get("train_dataloader")))
        if trainer is None:
            raise RuntimeError("no transformers.Trainer calls this callback: its events have no loss, and no batch.")
        self.run.hear_first(self, HuggingFaceCallback.__bases__, trainer.callback_handler, *_EVENTS)
        self.run.at_end(NotedMethod(trainer, "training_step", self._note).stop)
        self.run.checkpoint(self._save, at="step_end", together=True)
        harmlessly(self._expect, args, state, what.get("train_dataloader"))
        stored = (state.stateful_callbacks or {}).get(STATE) or {}
        self.run.resume(stored, args.process_index)
        if stored.get("epoch_ends"):  # the trainer ends no epoch of which it has no step left
            self.run.emit("epoch", {"epoch": state.epoch, "step": state.global_step, "logs": {}})

    @harmless
    def on_train_end(self, args: Any, state: Any, control: Any, **what: Any) -> None:
        """Close the agent, and leave the trainer as it was."""
        self.run.end()

    # ------------------------------------------------------------ events

    @harmless
    def on_optimizer_step(self, args: Any, state: Any, control: Any, **what: Any) -> Any:
        """Raise ``step``: the weights are updated, and their gradients are still there."""
        if self.run.agent is None:
            return None
        self.run.estimate.trained()
        losses, batches = self.run.updated()
        event: dict[str, Any] = {"step": state.global_step + 1, "epoch": state.epoch, **summed(losses)}
        if batches:
            event |= {"batch": batches[-1], "batches": tuple(batches)}
        trainer = self.run.trainer
        if trainer is not None and trainer.accelerator.optimizer_step_was_skipped:
            event["skipped"] = True
        event["logs"] = self._logs
        del losses, batches
        self.run.emit("step", event)
        return self._stopped(control)

    @harmless
    def on_step_end(self, args: Any, state: Any, control: Any, **what: Any) -> Any:
        """Raise ``step_end``: the trainer has counted the step, and may save."""
        self._finished = True
        try:
            self.run.emit("step_end", {"step": state.global_step, "epoch": state.epoch})
        finally:
            self._finished = False
        self._epoch_ends = state.epoch is not None and float(state.epoch).is_integer()
        self._store(state, control)
        return self._stopped(control)

    @harmless
    def on_epoch_end(self, args: Any, state: Any, control: Any, **what: Any) -> Any:
        """Raise ``epoch``."""
        self.run.emit("epoch", {"epoch": state.epoch, "step": state.global_step, "logs": self._logs})
        self._epoch_ends = False
        self._store(state, control)
        return self._stopped(control)

    @harmless
    def on_evaluate(self, args: Any, state: Any, control: Any, **what: Any) -> None:
        """Raise ``evaluation`` with the metrics."""
        metrics = what.get("metrics") or {}
        self.run.estimate.validated(metrics)
        self.run.emit("evaluation", {"step": state.global_step, "epoch": state.epoch, **metrics, "metrics": metrics})
        self._store(state, control)

    @harmless
    def on_prediction_step(self, args: Any, state: Any, control: Any, **what: Any) -> None:
        """Count a batch of an evaluation, for the estimate of the remaining time."""
        self.run.estimate.validating()

    @harmless
    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **what: Any) -> None:
        """Raise ``log`` with what the trainer logs."""
        self._logs = {**(logs or {})}
        self.run.log({"epoch": state.epoch, **self._logs}, state.global_step)
        self._store(state, control)

    @harmless
    def on_save(self, args: Any, state: Any, control: Any, **what: Any) -> None:
        """Raise ``checkpoint`` with its path."""
        path = f"{args.output_dir}/checkpoint-{state.global_step}"
        self.run.emit("checkpoint", {"step": state.global_step, "epoch": state.epoch, "path": path})

    # ------------------------------------------------------------ inside

    def _expect(self, args: Any, state: Any, loader: Any) -> None:
        """Expose the estimate of the remaining time."""
        every = state.eval_steps if args.eval_strategy == "steps" else None
        if args.eval_strategy == "epoch" and hasattr(loader, "__len__"):
            every = math.ceil(len(loader) / args.gradient_accumulation_steps)
        callbacks = getattr(self.run.trainer, "callback_handler", None)
        found = (one for one in getattr(callbacks, "callbacks", ()) if isinstance(one, EarlyStoppingCallback))
        early, stop = next(found, None), None
        if early is not None:
            metric = args.metric_for_best_model
            stop = EarlyStop(
                metric=metric if metric.startswith("eval_") else f"eval_{metric}",
                patience=early.early_stopping_patience,
                min_delta=early.early_stopping_threshold,
                larger=bool(args.greater_is_better),
                like="huggingface",
                set_patience=functools.partial(setattr, early, "early_stopping_patience"),
            )
        self.run.expect(state.max_steps - state.global_step, every, stop)

    @harmless
    def _note(self, loss: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        """Note the batch and the loss of one call of ``training_step``."""
        self.run.batches.append(arguments[1] if len(arguments) > 1 else keywords.get("inputs"))
        self.run.losses.append(loss)

    def _stopped(self, control: Any) -> Any:
        if not self.run.stops:
            return None
        control.should_training_stop = True
        return control

    def _store(self, state: Any, control: Any) -> None:
        """Add the agent's state to that of the trainer if it is about to save.

        The trainer logs and evaluates first, so this is called again after each of these events.
        """
        if control.should_save and self.run.agent is not None:
            state.stateful_callbacks[STATE] = self._state()

    def _state(self) -> dict[str, Any]:
        """Return the agent's state, and whether the event of the epoch is still to come."""
        return {**self.run.state_dict("checkpoint"), "epoch_ends": self._epoch_ends}

    def _save(self) -> str:
        """Save a checkpoint, resumable like the trainer's own."""
        trainer = self.run.trainer
        if trainer is None or self.run.agent is None or not self._finished:
            raise ControlError("a checkpoint is saved where a step has ended: ask for it with on='step_end'.")
        self._epoch_ends = float(trainer.state.epoch).is_integer()
        trainer.state.stateful_callbacks[STATE] = self._state()
        trainer._save_checkpoint(trainer.model_wrapped, trial=None)
        trainer.control = trainer.callback_handler.on_save(trainer.args, trainer.state, trainer.control)
        return f"{trainer.args.output_dir}/checkpoint-{trainer.state.global_step}"
