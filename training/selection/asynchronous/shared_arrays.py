"""Arrays in memory that two processes share."""

from __future__ import annotations

import mmap
import os
import tempfile
from typing import Any, TypeAlias

import numpy as np

Shapes: TypeAlias = dict[str, tuple[str, tuple[int, ...]]]
"""The type and shape of each array, by name."""
_ALIGNMENT_BYTES = 64


def shared_file(shapes: Shapes) -> int:
    """Create memory for such arrays; return its descriptor.

    Nothing is left when all processes have closed it.
    """
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("looptap-assistant")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, max(sum(_span(*one) for one in shapes.values()), 1))
    return descriptor


def shared_arrays(descriptor: int, shapes: Shapes) -> dict[str, Any]:
    """Return the arrays in the memory of a descriptor, which may be closed then."""
    buffer, found, begin = mmap.mmap(descriptor, 0), {}, 0
    for name, (kind, shape) in shapes.items():
        found[name] = np.frombuffer(buffer, kind, int(np.prod(shape)), begin).reshape(shape)
        begin += _span(kind, shape)
    return found


def _span(kind: str, shape: tuple[int, ...]) -> int:
    size = int(np.dtype(kind).itemsize * np.prod(shape))
    return -(-size // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
