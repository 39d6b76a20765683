"""Whether an optimizer has gradients, and which backward pass reaches them.

A script may drop gradients by itself between two passes: ``model.zero_grad()``, ``p.grad = None``. The losses so far
are then none of the next step's. That is seen in the gradients, before a pass that is not the first of an update;
nothing waits for a device.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

THERE, ZERO, ABSENT = "there", "zero", "absent"
"""What the gradients of an optimizer are: one of them at least, all zero, or none at all."""
MAX_FIRST_LOOK_NUMBERS = 65_536
"""Numbers of a gradient that is looked at before larger ones."""

Marks = list[tuple[int, int]]


def state_of(optimizer: Any) -> str:
    """Return `THERE`, `ZERO` or `ABSENT`; values are read on the CPU only.

    FSDP keeps gradients elsewhere between passes: they count as there.
    """
    torch: Any = sys.modules["torch"]
    if _is_sharded(optimizer.param_groups[0]["params"][0]):
        return THERE
    larger, found = [], ABSENT
    with torch._C.DisableTorchFunction():
        for gradient in _gradients(optimizer):
            if gradient is None:
                continue
            plain = type(gradient) is torch.Tensor and gradient.is_cpu and gradient.layout is torch.strided
            if not plain or torch._C._len_torch_dispatch_stack():
                return THERE
            found = ZERO
            if gradient.numel() > MAX_FIRST_LOOK_NUMBERS:
                larger.append(gradient)
            elif gradient.any():
                return THERE
        return THERE if any(gradient.any() for gradient in larger) else found


def marks_of(optimizer: Any) -> Marks:
    """Return what differs after a backward pass that has reached a gradient."""
    with sys.modules["torch"]._C.DisableTorchFunction():
        return [(id(gradient), 0 if gradient is None else gradient._version) for gradient in _gradients(optimizer)]


def _is_sharded(parameter: Any) -> bool:
    torch: Any = sys.modules["torch"]
    held = getattr(parameter, "__dict__", {})
    plain = type(parameter) in (torch.nn.Parameter, torch.Tensor)
    return not plain or "_is_flat_param" in held or "_fsdp_flattened" in held


def _gradients(optimizer: Any) -> Iterator[Any]:
    return (parameter.grad for group in optimizer.param_groups for parameter in group["params"])
