"""`short`: what a query gets of an argument: a small value as it is, else a text."""

from __future__ import annotations

import sys
from typing import Any

MAX_ITEMS_COUNT = 16
"""Items of a container, and numbers of an array, that are values; more become a text."""
MAX_TEXT_CHARACTERS = 200
_MAX_DEPTH_COUNT = 3
_PLAIN = (bool, int, float, complex, type(None))


def short(value: Any, depth: int = _MAX_DEPTH_COUNT) -> Any:
    """Return a small value as it is, else a text with its type and its size.

    No code of the job's runs.

    >>> short({"lr": 0.1, "sizes": [2, 3], "names": ["x"] * 100})
    {'lr': 0.1, 'sizes': [2, 3], 'names': '<list of 100>'}
    >>> short(ValueError)
    '<type>'
    """
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is str:
        return value if len(value) <= MAX_TEXT_CHARACTERS else f"{value[:MAX_TEXT_CHARACTERS]}…"
    if kind in (list, tuple, dict, set):
        if len(value) > MAX_ITEMS_COUNT or depth == 0:
            return f"<{kind.__name__} of {len(value):,}>"
        if kind is dict:
            return {str(short(name)): short(one, depth - 1) for name, one in [*value.items()]}
        return [short(one, depth - 1) for one in value]
    torch = sys.modules.get("torch")
    if torch is not None and kind is getattr(torch, "Tensor", None):  # absent while another thread imports torch
        if value.numel() <= MAX_ITEMS_COUNT and value.layout == torch.strided and not value.is_meta:
            return value
        return f"<{kind.__name__} {tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}>"
    numpy = sys.modules.get("numpy")
    if numpy is not None and kind is numpy.ndarray and not value.dtype.hasobject:
        return value if value.size <= MAX_ITEMS_COUNT else f"<ndarray {value.shape} {value.dtype}>"
    return f"<{kind.__name__}>"
