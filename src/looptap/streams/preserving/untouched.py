"""Preserve a model, torch's modes and random numbers around the loop's code."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any, Self

from looptap.streams.errors import QueryError
from looptap.streams.preserving.module_state import ModuleState
from looptap.streams.preserving.torch_state import TorchStateGuard


class untouched:  # noqa: N801  # a context is named like a function, as torch.no_grad is
    """A context that preserves a model, torch's modes and random numbers.

    For code of the loop's own, which chooses the model's modes itself.

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
        self._state: ModuleState | None = None

    def begin(self) -> None:
        """Begin; `end` must follow, even if this raises."""
        self._before.__enter__()
        self._state = ModuleState(self.model)
        self._state.swap_in()

    def end(self) -> None:
        """Restore everything; may be called again after an interrupt."""
        if self._state is not None:
            self._state.put_back()
        self._before.restore()

    def changed(self) -> str:
        """Return the name of a parameter or large buffer changed in place, or ""."""
        return "" if self._state is None else self._state.changed()

    def __enter__(self) -> Self:
        try:
            self.begin()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.end()
