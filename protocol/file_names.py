"""Shorten names of runs so that every file system accepts them."""

from __future__ import annotations

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
