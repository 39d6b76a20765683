"""`TrainingRun`: the agent of a framework's training, from begin to end.

Training thread. Every adapter of a framework has one. It owns all that lasts as long as one training: `begin` starts
without anything of the training before, and `end` leaves nothing behind. Nothing here raises into the training: what
fails is logged once of each kind, but for ``on_stop``, which the user asked for.
"""

from __future__ import annotations

import functools
import inspect
import math
import operator
import re
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from looptap.agent.agent import Agent, count_from, exposed_as, name_events
from looptap.agent.run.identity import checked_name
from looptap.integrations.first_turn import Calls, FirstTurn
from looptap.integrations.harmless import harmlessly, say_once
from looptap.integrations.logged_values import LoggedValues
from looptap.integrations.training_estimate import EarlyStop, NoEstimate, TrainingEstimate
from looptap.streams.control import Control
from looptap.streams.errors import ControlError
from looptap.streams.events import held, lazy

GROUPS = ("step", "epoch")
"""The events of a framework that enclose each other: an epoch ends the group of its steps."""
SECOND_NAME = "batch"
"""What clients also call the event ``step``, as in jobs that raise their events themselves: `Run.stream`'s default."""
MAX_NAME_CHARACTERS = 100
"""Characters of the name of a run."""
MAX_WRAPPERS_COUNT = 8
"""Wrappers of frameworks that are looked through, one in another."""

_WITHIN = (
    "a training began within another one that has the same callback, so the run has no further event of the outer one: "
    "give each training a callback of its own"
)
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
        self.losses: list[Any] = []
        """The losses since the last update of the weights."""
        self.batches: list[Any] = []
        """The batches since then."""
        self.estimate = NoEstimate()
        """The remaining time of the training, if it is known where it ends."""
        self._awaited: Calls = {}
        self._said: LoggedValues | None = None
        self._at_end: list[Callable[[], object]] = []
        self._trainer: Callable[[], Any] = _nothing
        self._ended: dict[str, Any] = {}  # the agent's state at the end of the training
        self._shown: object = None  # the progress that was exposed here
        if agent is not None:  # now, so that it is known before a client asks
            name_events(agent, SECOND_NAME, GROUPS[0], replace=False)

    def begin(self, proposed: object, config: Callable[[], Any] | None = None, trainer: Any = None) -> Agent:
        """Return the agent, opened now unless the user has given one.

        A training that has not ended ends here. ``trainer`` is what trains, see `ends_with`.
        """
        if self in _open and _calls.count(id(self.trainer)) > (self.trainer is trainer):
            say_once(RuntimeError(_WITHIN))
        self.end("another training began")
        self._trainer, self._ended = _nothing if trainer is None else weakref.ref(trainer), {}
        _open.add(self)
        if self._given is not None:
            self.agent = self._given
        else:
            options = {"groups": GROUPS, **self._options}
            if config is not None and "config" not in options:
                options["config"] = harmlessly(config)
            self.agent = Agent(self._name or run_name_of(proposed), **options)
            name_events(self.agent, SECOND_NAME, GROUPS[0])
        self._said = LoggedValues(self.agent, self.framework)
        return self.agent

    def hear_first(self, adapter: Any, kinds: tuple[type, ...], owner: Any, *names: str) -> None:
        """Let no other callback that raises keep calls from ``adapter``: `FirstTurn`."""
        self.at_end(FirstTurn(adapter, kinds, owner, names, self._awaited).stop)

    def heard(self, name: str) -> None:
        """Note that the adapter's method ``name`` is called."""
        last = next((caller for caller, call in reversed(self._awaited.items()) if call[0] == name), 0)
        self._awaited.pop(last, None)

    def at_end(self, call: Callable[[], object]) -> None:
        """Call this once the training ends."""
        self._at_end.append(call)

    def expose(self, **things: Any) -> None:
        """Expose those of ``things`` that there are, without keeping them alive."""
        if self.agent is not None:
            self.agent.expose(**{name: _weakly(thing) for name, thing in things.items() if thing is not None})

    def expose_each(self, name: str, things: Sequence[Any]) -> None:
        """Expose things under a name; several under that and their numbers."""
        names = [name] if len(things) == 1 else [f"{name}{index}" for index in range(len(things))]
        self.expose(**dict(zip(names, things, strict=True)))

    def checkpoint(self, save: Callable[[], str], at: str, *, together: bool = False) -> None:
        """Let clients ask for a checkpoint that an adapter's method saves.

        An agent of the user's does not keep the adapter alive, which may hold the model, as Lightning's callbacks do.
        """
        method = weakref.WeakMethod(save)

        def saved() -> str:
            alive = method()
            if alive is None:
                raise ControlError("the training has ended.")
            return alive()

        if self.agent is not None:
            self.agent.checkpoint(saved, at=at, together=together)

    def updated(self) -> tuple[list[Any], list[Any]]:
        """Return the losses and batches of an update, and begin the next one."""
        noted = self.losses, self.batches
        self.losses, self.batches = [], []
        return noted

    def expect(self, steps: float, every: float | None = None, stop: EarlyStop | None = None) -> None:
        """Expose an estimate as ``progress``; see `TrainingEstimate`.

        A job's own ``progress`` stays until it is done. An endless training has none.
        """
        self.estimate = NoEstimate()
        if self.agent is None or not 0 < steps < math.inf:
            return
        shown = held(exposed_as(self.agent, "progress"))
        if shown is None or shown is self._shown or getattr(shown, "fraction", 0.0) == 1.0:
            often = None if every is None else max(1, round(every))
            self.estimate = TrainingEstimate(int(steps), often, stop)
            self._shown = self.estimate.progress
            self.agent.expose(progress=self._shown)

    def emit(self, event: str, observables: dict[str, Any]) -> None:
        """Raise an event; names may be any text. Raises ``on_stop``."""
        if self.agent is not None:
            with self._noting():
                self.agent.emit(event, **observables)

    def log(self, values: Mapping[str, Any], step: int | None) -> None:
        """Raise ``log``, and append each number to a stream. Raises ``on_stop``."""
        if self._said is not None:
            with self._noting():
                self._said.say(values, step)

    @contextmanager
    def _noting(self) -> Iterator[None]:
        """Note what an event raises."""
        try:
            yield
        except BaseException as error:
            self.raised = error
            raise

    @property
    def stops(self) -> bool:
        """True once a client has asked the training to stop."""
        return self.agent is not None and self.agent.stop_requested

    def state_dict(self, coming: str = "") -> dict[str, Any]:
        """Return the agent's state for a checkpoint; ``coming`` is an event that counts.

        After the training it is that of its end: some checkpoints are saved then, such as those of an exception.
        """
        if self.agent is None:
            return self._ended
        state = self.agent.state_dict()
        for part in ("events", "seen") if coming else ():
            state[part] = {**state[part], coming: state[part].get(coming, 0) + 1}
        if coming:
            state["groups"] = {coming: 0, **state["groups"]}
        return state

    def resume(self, state: dict[str, Any] | None, rank: int) -> None:
        """Continue from the state that the first rank has saved, if any."""
        if state and self.agent is not None:
            self.agent.load_state_dict({**state, **({} if rank == 0 else {"file": ""})})

    def count_from(self, events: dict[str, int]) -> None:
        """Continue the numbers of events after these, which the framework counts."""
        if self.agent is not None:
            count_from(self.agent, events)

    def end(self, reason: str = "the training ended") -> None:
        """Close the agent, unless it is the user's, and forget the training."""
        _open.discard(self)
        calls, self._at_end = self._at_end, []
        for call in calls:
            harmlessly(call)
        harmlessly(self.estimate.finished)
        if self.agent is not None:
            self._ended = self.agent.state_dict()
            if self._given is None:
                self.agent.close(reason)
            else:  # as closing does: steps of an epoch that failed are in no later one
                self.agent.end_group(GROUPS[0])
        self.agent = self._said = self.raised = None
        self.estimate = NoEstimate()
        self.losses, self.batches, self._trainer = [], [], _nothing
        self._awaited.clear()

    @property
    def trainer(self) -> Any:
        """What trains, from `begin` to `end` and while it lives; else None."""
        return self._trainer()


_open: weakref.WeakSet[TrainingRun] = weakref.WeakSet()
_calls: list[int] = []  # the trainers that train, by id: one within the other


def ends_with(owner: type, name: str) -> None:
    """End the runs of a trainer if its method ``name`` raises.

    Frameworks tell no callback of it. The method is wrapped in its class, once in a process.
    """
    kind = next(one for one in owner.__mro__ if name in vars(one))
    method = vars(kind)[name]
    if hasattr(method, "__looptap_ends__"):
        return

    @functools.wraps(method)
    def ending(self: Any, *arguments: Any, **keywords: Any) -> Any:
        _calls.append(id(self))
        try:
            return method(self, *arguments, **keywords)
        except BaseException as error:
            for run in [one for one in _open if one.trainer is self]:
                harmlessly(run.end, f"the training ended with {type(error).__name__}")
            raise
        finally:
            _calls.remove(id(self))

    ending.__looptap_ends__ = True  # type: ignore[attr-defined]  # a mark
    setattr(kind, name, ending)


def _weakly(thing: Any) -> Any:
    """Return what exposes a thing without keeping it alive; plain data as it is."""
    try:
        return lazy(weakref.ref(thing))
    except TypeError:  # plain data
        return thing


def _nothing() -> None:
    return None


def harmless(method: F) -> F:
    """Let no error of an adapter's method into the framework but ``on_stop``."""

    @functools.wraps(method)
    def call(self: Any, *arguments: Any, **keywords: Any) -> Any:
        self.run.heard(method.__name__)
        try:
            return method(self, *arguments, **keywords)
        except Exception as error:
            if error is self.run.raised:
                raise
            say_once(error)
            return None

    return call  # type: ignore[return-value]  # of the same form


def summed(losses: Sequence[Any], parts: int = 1) -> dict[str, Any]:
    """Return the losses of an update, and their sum in ``parts``; {} without any.

    >>> summed([1.0, 2.0], 2), summed([])
    ({'loss': 1.5, 'losses': (1.0, 2.0)}, {})
    """
    if not losses:
        return {}
    loss = functools.reduce(operator.add, [one / parts for one in losses] if parts > 1 else losses)
    return {"loss": loss, "losses": tuple(losses)}


def run_name_of(proposed: object) -> str:
    """Return the name of a run from a path or a text.

    >>> run_name_of("outputs/bert-tiny"), run_name_of("a b/"), run_name_of("")
    ('bert-tiny', 'a b', 'training')
    """
    last = re.split(r"[/\\]", str(proposed or "").rstrip("/\\"))[-1]
    return "".join(letter for letter in last if letter.isprintable())[:MAX_NAME_CHARACTERS] or "training"


def without_wrappers(thing: Any, attribute: str) -> Any:
    """Return what a framework's wrapper holds, and holds in turn, as ``attribute``."""
    for _ in range(MAX_WRAPPERS_COUNT):
        inner = getattr(thing, attribute, None)
        if inner is None or not hasattr(inner, "state_dict"):
            return thing
        thing = inner
    return thing


def optimizer_and_schedule(optimizer: Any, schedule: Any) -> tuple[Any, Any]:
    """Return both without wrappers, so that the one is found to drive the other."""
    schedule = without_wrappers(schedule, "scheduler")
    driven = getattr(schedule, "optimizer", None)
    alone = driven is not None and driven is optimizer
    return (optimizer if alone else without_wrappers(optimizer, "optimizer")), schedule


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
