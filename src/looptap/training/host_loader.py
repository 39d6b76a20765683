"""What is known of a host's loader: kind, workers, the state of its order."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator
from typing import Any

_METHODS = ("__iter__", "_get_iterator", "_index_sampler", "_auto_collation", "__getattribute__")
_SETTINGS = (
    "num_workers",
    "pin_memory",
    "pin_memory_device",
    "timeout",
    "worker_init_fn",
    "generator",
    "prefetch_factor",
    "multiprocessing_context",
    "in_order",
)
_PARTS = ("dataset", "sampler", "batch_sampler", "batch_size", "drop_last", "collate_fn", "persistent_workers")
_MAX_DEPTH, _MAX_VALUES = 3, 1000
"""How deep, and among how many attributes at each depth, a loader inside another is looked for."""


def rebuildable(loader: Any) -> bool:
    """Return True if a DataLoader with the same settings yields the same batches.

    It is torch's, or of a class that overrides nothing of what makes its batches.
    """
    from torch.utils import data

    kind = type(loader)  # not __class__: wrappers claim to be what they wrap
    if not issubclass(kind, data.DataLoader):
        return False
    if any(
        inspect.getattr_static(kind, name) is not inspect.getattr_static(data.DataLoader, name) for name in _METHODS
    ):
        return False
    if any(name in vars(loader) for name in _METHODS):
        return False
    computed = (inspect.getattr_static(kind, name, None) for name in (*_SETTINGS, *_PARTS))
    theirs = inspect.getattr_static(data.DataLoader, "multiprocessing_context", None)
    if any(inspect.isdatadescriptor(found) and found is not theirs for found in computed):
        return False
    pipes = tuple(getattr(data, name) for name in ("IterDataPipe", "MapDataPipe") if hasattr(data, name))
    return not isinstance(loader.dataset, pipes)  # the loader shuffles and shards inside them


def rebuilt(loader: Any, dataset: Any, collate: Any, **how: Any) -> Any:
    """Return a DataLoader with the loader's settings, but other reads and collation."""
    from torch.utils.data import DataLoader

    settings = {name: getattr(loader, name) for name in (*_SETTINGS, "persistent_workers") if _given(loader, name)}
    return DataLoader(dataset, collate_fn=collate, **settings | how)


def follow(loader: Any, other: Any) -> None:
    """Give ``other``, which was `rebuilt`, the settings that were changed since."""
    for name in _SETTINGS:
        if _given(loader, name) and getattr(other, name) is not getattr(loader, name):
            setattr(other, name, getattr(loader, name))


def _given(loader: Any, name: str) -> bool:
    """Return whether the loader has a setting; an empty device would only warn."""
    return hasattr(loader, name) and not (name == "pin_memory_device" and not loader.pin_memory_device)


def workers_of(loader: Any) -> int:
    """Return the number of processes that read for a loader, or for those inside it."""
    return max((_count(getattr(one, "num_workers", 0)) for one in loaders_in(loader)), default=0)


def _count(value: Any) -> int:
    return value if isinstance(value, int) else 0


def loaders_in(loader: Any) -> list[Any]:
    """Return the loader and the DataLoaders in its attributes, which it may wrap."""
    from torch.utils.data import DataLoader

    found, looked, level = [loader], {id(loader)}, [loader]
    for _ in range(_MAX_DEPTH):
        inner = []
        for one in itertools.islice((value for holder in level for value in _attributes(holder)), _MAX_VALUES):
            if id(one) not in looked and hasattr(type(one), "__iter__"):
                looked.add(id(one))
                inner.append(one)
        found += [one for one in inner if isinstance(one, DataLoader)]
        level = inner
    return found


def _attributes(holder: Any) -> Iterator[Any]:
    for value in list(getattr(holder, "__dict__", {}).values()):
        if isinstance(value, list | tuple | dict):
            yield from itertools.islice(value.values() if isinstance(value, dict) else value, _MAX_VALUES)
        else:
            yield value


class OrderState:
    """The random states from which a loader draws its order: torch's and generators."""

    def __init__(self, loader: Any) -> None:
        import torch

        holders = []
        for one in loaders_in(loader):
            batches = getattr(one, "batch_sampler", None)
            holders += [one, batches, getattr(batches, "sampler", None), getattr(one, "sampler", None)]
        found = [getattr(holder, "generator", None) for holder in holders]
        self._generators = list({id(one): one for one in found if isinstance(one, torch.Generator)}.values())

    def __enter__(self) -> None:
        self._entered = self.taken()

    def __exit__(self, *_: object) -> None:
        self.put_back(self._entered)

    def taken(self) -> list[bytes]:
        """Return the present states as plain data."""
        import torch

        states = [torch.get_rng_state(), *(one.get_state() for one in self._generators)]
        return [state.numpy().tobytes() for state in states]

    def put_back(self, states: list[bytes]) -> None:
        """Restore states that were `taken`."""
        import torch

        setters = [torch.set_rng_state, *(one.set_state for one in self._generators)]
        for set_state, raw in zip(setters, states, strict=False):
            set_state(torch.frombuffer(bytearray(raw), dtype=torch.uint8))
