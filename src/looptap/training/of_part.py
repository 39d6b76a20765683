"""Observables of an object that are attributes of its parts."""

from __future__ import annotations

from operator import attrgetter
from typing import Any


def of_part(path: str, doc: str) -> Any:
    """Return a property that reads ``path``, such as "table.steps".

    >>> class Owner:
    ...     table = type("Table", (), {"steps": 3})
    ...     steps = of_part("table.steps", "Steps that were observed.")
    >>> Owner().steps
    3
    """
    return property(attrgetter(path), doc=doc)


def note_of(part: str) -> Any:
    """Return the property `note` of an object whose ``part`` is `Noted`."""

    def write(owner: Any, text: str) -> None:
        getattr(owner, part).note = text

    return property(attrgetter(f"{part}.note"), write, doc="What is wrong or missing, and why; empty if nothing is.")
