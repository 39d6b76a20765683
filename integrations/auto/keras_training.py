"""A training of Keras in a script as it is. Imports Keras, which the script has imported."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from looptap.integrations.auto.hooks.run_events import RunEvents
from looptap.integrations.keras import KerasCallback
from looptap.streams.events import lazy


class WatchedTraining(KerasCallback):
    """The callback of one training, which keeps neither model nor optimizer alive."""

    def on_train_begin(self, logs: Any = None) -> None:
        """Begin as `KerasCallback` does."""
        super().on_train_begin(logs)
        self.run.expose(model=lazy(weakref.ref(self.model)), optimizer=lazy(weakref.ref(self.model.optimizer)))


def watch_training(callbacks: Any, events: RunEvents, announces: Callable[[str], bool]) -> None:
    """Add the callback to Keras' list of them, unless the script has added one.

    Keras calls callbacks in another thread if none has anything to do at a batch, which it decides anew here.
    """
    if any(isinstance(one, KerasCallback) for one in callbacks.callbacks):
        return
    events.follow_framework(announces)
    if (agent := events.opened_agent()) is None:
        return
    callback = WatchedTraining(agent=agent)
    callback.set_params(callbacks.params)
    callback.set_model(callbacks.model)
    callbacks.callbacks.append(callback)
    callbacks._configure_async_dispatch(callbacks.callbacks)
