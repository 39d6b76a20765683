"""The errors of a stored run.

LooptapError
└── StoreError            a file that is no stored run, cannot be read, or does not have what is asked for
"""

from __future__ import annotations

from looptap.streams.errors import LooptapError


class StoreError(LooptapError):
    """A stored run that cannot be opened, read or exported; one sentence says why."""
