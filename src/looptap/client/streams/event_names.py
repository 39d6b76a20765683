"""The names that an event offers to queries, as its client sees them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

OFFER = "lambda e: observables(e)"
"""Asks an event for its names."""


class EventName(NamedTuple):
    """A name that a query can read at an event."""

    kind: str
    """The name of its class; "lazy" for what is computed only if a query reads it."""
    shape: tuple[int, ...] | None
    """The shape of an array or a tensor; None for anything else."""
    dtype: str
    """The type of its numbers, such as "float32"; empty for anything else."""
    source: str
    """Where it is from: "the event" (its ``emit``), "exposed", "the machine", "looptap", or a place in a script."""

    def __str__(self) -> str:
        shape = "" if self.shape is None else f" {'×'.join(map(str, self.shape)) or 'scalar'} {self.dtype}"
        return f"{self.kind}{shape}, {self.source}"


class EventNames(Mapping[str, EventName]):
    """The names that one event offered, by name; its text is a table."""

    def __init__(self, names: Mapping[str, EventName]) -> None:
        self._names = dict(names)

    @classmethod
    def of(cls, offer: Iterable[Iterable[Any]]) -> EventNames:
        """Return what an event has answered to `OFFER`."""
        found = {}
        for name, kind, shape, dtype, source in offer:
            found[str(name)] = EventName(kind, None if shape is None else tuple(shape), dtype, source)
        return cls(found)

    def __getitem__(self, name: str) -> EventName:
        return self._names[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def _ipython_key_completions_(self) -> list[str]:
        return list(self)

    def __repr__(self) -> str:
        width = max(map(len, self), default=0)
        return "\n".join(f"{name:{width}}  {one}" for name, one in self.items())
