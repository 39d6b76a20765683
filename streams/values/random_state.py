"""The global random numbers of a process, saved and put back: torch, its devices, numpy and random."""

from __future__ import annotations

import ctypes
import random
import sys
from collections.abc import Callable
from functools import cache, partial
from typing import Any


class RandomState:
    """The global random numbers as they are now; `put_back` makes them so again, as often as it is called.

    What the process has not loaded it has not drawn from: nothing is imported for this.

    >>> state = RandomState()
    >>> drawn = random.random()
    >>> state.put_back()
    >>> random.random() == drawn
    True
    """

    __slots__ = ("_numpy", "_python", "_torch")

    def __init__(self) -> None:
        self._python = random.getstate()
        # numpy loads its random numbers when they are first asked for: in the loop that would take long, and
        # what is compiled there swallows a Ctrl-C.
        numbers = sys.modules.get("numpy.random")
        self._numpy = None if numbers is None else numpy_state(numbers.mtrand._rand)
        self._torch = [(generator, generator.get_state()) for generator in _generators(sys.modules.get("torch"))]

    def put_back(self) -> None:
        """Make the random numbers what they were; may be called again after an interrupt."""
        for generator, state in self._torch:
            generator.set_state(state)
        if self._numpy is not None:
            self._numpy()
        random.setstate(self._python)


def _generators(torch: Any) -> list[Any]:
    """Return the default generators of torch on the CPU and on every device that the process uses."""
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
"""Bytes of the state of a Mersenne twister in memory: its numbers and the place of the next."""


def numpy_state(numbers: Any) -> Callable[[], None]:
    """Return the function that makes a `numpy.random.RandomState` what it is now.

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
    """A generator without numbers: what is left of numpy's state is its spare normal number."""

    state: dict[str, Any] = {"bit_generator": "MT19937", "state": None}  # noqa: RUF012 - numpy asks for an attribute


def _normal(numbers: Any, wanted: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the normal number that was drawn and not asked for yet; it is set, if one is given."""
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
    """Return whether this numpy keeps its state where it is looked for."""
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
    except Exception:  # whatever another numpy says to it: then its state is read and written as a whole
        return False
