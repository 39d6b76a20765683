"""Names of files: whatever a run is called, its files have names that every file system takes."""

from __future__ import annotations

import hashlib

MAX_BYTES = 150
"""Bytes of the part of a file's name that comes from elsewhere; file systems take 255 for all of it."""
_DIGEST_CHARACTERS = 16


def fitting(name: str) -> str:
    """``name``, if it is short enough, else its beginning and a digest, by which different names stay different.

    >>> fitting("digits-1"), len(fitting("ж" * 100).encode())
    ('digits-1', 149)
    """
    data = name.encode("utf-8", "surrogatepass")
    if len(data) <= MAX_BYTES:
        return name
    beginning = data[: MAX_BYTES - _DIGEST_CHARACTERS - 1].decode(errors="ignore")
    return f"{beginning}-{hashlib.sha256(data).hexdigest()[:_DIGEST_CHARACTERS]}"
