"""Names of runs as names of files, whatever the file system and the locale."""

from __future__ import annotations

import os

MAX_BYTES = 150
"""Bytes of the variable part of a file's name; file systems take 255 for the whole name."""
_DIGEST_CHARACTERS = 16


def fitting(name: str) -> str:
    """Return ``name``, shortened with a digest that keeps it unique if too long.

    >>> fitting("digits-1"), len(fitting("ж" * 100).encode())
    ('digits-1', 149)
    """
    data = name.encode("utf-8", "surrogatepass")
    if len(data) <= MAX_BYTES:
        return name
    import hashlib  # it loads a library that takes longer than the rest of the protocol, for long names alone

    beginning = data[: MAX_BYTES - _DIGEST_CHARACTERS - 1].decode(errors="ignore")
    return f"{beginning}-{hashlib.sha256(data).hexdigest()[:_DIGEST_CHARACTERS]}"


def as_text(argument: str) -> str:
    """Return the text of a program's argument.

    A locale that is not UTF-8 hides its letters.

    >>> as_text("digits-1")
    'digits-1'
    """
    if argument.isascii() or argument.isprintable():
        return argument
    return os.fsencode(argument).decode("utf-8", "replace")


def on_disk(name: str) -> str:
    """Return a name so that its file has the same bytes in every locale."""
    return name if os.name == "nt" else os.fsdecode(name.encode("utf-8", "surrogatepass"))
