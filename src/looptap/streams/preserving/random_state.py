"""Save and restore the global random states of torch, numpy and random."""

from __future__ import annotations

import ctypes
import random
import sys
from collections.abc import Callable
from functools import cache, partial
from typing import Any


class RandomState:
    """The current global random numbers; `put_back` restores them, repeatedly.

    A library that the process has not loaded has no state to save: nothing is imported for this.

    >>> state = RandomState()
    >>> drawn = random.random()
    >>> state.put_back()
    >>> random.random() == drawn
    True
    """

    __slots__ = ("_put_backs",)

    def __init__(self) -> None:
        self._put_backs: list[Callable[[], None]] = [partial(random.setstate, random.getstate())]
        # numpy loads numpy.random on first use, which takes long, and its compiled code swallows a Ctrl-C: not in
        # the loop.
        numbers = sys.modules.get("numpy.random")
        if numbers is not None:
            self._put_backs.append(numpy_state(numbers.mtrand._rand))
        self._put_backs += map(generator_state, _generators(sys.modules.get("torch")))

    def put_back(self) -> None:
        """Restore the random numbers; may be called again after an interrupt."""
        for put_back in self._put_backs:
            put_back()


def generator_state(generator: Any) -> Callable[[], None]:
    """Return a function that restores a torch, numpy or random generator."""
    if isinstance(generator, random.Random):
        if isinstance(generator, random.SystemRandom):
            return lambda: None
        return partial(random.Random.setstate, generator, random.Random.getstate(generator))
    if hasattr(generator, "_bit_generator"):
        return numpy_state(generator)
    if hasattr(generator, "get_state"):
        return partial(generator.set_state, generator.get_state())
    return partial(setattr, generator, "state", generator.state)


def _generators(torch: Any) -> list[Any]:
    """Return torch's default generators on the CPU and all devices in use."""
    if torch is None:
        return []
    generators = [torch.default_generator]
    for name in ("cuda", "xpu"):
        device = getattr(torch, name, None)
        if device is not None and device.is_initialized():
            generators += device.default_generators
    if torch.backends.mps.is_available():
        generators.append(torch.mps._get_default_mps_generator())
    return generators


# ---------------------------------------------------------------- numpy

_TWISTER_BYTES = 624 * 4 + 4
"""Bytes of a Mersenne Twister's state in memory: its numbers and the index of the next."""


def numpy_state(numbers: Any) -> Callable[[], None]:
    """Return a function that restores a `numpy.random.RandomState` to this state.

    numpy reads and writes its 624 numbers one by one, which takes longer than all the rest: they are copied as memory.
    """
    if copies_memory() and type(numbers._bit_generator).__name__ == "MT19937":
        twister = numbers._bit_generator.ctypes.state_address
        return partial(_put_back, numbers, twister, ctypes.string_at(twister, _TWISTER_BYTES), _normal(numbers))
    return partial(numbers.set_state, numbers.get_state(legacy=False))


def _put_back(numbers: Any, twister: int, state: bytes, normal: dict[str, Any]) -> None:
    ctypes.memmove(twister, state, _TWISTER_BYTES)
    _normal(numbers, normal)


class _Bare:
    """A generator without numbers, which reveals numpy's spare normal number."""

    state: dict[str, Any] = {"bit_generator": "MT19937", "state": None}  # noqa: RUF012 - numpy asks for an attribute


def _normal(numbers: Any, wanted: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the spare normal number; set it first if one is given."""
    generator, numbers._bit_generator = numbers._bit_generator, _Bare()
    try:
        if wanted is not None:
            numbers.set_state(wanted)
        found = numbers.get_state(legacy=False)
    finally:
        numbers._bit_generator = generator
    return {name: found[name] for name in ("bit_generator", "state", "has_gauss", "gauss")}


@cache
def copies_memory() -> bool:
    """Return True if this numpy keeps its state at the expected address."""
    import numpy as np

    try:
        one = np.random.RandomState(0)
        one.randn()
        state: Any = one.get_state()
        twister = one._bit_generator.ctypes.state_address
        copied, normal = ctypes.string_at(twister, _TWISTER_BYTES), _normal(one)
        drawn = one.randn(3000).tolist()
        _put_back(one, twister, copied, normal)
        same: Any = one.get_state()
        return bool((same[1] == state[1]).all()) and same[2:] == state[2:] and one.randn(3000).tolist() == drawn
    except Exception:  # another numpy: read and write its state through the public methods
        return False
