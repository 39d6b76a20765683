"""Detection of CUDA graph capture, during which events are only counted."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable

log = logging.getLogger("looptap")
captured = 0
"""Events ignored during CUDA graph capture."""


def captures() -> Callable[[], bool] | None:
    """Return a function that tests for CUDA graph capture; None without CUDA."""
    cuda = getattr(getattr(sys.modules.get("torch"), "backends", None), "cuda", None)  # another thread may import it
    return capturing if cuda is not None and cuda.is_built() else None


def capturing() -> bool:
    """Return True during CUDA graph capture; count it, and warn once."""
    global captured
    cuda = sys.modules["torch"].cuda
    if not cuda.is_initialized() or not cuda.is_current_stream_capturing():
        return False
    captured += 1
    if captured == 1:
        log.warning("looptap: events are ignored during CUDA graph capture: emit after the replay. (reported once)")
    return True
