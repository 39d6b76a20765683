"""The meaning of the names of a value's parts: step, epoch, quantiles."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from looptap.streams.counts import count_of, counts
from looptap.visualizers.charts.reading.labels import labels_of, read_query

_PLACEHOLDER = re.compile(r"v\d+$")  # the field of an element that has no plain name
_LOW = ("lo", "low", "lower", "min", "minimum")
_MIDDLE = ("mid", "middle", "median", "mean", "average", "estimate", "value")
_HIGH = ("hi", "high", "upper", "max", "maximum")
_QUANTILE = re.compile(r"[qp]_?(\d{1,2}|0?\.\d+)$")


class QuantileBand(NamedTuple):
    """Positions of x, of the middle, and of (low, high) pairs, the widest first."""

    x: int | None
    middle: int | None
    pairs: tuple[tuple[int, int], ...]


def names_of(value: Any, fields: Sequence[str] = (), query: str = "") -> tuple[str, ...]:
    """Return the names of a value's parts: dict keys, fields, quantiles, or labels.

    >>> names_of((1, 0.5), ("step", "v1"), "step, loss.item()")
    ('step', 'loss')
    """
    if isinstance(value, Mapping):
        return tuple(map(str, value))
    parts = len(value) if isinstance(value, tuple | list) else 0
    labels = tuple(label.text for label in labels_of(query)) if parts > 1 else ()
    if parts and len(fields) == parts:
        known = labels if len(labels) == parts else fields
        whole = [text if _PLACEHOLDER.match(name) else name for name, text in zip(fields, known, strict=True)]
        return tuple(name if name not in whole[:place] else fields[place] for place, name in enumerate(whole))
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return tuple(value._fields)
    if "quantile" in query and len(found := read_query(query, _quantiles, labels[:0])) == parts > 0:
        return found
    return labels if isinstance(value, tuple) and len(labels) == parts == len(set(labels)) else ()


def is_step(name: str) -> bool:
    """Return whether a name is that of steps or epochs."""
    return count_of(name) in ("step", "epoch")


def tells(names: Sequence[str], query: str = "") -> bool:
    """Return whether all ``names``, of `names_of`, say what the parts are.

    >>> tells(("loss", "accuracy")), tells(("v0", "v1")), tells(("math.sin(t)", "t"), "math.sin(t), t")
    (True, False, False)
    """
    unnamed = {label.text for label in labels_of(query) if not label.named}
    return bool(names) and not any(name in unnamed or _PLACEHOLDER.match(name) for name in names)


def band_of(names: Sequence[str]) -> QuantileBand | None:
    """Return the band meant by names such as step, q10, q50, q90; else None.

    >>> band_of(("step", "lo", "mid", "hi"))
    QuantileBand(x=0, middle=2, pairs=((1, 3),))
    >>> band_of(("q90", "q50", "q10"))
    QuantileBand(x=None, middle=1, pairs=((2, 0),))
    >>> band_of(("loss", "accuracy")) is None
    True
    """
    plain = [name.lower() for name in names]
    x = 0 if plain and counts(plain[0]) else None
    parts = {name: index for index, name in enumerate(plain) if index != x}
    ranks = {index: rank for name, index in parts.items() if (rank := _rank(name)) is not None}
    if len(ranks) == len(parts) and len(set(ranks.values())) == len(parts) > 1:
        ordered = sorted(ranks, key=ranks.__getitem__)
        half = len(ordered) // 2
        pairs = tuple((ordered[i], ordered[-1 - i]) for i in range(half))
        return QuantileBand(x, ordered[half] if len(ordered) % 2 else None, pairs)
    stems = {name: name.rsplit("_", 1)[-1] for name in parts}
    low = [parts[name] for name, stem in stems.items() if stem in _LOW]
    high = [parts[name] for name, stem in stems.items() if stem in _HIGH]
    rest = [index for index in parts.values() if index not in (*low, *high)]
    if len(low) == len(high) == 1 and len(rest) <= 1:
        return QuantileBand(x, rest[0] if rest else None, ((low[0], high[0]),))
    return None


def _rank(name: str) -> float | None:
    """Return the rank in 0..1 that a name such as q10, p_90 or median means."""
    if name.rsplit("_", 1)[-1] == "median":
        return 0.5
    found = _QUANTILE.search(name)
    if found is None or (found.start() and name[found.start() - 1] not in "_."):
        return None
    digits = found[1]
    return float(digits) if "." in digits else int(digits) / 10 ** len(digits) if len(digits) > 1 else int(digits) / 10


def x_of(names: Sequence[str]) -> int | None:
    """Return the position of a first part that counts, else of the step or epoch."""
    if names and counts(names[0]):
        return 0
    for wanted in ("step", "epoch"):
        for index, name in enumerate(names):
            if count_of(name) == wanted:
                return index
    return None


def _quantiles(tree: ast.Module) -> tuple[str, ...]:
    """Return the names of what ``quantile(xs, [0.1, 0.5, 0.9])`` yields."""
    call = getattr(next(iter(tree.body), None), "value", None)
    if not isinstance(call, ast.Call) or getattr(call.func, "id", "") != "quantile":
        return ()
    asked = [*call.args[1:2], *(one.value for one in call.keywords if one.arg == "q")]
    ranks = ast.literal_eval(asked[0]) if len(asked) == 1 else 0
    if not isinstance(ranks, tuple | list) or not all(isinstance(rank, float) for rank in ranks):
        return ()
    return tuple(f"q{100 * rank:02.0f}" for rank in ranks)
