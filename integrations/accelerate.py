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

import sys
import weakref
from collections.abc import Callable
from typing import Any

import accelerate
from accelerate.tracking import GeneralTracker

from looptap.agent.agent import Agent
from looptap.integrations.callers import argument_of, caller_of
from looptap.integrations.training_run import TrainingRun, harmless, turned_loader, unwrapped


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
        self._accelerator: Any = lambda: None
        self._handles: list[Any] = []
        self._hooked: list[weakref.ref[Any]] = []
        self._losses: list[Any] = []
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
        self.run.begin(argument_of(frame, "init_trackers", "project_name"))
        accelerator = caller_of(frame, accelerate.Accelerator)
        if accelerator is None:
            raise RuntimeError("no Accelerator starts this tracker: it sees what is logged, and no steps.")
        self._accelerator = weakref.ref(accelerator)
        if not isinstance(vars(accelerator).get("backward"), _NotedBackward):
            accelerator.backward = _NotedBackward(accelerator.backward, self)
        self._handles.append(accelerator.register_save_state_pre_hook(self._saves))
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
        accelerator = self._accelerator()
        if accelerator is not None and isinstance(vars(accelerator).get("backward"), _NotedBackward):
            del accelerator.backward
        for handle in self._handles:
            handle.remove()
        self._handles, self._hooked, self._losses = [], [], []
        self.run.end()

    # ------------------------------------------------------------ inside

    @harmless
    def note(self, loss: Any) -> None:
        """Note what ``accelerator.backward`` is called on; look for what was prepared."""
        if self.run.agent is not None:
            self._look()
            self._losses.append(loss.detach())

    def _look(self) -> None:
        """Follow the optimizers that the accelerator has prepared, and expose all of it."""
        accelerator = self._accelerator()
        if accelerator is None:
            return
        prepared = vars(accelerator)  # it keeps what it has prepared under names of its own
        if len(prepared["_optimizers"]) == len(self._hooked):
            return
        optimizers = [unwrapped(one, "optimizer") for one in prepared["_optimizers"]]
        known = {id(one()) for one in self._hooked}
        for one in optimizers:
            if id(one) not in known:
                self._handles.append(one.register_step_post_hook(self._stepped))
        self._hooked = [weakref.ref(one) for one in optimizers]
        parts = {
            "model": [accelerator.unwrap_model(one) for one in prepared["_models"]],
            "optimizer": optimizers,
            "scheduler": [unwrapped(one, "scheduler") for one in prepared["_schedulers"]],
            "echo": [one for loader in prepared["_dataloaders"] if (one := turned_loader(loader)) is not None],
        }
        for name, things in parts.items():
            names = [name] if len(things) == 1 else [f"{name}{index}" for index in range(len(things))]
            self.run.expose(**dict(zip(names, things, strict=True)))

    @harmless
    def _stepped(self, optimizer: Any, arguments: Any, keywords: Any) -> None:
        """Raise ``step``, where the gradients still stand."""
        self._step += 1
        losses, self._losses = self._losses, []
        event: dict[str, Any] = {"step": self._step}
        accelerator = self._accelerator()
        if losses and accelerator is not None:
            parts = accelerator.gradient_accumulation_steps
            loss = losses[0] / parts if parts > 1 else losses[0]
            for other in losses[1:]:
                loss = loss + other / parts
            event |= {"loss": loss, "losses": tuple(losses)}
        self.run.emit("step", event)

    @harmless
    def _saves(self, models: Any, weights: Any, folder: str) -> None:
        self.run.emit("checkpoint", {"step": self._step, "path": str(folder)})


class _NotedBackward:
    """``backward`` of one accelerator, of which a tracker notes what it is called on."""

    def __init__(self, backward: Callable[..., Any], tracker: AccelerateTracker) -> None:
        self._backward, self._tracker = backward, weakref.ref(tracker)

    def __call__(self, loss: Any, **how: Any) -> Any:
        tracker = self._tracker()
        if tracker is not None:
            tracker.note(loss)
        return self._backward(loss, **how)
