"""What a query reads of an event of a script: by name, when it asks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from types import FrameType
from typing import Any

from looptap.agent.loop.sight import frames
from looptap.streams.events import FoundObservables

MAX_WANTED_NAMES_COUNT = 64
"""Names that are read at backward passes."""
WANTED_EVENTS = 1000
"""Events for which a name is read at backward passes, after a query has last asked for it."""


class NamesAtBackward:
    """Names that are gone by the step, as they were at the last backward pass.

    A function that computes the loss may have returned by the time of the step. What it held is read at backward
    passes, from the first event on at which a query has asked for it.
    """

    __slots__ = ("_wanted", "values")

    def __init__(self) -> None:
        self._wanted: dict[str, int] = {}  # by name for how many events it is still read
        self.values: dict[str, Any] = {}

    def want(self, name: str) -> bool:
        """Read a name from now on; return False if it was read before, or cannot be."""
        fresh = name not in self._wanted
        if fresh and len(self._wanted) >= MAX_WANTED_NAMES_COUNT:
            return False
        self._wanted[name] = WANTED_EVENTS
        return fresh

    def read(self, frame: FrameType | None) -> None:
        """Read the wanted names in sight from ``frame``."""
        for name in [*self._wanted]:
            with suppress(KeyError):
                self.values[name] = frames.find(frame, name)

    def forget(self) -> None:
        """Release the values of this event, and names that queries no longer read."""
        self.values.clear()
        for name, left in [*self._wanted.items()]:
            if left:
                self._wanted[name] = left - 1
            else:
                del self._wanted[name]

    def __bool__(self) -> bool:
        return bool(self._wanted)


def found_names(
    special: dict[str, Callable[[], Any]], frame: FrameType | None, at_backward: NamesAtBackward,
    otherwise: Mapping[str, Any],
) -> FoundObservables:  # fmt: skip
    """Return the observables of an event.

    They are the ``special`` ones, the job's, and those of ``otherwise`` that it does not have.
    """
    last = {**at_backward.values}

    def find(name: str) -> Any:
        if name in special:
            try:
                return special[name]()
            except KeyError:
                pass
        try:
            return frames.find(frame, name)
        except KeyError:
            if name.startswith("__") or name in frames.reserved():
                raise
        if at_backward.want(name):
            observables.coming.add(name)
        elif name not in last:
            return otherwise[name]
        return last[name]

    def there(name: str) -> bool:
        try:
            return special[name]() is not None
        except KeyError:
            return False

    def names() -> list[str]:
        return [*filter(there, special), *frames.listed(frame), *last, *otherwise]

    observables = FoundObservables({}, find, names)
    return observables
