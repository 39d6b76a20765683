"""The names that a query may use besides its observables."""

from __future__ import annotations

import builtins
import collections
import functools
import heapq
import itertools
import math
import operator
import statistics
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from looptap.streams.aggregations.registry import REDUCERS
from looptap.streams.harmless import known
from looptap.streams.observables import observables
from looptap.streams.proving import calls  # noqa: F401 - it gives rewritten code its operations
from looptap.streams.proving.probing import probe
from looptap.streams.values.checks import HELPERS
from looptap.streams.values.modules.module_read import OUTSIDE

_BUILTINS = {name: value for name, value in vars(builtins).items() if not name.startswith("_")}


def ema(xs: Iterable[Any], alpha: float) -> Iterator[Any]:
    """Yield the moving average ``m = (1 - alpha) m + alpha x``, from the first x on.

    ``alpha`` is in (0, 1].

    >>> list(ema([1.0, 3.0], 0.5))
    [1.0, 2.0]
    """
    mean = None
    for x in xs:
        mean = x if mean is None else mean + alpha * (x - mean)
        yield mean


known.register_helpers([*(spec.plain for spec in REDUCERS.values()), *HELPERS.values(), *OUTSIDE.values(), probe, ema])


def names(extra: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return Python's names, reducers, helpers, ``extra``, and torch if loaded."""
    space: dict[str, Any] = dict(_BUILTINS)
    space.update({"math": math, "statistics": statistics, "itertools": itertools, "functools": functools})
    space.update({"operator": operator, "collections": collections, "heapq": heapq, "np": np, "numpy": np})
    space.update({name: spec.plain for name, spec in REDUCERS.items()})
    space.update({"accumulate": itertools.accumulate, "ema": ema, "probe": probe, **HELPERS, **OUTSIDE})
    space["observables"] = observables
    space.update(extra or {})
    if "torch" in sys.modules:
        space["torch"] = sys.modules["torch"]
    return space
