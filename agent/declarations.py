"""Declarations of the host: controls, triggers, checkpoint, stop, replay."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection
from typing import Any

from looptap.agent.control.job_hooks import checked_trigger
from looptap.agent.control.replay import replay
from looptap.agent.life_cycle import LifeCycle
from looptap.agent.server.request_dispatcher import RequestDispatcher
from looptap.store.replay_commands import load
from looptap.streams.control import Control

log = logging.getLogger("looptap")


class ControlDeclarations:
    """The host's declarations, stored unless the agent is inert; see `Agent`."""

    def __init__(self, dispatcher: RequestDispatcher, life: LifeCycle) -> None:
        self._job, self._life = dispatcher.commands.job, life
        self._dispatcher = dispatcher

    def control(self, name: str, get: Callable[[], Any], set: Callable[[Any], object], control: Control) -> None:
        """Declare a control. Raises ControlError."""
        if not self._life.inert:
            self._job.controls.declare(name, get, set, control)

    def trigger(self, name: str, function: Callable[[], Any], at: str | Collection[str], doc: str) -> None:
        """Declare a function that clients may call. Raises ControlError."""
        trigger = checked_trigger(function, at, doc, f"the trigger {name!r}")
        if not self._life.inert:
            self._job.triggers[name] = trigger

    def checkpoint(self, function: Callable[[], Any], at: str | Collection[str]) -> None:
        """Declare how a checkpoint is made. Raises ControlError."""
        trigger = checked_trigger(function, at, "", "what makes a checkpoint")
        if not self._life.inert:
            self._job.checkpoint = trigger

    def stop_requested(self) -> bool:
        """Return True if a client has asked the job to stop; note that the job checks."""
        self._job.stop_was_read = True
        return self._job.stop_requested

    def allow(self, on_stop: type[BaseException] | None, may_pause: float | None) -> None:
        """Set whether clients may stop and pause the loop. Raises ValueError."""
        if on_stop is not None:
            if not isinstance(on_stop, type) or not issubclass(on_stop, BaseException):
                raise ValueError(f"on_stop={on_stop!r} must be a class of exceptions.")
            on_stop()  # it must do without arguments
        if may_pause is not None and not 0 < may_pause < float("inf"):
            raise ValueError(f"may_pause={may_pause!r} must be a number of seconds above 0.")
        self._job.on_stop, self._job.pause.bound = on_stop, may_pause

    def replay(self, path: str | os.PathLike[str] | None, strict: bool) -> None:
        """Replay ``path``, or the file named by LOOPTAP_REPLAY. Raises ControlError.

        If the file comes from the environment, an error is a warning unless ``strict``.
        """
        named = path or os.environ.get("LOOPTAP_REPLAY")
        if not named or self._life.inert:
            return
        try:
            source = f"replay of {os.path.basename(named)}"
            replay(load(named), source, self._dispatcher.commands, self._dispatcher.queries)
        except Exception as error:
            if path or strict:
                raise
            log.warning("looptap: LOOPTAP_REPLAY is not done: %s", error)
