"""Follows frameworks that announce their epochs and evaluations.

They are found as the job imports them. Each has one method that it calls with the name of what happens. Where it is
called, the guesses from passes over DataLoaders give way to it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, NamedTuple

from looptap.integrations.arrivals import once_imported
from looptap.integrations.auto.hooks.call_notice import notice_words
from looptap.integrations.auto.hooks.passes import EPOCH, EVALUATION
from looptap.integrations.auto.hooks.run_events import RunEvents

_NONE: frozenset[str] = frozenset()
Decide = Callable[[bool], "str | None"]
"""Returns the event, given whether there was an update since the training or the evaluation began."""


class Framework(NamedTuple):
    """A framework's method, which ``raises`` events by what it is called with."""

    module: str
    owner: str
    method: str
    begins: str
    announces: frozenset[str]
    raises: Mapping[str, Decide]
    ends: str
    """The word after which guesses count again."""
    values: Callable[[Any], dict[str, Any]]
    """Returns the observables of such an event."""


FRAMEWORKS = (
    Framework(
        "ignite.engine.engine", "Engine", "_fire_event", "started", frozenset({EPOCH, EVALUATION}),
        {"epoch_completed": lambda learned: EPOCH if learned else None,
         "completed": lambda learned: None if learned else EVALUATION},
        "completed", lambda engine: {"epoch": engine.state.epoch, "metrics": {**engine.state.metrics}},
    ),
    Framework(
        "fastai.learner", "Learner", "_call_one", "before_fit", frozenset({EPOCH, EVALUATION}),
        {"after_epoch": lambda learned: EPOCH, "after_validate": lambda learned: EVALUATION},
        "after_fit", lambda learner: {"epoch": learner.epoch},
    ),
    Framework(
        "skorch.net", "NeuralNet", "notify", "on_train_begin", frozenset({EPOCH}),
        {"on_epoch_end": lambda learned: EPOCH}, "on_train_end", lambda net: {"epoch": len(net.history)},
    ),
)  # fmt: skip


def watch_frameworks(events: RunEvents) -> None:
    """Have ``events`` follow each framework once the job imports it."""
    for framework in FRAMEWORKS:
        once_imported(framework.module, _Follower(framework, events).place)


class _Follower:
    """What one framework says, turned into events."""

    def __init__(self, framework: Framework, events: RunEvents) -> None:
        self._framework, self._events = framework, events
        self._begun: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def place(self, module: ModuleType) -> None:
        """Place the notice in the framework; the module has been imported."""
        if (owner := getattr(module, self._framework.owner, None)) is not None:
            notice_words(owner, self._framework.method, self.note)

    def note(self, speaker: Any, word: Any) -> None:
        """Raise the event that a word means, if any; ``speaker`` is the training."""
        framework, word = self._framework, str(getattr(word, "value", word))
        steps = self._events.follow_framework(_NONE if word == framework.ends else framework.announces)
        if word == framework.begins:
            self._begun[speaker] = steps
        decide = framework.raises.get(word)
        event = None if decide is None else decide(steps > self._begun.get(speaker, 0))
        if event is not None:
            self._events.raise_own(event, framework.values(speaker))
