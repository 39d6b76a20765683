"""Preserve a model, torch's modes and random numbers around the loop's code.

The model runs on copies of its state. The originals are set aside and not written to: no version counter changes, and
a pending backward pass finds what it saved.
"""

from __future__ import annotations

import sys
from collections import deque
from types import TracebackType
from typing import Any, Self

from looptap.streams.errors import QueryError
from looptap.streams.preserving.module_state import HOOKS, StateCopier, module_kind
from looptap.streams.preserving.torch_state import TorchStateGuard


class untouched:  # noqa: N801  # a context is named like a function, as torch.no_grad is
    """A context that preserves a model, torch's modes and random numbers.

    For code of the loop's own, which chooses the model's modes itself. Copied are buffers, and the tensors, plain
    containers and generators that modules hold; other attributes, hooks and training flags are restored by reference.

    >>> import torch
    >>> model = torch.nn.BatchNorm1d(2)
    >>> with untouched(model):
    ...     answer = model.train()(torch.ones(4, 2))
    >>> model.running_mean
    tensor([0., 0.])
    """

    def __init__(self, model: Any) -> None:
        torch = sys.modules.get("torch")
        if torch is None or not isinstance(model, torch.nn.Module):
            raise QueryError(f"untouched takes a torch.nn.Module, not {type(model).__name__}.")
        self.model = model
        self._before = TorchStateGuard()
        self._dicts: list[dict[str, Any]] = []
        self._saved: list[dict[str, Any]] = []
        self._scripts: list[tuple[Any, bool]] = []
        self._watched: list[tuple[str, Any, int | None, Any, int | None]] = []

    def __enter__(self) -> Self:
        try:
            self._before.__enter__()
            self._begin()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._end()

    def _begin(self) -> None:
        model, copier = self.model, StateCopier()
        modules = [(one, module_kind(one.__class__).script) for one in model.modules()]
        own = [one for one, is_script in modules if not is_script]
        replacements = [copier.buffers(one) if _only_buffers(one) else copier.attributes(one) for one in own]
        named = [*model.named_parameters(), *model.named_buffers(), *(("state", one) for one in copier.beyond)]
        self._watched = [(name, one, _version(one), _gradient(one), _version(_gradient(one))) for name, one in named]
        self._scripts = [(one, one.training) for one, is_script in modules if is_script]
        self._saved = [one.__dict__.copy() for one in own]
        self._dicts = [one.__dict__ for one in own]
        deque(map(dict.update, self._dicts, replacements), 0)

    def _end(self) -> None:
        """Restore everything; may be called again after an interrupt."""
        deque(map(dict.update, self._dicts, self._saved), 0)  # one call of C: no Ctrl-C comes between the modules
        for attributes, saved in zip(self._dicts, self._saved, strict=False):
            if len(attributes) > len(saved):
                for name in [name for name in attributes if name not in saved]:
                    attributes.pop(name, None)
        for module, flag in self._scripts:
            module.training = flag
        self._before.restore()

    def changed(self) -> str:
        """Return the name of a parameter or large buffer changed in place, or ""."""
        for name, tensor, version, gradient, version_of_gradient in self._watched:
            if _version(tensor) != version:
                return name
            if _gradient(tensor) is not gradient or _version(gradient) != version_of_gradient:
                return f"{name}.grad"
        return ""


def _only_buffers(module: Any) -> bool:
    """Return True for a module that changes nothing but buffers; hooks may do more."""
    held = module.__dict__
    return module_kind(module.__class__).of_torch and "forward" not in held and not any(map(held.get, HOOKS))


def _gradient(tensor: Any) -> Any:
    return tensor.grad if tensor.is_leaf else None  # torch warns where others are asked


def _version(tensor: Any) -> int | None:
    return None if tensor is None or tensor.is_inference() else tensor._version
