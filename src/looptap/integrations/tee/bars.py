"""Where the progress bars of tqdm stand: how far the loop around an event is.

Reading one changes nothing. tqdm keeps its open bars in a set, and a bar that is iterated brings its count up to date
when it is drawn, ten times a second unless ``mininterval`` says otherwise.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from looptap.streams.control import for_queries

_MAX_BARS_COUNT = 8
"""Open bars, one in another, that are read."""


@for_queries
def outer_bar(event: Any = None) -> dict[str, Any] | None:
    """Return where the outermost open bar of tqdm stands, or None.

    ``done`` of ``total`` counts the bars inside it as parts; ``began`` is a time of the system's clock, ``elapsed`` the
    seconds since. ``loader`` is True if it is one pass over a DataLoader.

    >>> outer_bar() is None
    True
    """
    bars = sorted(_open_bars(), key=lambda bar: bar.start_t)[:_MAX_BARS_COUNT]
    if not bars:
        return None
    inside = 0.0
    for bar in reversed(bars[1:]):
        inside = min((bar.n + inside) / bar.total, 1.0)
    outer = bars[0]
    return {
        "name": str(outer.desc or "").rstrip(": ")[:40],
        "done": min(outer.n + inside, float(outer.total)),
        "total": float(outer.total),
        "initial": float(outer.initial),
        "began": outer.start_t,
        "elapsed": max(0.0, time.time() - outer.start_t),
        "loader": _over_loader(outer.iterable),
    }


def _open_bars() -> list[Any]:
    """Return the bars that are drawn, and are not at their end."""
    tqdm = getattr(sys.modules.get("tqdm.std"), "tqdm", None)
    try:
        bars = [*getattr(tqdm, "_instances", ())]
    except RuntimeError:  # another thread opened or closed one
        return []
    return [bar for bar in bars if getattr(bar, "start_t", None) and bar.total and bar.n < bar.total]


def _over_loader(iterable: Any) -> bool:
    """Return True for a DataLoader, or one that is enumerated."""
    if type(iterable) is enumerate:
        iterable = iterable.__reduce__()[1][0]
        return "DataLoaderIter" in type(iterable).__name__
    return hasattr(iterable, "dataset") and hasattr(iterable, "batch_size")
