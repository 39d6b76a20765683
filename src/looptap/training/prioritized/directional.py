"""Derivatives of single losses along a direction, by forward passes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from looptap.streams.preserving.random_state import RandomState

Losses = Callable[[dict[str, Any]], Any]
"""Returns the losses (n,) of a batch by a model with these parameters."""
STEP_FACTOR = 1e-4
"""The length of a finite difference's step, of the parameters' norm."""


def along_by_jvp(
    losses: Losses, parameters: dict[str, Any], direction: Sequence[Any], buffers: dict[str, Any]
) -> tuple[Any, Any]:
    """Return the derivatives and losses (n,) by forward-mode differentiation.

    ``buffers`` are the model's, which may change copies of them. Attention runs by torch's plain kernel: the fused ones
    have no forward mode.
    """
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def of(*values: Any) -> Any:
        return losses({**dict(zip(parameters, values, strict=True)), **_copied(buffers)})  # made here, they may change

    _load_forward_mode()
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad(), _whole_precision(direction), sdpa_kernel(SDPBackend.MATH):
            found, along = torch.func.jvp(of, tuple(parameters.values()), tuple(direction))
            return along.detach(), found.detach()
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def _whole_precision(direction: Sequence[Any]) -> Any:
    """Return a context without autocast, which rounds differences away."""
    import torch

    return torch.autocast(direction[0].device.type, enabled=False)


@cache
def _load_forward_mode() -> None:
    """Load torch's forward mode, whose first use warns of its own means."""
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.func.jvp(torch.square, (torch.ones(1),), (torch.ones(1),))


def along_by_difference(
    losses: Losses, parameters: dict[str, Any], direction: Sequence[Any], buffers: dict[str, Any], now: Any
) -> tuple[Any, Any]:
    """Return the derivatives and losses (n,) by the difference of two forward passes.

    ``now`` are the losses of the first of them, None: it is made here. Both passes draw the same random numbers, and
    begin with the same buffers.
    """
    import torch

    with torch.no_grad(), _whole_precision(direction):
        if now is None:
            before = RandomState()
            now = losses({**parameters, **_copied(buffers)})
            before.put_back()
        values, along = list(parameters.values()), list(direction)
        size, length = (torch.stack(torch._foreach_norm(one)).norm() for one in (values, along))
        step = STEP_FACTOR * size / length.clamp(min=torch.finfo(length.dtype).tiny)
        moved = torch._foreach_mul(along, step)
        torch._foreach_add_(moved, values)
        now = now.detach()
        moved = {**dict(zip(parameters, moved, strict=True)), **_copied(buffers)}
        return (losses(moved) - now) / step, now


def _copied(buffers: dict[str, Any]) -> dict[str, Any]:
    return {name: one.clone() for name, one in buffers.items()}
