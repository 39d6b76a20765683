"""`TrainingRun`: the agent of a framework's training, from begin to end.

Training thread. Every adapter of a framework has one. Nothing here raises into the training: what fails is logged once
of each kind, but for ``on_stop``, which the user asked for.
"""

from __future__ import annotations

import functools
import inspect
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from looptap.agent.agent import Agent, exposed_as, name_events
from looptap.agent.run.identity import checked_name
from looptap.integrations.harmless import harmlessly, say_once
from looptap.integrations.logged_values import LoggedValues
from looptap.integrations.training_estimate import EarlyStop, TrainingEstimate
from looptap.streams.control import Control

GROUPS = ("step", "epoch")
"""The events of a framework that enclose each other: an epoch ends the group of its steps."""
SECOND_NAME = "batch"
"""What clients also call the event ``step``, as in jobs that raise their events themselves: `Run.stream`'s default."""
MAX_NAME_CHARACTERS = 100
"""Characters of the name of a run."""
MAX_WRAPPERS_COUNT = 8
"""Wrappers of frameworks that are looked through, one in another."""

_LOADERS = ("base_dataloader", "dataloader", "loader", "combined_loader", "iterables", "flattened")
F = TypeVar("F", bound=Callable[..., Any])


class TrainingRun:
    """The agent that an adapter was given, or makes when a training begins.

    ``framework`` is where events ``log`` come from. ``name`` is what clients ask for, else the adapter proposes one.
    ``options`` are those of `Agent`.
    """

    def __init__(self, framework: str, name: str | None, agent: Agent | None, options: dict[str, Any]) -> None:
        if agent is not None and (name is not None or options):
            raise TypeError("your own agent already has its name and options: pass agent= or these, not both.")
        if name is not None:
            checked_name(name)
        inspect.signature(Agent.__init__).bind(None, name or "run", **options)
        self.framework, self._name, self._given, self._options = framework, name, agent, options
        self.agent: Agent | None = agent
        self.raised: BaseException | None = None
        """What an event raised: the ``on_stop`` of the user's, which goes through."""
        self._said: LoggedValues | None = None
        self.estimate: TrainingEstimate | None = None
        """The remaining time of the training, if it is known where it ends."""
        self._shown: object = None  # the progress that was exposed here
        if agent is not None:  # now, so that it is known before a client asks
            name_events(agent, SECOND_NAME, GROUPS[0], replace=False)

    def begin(self, proposed: object, config: Callable[[], Any] | None = None) -> Agent:
        """Return the agent, opened now unless the user has given one."""
        if self._given is not None:
            self.agent = self._given
        else:
            self.end("another training began")
            options = {"groups": GROUPS, **self._options}
            if config is not None and "config" not in options:
                options["config"] = harmlessly(config)
            self.agent = Agent(self._name or name_of(proposed), **options)
            name_events(self.agent, SECOND_NAME, GROUPS[0])
        self._said = LoggedValues(self.agent, self.framework)
        return self.agent

    def expose(self, **things: Any) -> None:
        """Expose those of ``things`` that there are."""
        if self.agent is not None:
            self.agent.expose(**{name: thing for name, thing in things.items() if thing is not None})

    def expect(self, steps: float, every: float | None = None, stop: EarlyStop | None = None) -> None:
        """Expose an estimate as ``progress``; see `TrainingEstimate`.

        A job's own ``progress`` stays until it is done. An endless training has none.
        """
        self.estimate = None
        if self.agent is None or not 0 < steps < math.inf:
            return
        shown = exposed_as(self.agent, "progress")
        if shown is None or shown is self._shown or getattr(shown, "fraction", 0.0) == 1.0:
            often = None if every is None else max(1, round(every))
            self.estimate = TrainingEstimate(int(steps), often, stop)
            self._shown = self.estimate.progress
            self.agent.expose(progress=self._shown)

    def emit(self, event: str, observables: dict[str, Any]) -> None:
        """Raise an event; names may be any text. Raises ``on_stop``."""
        if self.agent is not None:
            try:
                self.agent.emit(event, **observables)
            except BaseException as error:
                self.raised = error
                raise

    def log(self, values: Mapping[str, Any], step: int | None) -> None:
        """Raise ``log``, and append each number to a stream. Raises ``on_stop``."""
        if self._said is not None:
            try:
                self._said.say(values, step)
            except BaseException as error:
                self.raised = error
                raise

    @property
    def stops(self) -> bool:
        """True once a client has asked the training to stop."""
        return self.agent is not None and self.agent.stop_requested

    def end(self, reason: str = "the training ended") -> None:
        """Close the agent, unless it is the user's."""
        if self.estimate is not None:
            harmlessly(self.estimate.finished)
        if self.agent is not None and self._given is None:
            self.agent.close(reason)
        self.agent = self._said = self.estimate = None


def harmless(method: F) -> F:
    """Let no error of an adapter's method into the framework but ``on_stop``."""

    @functools.wraps(method)
    def call(self: Any, *arguments: Any, **keywords: Any) -> Any:
        try:
            return method(self, *arguments, **keywords)
        except Exception as error:
            if error is self.run.raised:
                raise
            say_once(error)
            return None

    return call  # type: ignore[return-value]  # of the same form


def name_of(proposed: object) -> str:
    """Return the name of a run from a path or a text.

    >>> name_of("outputs/bert-tiny"), name_of("a b/"), name_of("")
    ('bert-tiny', 'a b', 'training')
    """
    last = re.split(r"[/\\]", str(proposed or "").rstrip("/\\"))[-1]
    return "".join(letter for letter in last if letter.isprintable())[:MAX_NAME_CHARACTERS] or "training"


def unwrapped(thing: Any, attribute: str) -> Any:
    """Return what a framework's wrapper holds, and holds in turn, as ``attribute``."""
    for _ in range(MAX_WRAPPERS_COUNT):
        inner = getattr(thing, attribute, None)
        if inner is None or not hasattr(inner, "state_dict"):
            return thing
        thing = inner
    return thing


def optimizer_and_schedule(optimizer: Any, schedule: Any) -> tuple[Any, Any]:
    """Return both without wrappers, so that the one is found to drive the other."""
    schedule = unwrapped(schedule, "scheduler")
    driven = getattr(schedule, "optimizer", None)
    return (driven if driven is not None and driven is optimizer else unwrapped(optimizer, "optimizer")), schedule


def turned_loader(loader: Any) -> Any:
    """Return a loader that declares controls, such as `Echo`, or None.

    Wrappers of frameworks are looked through.
    """
    for _ in range(MAX_WRAPPERS_COUNT):
        if any(isinstance(thing, Control) for kind in type(loader).__mro__ for thing in vars(kind).values()):
            return loader
        inner = (getattr(loader, name, None) for name in _LOADERS)
        loader = next((one for one in inner if one is not None), None)
    return None
