"""A tracker for Accelerate, which also raises the events of the loop.

    from looptap.integrations.accelerate import AccelerateTracker

    accelerator = Accelerator(log_with=AccelerateTracker("bert-tiny"))
    ...
    accelerator.init_trackers("project")

Events: ``step`` after each update of the weights by a prepared optimizer, ``log`` with what ``accelerator.log`` says,
and ``checkpoint`` where ``accelerator.save_state`` begins. A loss is what ``accelerator.backward`` was called on, its
mean over the batches that were accumulated. Epochs and evaluations are the script's own, and Accelerate knows none.
"""

from __future__ import annotations

import json
import os
import sys
import weakref
from typing import Any

import accelerate
from accelerate.tracking import GeneralTracker

from looptap.agent.agent import Agent
from looptap.integrations.callers import argument_of, caller_of
from looptap.integrations.noted_method import NotedMethod
from looptap.integrations.training_run import TrainingRun, harmless, summed, turned_loader, without_wrappers

STATE_FILE = "looptap-{rank}.json"
"""The agent's state, in the folder of a checkpoint of each rank."""


class AccelerateTracker(GeneralTracker):  # type: ignore[misc]  # accelerate is not seen by the type checker
    """Raises the events of a loop that uses `accelerate.Accelerator`.

    ``name`` is the name of the run, by default the project's. ``options`` are those of `looptap.Agent`; ``agent`` is
    your own agent instead, which stays open, and which `tracker` returns.

    Clients can set the learning rate. ``looptap stop`` ends the job as Ctrl-C does, unless ``on_stop`` says otherwise.
    Raises TypeError and ValueError for wrong arguments; later nothing raises into the loop except ``on_stop``.
    """

    name = "looptap"
    requires_logging_directory = False
    main_process_only = False

    def __init__(self, name: str | None = None, *, agent: Agent | None = None, **options: Any) -> None:
        self._run_name = name
        if agent is None:
            options.setdefault("on_stop", KeyboardInterrupt)
        self.run = TrainingRun("accelerate", name, agent, options)
        self._hooked: list[weakref.ref[Any]] = []
        self._step = 0
        super().__init__()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._run_name!r})"

    @property
    def tracker(self) -> Agent | None:
        """The agent, once trackers are initialized."""
        return self.run.agent

    # ------------------------------------------------------------ what Accelerate calls

    @harmless
    def start(self) -> None:
        """Open the agent, and begin to note losses and steps."""
        frame = sys._getframe(1)
        accelerator = caller_of(frame, accelerate.Accelerator)
        self.run.begin(argument_of(frame, "init_trackers", "project_name"), trainer=accelerator)
        self._hooked, self._step = [], 0
        if accelerator is None:
            raise RuntimeError("no Accelerator starts this tracker: it sees what is logged, and no steps.")
        self.run.at_end(NotedMethod(accelerator, "backward", self._note).stop)
        self.run.at_end(accelerator.register_save_state_pre_hook(self._saves).remove)
        self.run.at_end(accelerator.register_load_state_pre_hook(self._loads).remove)
        self._look()

    @harmless
    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Expose the configuration of the trackers as ``config``."""
        self.run.expose(config=dict(values))

    @harmless
    def log(self, values: dict[str, Any], step: int | None = None, **how: Any) -> None:
        """Raise ``log``."""
        self.run.log(values, self._step if step is None else step)

    @harmless
    def finish(self) -> None:
        """Close the agent, and leave accelerator and optimizers as they were."""
        self.run.end()

    # ------------------------------------------------------------ inside

    @harmless
    def _note(self, result: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        """Note what ``accelerator.backward`` was called on; look for what was prepared."""
        self._look()
        loss = arguments[0] if arguments else keywords["loss"]
        self.run.losses.append(loss.detach())

    def _dropped(self, result: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        """Forget losses whose gradients the loop has zeroed without a step."""
        if len(self._hooked) == 1:
            self.run.losses.clear()

    def _look(self) -> None:
        """Follow the optimizers that the accelerator has prepared, and expose all of it."""
        accelerator = self.run.trainer
        if accelerator is None:
            return
        prepared = vars(accelerator)  # it keeps what it has prepared under names of its own
        if len(prepared["_optimizers"]) == len(self._hooked):
            return
        optimizers = [without_wrappers(one, "optimizer") for one in prepared["_optimizers"]]
        known = {id(one()) for one in self._hooked}
        for one in optimizers:
            if id(one) not in known:
                self.run.at_end(one.register_step_post_hook(self._stepped).remove)
                self.run.at_end(NotedMethod(one, "zero_grad", self._dropped).stop)
        self._hooked = [weakref.ref(one) for one in optimizers]
        parts = {
            "model": [accelerator.unwrap_model(one) for one in prepared["_models"]],
            "optimizer": optimizers,
            "scheduler": [without_wrappers(one, "scheduler") for one in prepared["_schedulers"]],
            "echo": [one for loader in prepared["_dataloaders"] if (one := turned_loader(loader)) is not None],
        }
        for name, things in parts.items():
            self.run.expose_each(name, things)

    @harmless
    def _stepped(self, optimizer: Any, arguments: Any, keywords: Any) -> None:
        """Raise ``step``, where the gradients still stand."""
        self._step += 1
        losses, _ = self.run.updated()
        event: dict[str, Any] = {"step": self._step}
        accelerator = self.run.trainer
        if accelerator is not None:
            event |= summed(losses, accelerator.gradient_accumulation_steps)
        self.run.emit("step", event)

    @harmless
    def _saves(self, models: Any, weights: Any, folder: str) -> None:
        """Raise ``checkpoint``, and save the agent's state beside that of the loop."""
        self.run.emit("checkpoint", {"step": self._step, "path": str(folder)})
        with open(self._state_file(folder), "w", encoding="utf-8") as file:
            json.dump({"step": self._step, "agent": self.run.state_dict()}, file)

    @harmless
    def _loads(self, models: Any, folder: str) -> None:
        """Continue from the agent's state of a checkpoint, if it has one."""
        if os.path.exists(path := self._state_file(folder)):
            with open(path, encoding="utf-8") as file:
                found = json.load(file)
            self._step = found["step"]
            self.run.losses.clear()
            self.run.resume(found["agent"], 0)

    def _state_file(self, folder: str) -> str:
        accelerator = self.run.trainer
        return os.path.join(folder, STATE_FILE.format(rank=0 if accelerator is None else accelerator.process_index))
