"""Reads what objects of a script hold, without running code of the script."""

from __future__ import annotations

from typing import Any


def own_attributes(thing: Any) -> list[tuple[str, Any]]:
    """Return the attributes that are in an object's own dict; none of a class."""
    try:
        own = object.__getattribute__(thing, "__dict__")
    except AttributeError:
        return []
    return [*own.items()] if type(own) is dict else []
