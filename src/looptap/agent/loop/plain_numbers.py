"""Copy the plain numbers of an event, without running code of the job's.

Only values of exact types are read: int, float, bool, numpy's scalars, and plain tensors with one element. Nothing is
read that would wait: the copy of a CUDA tensor is under way when this returns, other devices are skipped. Names and
containers have exact types as well, so that no method of the host's is called; while a mode of torch is active, which
sees every operation, tensors are skipped.
"""

from __future__ import annotations

import keyword
import re
import sys
import weakref
from collections.abc import Iterator
from typing import Any

from looptap.agent.handoff.scalar_looks import Look, ScalarLooks
from looptap.streams.events import EventOrigin, held
from looptap.streams.harmless.plain import is_module
from looptap.streams.language.copyable import tensor_type
from looptap.streams.preserving.job_modes import modes_observe
from looptap.streams.values.device_transfer import copy_to_host

MAX_NAMES_COUNT = 256
"""Names of one event, and of what is exposed, that a look reads."""
MAX_DEVICE_COPIES_COUNT = 4
"""Tensors on a device that one look copies: each takes some 50 µs."""
MAX_NAME_CHARACTERS = 200
"""Characters of a name; longer ones are no names of numbers."""
MAX_GROUPS_COUNT = 4
"""Parameter groups of an optimizer whose learning rates are read."""

MAIN = re.compile(r"loss|err|acc|score|reward|lr\b|rate", re.IGNORECASE)
"""Names that come first where there is not room for all, and that make room for no other."""

_INT_LIMIT = 2**63  # with a sign, and twice as much without

_numpy_types: frozenset[type] = frozenset()


def take_look(looks: ScalarLooks, origin: EventOrigin, number: int, now: float, observables: dict[str, Any]) -> None:
    """Copy the numbers of an event to ``looks``. Raises only KeyboardInterrupt."""
    try:
        numbers, left_out = plain_numbers(observables)
        exposed = exposed_numbers(origin.exposed) if looks.wants_exposed(origin.name) else {}
        looks.pending.append(Look(origin.name, number, now, numbers, exposed))
        looks.left_out = max(looks.left_out, left_out)
        if type(observables) is dict:
            looks.note_names(origin.name, observables)
        for name, value in [*observables.items()][:MAX_NAMES_COUNT]:
            if is_module(value):
                origin.models[name] = weakref.ref(value)
    except Exception:  # the history lacks this event
        return


def plain_numbers(observables: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """Return the numbers of an event by name, and how many names were not read.

    >>> plain_numbers({"step": 3, "loss": 0.5, "x": [1], "note": "a"})
    ({'step': 3, 'loss': 0.5}, 0)
    """
    reader = _Reader()
    found: dict[str, Any] = {}
    items = [*observables.items()]
    if len(items) > MAX_NAMES_COUNT:
        items.sort(key=lambda item: not (type(item[0]) is str and MAIN.search(item[0])))
    for name, value in items[:MAX_NAMES_COUNT]:
        if (number := reader.number(value)) is not None and _is_name(name):
            found[name] = number
    return found, max(0, len(items) - MAX_NAMES_COUNT)


def exposed_numbers(exposed: dict[str, Any]) -> dict[str, Any]:
    """Return the numbers that the job exposes, and the learning rates of optimizers.

    >>> exposed_numbers({"scale": 2.0, "name": "digits"})
    {'scale': 2.0}
    """
    reader = _Reader()
    found: dict[str, Any] = {}
    for name, value in [*exposed.items()][:MAX_NAMES_COUNT]:  # copied in one step, whatever other threads expose
        if not _is_name(name):
            continue
        value = held(value)
        if (number := reader.number(value)) is not None:
            found[name] = number
        elif reader.optimizer is not None and issubclass(type(value), reader.optimizer):
            for path, rate in _learning_rates(name, value):
                if (number := reader.number(rate)) is not None:
                    found[path] = number
    return found


def query_of(name: str, exposed: bool = False) -> str:
    """Return the query whose values are those of a look's ``name``.

    >>> query_of("loss"), query_of("train/loss"), query_of("optimizer.lr[1]", exposed=True)
    ('loss', "e['train/loss']", "optimizer.param_groups[1]['lr']")
    """
    thing, dot, rest = name.rpartition(".lr")
    if exposed and dot:
        return f"{thing}.param_groups[{rest[1:-1] or 0}]['lr']"
    plain = name.isidentifier() and not keyword.iskeyword(name) and name != "events"
    return name if plain else f"e[{name!r}]"


def _is_name(name: Any) -> bool:
    """Return whether a query can read this name: ``__class__`` is Python's own."""
    fits = type(name) is str and 0 < len(name) <= MAX_NAME_CHARACTERS and name.isprintable()
    return fits and not (name.startswith("__") and name.endswith("__"))


def _learning_rates(name: str, optimizer: Any) -> Iterator[tuple[str, Any]]:
    """Yield the learning rates as they stand in the optimizer's own attributes."""
    try:
        groups = dict.get(object.__getattribute__(optimizer, "__dict__"), "param_groups")
    except Exception:  # it has no attributes of its own
        return
    if type(groups) is not list:
        return
    several = len(groups) > 1
    for index, group in enumerate(groups[:MAX_GROUPS_COUNT]):
        if type(group) is dict and "lr" in group:
            yield (f"{name}.lr[{index}]" if several else f"{name}.lr"), group["lr"]


class _Reader:
    """What one look may read of tensors: none while a mode of torch is active."""

    def __init__(self) -> None:
        self.copies = 0
        torch = sys.modules.get("torch")
        optim = None if torch is None else getattr(torch, "optim", None)
        self.optimizer = None if optim is None else getattr(optim, "Optimizer", None)
        self.tensor = None if torch is None or modes_observe(torch) else tensor_type()
        self.others = _scalars_of_numpy()

    def number(self, value: Any) -> Any:
        """Return a plain number, or its copy in transfer; None for anything else."""
        kind = type(value)
        if kind is self.tensor:
            try:
                return self._of_tensor(value)
            except Exception:  # it has no value now
                return None
        if type(kind) is not type:  # a class of the host's could answer how it is hashed
            return None
        if kind in self.others:
            value = value.item()
            kind = type(value)
        if kind is int:
            return value if -_INT_LIMIT <= value < 2 * _INT_LIMIT else None
        return value if kind is float or kind is bool else None

    def _of_tensor(self, value: Any) -> Any:
        if value.numel() != 1 or value.is_complex():
            return None
        if value.is_cpu:
            return self.number(value.item())
        if not value.is_cuda or self.copies >= MAX_DEVICE_COPIES_COUNT:
            return None
        self.copies += 1
        return copy_to_host(value.detach().reshape(()))


def _scalars_of_numpy() -> frozenset[type]:
    """Return the types of numpy's real scalars; none if numpy is not loaded."""
    global _numpy_types
    numpy = sys.modules.get("numpy")
    if not _numpy_types and hasattr(numpy, "bool_"):
        assert numpy is not None
        real = numpy.integer, numpy.floating, numpy.bool_
        _numpy_types = frozenset(
            kind for kind in {*numpy.sctypeDict.values()} if issubclass(kind, real) and kind is not numpy.timedelta64
        )
    return _numpy_types
