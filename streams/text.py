"""Short text for people: shortened, last line, spelling suggestions."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_FORMULA = tuple("=+-@\t\r\n＝＋－＠")  # first characters of text that spreadsheets compute


def cut(text: str, length: int) -> str:
    """Return ``text`` cut to ``length`` characters, with an ellipsis if longer.

    >>> cut("gradient", 5), cut("loss", 5)
    ('grad…', 'loss')
    """
    return text if len(text) <= length else text[: max(0, length - 1)] + "…"


def last_line(text: str) -> str:
    """Return the stripped last line of ``text``: of a traceback, the exception."""
    return text.strip().rpartition("\n")[2]


def public_line(text: str) -> str:
    """Return the last line of a traceback without the list of all names there are.

    >>> public_line("MissingObservable: no observable 'x'; there are: loss, secret.")
    "MissingObservable: no observable 'x'."
    """
    said, listed, _ = last_line(text).partition("; there are: ")
    return f"{said}." if listed else said


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return a sentence suggesting the nearest of ``names``; empty if none is near.

    >>> did_you_mean("los", ["loss", "step"])
    " Did you mean 'loss'?"
    """
    near = difflib.get_close_matches(name, names, n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


def as_cell(text: str) -> str:
    """Return text for a table; what a spreadsheet would compute gets an apostrophe.

    >>> as_cell("=1+1"), as_cell("-0.5"), as_cell("loss")
    ("'=1+1", '-0.5', 'loss')
    """
    return f"'{text}" if text.startswith(_FORMULA) and not _is_number(text) else text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
