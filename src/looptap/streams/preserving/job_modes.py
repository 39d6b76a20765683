"""Set torch's modes of the job aside while looptap reads its tensors.

A dispatch mode or a function mode of the job sees each tensor operation of its thread, even the reading of a shape, and
would take looptap's for the job's. Modes of torch's own stay: a default device, and those that trace.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

from looptap.streams.preserving.interrupts import run_between

T = TypeVar("T")


def modes_observe(torch: Any) -> bool:
    """Return True if a mode or transform of the job's would see a tensor operation.

    A default device is a mode of torch's own, which runs no code of the job's.
    """
    try:
        own = torch._C
        functions, dispatch = own._len_torch_function_stack(), own._len_torch_dispatch_stack()
        return bool(
            dispatch or (functions and functions > _devices(own)) or own._functorch.peek_interpreter_stack() is not None
        )
    except AttributeError:  # a version of torch that has them elsewhere
        return True


def has_modes(torch: Any) -> bool:
    """Return True if this thread is inside modes of the job's that can be set aside."""
    try:
        own = torch._C
        functions, dispatch = own._len_torch_function_stack(), own._len_torch_dispatch_stack()
    except AttributeError:  # a version of torch that has them elsewhere, or torch is being imported
        return False
    if not functions and not dispatch:
        return False
    return functions > _devices(own) or (dispatch and _only_of_job(_stack(dispatch, own._get_dispatch_stack_at)))


def outside_modes(torch: Any, do: Callable[..., T], *given: Any) -> T:
    """Return what ``do`` gives outside the modes of the job, which are put back."""
    modes = _Modes(torch._C)
    return run_between(modes.set_aside, modes.put_back, do, *given)


class _Modes:
    """The modes of this thread, noted before any is set aside."""

    def __init__(self, own: Any) -> None:
        self._own = own
        self._functions = _stack(own._len_torch_function_stack(), own._get_function_stack_at)
        self._dispatch = _stack(own._len_torch_dispatch_stack(), own._get_dispatch_stack_at)

    def set_aside(self) -> None:
        """Set them aside; `put_back` must follow, even if this is interrupted."""
        kept = _devices(self._own)
        while self._own._len_torch_function_stack() > kept:
            self._own._pop_torch_function_stack()
        while _only_of_job(self._dispatch) and self._own._len_torch_dispatch_stack():
            self._own._pop_torch_dispatch_stack(None)

    def put_back(self) -> None:
        """Put back what is missing; a second call, after Ctrl-C, completes it."""
        for mode in self._functions[self._own._len_torch_function_stack() :]:
            self._own._push_on_torch_function_stack(mode)
        for mode in self._dispatch[self._own._len_torch_dispatch_stack() :]:
            self._own._push_on_torch_dispatch_stack(mode)


def _stack(count: int, at: Callable[[int], Any]) -> list[Any]:
    return list(map(at, range(count)))


def _devices(own: Any) -> int:
    """Return how many function modes set a default device: one, at the bottom."""
    kind = getattr(sys.modules.get("torch.utils._device"), "DeviceContext", None)
    return int(own._len_torch_function_stack() > 0 and type(own._get_function_stack_at(0)) is kind)


def _only_of_job(dispatch: list[Any]) -> bool:
    """Return False if one is torch's own that traces, as with fake tensors."""
    return all(getattr(mode, "_mode_key", None) is None for mode in dispatch)
