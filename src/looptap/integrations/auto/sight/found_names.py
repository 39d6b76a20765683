"""What a query reads of an event of a script: by name, when it asks."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Collection, Mapping
from functools import partial
from types import FrameType
from typing import Any

from looptap.agent.loop.sight import frames
from looptap.streams.events import FoundObservables
from looptap.streams.harmless.plain import ARRAY, ATOM, TENSOR, kind_of_type

MAX_WANTED_NAMES_COUNT = 64
"""Names that are read at backward passes."""
_AT_SOME_EVENTS = frozenset({"loss", "losses", "x", "y", "inputs"})
_OURS = frozenset({"losses", "looptap"})
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


def found_names(
    special: dict[str, Callable[[], Any]], frame: FrameType | None, at_backward: NamesAtBackward,
    otherwise: Mapping[str, Any], *, ended: bool = False,
) -> FoundObservables:  # fmt: skip
    """Return the observables of an event.

    They are the ``special`` ones, the job's, and those of ``otherwise`` that it does not have. Of a script that has
    ``ended`` only the variables of its main module are left.
    """
    last, words = ChainMap({**at_backward.values}, {**otherwise}), frames.words()

    def replaces(name: str, value: Any) -> bool:
        """Return True if a variable comes first: what skorch calls step is a dict."""
        ours = otherwise.get(name)
        return kind_of_type(type(ours)) not in _NUMBERS or kind_of_type(type(value)) in _NUMBERS

    def find(name: str) -> Any:
        if name in observables.varying:
            at_backward.want(name)
            try:
                return special[name]()
            except KeyError:
                observables.coming.add(name)
                raise
        if name in observables.unknown:
            raise KeyError(name)
        if name in special:
            try:
                return special[name]()
            except UnknownValue as error:
                observables.unknown[name] = str(error)
                raise
            except KeyError:
                pass
        try:
            value = frames.find(frame, name)
        except KeyError:
            if frames.is_ours(name):
                raise
            if name in words and not frames.may_come(frame, name):
                observables.nowhere[name] = frames.no_value(frame, name)
                raise
            if name in _OURS and name in otherwise:
                return last[name]
        else:
            return value if name not in otherwise or replaces(name, value) else otherwise[name]
        if ended and name not in otherwise:
            observables.unknown[name] = f"the script has ended, and with it the function that had {name}."
        elif name in _INPUTS and name in special and name not in observables.coming:
            observables.unknown[name] = (
                f"{name} is unknown: no call of the model itself with gradients has been seen before this step. It may "
                "be compiled, or its methods may be called in place of it; ask for a variable of the loop."
            )
        elif at_backward.want(name):
            observables.coming.add(name)
        elif name not in last:
            if at_backward.may_come(name) or frames.may_come(frame, name):
                observables.coming.add(name)
            elif name.isidentifier() and name not in special and name not in _AT_SOME_EVENTS:
                observables.nowhere[name] = frames.no_value(frame, name)
        return last[name]

    def there(name: str) -> bool:
        try:
            return special[name]() is not None
        except KeyError:
            return False

    def names() -> list[str]:
        return [*filter(there, special), *frames.listed(frame), *last]

    observables = FoundObservables({}, find, names)
    observables.elsewhere, observables.home = partial(frames.path_to, frame), partial(frames.home_of, frame)
    return observables
