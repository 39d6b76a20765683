"""The part of long counts that is run: a quarter; all if LOOPTAP_COUNTS=full."""

from __future__ import annotations

import os

FULL = os.environ.get("LOOPTAP_COUNTS") == "full"


def examples(full: int) -> int:
    """Return how many of ``full`` examples hypothesis should generate."""
    return full if FULL else max(20, full // 4)
