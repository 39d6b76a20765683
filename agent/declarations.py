"""What a host declares for those who steer its job: controls, triggers, how to make a checkpoint, how it stops."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection
from typing import Any

from looptap.agent.control.job_hooks import checked_trigger
from looptap.agent.control.replay import replay
from looptap.agent.loop.event_sources import EventSources, NullEventSources
from looptap.agent.server.request_dispatcher import RequestDispatcher
from looptap.store.replay_commands import load
from looptap.streams.control import Control

log = logging.getLogger("looptap")


class ControlDeclarations:
    """The part of an `Agent` by which a client changes the job."""

    _service: RequestDispatcher
    _taps: EventSources

    def control(
        self,
        name: str,
        get: Callable[[], Any],
        set: Callable[[Any], object],
        *,
        type: type | None = None,
        minimum: float | None = None,
        maximum: float | None = None,
        choices: Collection[Any] = (),
        unit: str = "",
        doc: str = "",
        at: str | Collection[str] = "",
    ) -> None:
        """Declare a control: ``get`` reads it, from any thread and without effect; ``set`` changes it, in the loop.

        ``type`` is int, float, bool or str, without one that of the first choice, else float; ``at`` names the events
        at which ``set`` may be called, by default any, the first of ``groups`` unless the client says. Controls that
        are declared as attributes (`looptap.Control`) are found on exposed objects. Raises ControlError.

        >>> import looptap
        >>> settings = {"lr": 0.1}
        >>> agent = looptap.Agent("doctest", enabled=False)
        >>> agent.control("lr", lambda: settings["lr"], lambda lr: settings.update(lr=lr), minimum=0, maximum=1)
        """
        declaration = Control(type, minimum=minimum, maximum=maximum, choices=choices, unit=unit, doc=doc, at=at)
        if not isinstance(self._taps, NullEventSources):
            self._service.commands.job.controls.declare(name, get, set, declaration)

    def trigger(self, name: str, function: Callable[[], Any], *, at: str | Collection[str] = "", doc: str = "") -> None:
        """Let clients ask for ``function`` to be called once in the loop, by name. Raises ControlError.

        >>> import looptap
        >>> looptap.Agent("doctest", enabled=False).trigger("evaluate", lambda: 0.98)
        """
        trigger = checked_trigger(function, at, doc, f"the trigger {name!r}")
        if not isinstance(self._taps, NullEventSources):
            self._service.commands.job.triggers[name] = trigger

    def checkpoint(self, function: Callable[[], Any], *, at: str | Collection[str] = "") -> None:
        """Let clients ask for a checkpoint, alone or before a change; ``function`` makes it and may return its path.

        >>> import looptap
        >>> looptap.Agent("doctest", enabled=False).checkpoint(lambda: "step3.pt")
        """
        trigger = checked_trigger(function, at, "", "what makes a checkpoint")
        if not isinstance(self._taps, NullEventSources):
            self._service.commands.job.checkpoint = trigger

    @property
    def stop_requested(self) -> bool:
        """Whether a client has asked the job to stop: for loops that want to end politely.

        >>> import looptap
        >>> looptap.Agent("doctest", enabled=False).stop_requested
        False
        """
        job = self._service.commands.job
        job.stop_looked_at = True
        return job.stop_requested

    def _allow(
        self, on_stop: type[BaseException] | None, may_pause: float | None, replayed: str | os.PathLike[str] | None,
        strict: bool,
    ) -> None:  # fmt: skip
        """Note what the host allows, and begin a replay. Raises ValueError, ControlError among them.

        A replay that the environment names and that cannot be done is a warning, unless ``strict``.
        """
        steering = self._service.commands
        if on_stop is not None:
            if not isinstance(on_stop, type) or not issubclass(on_stop, BaseException):
                raise ValueError(f"on_stop={on_stop!r} must be a class of exceptions.")
            on_stop()  # it must do without arguments
        if may_pause is not None and not 0 < may_pause < float("inf"):
            raise ValueError(f"may_pause={may_pause!r} must be a number of seconds above 0.")
        steering.job.on_stop, steering.job.pause.bound = on_stop, may_pause
        path = replayed or os.environ.get("LOOPTAP_REPLAY")
        if path and not isinstance(self._taps, NullEventSources):
            try:
                replay(load(path), f"replay of {os.path.basename(path)}", steering, self._service.queries)
            except Exception as error:
                if replayed or strict:
                    raise
                log.warning("looptap: LOOPTAP_REPLAY is not done: %s", error)
