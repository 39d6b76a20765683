"""Which tensors a query has changed in place: what it sees belongs to the loop.

A tensor counts its changes itself (``_version``); to compare the counts before and after costs a fraction of a
microsecond per tensor. It cannot be undone, so it is told. Not seen: changes of arrays, and through ``.data``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

MOST = 1000
"""Tensors of one event that are looked at; of a larger model, its first parameters."""


class Versions:
    """How often the tensors in ``shown`` (names, and what stands there) and their gradients have been changed.

    Looked at are tensors, tuples, lists and dicts of them, parameters and buffers of modules, and what an optimizer
    has in its groups.
    """

    __slots__ = ("_grads", "_names", "_tensors", "_versions")

    def __init__(self, *shown: Mapping[str, Any]) -> None:
        torch = sys.modules.get("torch")
        self._names: list[str] = []
        self._tensors: list[Any] = []
        if torch is None:
            return
        with torch._C.DisableTorchFunction():  # modes and subclasses of the loop have no part in this
            known = set()
            for name, tensor in islice(_tensors(torch, shown), MOST):
                if id(tensor) not in known and not tensor.is_inference():  # these do not count
                    known.add(id(tensor))
                    self._names.append(name)
                    self._tensors.append(tensor)
            self._grads, self._versions = self._look()

    def changed(self) -> str:
        """The name of the first tensor that is not as it was, or whose gradient is not; empty if all are."""
        if not self._tensors:
            return ""
        with sys.modules["torch"]._C.DisableTorchFunction():
            grads, versions = self._look()
        for name, before, now in zip(self._names, self._grads, grads, strict=True):
            if before is not now:
                return f"{name}.grad"
        if versions == self._versions:
            return ""
        place = next(i for i, version in enumerate(versions) if version != self._versions[i])
        count = len(self._tensors)
        return self._names[place] if place < count else f"{self._names[place - count]}.grad"

    def _look(self) -> tuple[list[Any], list[int]]:
        grads = [tensor.grad if tensor.is_leaf else None for tensor in self._tensors]
        versions = [tensor._version for tensor in self._tensors]
        return grads, versions + [0 if grad is None else grad._version for grad in grads]


def _tensors(torch: Any, shown: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, Any]]:
    optimizers: list[tuple[str, Any]] = []
    for observables in shown:
        for name, value in observables.items():
            if isinstance(value, torch.Tensor):
                yield name, value
            elif isinstance(value, tuple | list):
                yield from _listed(torch, name, enumerate(value[:MOST]))
            elif isinstance(value, dict):
                yield from _listed(torch, name, list(islice(value.items(), MOST)))
            elif isinstance(value, torch.nn.Module):
                yield from _of_module(value, name)
            elif isinstance(value, torch.optim.Optimizer):
                optimizers.append((name, value))
    for name, optimizer in optimizers:  # last: a parameter is better known by its place in the model
        for group in optimizer.param_groups:
            yield from _listed(torch, f"{name}.params", enumerate(group["params"]))


def _listed(torch: Any, name: str, items: Iterable[tuple[Any, Any]]) -> Iterator[tuple[str, Any]]:
    return ((f"{name}[{key!r:.40}]", value) for key, value in items if isinstance(value, torch.Tensor))


def _of_module(model: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Parameters and buffers, in a third of the time that ``named_parameters()`` takes."""
    waiting = [(name, model)]
    seen = {id(model)}
    while waiting:
        prefix, module = waiting.pop()
        for held in (module._parameters, module._buffers):
            for own, tensor in held.items():
                if tensor is not None:
                    yield f"{prefix}.{own}", tensor
        for own, child in reversed(module._modules.items()):
            if child is not None and id(child) not in seen:
                seen.add(id(child))
                waiting.append((f"{prefix}.{own}", child))
