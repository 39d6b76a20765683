"""Follows frameworks that announce their epochs and evaluations.

They are found as the job imports them. Each has one method that it calls with the name of what happens. Where it is
called, the guesses from passes over DataLoaders give way to it.
"""

from __future__ import annotations

import inspect
import sys
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from types import FrameType, ModuleType
from typing import Any, NamedTuple

from looptap.integrations.arrivals import once_imported
from looptap.integrations.auto.hooks.call_notice import notice_lookups, notice_returns, notice_words
from looptap.integrations.auto.hooks.passes import EPOCH, EVALUATION
from looptap.integrations.auto.hooks.run_events import RunEvents
from looptap.integrations.auto.hooks.script_agent import STEP
from looptap.integrations.harmless import harmlessly
from looptap.integrations.training_run import ends_with

Decide = Callable[[bool], "str | None"]
"""Returns the event, given whether there was an update since the training or the evaluation began."""


class Framework(NamedTuple):
    """A framework's method, which ``raises`` events by what it is called with."""

    module: str
    owner: str
    loops: tuple[str, ...]
    """The methods that run a training: while one does, the framework announces what it ``announces``."""
    method: str
    begins: str
    announces: frozenset[str]
    raises: Mapping[str, Decide]
    values: Callable[[Any], dict[str, Any]]
    """Returns the observables of such an event."""


FRAMEWORKS = (
    Framework(
        module="ignite.engine.engine",
        owner="Engine",
        loops=("run",),
        method="_fire_event",
        begins="started",
        announces=frozenset({EPOCH, EVALUATION}),
        raises={
            "epoch_completed": lambda learned: EPOCH if learned else None,
            "completed": lambda learned: None if learned else EVALUATION,
        },
        values=lambda engine: {"epoch": engine.state.epoch, "metrics": {**engine.state.metrics}},
    ),
    Framework(
        module="fastai.learner",
        owner="Learner",
        loops=("fit", "validate"),
        method="_call_one",
        begins="before_fit",
        announces=frozenset({EPOCH, EVALUATION}),
        raises={
            "after_epoch": lambda learned: EPOCH if learned else None,
            "after_validate": lambda learned: EVALUATION,
        },
        values=lambda learner: {"epoch": learner.epoch},
    ),
    Framework(
        module="skorch.net",
        owner="NeuralNet",
        loops=("fit_loop",),
        method="notify",
        begins="on_train_begin",
        announces=frozenset({EPOCH}),
        raises={"on_epoch_end": lambda learned: EPOCH},
        values=lambda net: {"epoch": len(net.history)},
    ),
)


def watch_frameworks(events: RunEvents) -> None:
    """Have ``events`` follow each framework once the job imports it."""
    places: dict[str, Callable[[ModuleType], object]] = {
        **{framework.module: _Follower(framework, events).place for framework in FRAMEWORKS},
        "fastai.optimizer": partial(_watch_fastai, events),
        "keras.src.backend.torch.trainer": partial(_watch_keras, events),
    }
    for module, place in places.items():
        once_imported(module, partial(harmlessly, place))


class _Follower:
    """What one framework says, turned into events."""

    def __init__(self, framework: Framework, events: RunEvents) -> None:
        self._framework, self._events = framework, events
        self._begun: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._announces: Callable[[str], bool] = _nothing

    def place(self, module: ModuleType) -> None:
        """Place the notice in the framework; the module has been imported."""
        framework = self._framework
        if (owner := getattr(module, framework.owner, None)) is not None:
            self._announces = announcer(framework.announces, *(getattr(owner, name) for name in framework.loops))
            notice_words(owner, framework.method, self.note)

    def note(self, speaker: Any, word: Any) -> None:
        """Raise the event that a word means, if any; ``speaker`` is the training."""
        framework, word = self._framework, str(getattr(word, "value", word))
        steps = self._events.follow_framework(self._announces)
        if word == framework.begins:
            self._begun[speaker] = steps
        decide = framework.raises.get(word)
        event = None if decide is None else decide(steps > self._begun.get(speaker, 0))
        if event is not None:
            self._events.raise_own(event, framework.values(speaker))


def announcer(events: frozenset[str], *loops: Callable[..., Any]) -> Callable[[str], bool]:
    """Return a function that is True of these events while one of ``loops`` runs."""
    running = frozenset(inspect.unwrap(loop).__code__ for loop in loops)

    def announces(event: str) -> bool:
        if event not in events:
            return False
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code not in running:
            frame = frame.f_back
        return frame is not None

    return announces


def _nothing(event: str) -> bool:
    return False


def _watch_fastai(events: RunEvents, module: ModuleType) -> None:
    """Follow the optimizers of fastai, which are not torch's, as those."""
    notice_returns(module.Optimizer, "__init__", events.own_updates.note_optimizer)
    notice_lookups(module.Optimizer, "zero_grad", events.before_zero_grad)
    notice_returns(module.Optimizer, "step", events.after_step)


def _watch_keras(events: RunEvents, trainer: ModuleType) -> None:
    """Give each training of Keras a `KerasCallback`.

    Keras' optimizers are not torch's. It is added as the training begins: Keras' list of callbacks, which may be the
    job's own, is whole by then.
    """
    announces = announcer(frozenset({STEP, EPOCH, EVALUATION}), trainer.TorchTrainer.fit)
    ends_with(trainer.TorchTrainer, "fit")

    def begin(callbacks: Any) -> None:
        from looptap.integrations.keras import KerasCallback

        if not announces(STEP) or any(isinstance(one, KerasCallback) for one in callbacks.callbacks):
            return
        events.follow_framework(announces)
        if (agent := events.opened_agent()) is None:
            return
        callback = KerasCallback(agent=agent)
        callback.set_params(callbacks.params)
        callback.set_model(callbacks.model)
        callbacks.callbacks.append(callback)
        callbacks._configure_async_dispatch(callbacks.callbacks)  # to another thread if none has to do with batches

    def tested(callbacks: Any, logs: Any) -> None:
        if not announces(EVALUATION):  # else the callback says so
            metrics = dict(logs or {})
            events.raise_own(EVALUATION, {**metrics, "metrics": metrics})

    notice_lookups(trainer.callbacks_module.CallbackList, "on_train_begin", begin)
    notice_lookups(trainer.callbacks_module.CallbackList, "on_epoch_end", lambda callbacks: events.note_epoch())
    notice_words(trainer.callbacks_module.CallbackList, "on_test_end", tested)
