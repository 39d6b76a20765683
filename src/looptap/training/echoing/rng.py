"""Save, seed and restore the global random states around code that draws."""

from __future__ import annotations

import contextlib
import hashlib
import random
from collections.abc import Iterator

import numpy as np

from looptap.streams.preserving.random_state import RandomState


@contextlib.contextmanager
def kept_random() -> Iterator[None]:
    """Restore the global random states of torch, numpy and random at the end."""
    state = RandomState()
    try:
        yield
    finally:
        state.put_back()


def seed_random(text: str) -> None:
    """Seed the global random states with a text; only within `kept_random`."""
    import torch

    number = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
    torch.default_generator.manual_seed(number)
    if torch.cuda.is_initialized():
        torch.cuda.default_generators[torch.cuda.current_device()].manual_seed(number)
    np.random.seed(number % 2**32)
    random.seed(number)
