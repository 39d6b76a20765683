"""Short texts for people: shortened, the last line, the name that was meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def cut(text: str, length: int) -> str:
    """Return ``text`` in at most ``length`` characters, the last of them an ellipsis if it is longer.

    >>> cut("gradient", 5), cut("loss", 5)
    ('grad…', 'loss')
    """
    return text if len(text) <= length else text[: max(0, length - 1)] + "…"


def last_line(text: str) -> str:
    """Return the last line of ``text`` without the spaces around it: of a traceback, what was raised."""
    return text.strip().rpartition("\n")[2]


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return a sentence that names the nearest of ``names``, after a space; empty if none is near.

    >>> did_you_mean("los", ["loss", "step"])
    " Did you mean 'loss'?"
    """
    near = difflib.get_close_matches(name, names, n=1)
    return f" Did you mean {near[0]!r}?" if near else ""
