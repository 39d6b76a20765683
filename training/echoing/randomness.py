"""The global random numbers: kept as they are while something draws from them, and seeded for it meanwhile."""

from __future__ import annotations

import contextlib
import hashlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np


@contextlib.contextmanager
def kept_random() -> Iterator[None]:
    """The global random numbers of torch (CPU, this device), numpy and random go on as if nothing had been drawn."""
    import torch

    cuda = torch.cuda.is_initialized()
    state, numbers = torch.get_rng_state(), random.getstate()
    device = torch.cuda.get_rng_state() if cuda else None
    give_back = _put_aside()
    try:
        yield
    finally:
        torch.set_rng_state(state)
        give_back()
        random.setstate(numbers)
        if device is not None:
            torch.cuda.set_rng_state(device)


def seed_random(text: str) -> None:
    """Seed them by a text; only within `kept_random`."""
    import torch

    number = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
    torch.default_generator.manual_seed(number)
    if torch.cuda.is_initialized():
        torch.cuda.default_generators[torch.cuda.current_device()].manual_seed(number)
    np.random.seed(number % 2**32)
    random.seed(number)


# ---------------------------------------------------------------- numpy


class _Bare:
    """A generator without numbers: what is left of numpy's state is the normal number beside it."""

    state: dict[str, Any] = {"bit_generator": "MT19937", "state": None}  # noqa: RUF012 - numpy asks for an attribute


_GLOBAL: Any = np.random
_free: list[Any] = []
"""Generators that may stand in for numpy's."""


def _put_aside() -> Callable[[], None]:
    """Another generator in numpy's place; the function gives it its own back.

    To read and to write its state, 624 numbers one by one, takes longer than all the rest. Beside its generator numpy
    has one normal number that was drawn and not asked for yet.
    """
    if not _EXCHANGES:
        state = np.random.get_state()
        return lambda: np.random.set_state(state)
    its, beside = _GLOBAL.get_bit_generator(), _beside(_GLOBAL.mtrand._rand)
    _GLOBAL.set_bit_generator(_free.pop() if _free else np.random.MT19937(0))

    def give_back() -> None:
        _free.append(_GLOBAL.get_bit_generator())
        _GLOBAL.set_bit_generator(its)
        _beside(_GLOBAL.mtrand._rand, beside)

    return give_back


def _beside(numpy: Any, wanted: dict[str, Any] | None = None) -> dict[str, Any]:
    """The normal number beside the generator; it is set, if one is given."""
    its, numpy._bit_generator = numpy._bit_generator, _Bare()
    try:
        if wanted is not None:
            numpy.set_state(wanted)
        found = numpy.get_state(legacy=False)
        return {name: found[name] for name in ("bit_generator", "state", "has_gauss", "gauss")}
    finally:
        numpy._bit_generator = its


def _exchanges() -> bool:
    """Whether this numpy lets its generator be exchanged in that way."""
    try:
        one, other = np.random.RandomState(0), np.random.RandomState(0)
        one.randn(), other.randn(3)
        _beside(other, _beside(one))
        return hasattr(np.random, "set_bit_generator") and one.randn() == other.randn()
    except Exception:  # whatever another numpy says to it: then its state is read and written as a whole
        return False


_EXCHANGES = _exchanges()
