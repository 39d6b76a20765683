"""How much of the long counts a test run does: a quarter, or all of them with LOOPTAP_COUNTS=full (make soak)."""

from __future__ import annotations

import os

FULL = os.environ.get("LOOPTAP_COUNTS") == "full"


def examples(full: int) -> int:
    """How many examples of ``full`` hypothesis is to make up."""
    return full if FULL else max(20, full // 4)
