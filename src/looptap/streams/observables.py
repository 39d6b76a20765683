"""`observables`: the names that an event offers to queries, and what they are."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from looptap.streams.control import for_queries
from looptap.streams.events import BUILT_IN, Event, FoundObservables, Lazy, held

Offer = tuple[str, str, "list[int] | None", str, str]
"""A name, the class of its value, the shape and the type of the numbers of an array, and where it is from."""
FROM_EVENT, EXPOSED, MACHINE, LOOPTAP = "the event", "exposed", "the machine", "looptap"
"""Where a name is from: the call of ``emit``, ``expose``, a reading, looptap itself; else a function or a module."""


@for_queries
def observables(event: Event) -> list[Offer]:
    """Return a row for each name that a query can read of ``event``.

    Nothing lazy is computed, and no code of the job's runs.

    >>> [row for row in observables(Event({"x": np.zeros((2, 3), "float32")})) if row[0] == "x"]
    [('x', 'ndarray', [2, 3], 'float32', 'the event')]
    """
    own = vars(event)
    readings, exposed = event._source.machine, event.__looptap_exposed__()
    found = {name: (getattr(event, name), LOOPTAP) for name in BUILT_IN}
    found |= {name: (value, MACHINE) for name, value in [*readings.items()]}
    found |= {name: (held(value), EXPOSED) for name, value in [*exposed.items()]}
    if type(own) is FoundObservables:
        found |= {name: (_found(own, name), own.place(name) or LOOPTAP) for name in own.listed()}
    else:
        found |= {name: (value, FROM_EVENT) for name, value in event.__looptap_passed__().items()}
    return [(name, *_outline(value), source) for name, (value, source) in found.items()]


def _found(own: FoundObservables, name: str) -> Any:
    """Return a variable of a script; None if it has gone meanwhile."""
    try:
        return own.peek(name)
    except KeyError:
        return None


def _outline(value: Any) -> tuple[str, list[int] | None, str]:
    kind = type(value)
    torch = sys.modules.get("torch")
    arrays = (np.ndarray, getattr(torch, "Tensor", None), getattr(getattr(torch, "nn", None), "Parameter", None))
    if kind not in arrays:  # of another class, `shape` may be code of the job's
        return "lazy" if kind is Lazy else kind.__name__, None, ""
    return kind.__name__, [*map(int, value.shape)], str(value.dtype).removeprefix("torch.")
