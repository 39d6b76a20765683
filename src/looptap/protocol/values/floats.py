"""Widen floating-point formats that numpy lacks to float32 without rounding.

The 8-bit formats are those of the OCP specification (e4m3fn, e5m2, e8m0fnu) and their "fnuz" variants, which
have no infinity, no negative zero and a bias larger by one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

Widen = Callable[[bytearray], "np.ndarray[Any, Any]"]


@cache
def float_table(exponent_bits: int, mantissa_bits: int, *, finite: bool = False, fnuz: bool = False) -> Any:
    """Return the 256 float32 values of an 8-bit format with a sign."""
    codes = np.arange(256)
    mantissa = codes & ((1 << mantissa_bits) - 1)
    exponent = (codes >> mantissa_bits) & ((1 << exponent_bits) - 1)
    bias = (1 << (exponent_bits - 1)) - (0 if fnuz else 1)
    fraction = mantissa / (1 << mantissa_bits)
    normal = np.ldexp(1 + fraction, exponent - bias)
    values = np.where(exponent == 0, np.ldexp(fraction, 1 - bias), normal)
    values = np.where(codes < 128, values, -values)
    if fnuz:
        values[128] = np.nan
    elif finite:
        values[[127, 255]] = np.nan
    else:
        top = exponent == (1 << exponent_bits) - 1
        values[top & (mantissa != 0)] = np.nan
        values[top & (mantissa == 0)] = np.copysign(np.inf, values[top & (mantissa == 0)])
    return values.astype(np.float32)


@cache
def powers() -> Any:
    """Return the 256 float32 values of e8m0fnu: powers of two, the last one NaN."""
    values = np.ldexp(1.0, np.arange(256) - 127)
    values[255] = np.nan
    return values.astype(np.float32)


def _bfloat16(data: bytearray) -> np.ndarray[Any, Any]:
    return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)


def _looked_up(of: Callable[[], Any]) -> Widen:
    return lambda data: of()[np.frombuffer(data, np.uint8)]


WIDENED: dict[str, Widen] = {
    "bfloat16": _bfloat16,
    "float8_e4m3fn": _looked_up(lambda: float_table(4, 3, finite=True)),
    "float8_e5m2": _looked_up(lambda: float_table(5, 2)),
    "float8_e4m3fnuz": _looked_up(lambda: float_table(4, 3, fnuz=True)),
    "float8_e5m2fnuz": _looked_up(lambda: float_table(5, 2, fnuz=True)),
    "float8_e8m0fnu": _looked_up(powers),
}
"""The functions that widen a buffer, by torch's name of its dtype."""
