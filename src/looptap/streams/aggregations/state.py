"""Partial results of reducers as plain data, to be merged in another process.

A state consists of numbers, text, arrays, lists and tuples, and contains no code, so it need not be trusted: invalid
data raises an exception when it is loaded or merged.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any, ClassVar, TypeAlias

from numpy.typing import NDArray

from looptap.streams.columns.value_columns import ValueColumns
from looptap.streams.values.sizing import MISSING

ItemSeries: TypeAlias = "list[Any] | NDArray[Any] | ValueColumns"
"""Several items: an array or columns stand for a list."""
PARTS: dict[str, Callable[..., Any]] = {}
"""Functions that create an object in a state from its tagged list; the object's module registers each."""


class Stateful:
    """A reducer whose partial result can be sent.

    >>> from looptap.streams.aggregations.registry import REDUCERS
    >>> ours, theirs, received = (REDUCERS["mean"].create() for _ in range(3))
    >>> ours.add(1.0); theirs.add(2.0); theirs.add(6.0)
    >>> received.load_state(theirs.state())
    >>> ours.merge(received)
    >>> ours.result()
    3.0
    """

    __slots__ = ()
    kept: ClassVar[tuple[str, ...]] = ()
    """The attributes that depend on the items; the others depend on the constructor call."""
    mergeable: bool
    takes_missing = False

    def add(self, item: Any) -> None:
        """Add the next item."""
        raise NotImplementedError

    def extend(self, items: ItemSeries) -> None:
        """Add several items, in order.

        >>> from looptap.streams.aggregations.registry import REDUCERS
        >>> total = REDUCERS["sum"].create()
        >>> total.extend([1, 2, 3])
        >>> total.result()
        6
        """
        add = self.add
        for item in items if isinstance(items, list) else items.tolist():
            add(item)

    @property
    def sendable(self) -> bool:
        """True if `state` can be merged in another process.

        >>> from looptap.streams.aggregations.registry import REDUCERS
        >>> REDUCERS["mean"].create().sendable, REDUCERS["reduce"].create(max).sendable
        (True, False)
        """
        return self.mergeable and bool(self.kept)

    def state(self) -> Any:
        """Return the partial result as plain data; raises TypeError if impossible."""
        if not self.kept:
            raise TypeError(f"The partial result of {type(self).__name__} cannot be sent.")
        return tuple(_plain(getattr(self, name)) for name in self.kept)

    def load_state(self, state: Any) -> None:
        """Load the `state` of a reducer of the same call; raises for anything else."""
        if not self.kept:
            raise TypeError(f"{type(self).__name__} has no state to load.")
        for name, part in zip(self.kept, state, strict=True):
            setattr(self, name, _loaded(part))


def _plain(part: Any) -> Any:
    """Return a part of a state as plain data; lists that are not items get a tag."""
    if part is MISSING:
        return ["missing"]
    if hasattr(part, "tagged"):
        return part.tagged()
    if isinstance(part, collections.Counter):
        return ["kept", list(part.items())]
    return ["kept", part] if isinstance(part, list) else part


def _loaded(part: Any) -> Any:
    if type(part) is not list:
        return part
    match part:
        case ["missing"]:
            return MISSING
        case ["kept", value]:
            return value
        case [str(tag), *rest] if tag in PARTS:
            return PARTS[tag](*rest)
    raise TypeError(f"{part!r:.80} is no part of a state.")
