"""Hooks of a job for clients: controls, triggers, checkpoint, pause, stop."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from looptap.agent.control.knobs.control_watch import ControlWatches
from looptap.agent.control.knobs.controls import BoundControls
from looptap.agent.control.pause import Pause
from looptap.agent.control.process_group import group
from looptap.agent.control.profiling.step_recorder import StepRecorder
from looptap.agent.loop.event_sources import EventSources
from looptap.protocol.replies import ControlReport
from looptap.streams.control import Control
from looptap.streams.errors import ControlError, LooptapError
from looptap.streams.events import held
from looptap.streams.loop.loop_observer import LoopObserver
from looptap.streams.values.snapshots import snapshot

MAX_RESULT_BYTES = 10_000
"""Bytes of a host function's result that a record keeps."""

log = logging.getLogger("looptap")


class Trigger(NamedTuple):
    """A function of the host that clients can call."""

    function: Callable[[], Any]
    at: tuple[str, ...]
    doc: str
    together: bool = False
    """True if all ranks of the job have to call it at the same event."""


class JobHooks:
    """The host's declarations for clients, and its observers of commands and pauses."""

    def __init__(self, sources: EventSources, default_event: str, watches: ControlWatches) -> None:
        self.default_event = default_event
        """The event type for commands that name none and are safe at any."""
        self.own_name = sources.own_name
        self.controls = BoundControls(lambda: {name: held(thing) for name, thing in [*sources.exposed.items()]})
        self.watches = watches
        """Whether the job keeps what commands have set."""
        self.triggers: dict[str, Trigger] = {}
        self.checkpoint: Trigger | None = None
        self.pause = Pause()
        self.on_stop: Callable[[], BaseException] | None = None
        self.stop_requested = False
        self.stop_was_read = False
        """True once the host has read `Agent.stop_requested`."""
        self.recorder: StepRecorder | None = None
        """The one that runs: a profile, or a record of memory."""
        self.observers = ExposedObservers(sources.exposed)
        self.exclude_pause = sources.exclude_pause

    def saving(self) -> Trigger:
        """Return the checkpoint function. Raises ControlError if none is declared."""
        if self.checkpoint is None:
            raise ControlError(
                "this job cannot save a checkpoint: it must first call agent.checkpoint(function). Without that, a "
                "call can save the weights: looptap call RUN \"torch.save(model.state_dict(), 'model.pt')\"."
            )
        return self.checkpoint

    def describe(self, path: str = "") -> ControlReport:
        """Describe all controls and triggers of the job, and the attribute at ``path``."""
        triggers = {name: trigger.doc for name, trigger in self.triggers.items()}
        return ControlReport(
            controls=self.controls.describe(path),
            triggers=triggers,
            checkpoint=self.checkpoint is not None,
            may_pause=self.pause.most(group()),
        )

    def end_recording(self) -> None:
        """End a recording, since no event ends it any more."""
        recorder, self.recorder = self.recorder, None
        if recorder is not None:
            recorder.abandon()

    def after_fork(self) -> None:
        """End an inherited recording in a forked child."""
        recorder, self.recorder = self.recorder, None
        if recorder is not None:
            recorder.after_fork()

    def close(self) -> None:
        """Release the host's objects, and end a pause."""
        self.pause.resume()
        self.triggers.clear()
        self.controls = BoundControls(dict)
        self.checkpoint = None


class ExposedObservers:
    """The `LoopObserver`s among an agent's exposed objects."""

    def __init__(self, exposed: Mapping[str, Any]) -> None:
        self._exposed = exposed

    def current(self) -> LoopObserver:
        """Return an observer that calls all present ones. Loop thread only."""
        found = {id(one): one for one in list(self._exposed.values()) if issubclass(type(one), LoopObserver)}
        return _EachOf(tuple(found.values()))

    def facts_to_keep(self) -> dict[str, Any]:
        """Return the facts that observers keep for later runs, by name. Any thread."""
        found = {}
        for name, one in list(self._exposed.items()):
            if issubclass(type(one), LoopObserver):
                try:
                    found[name] = one.facts_to_keep()
                except Exception as error:
                    log.warning("looptap: %s of an exposed object raised %r.", type(one).__name__, error)
        return {name: facts for name, facts in found.items() if facts is not None}


class _EachOf(LoopObserver):
    """Several observers as one; an exception of one is logged and stops no other."""

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


def short_result(value: Any) -> Any:
    """Return a host function's result as plain data if that is small, else its repr."""
    try:
        return snapshot(value, MAX_RESULT_BYTES)[0]
    except LooptapError:
        return f"{value!r:.200}"


def checked_trigger(function: Callable[[], Any], at: Any, doc: str, what: str, together: bool = False) -> Trigger:
    """Build the trigger of a host function. Raises ControlError."""
    if not callable(function):
        raise ControlError(f"{what} is a function without arguments, not {function!r:.80}.")
    doc = doc or (getattr(function, "__doc__", None) or "").strip().split("\n")[0]
    return Trigger(function, Control(at=at).at, doc, together)
