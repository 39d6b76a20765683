"""All-reduces of torch.distributed after which a process ends cleanly.

A thread of the backend lets go of a tensor shortly after its result is there, on a busy machine a second later, and
takes the GIL for that. While the interpreter ends, that would abort the process: so the end waits for it.
"""

from __future__ import annotations

import atexit
import sys
import time
from collections import deque
from typing import Any

MAX_END_SECONDS = 10.0
"""Seconds for which the end of the process waits for the backend, at most."""
_ONLY_OURS_COUNT = 3
"""References to a tensor that only this module holds: of the queue, of a variable and of an argument."""

_newest: deque[Any] = deque(maxlen=8)
"""Aliases of the tensors of the last calls, which only this module and the backend hold."""


def all_reduce(value: Any, op: str = "SUM") -> Any:
    """Reduce a tensor over all ranks in place, and return it."""
    import torch

    alias = value.detach()
    _newest.append(alias)
    torch.distributed.all_reduce(alias, op=getattr(torch.distributed.ReduceOp, op))
    return value


@atexit.register
def _wait_for_backend() -> None:
    deadline = time.monotonic() + MAX_END_SECONDS
    for alias in _newest:
        while sys.getrefcount(alias) > _ONLY_OURS_COUNT and time.monotonic() < deadline:
            time.sleep(0.001)
