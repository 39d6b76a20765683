"""The part of long counts that is run: an eighth; all if LOOPTAP_COUNTS=full."""

from __future__ import annotations

import os

FULL = os.environ.get("LOOPTAP_COUNTS") == "full"


def examples(full: int) -> int:
    """Return how many of ``full`` examples hypothesis should generate."""
    return full if FULL else max(10, full // 8)
