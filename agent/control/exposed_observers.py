"""Tells the exposed objects that want to know of commands and pauses: those of this agent, and no other's."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from looptap.streams.loop_observer import LoopObserver

log = logging.getLogger("looptap")


class ExposedObservers:
    """The `LoopObserver`s among what an agent exposes. Loop thread only."""

    def __init__(self, exposed: Mapping[str, Any]) -> None:
        self._exposed = exposed

    def current(self) -> LoopObserver:
        """Return one observer that stands for all that are exposed now."""
        found = {id(one): one for one in list(self._exposed.values()) if issubclass(type(one), LoopObserver)}
        return _EachOf(tuple(found.values()))


class _EachOf(LoopObserver):
    """Several observers as one. What one of them raises is logged, once for each of its calls."""

    def __init__(self, observers: tuple[LoopObserver, ...]) -> None:
        self._observers = observers

    def on_command(self) -> None:
        self._call(lambda observer: observer.on_command())

    def on_pause(self, seconds: float) -> None:
        self._call(lambda observer: observer.on_pause(seconds))

    def _call(self, method: Callable[[LoopObserver], None]) -> None:
        for observer in self._observers:
            try:
                method(observer)
            except Exception as error:
                log.warning("looptap: %s of an exposed object raised %r.", type(observer).__name__, error)
