"""`FlatTensors`: tensors of a model as one vector, which is what is sent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Any


class FlatTensors:
    """A vector on the CPU with a view for each of some tensors.

    >>> import torch
    >>> flat = FlatTensors([torch.ones(2), torch.zeros(1, 2)])
    >>> flat.read([torch.full((2,), 3.0), None]).tolist()
    [3.0, 3.0, 0.0, 0.0]
    """

    def __init__(self, tensors: Iterable[Any]) -> None:
        import torch

        shapes = list(tensors)
        dtype = reduce(torch.promote_types, (one.dtype for one in shapes), torch.float32)
        self.vector = torch.zeros(sum(one.numel() for one in shapes), dtype=dtype)
        """All elements, one tensor after the other."""
        parts = self.vector.split([one.numel() for one in shapes]) if shapes else ()
        self.views = [part.view(one.shape) for part, one in zip(parts, shapes, strict=True)]
        """Those of each tensor, in its shape."""

    def read(self, tensors: Sequence[Any]) -> Any:
        """Copy ``tensors`` into the vector, None as zeros; return it."""
        for view, one in zip(self.views, tensors, strict=True):
            if one is None:
                view.zero_()
            else:
                view.copy_(one.detach().to_dense() if one.is_sparse else one.detach())
        return self.vector

    def write(self, tensors: Sequence[Any]) -> None:
        """Copy the vector into ``tensors``."""
        import torch

        with torch.no_grad():
            for view, one in zip(self.views, tensors, strict=True):
                one.copy_(view)


def trained_parameters(model: Any) -> list[Any]:
    """Return the parameters of a model that are trained."""
    return [one for one in model.parameters() if one.requires_grad]


def float_buffers(model: Any) -> list[Any]:
    """Return the buffers of a model that are averages, such as those of BatchNorm."""
    return [one for one in model.buffers() if one.is_floating_point()]
