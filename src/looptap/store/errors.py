"""The errors of a stored run.

LooptapError
└── StoreError            a file that is not a stored run, is unreadable, or lacks what was requested
"""

from __future__ import annotations

from looptap.streams.errors import LooptapError


class StoreError(LooptapError):
    """A stored run that cannot be opened, read or exported; one sentence says why."""
