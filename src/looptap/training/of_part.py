"""`of_part`: an observable of an object that an attribute of one of its parts is."""

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
