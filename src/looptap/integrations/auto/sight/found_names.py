"""What a query reads of an event of a script: by name, when it asks."""

from __future__ import annotations

from collections.abc import Collection
from types import FrameType
from typing import Any, Protocol

from looptap.agent.loop.sight import frames
from looptap.streams.events import FoundObservables
from looptap.streams.harmless.plain import ARRAY, ATOM, TENSOR, kind_of_type

MAX_WANTED_NAMES_COUNT = 64
"""Names that are read at backward passes."""
_AT_SOME_EVENTS = frozenset({"loss", "losses", "x", "y", "inputs"})
_OURS = frozenset({"losses", "looptap"})
_OTHERS = "step", "losses", "looptap"
_NUMBERS = frozenset({ATOM, TENSOR, ARRAY})
_INPUTS = frozenset({"x", "inputs"})
WANTED_EVENTS = 1000
"""Events for which a name is read at backward passes, after a query has last asked for it."""


class UnknownValue(KeyError):
    """A name that has no value at this event; the text says why."""

    def __str__(self) -> str:
        return str(self.args[0])


class NamesAtBackward:
    """Names that are gone by the step, as they were at the last backward pass.

    A function that computes the loss may have returned by the time of the step. What it held is read at backward
    passes, from the first event on at which a query has asked for it.
    """

    __slots__ = ("_expected", "_wanted", "values")

    def __init__(self) -> None:
        self._wanted: dict[str, int] = {}  # by name for how many events it is still read
        self.values: dict[str, Any] = {}
        self._expected: set[str] = set()

    def want(self, name: str) -> bool:
        """Read a name from now on; return False if it was read before, or cannot be."""
        fresh = name not in self._wanted
        if fresh and len(self._wanted) >= MAX_WANTED_NAMES_COUNT:
            return False
        self._wanted[name] = WANTED_EVENTS
        return fresh

    def wants(self, names: Collection[str]) -> bool:
        """Return True if it reads one of these."""
        return not self._wanted.keys().isdisjoint(names)

    def read(self, frame: FrameType | None) -> None:
        """Read the wanted names in sight from ``frame``."""
        for name in [*self._wanted]:
            try:
                self.values[name] = frames.find(frame, name)
            except KeyError:
                if name not in self._expected and frames.may_come(frame, name):
                    self._expected.add(name)

    def may_come(self, name: str) -> bool:
        """Return True if the name is that of a variable at a backward pass, bound or not."""
        return name in self._expected

    def forget(self) -> None:
        """Release the values of this event, and names that queries no longer read."""
        self.values.clear()
        for name, left in [*self._wanted.items()]:
            if left:
                self._wanted[name] = left - 1
            else:
                del self._wanted[name]
                self._expected.discard(name)

    def __bool__(self) -> bool:
        return bool(self._wanted)


class KnownValues(Protocol):
    """What looptap itself knows of an event."""

    names: Collection[str]
    """Names that have looptap's value, if there is one."""

    def read(self, name: str, found: FoundObservables) -> Any:
        """Return the value of one of ``names``.

        Raises KeyError if there is none, UnknownValue if the job's variable of that name is something else.
        """

    def otherwise(self, name: str) -> Any:
        """Return the value of a name that the job may have, too, or None."""


class ScriptNames:
    """Finds what a query reads of an event: by name, when it asks.

    That is one of ``values``, a variable of the job in sight from ``frame``, or what ``values`` have otherwise. Of a
    script that has ``ended`` only the variables of its main module are left.
    """

    __slots__ = ("_at_backward", "_ended", "_frame", "_values", "found")

    def __init__(self, values: KnownValues, frame: FrameType | None, at_backward: NamesAtBackward, ended: bool) -> None:
        self._values, self._frame, self._at_backward, self._ended = values, frame, at_backward, ended
        self.found = found = FoundObservables({}, self._find, self._names)
        """The observables of the event."""
        found.elsewhere, found.home, found.place = self._path_to, self._home_of, self._place_of

    def _find(self, name: str) -> Any:
        found, values = self.found, self._values
        if name in found.varying:
            try:
                return values.read(name, found)
            except KeyError:
                found.coming.add(name)
                raise
        if name in found.unknown:
            raise KeyError(name)
        if name in values.names:
            try:
                return values.read(name, found)
            except UnknownValue as error:
                found.unknown[name] = str(error)
                raise
            except KeyError:
                pass
        try:
            value = frames.find(self._frame, name)
        except KeyError:
            return self._last(name)
        ours = values.otherwise(name)
        if ours is None or kind_of_type(type(ours)) not in _NUMBERS or kind_of_type(type(value)) in _NUMBERS:
            return value
        return ours  # what skorch calls step is a dict

    def _last(self, name: str) -> Any:
        """Return what there is without a variable in sight. Raises KeyError."""
        found, frame, at_backward = self.found, self._frame, self._at_backward
        if frames.is_own_name(name):
            raise KeyError(name)
        if name in frames.language_words() and not frames.may_come(frame, name):
            found.nowhere[name] = frames.no_value(frame, name)
            raise KeyError(name)
        ours = self._values.otherwise(name)
        last = at_backward.values.get(name, ours)
        if ours is not None and name in _OURS:
            return last
        self._note_missing(name, ours, last)
        if last is None and name not in at_backward.values:
            raise KeyError(name)
        return last

    def _note_missing(self, name: str, ours: Any, last: Any) -> None:
        """Note why a name has no variable in sight, or that it will have one."""
        found, frame, at_backward = self.found, self._frame, self._at_backward
        if self._ended and ours is None:
            found.unknown[name] = f"the script has ended, and with it the function that had {name}."
        elif name in _INPUTS and name in self._values.names and name not in found.coming:
            found.unknown[name] = (
                f"{name} is unknown: no call of the model itself with gradients has been seen before this step. It may "
                "be compiled, or its methods may be called in place of it; ask for a variable of the loop."
            )
        elif at_backward.want(name):
            found.coming.add(name)
        elif last is not None:
            return
        elif at_backward.may_come(name) or frames.may_come(frame, name):
            found.coming.add(name)
        elif name.isidentifier() and name not in self._values.names and name not in _AT_SOME_EVENTS:
            found.nowhere[name] = frames.no_value(frame, name)

    def _names(self) -> list[str]:
        others = [name for name in _OTHERS if self._values.otherwise(name) is not None]
        return [
            *filter(self._has, self._values.names),
            *frames.in_sight(self._frame),
            *self._at_backward.values,
            *others,
        ]

    def _has(self, name: str) -> bool:
        try:
            return self._values.read(name, self.found) is not None
        except KeyError:
            return False

    def _path_to(self, name: str) -> str:
        return frames.path_to(self._frame, name)

    def _home_of(self, name: str) -> str | None:
        return frames.home_of(self._frame, name)

    def _place_of(self, name: str) -> str:
        return "" if name in self._values.names else frames.scope_of(self._frame, name)
