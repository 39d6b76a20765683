"""A checkpoint of an `Echo`: not the data that waits in it, but how it is had again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from looptap.training.echoing.shuffle_buffer import Example
from looptap.training.echoing.source import Fresh, Key
from looptap.training.echoing.worker_stages import Entry

if TYPE_CHECKING:
    from looptap.training.echoing.loader import Echo

_COUNTERS = ("epoch", "steps", "fresh", "seen", "dropped")
_PLACES = ("_in_epoch", "_epoch_fresh", "_room")


def taken(echo: Echo) -> dict[str, Any]:
    """The state after the batch that was handed over last."""
    state: dict[str, Any] = {name: getattr(echo, name) for name in _COUNTERS}
    state |= {"factor": echo.factor, "auto": echo.auto, "buffer": echo.buffer, "mode": echo.mode}
    state |= {"inside": echo._inside, "kind": type(echo._source).__name__, "guard": echo._guard}
    state |= {"copies": echo._copies.getstate(), "order": echo._order.getstate()}
    if echo._resumed is not None:  # loaded, and not gone on yet
        return dict(echo._resumed)
    if echo._inside:
        state["now"], state["agreed"] = echo._now, [echo._factor, echo._capacity]
        state |= {name: getattr(echo, name) for name in _PLACES}
        needed: dict[int, dict[Key, list[Entry]]] = {}
        for one in (*echo._pending, *echo._buffer.items):
            needed.setdefault(one.key[0], {})[one.key] = _entries(one)
        state["needed"] = [
            [number, [list(entry) for some in found.values() for entry in some]] for number, found in needed.items()
        ]
        state["pending"] = [[list(one.key), one.u, one.done] for one in echo._pending]
        state["items"] = [list(one.key) for one in echo._buffer.items]
        state["source"] = echo._source.state()
    return state


def _entries(one: Example) -> list[Entry]:
    """What is to be read again, to have this item."""
    if one.ticket is None:
        return []
    _, place, copy = one.key
    if place < 0:  # a whole batch
        return list(one.ticket.entries())
    return [(one.ticket.indices[one.ticket.places.index(place)], place, [copy])]


def given(echo: Echo, state: dict[str, Any]) -> None:
    """Take over a state; what is inside an epoch is read again at the next ``iter``."""
    kind = type(echo._source).__name__
    if state.get("kind") != kind:
        raise ValueError(f"The state is that of a loader of another kind, {state.get('kind')!r}; this one is {kind!r}.")
    for name in _COUNTERS:
        setattr(echo, name, state[name])
    echo.mode, echo.buffer, echo._guard = state["mode"], state["buffer"], state["guard"]
    echo.__dict__.update(factor=type(echo).factor.checked(state["factor"]), auto=state["auto"])
    for generator, found in ((echo._copies, state["copies"]), (echo._order, state["order"])):
        version, numbers, rest = found
        generator.setstate((version, tuple(numbers), rest))
    echo._inside = False
    echo._resumed = dict(state) if state["inside"] else None


def filled(echo: Echo, state: dict[str, Any], arriving: Iterator[Fresh]) -> None:
    """Read again what waited when the state was taken, and put it back in its order."""
    for name in _PLACES:
        setattr(echo, name, state[name])
    echo._factor, echo._capacity = state["agreed"]
    needed = {number: [(index, place, copies) for index, place, copies in some] for number, some in state["needed"]}
    echo._source.resume(state["source"], needed)
    pending = [(tuple(key), u, done) for key, u, done in state["pending"]]
    items = [tuple(key) for key in state["items"]]
    wanted = {*items, *(key for key, _, _ in pending)}
    found: dict[tuple[int, ...], Example] = {}
    for _ in needed:
        fresh = next(arriving, None)
        if fresh is None:
            break
        for one in echo._examples_of(fresh, draws=False):
            if one.key in wanted:
                found[one.key] = one
            else:
                echo._buffer.release(one)
    for key, u, done in pending:
        if key in found:
            found[key].u, found[key].done = u, done
            echo._pending.append(found[key])
    for key in items:
        if key in found:
            echo._buffer.add(found[key])
    if lost := sum(key not in found for key in items):
        echo.dropped += lost
        echo._say(f"{lost} echoes that waited at the checkpoint are gone: the stream did not repeat itself.")
