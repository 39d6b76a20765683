"""Torch tensors without importing torch, and arrays that numpy can read."""

from __future__ import annotations

import contextlib
import sys
from typing import Any


def is_tensor(item: Any) -> bool:
    """Return True if the item is a torch tensor."""
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)  # absent while another thread imports torch
    return tensor is not None and isinstance(item, tensor)


def array_of(item: Any) -> Any:
    """Return an array of another library, such as jax, as numpy's; None for others."""
    import numpy as np  # commands that print no values load none

    if hasattr(type(item), "__array__"):
        return np.asarray(item)
    return np.from_dlpack(item) if hasattr(type(item), "__dlpack__") else None


def filled(masked: Any) -> Any:
    """Return a masked array with NaN or NaT, or None, for what is missing."""
    import numpy as np

    kind = masked.dtype.kind
    if not np.ma.getmaskarray(masked).any():
        return masked.data
    if kind in "biufc":
        return masked.astype(np.result_type(masked.dtype, np.float32)).filled(np.nan)
    return masked.filled() if kind in "mM" else masked.tolist()


def on_device(item: Any) -> bool:
    """Return True if the item is a torch tensor in accelerator memory."""
    return getattr(item, "is_cpu", True) is False


def no_grad() -> contextlib.AbstractContextManager[Any]:
    """Return ``torch.no_grad()``, or an empty context if torch is not loaded."""
    torch = sys.modules.get("torch")
    return contextlib.nullcontext() if torch is None else torch.no_grad()


def local_shard(tensor: Any) -> Any:
    """Return the tensor without its graph; of a sharded tensor the local shard."""
    if type(tensor).__module__ != "torch" and hasattr(tensor, "to_local"):  # torch's own classes lack it
        tensor = tensor.to_local()
        if hasattr(tensor, "wait"):  # a collective that the job has started already
            tensor = tensor.wait()
    return tensor.detach()


def dense(tensor: Any) -> Any:
    """Return the tensor in the plain strided layout."""
    return tensor.to_dense() if tensor.layout != sys.modules["torch"].strided else tensor


def full(tensor: Any) -> Any:
    """Return the tensor in at least single precision, to avoid infinite norms."""
    return tensor.float() if tensor.itemsize < 4 and tensor.is_floating_point() else tensor
