"""Stages between a sequence and its reducer: chain, fold, copy, collect."""

from __future__ import annotations

import ast
import itertools
import operator
from collections.abc import Callable, Iterable
from typing import Any

from looptap.streams.aggregations.registry import REDUCERS, Bounds
from looptap.streams.events import EventSnapshot
from looptap.streams.harmless.checked_evaluation import evaluating
from looptap.streams.operators.slots import Items, SlidingSlot, Slot, taken
from looptap.streams.proving.vouching import own


def collected_events(names: Iterable[str], size: int | None, bounds: Bounds) -> Slot | SlidingSlot:
    """Return a slot that keeps the observables ``names`` of each event that has them."""
    wanted = tuple(names)

    def keep(event: Any) -> EventSnapshot:
        has = getattr(event, "__looptap_names__", None)
        present = (has() if has else set(getattr(event, "_fields", ()))) | {"event_number", "event_time"}
        kept = {n: taken(getattr(event, n)) for n in wanted if n in present}
        return EventSnapshot(kept, tuple(getattr(event, "__dict__", ())))

    make = REDUCERS["list"].maker(bounds=bounds)
    items = Items(keep, one=True, copied=True)
    return Slot(items, make) if size is None else SlidingSlot(items, make, size, False)


def collected_values(size: int | None, bounds: Bounds) -> Slot | SlidingSlot:
    """Return a slot that keeps the values of a stream, which are immutable."""
    make, items = REDUCERS["list"].maker(bounds=bounds), Items(lambda value: value, one=True, copied=True)
    return Slot(items, make) if size is None else SlidingSlot(items, make, size, False)


def as_made_by(node: ast.expr, read: Callable[[], Any]) -> Callable[[], Any]:
    """Return a function that converts collected items to the type of ``node``."""
    if isinstance(node, ast.SetComp):
        return lambda: set(read())
    if isinstance(node, ast.DictComp):
        return lambda: dict(read())
    if isinstance(node, ast.ListComp | ast.Name):
        return read

    def one_pass() -> Any:
        made = iter(read())
        return own(made) if evaluating() else made

    return one_pass


def chained(inner: Items, outer: Items) -> Items:
    """Return ``outer`` applied to the items of ``inner``."""
    f, g, resets = inner.feed, outer.feed, [*inner.resets, *outer.resets]
    if inner.bare or inner.copied:
        return Items(g, outer.one, resets=resets)
    if inner.one:
        return Items(lambda e: g(f(e)), outer.one, resets=resets)
    if outer.one:
        return Items(lambda e: [g(x) for x in f(e)], one=False, resets=resets)
    return Items(lambda e: list(itertools.chain.from_iterable(g(x) for x in f(e))), one=False, resets=resets)


def uncopied(items: Items) -> Items:
    """Return as many items without values, since counting needs no copies."""
    f = items.feed
    if items.one:
        return Items(lambda e: (f(e), None)[1], one=True, resets=items.resets)
    return Items(lambda e: [None for _ in f(e)], one=False, resets=items.resets)


def snapshotting(f: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return ``f`` with a snapshot of its result, so that a fold keeps no graph."""
    return lambda a, x: taken(f(a, x))


_NOTHING: Any = object()


class FoldStage:
    """itertools.accumulate as a stage: the running result at each item."""

    def __init__(self, func: Callable[[Any, Any], Any] | None = None, *, initial: Any = None) -> None:
        self.f, self.initial = func or operator.add, initial
        self.has_initial = initial is not None
        self.reset()

    def reset(self) -> None:
        """Restart."""
        self.total = self.initial if self.has_initial else _NOTHING
        self.fresh = True

    def begin(self) -> tuple[Any, ...]:
        """Return the initial value, before the first item of a window."""
        fresh, self.fresh = self.fresh, False
        return (self.initial,) if fresh else ()

    def push(self, item: Any) -> Any:
        """Fold the item in; return the running result."""
        self.total = taken(item if self.total is _NOTHING else self.f(self.total, item))
        return self.total


def ema_fold(alpha: float) -> FoldStage:
    """Return the stage of `ema`. Raises TypeError for an alpha outside (0, 1]."""
    if not isinstance(alpha, int | float) or not 0 < alpha <= 1:
        raise TypeError(f"ema takes an alpha in (0, 1], not {alpha!r}")
    return FoldStage(lambda mean, x: mean + alpha * (x - mean))


ema_fold.__qualname__ = "ema"  # the name in the error for a missing alpha
