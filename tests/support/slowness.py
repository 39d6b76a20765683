"""How slow the machine is, measured once: limits in seconds scale with it."""

from __future__ import annotations

import os
import time

_NAME = "LOOPTAP_TEST_SLOWNESS"
_SECONDS = 0.2
"""What the work below takes on a slow core that nothing else uses."""


def _measured() -> float:
    begun = time.perf_counter()
    total = 0
    for number in range(4_000_000):
        total += number
    return max(1.0, (time.perf_counter() - begun) / _SECONDS)


SLOWNESS = float(os.environ.get(_NAME) or _measured())
"""1 on a quiet machine, and more where others work beside."""
LONG_SECONDS = 300 * SLOWNESS
"""How long a test waits for a program before it fails."""
os.environ[_NAME] = str(SLOWNESS)  # for the workers and programs of this run
