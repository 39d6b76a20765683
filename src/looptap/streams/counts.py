"""`counts`: whether numbers of a name only count, as steps, epochs and time do."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

_COUNTED = {
    "step": frozenset(
        ("step", "steps", "iteration", "iterations", "iter", "iters", "it", "batch", "batches", "update", "updates")
    ),
    "epoch": frozenset(("epoch", "epochs")),
    "other": frozenset(("tokens", "samples", "examples", "instances", "episode", "episodes", "round", "rounds")),
}
"""Words that say what is counted, by what it is."""
_QUALIFIERS = frozenset(
    (
        "global",
        "total",
        "num",
        "n",
        "current",
        "cur",
        "train",
        "training",
        "trainer",
        "val",
        "validation",
        "eval",
        "test",
        "optimizer",
        "opt",
        "seen",
        "consumed",
        "processed",
        "idx",
        "index",
        "id",
        "number",
        "count",
        "counter",
        "state",
        "self",
        "env",
    )
)
"""Words beside them, as in global_step or batch_idx."""
_OVER = frozenset(
    (
        "x",
        "t",
        "time",
        "time_ns",
        "event_time",
        "wall",
        "wall_time",
        "walltime",
        "timestamp",
        "timestamps",
        "ts",
        "unix_time",
        "elapsed",
        "elapsed_time",
        "elapsed_seconds",
        "seconds",
        "minutes",
        "hours",
        "clock",
    )
)
_CLOCKS = frozenset(
    ("time", "time_ns", "event_time", "wall", "wall_time", "walltime", "timestamp", "timestamps", "ts", "unix_time")
)
_CLOCK_SECONDS = (1e9, 4.1e9)  # the years 2001 to 2099
_WORD = re.compile(r"[A-Za-z_]\w*")
_NUMBERED = re.compile(r"\b\d[\d.]*\s*[A-Za-z_]|\w\s+\d")
"""A number beside a word, as in "10 steps": how many, in the name of something else."""
_PLAIN_NAME = re.compile(r"[A-Za-z_][\w./]*")
_NAME_PARTS = re.compile(r"[._/]+|(?<=[a-z])(?=[A-Z])")


def count_of(name: str) -> str:
    """Return what a name counts: "step", "epoch", "other", or "" if it is no count.

    >>> count_of("global_step"), count_of("batchIdx"), count_of("num_epochs"), count_of("tokens_seen")
    ('step', 'step', 'epoch', 'other')
    >>> count_of("step_time"), count_of("batch_size"), count_of("step * 64")
    ('', '', '')
    """
    if name.lower() == "event_number":
        return "step"
    if name.lower() in _OVER:
        return "other"
    words = [word.lower() for word in _NAME_PARTS.split(name) if word] if _PLAIN_NAME.fullmatch(name) else []
    found = [what for word in words for what, known in _COUNTED.items() if word in known]
    others = sum(word in _QUALIFIERS for word in words)
    return found[0] if len(found) == 1 and others == len(words) - 1 else ""


def counts(name: str) -> bool:
    """Return whether a part of that name is an x axis: step, epoch, time or x.

    >>> counts("Step"), counts("step * 64"), counts("loss * step"), counts("10 steps")
    (True, True, False, False)
    """
    words = [] if _NUMBERED.search(name) else _WORD.findall(name)
    return bool(count_of(name)) or (0 < len(words) < 4 and all(map(count_of, words)))


def clock_seconds(name: str, numbers: NDArray[Any]) -> float | None:
    """Return the unit of numbers that are times since the epoch, else None.

    They are by their name and size: in seconds, milliseconds, microseconds or nanoseconds.

    >>> clock_seconds("timestamp", np.array([1.76e9])), clock_seconds("ts", np.array([1.76e12]))
    (1.0, 0.001)
    >>> clock_seconds("time", np.array([12.5])) is None
    True
    """
    known = numbers[np.isfinite(numbers)] if name.lower() in _CLOCKS else numbers[:0]
    for unit in (1.0, 1e-3, 1e-6, 1e-9) if known.size else ():
        if _CLOCK_SECONDS[0] <= unit * float(known.min()) and unit * float(known.max()) <= _CLOCK_SECONDS[1]:
            return unit
    return None


def unit_of(name: str) -> str:
    """Return what a name counts; all counts of steps agree, and all of epochs.

    >>> unit_of("global_step"), unit_of("batch"), unit_of("current_epoch"), unit_of("tokens")
    ('step', 'step', 'epoch', 'tokens')
    """
    found = "step" if name == "event" else count_of(name)
    return found if found in ("step", "epoch") else name.lower()


def numbers_named(event: Any, names: Iterable[str], holders: Iterable[str] = ()) -> dict[str, float]:
    """Return the numbers that ``event`` has under these names, or inside ``holders``.

    A holder is what a job calls its arguments or its config: a mapping, or an object with attributes.

    >>> from types import SimpleNamespace
    >>> event = SimpleNamespace(epoch=3, loss="low", args=SimpleNamespace(epochs=10), cfg={"steps": 500})
    >>> numbers_named(event, ["epoch", "epochs", "steps", "loss"], ["args", "cfg"])
    {'epoch': 3, 'args.epochs': 10, 'cfg.steps': 500}
    """
    names = tuple(names)
    found = {name: _read(event, name) for name in names}
    for holder in holders:
        thing = _read(event, holder)
        if thing is not None:
            found |= {f"{holder}.{name}": _read(thing, name) for name in names}
    return {name: value for name, value in found.items() if type(value) in (int, float)}


def _read(thing: Any, name: str) -> Any:
    try:
        return thing.get(name) if isinstance(thing, Mapping) else getattr(thing, name, None)
    except Exception:  # an error in a property of the job's
        return None
