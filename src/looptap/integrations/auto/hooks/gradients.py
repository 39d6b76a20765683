"""Whether an optimizer has gradients, and which backward pass reaches them.

A script may drop gradients by itself between two passes: ``model.zero_grad()``, ``p.grad = None``. The losses so far
are then none of the next step's. That is seen in the gradients, before a pass that is not the first of an update;
nothing waits for a device.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

MAX_FIRST_LOOK_NUMBERS = 65_536
"""Numbers of a gradient that is looked at before larger ones."""

MAX_LOOKED_AT_COUNT = 16
"""Gradients of which values are read to know them again."""
MAX_VALUES_COUNT = 8
"""Values of one of them."""

Marks = list[tuple[int, int]]
Key = tuple[int, ...]


def has_gradients(optimizer: Any) -> bool:
    """Return False if all gradients are absent, or were written to and are zero.

    A zero gradient that nothing has written to is what a backward pass has left. Values are read on the CPU only; FSDP
    keeps gradients elsewhere between passes, so they count as there.
    """
    torch: Any = sys.modules["torch"]
    larger = []
    with torch._C.DisableTorchFunction():
        for parameter in _parameters(optimizer):
            if _is_sharded(parameter):
                return True
            gradient = parameter.grad
            if gradient is None:
                continue
            plain = type(gradient) is torch.Tensor and gradient.is_cpu and gradient.layout is torch.strided
            if not plain or not gradient._version or torch._C._len_torch_dispatch_stack():
                return True
            if gradient.numel() > MAX_FIRST_LOOK_NUMBERS:
                larger.append(gradient)
            elif gradient.any():
                return True
        return any(gradient.any() for gradient in larger)


def marks_of(optimizer: Any) -> Marks:
    """Return what differs after a backward pass that has reached a gradient.

    A new gradient is made before the old one is released, so no two share an address.
    """
    with sys.modules["torch"]._C.DisableTorchFunction():
        gradients = (parameter.grad for parameter in _parameters(optimizer))
        return [(0, 0) if gradient is None else (gradient._cdata, gradient._version) for gradient in gradients]


def key_of(optimizer: Any) -> Key:
    """Return what the parameters of an optimizer are known by; empty if it has none.

    Optimizers of the same parameters share it: of those that wrap others, one zeroes gradients and another one steps.
    """
    held = [group["params"] for group in optimizer.param_groups if group["params"]]
    return (id(held[0][0]), id(held[-1][-1]), sum(map(len, held))) if held else ()


def has_sharded(optimizer: Any) -> bool:
    """Return True if its gradients may be kept elsewhere, as FSDP does."""
    return any(map(_is_sharded, _parameters(optimizer)))


class LeftGradients(NamedTuple):
    """The gradients that a pass has left, with some values if on the CPU."""

    marks: Marks
    values: list[float] | None

    @classmethod
    def of(cls, optimizer: Any) -> LeftGradients:
        """Note the gradients of an optimizer."""
        return cls(marks_of(optimizer), _some_values(optimizer))

    def are_replaced(self, optimizer: Any) -> bool:
        """Return True if a gradient is another tensor now, or gone, or has other values.

        What only makes them smaller, such as clipping or unscaling, leaves those of the pass. On another device each
        write counts.
        """
        marks = marks_of(optimizer)
        held = [(old, new) for old, new in zip(self.marks, marks, strict=False) if old[0]]
        if any(old[0] != new[0] for old, new in held):
            return True
        if self.values is None or (values := _some_values(optimizer)) is None:
            return any(old != new for old, new in held)
        return not all(map(_is_shrunk, self.values, values))


def _some_values(optimizer: Any) -> list[float] | None:
    """Return a few values of a few gradients; None if they are not on the CPU."""
    torch: Any = sys.modules["torch"]
    with torch.no_grad(), torch._C.DisableTorchFunction():
        gradients = [gradient for one in _parameters(optimizer) if (gradient := one.grad) is not None]
        if torch._C._len_torch_dispatch_stack() or not all(map(_is_readable, gradients)):
            return None
        few = gradients[:: -(-len(gradients) // MAX_LOOKED_AT_COUNT) or 1]
        flat = [gradient.view(-1) for gradient in few]
        return [value for one in flat for value in one[:: -(-len(one) // MAX_VALUES_COUNT) or 1].tolist()]


def _is_readable(gradient: Any) -> bool:
    torch: Any = sys.modules["torch"]
    plain = type(gradient) is torch.Tensor and gradient.layout is torch.strided and not gradient.is_complex()
    return plain and bool(gradient.is_cpu) and bool(gradient.is_contiguous())


def _is_shrunk(before: float, now: float) -> bool:
    return (before * now >= 0 and abs(now) <= abs(before) * (1 + 1e-6)) or now != now


def _is_sharded(parameter: Any) -> bool:
    torch: Any = sys.modules["torch"]
    held = getattr(parameter, "__dict__", {})
    plain = type(parameter) in (torch.nn.Parameter, torch.Tensor)
    return not plain or "_is_flat_param" in held or "_fsdp_flattened" in held


def _parameters(optimizer: Any) -> Iterator[Any]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])
