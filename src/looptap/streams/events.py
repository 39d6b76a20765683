"""An event of the loop as a query sees it: observables by name, by reference."""

from __future__ import annotations

import math
import sys
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any
from weakref import ReferenceType

import numpy as np

from looptap.streams.errors import MissingObservable, UnknownObservable
from looptap.streams.harmless.checked_code import checked_call
from looptap.streams.harmless.checked_evaluation import current, evaluating
from looptap.streams.text import did_you_mean, is_typo

BUILT_IN = ("event_number", "event_time", "event_dt", "rank")
"""The names that every event offers besides the host's observables."""
MACHINE = frozenset({"host", "device", "devices"})
"""Readings of the machine, at every event while a query mentions them, unless the job has its own of the name."""


CALLS = {
    "recent": "Say of how many events: mean(e.loss for e in recent(100)).",
    "latest": "Say of which event: latest('epoch').error.",
    "activations": "Say of which module: activations('encoder.layer.3').",
    "grads_of": "Say of which module: grads_of('encoder.layer.3').",
    "inputs": "Of a module they are inputs('encoder.layer.3').",
    "values": "The sequence of the events of a run is 'events'; for the values of a stream, name it: of='loss'.",
}
"""Hints for names of the language that were read as observables."""
MODULES = frozenset({"gc", "glob", "json", "np", "numpy", "os", "pathlib", "random", "re", "subprocess", "sys"})
"""Names that ask for a module of Python's, rather than for an observable."""


lazies: list[bool] = []
"""Empty until a `Lazy` is created, so that other loops skip the search for them."""


class Lazy:
    """A value computed when a query first reads it, at most once per event."""

    __slots__ = ("function",)

    def __init__(self, function: Callable[[], Any]) -> None:
        if not callable(function):
            raise TypeError(f"lazy() takes a function without arguments, not {function!r}.")
        self.function = function
        if not lazies:
            lazies.append(True)

    def computed(self) -> Any:
        """Return the value; inside a question, its function is checked like any other."""
        if not evaluating():
            return self.function()
        found = checked_call(self.function)
        current().own.pop(id(found), None)  # other queries see it, too
        return found


def lazy(function: Callable[[], Any]) -> Any:
    """Return an observable computed when first read, at most once per event.

    Args:
        function: Computes it, without arguments.

    Raises TypeError if ``function`` cannot be called.

    >>> import looptap
    >>> norm = looptap.lazy(lambda: 3.0)
    """
    return Lazy(function)


def held(value: Any) -> Any:
    """Return what an exposed value refers to, if it holds it weakly, else the value.

    ``lazy(weakref.ref(thing))`` exposes a thing without keeping it alive; None once it is gone.
    """
    return value.function() if type(value) is Lazy and type(value.function) is ReferenceType else value


class FoundObservables(dict[str, Any]):
    """Observables of an event that are searched for by name when first read.

    ``find`` returns the value of a name, and raises KeyError if there is none; ``names`` lists what it finds.

    >>> numbers = {"one": 1}
    >>> found = FoundObservables({"loss": 0.5}, numbers.__getitem__, lambda: numbers)
    >>> found["one"], found.listed()
    (1, ['loss', 'one'])
    """

    __slots__ = (
        "_found",
        "_names",
        "began",
        "coming",
        "elsewhere",
        "find",
        "home",
        "nowhere",
        "place",
        "unknown",
        "varying",
    )

    def __init__(self, present: dict[str, Any], find: Callable[[str], Any], names: Callable[[], Iterable[str]]) -> None:
        super().__init__(present)
        self.find, self._names = find, names
        self._found: dict[str, Any] = {}
        self.began = math.inf
        """The thread's CPU seconds at which work on the event has begun, if that was before the search."""
        self.coming: set[str] = set()
        """Names that are not there yet: nothing had asked for them before, or they have no value so far."""
        self.nowhere: dict[str, str] = {}
        """Names of which no code of the job in sight makes a variable, and what they are instead: a "function"."""
        self.unknown: dict[str, str] = {}
        """Names that other events of this type may have and this one has not, and why."""
        self.elsewhere: Callable[[str], str] = _nothing_like
        """Returns how to read what an object in sight has by an absent name, as ``self.epoch``; or nothing."""
        self.home: Callable[[str], str | None] = _nothing_like
        """Returns the function of the job whose variable an absent name is, if any."""
        self.place: Callable[[str], str] = _nothing_like
        """Returns the function or the module of the job that has a name; nothing for what looptap knows itself."""
        self.varying: frozenset[str] = frozenset()
        """Names that some events of this type have and others do not: a query passes over those."""

    def __missing__(self, name: str) -> Any:
        value = self[name] = self.peek(name)
        return value

    def peek(self, name: str) -> Any:
        """Search for a name without noting its value as the event's. Raises KeyError."""
        if name not in self._found:
            self._found[name] = self.find(name)
        return self._found[name]

    def load(self, names: Iterable[str]) -> None:
        """Search for those of ``names`` that are not there yet."""
        for name in names:
            if name not in self:
                with suppress(KeyError):
                    self[name] = self.peek(name)

    def listed(self) -> list[str]:
        """Return the names that are there or can be found."""
        return [*dict.fromkeys([*self, *self._names()])]

    def clear(self) -> None:
        """Release everything, and find nothing more."""
        super().clear()
        self._found.clear()
        self.find, self._names = _find_nothing, tuple
        self.elsewhere = self.home = self.place = _nothing_like


def _find_nothing(name: str) -> Any:
    raise KeyError(name)


def _nothing_like(name: str) -> str:
    return ""


class EventOrigin:
    """The common attributes of one type: name, exposed observables, rank, machine.

    ``names`` are those of the observables that events of each type have had.
    """

    __slots__ = ("exposed", "machine", "models", "name", "names", "rank")

    def __init__(
        self,
        name: str,
        exposed: dict[str, Any] | None = None,
        rank: int = 0,
        machine: Mapping[str, Any] | None = None,
        names: Mapping[str, Collection[str]] | None = None,
    ) -> None:
        self.name, self.rank, self.names = name, rank, {} if names is None else names
        self.exposed = {} if exposed is None else exposed
        self.machine = {} if machine is None else machine
        """Readings by name; a text says why there is none."""
        self.models: dict[str, weakref.ref[Any]] = {}
        """The models that a look has seen among the observables."""


_NOTHING_UNKNOWN: dict[str, str] = {}
_ANONYMOUS = EventOrigin("event")
_NONE: Mapping[str, Collection[str]] = {}


class Event:
    """An event: ``e.loss`` is the observable ``loss``; some names are always there.

    >>> Event({"loss": 0.5}).loss
    0.5
    """

    # The instance dictionary *is* the host's keyword dictionary: reading an observable is a plain attribute read.
    __slots__ = ("__dict__", "_dt", "_number", "_source", "_time")

    def __init__(
        self,
        observables: dict[str, Any],
        source: EventOrigin = _ANONYMOUS,
        number: int = 0,
        time: float = 0.0,
        dt: float = 0.0,
    ) -> None:
        self.__dict__ = observables
        self._source, self._number, self._time, self._dt = source, number, time, dt

    def __getattr__(self, name: str) -> Any:
        if name == "event_number":
            return self._number
        if name == "event_time":
            return self._time
        if name == "event_dt":
            return self._dt
        if name.startswith("__"):  # copy, pickle and friends probe for these
            raise AttributeError(name)
        own = self.__dict__
        if type(own) is FoundObservables:
            try:
                return own.peek(name)
            except KeyError:
                pass
        exposed = self._source.exposed
        if name in exposed:
            value = exposed[name]
            if type(value) is Lazy:
                value = self.__dict__[name] = value.computed()
            return value
        if name == "rank":
            return self._source.rank
        reading = self._source.machine.get(name)
        if type(reading) is str:
            raise MissingObservable(reading)
        if reading is not None:
            return reading
        if type(own) is not FoundObservables:
            raise _missing(name, self._source.name, own, exposed, self._source.names)
        if name in own.unknown:
            raise UnknownObservable(own.unknown[name])
        raise _missing(
            name,
            self._source.name,
            own.listed(),
            exposed,
            self._source.names,
            own.nowhere.get(name),
            own.elsewhere(name),
        )

    def __getitem__(self, name: str) -> Any:
        """Return the observable ``name``, such as ``e["train/loss"]``."""
        return getattr(self, name)

    def __looptap_names__(self) -> set[str]:
        return {*self.__dict__, *self._source.exposed, *self._source.machine}

    def __looptap_passed__(self) -> Mapping[str, Any]:
        """Return what the job passed to the event; of a script, what was read of it."""
        return self.__dict__

    def __looptap_held__(self, name: str) -> Any:
        """Return what stands outside of the event under this name; None if nothing."""
        exposed = self._source.exposed
        return exposed[name] if name in exposed else self._source.machine.get(name)

    def __looptap_with__(self, other: Mapping[str, Any]) -> Event:
        """Return an event with other values of some observables, for one query."""
        return Event({**self.__dict__, **other}, self._source, self._number, self._time, self._dt)

    def __looptap_coming__(self) -> set[str]:
        """Return the names that are not there yet, and are expected."""
        own = self.__dict__
        return own.coming if type(own) is FoundObservables else set()

    def __looptap_unknown__(self) -> dict[str, str]:
        """Return the names that this event was asked for and lacks, and why."""
        own = self.__dict__
        return own.unknown if type(own) is FoundObservables else _NOTHING_UNKNOWN

    def __looptap_elsewhere__(self, name: str) -> str:
        """Return how to read what an object in sight has by this name; or nothing."""
        own = self.__dict__
        return own.elsewhere(name) if type(own) is FoundObservables else ""

    def __looptap_home__(self, name: str) -> str | None:
        """Return the function of the job whose variable this name is, if any."""
        own = self.__dict__
        return own.home(name) if type(own) is FoundObservables else None

    def __looptap_varying__(self) -> frozenset[str]:
        """Return the names that not every event of this type has."""
        own = self.__dict__
        return own.varying if type(own) is FoundObservables else frozenset()

    def __looptap_exposed__(self) -> dict[str, Any]:
        return self._source.exposed

    def __looptap_shown__(self) -> tuple[dict[str, Any], ...]:
        return self.__dict__, self._source.exposed

    def __repr__(self) -> str:
        return f"<{self._source.name} event {self._number}: {', '.join(self.__dict__)}>"


class LazyEvent(Event):
    """An event with lazy observables, which are computed when first read."""

    __slots__ = ("_lazies",)

    def __init__(self, observables: dict[str, Any], *rest: Any) -> None:
        self._lazies = {k: v for k, v in observables.items() if type(v) is Lazy}
        for name in self._lazies:
            del observables[name]
        super().__init__(observables, *rest)

    def __getattr__(self, name: str) -> Any:
        lazies = self._lazies
        if name in lazies:
            value = self.__dict__[name] = lazies[name].computed()
            return value
        return super().__getattr__(name)

    def __looptap_names__(self) -> set[str]:
        return {*super().__looptap_names__(), *self._lazies}

    def __looptap_passed__(self) -> Mapping[str, Any]:
        return {**self._lazies, **self.__dict__}

    def __looptap_shown__(self) -> tuple[dict[str, Any], ...]:
        return (*super().__looptap_shown__(), self._lazies)


def event_of(observables: dict[str, Any], origin: EventOrigin, number: int, now: float, dt: float) -> Event:
    """Return the event of these observables."""
    if lazies and id(Lazy) in map(id, map(type, observables.values())):  # a class of the job's may say that it is equal
        return LazyEvent(observables, origin, number, now, dt)
    event = _new(Event)  # Event(…) spelled out, at half the time of a call: see the page of agent/loop
    event.__dict__ = observables
    event._source, event._number, event._time, event._dt = origin, number, now, dt
    return event


_new = object.__new__


class EventSnapshot:
    """A query's copies of the observables of one event that it mentions."""

    __slots__ = ("__dict__", "_seen")

    def __init__(self, kept: Mapping[str, Any], seen: Sequence[str] = ()) -> None:
        self.__dict__.update(kept)
        self._seen = seen

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise _missing(name, "", self.__dict__, {})

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    def __looptap_names__(self) -> set[str]:
        return set(self.__dict__)

    def __repr__(self) -> str:
        return f"EventSnapshot({', '.join(f'{k}={v!r}' for k, v in self.__dict__.items())})"


def example_reads(event: Event | EventSnapshot) -> str:
    """Return a hint how to read this event, with its first observables."""
    names = [f"e.{name}" for name in getattr(event, "_seen", ()) or vars(event)][:3] or ["e.loss"]
    return f"{names[0]} or ({', '.join(names)})" if len(names) > 1 else names[0]


_OF_VALUES = frozenset(name for kind in (int, float, str, list, dict, tuple, set, np.ndarray) for name in dir(kind))


def missing_of(event: Any, names: Iterable[str]) -> str:
    """Return an error text for a name that this event lacks; empty if it has all.

    >>> missing_of(Event({"loss": 0.5}), ["shape", "loss"])
    ''
    """
    given = event.__looptap_names__() if hasattr(event, "__looptap_names__") else set()
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)
    unknown = sorted(set(names) - given - _OF_VALUES - set(BUILT_IN))
    unknown = [name for name in unknown if not hasattr(tensor, name)]
    return str(_missing(unknown[0], event._source.name, given, {})) if unknown and given else ""


def types_with(name: str, event: str, carried: Mapping[str, Collection[str]]) -> str:
    """Return which type of events, other than ``event``, has ``name``; or nothing.

    >>> types_with("error", "batch", {"batch": {"loss"}, "epoch": {"error"}})
    "'epoch' events have it: on='epoch'."
    """
    others = [on for on, names in list(carried.items()) if on != event and name in names]
    return f"{others[0]!r} events have it: on={others[0]!r}." if others else ""


def _missing(
    name: str,
    event: str,
    own: Iterable[str],
    exposed: Iterable[str],
    carried: Mapping[str, Collection[str]] = _NONE,
    instead: str | None = None,
    elsewhere: str = "",
) -> MissingObservable:
    names = sorted({*own, *exposed})
    others = types_with(name, event, carried)
    hint = others or (f"There is {elsewhere}." if elsewhere else _hint(name, names, instead))
    error = MissingObservable(
        f"no observable {name!r} at this {f'{event!r} ' if event else ''}event; there are: "
        f"{', '.join([*names, *BUILT_IN])}.{f' {hint}' if hint else ''}"
    )
    if event and not others and name not in carried.get(event, ()):
        error.hopeless = instead is not None or any(is_typo(name, there) for there in names)
    return error


def _hint(name: str, names: list[str], instead: str | None) -> str:
    """Return what to do about a name that an event lacks, or nothing."""
    tags = [tag for tag in names if tag.partition("/")[0] == name]
    if tags:
        return f"A name with a stroke is read as e[{tags[0]!r}]."
    if name in MACHINE:
        return f"{name} is read from the next heartbeat on, while a stream mentions it."
    if instead in ("function", "class"):
        return f"{name} is a {instead} of the job, which it can expose: agent.expose({name}={name})."
    hint = did_you_mean(name, names).lstrip() or CALLS.get(name, "")
    if instead or (not hint and name in MODULES):
        return f"A module is there once the job has exposed it: agent.expose({name}={name})."
    return hint
