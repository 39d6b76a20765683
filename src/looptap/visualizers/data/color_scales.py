"""The colours of numbers in a matrix: the same on all surfaces."""

from __future__ import annotations

VIRIDIS = (
    "#440154",
    "#472d7b",
    "#3b528b",
    "#2c728e",
    "#21918c",
    "#28ae80",
    "#5ec962",
    "#addc30",
    "#fde725",
)
"""From the smallest number to the largest, in steps that look alike."""
BLUES = (
    "#f7fbff",
    "#deebf7",
    "#c6dbef",
    "#9ecae1",
    "#6baed6",
    "#4292c6",
    "#2171b5",
    "#08519c",
    "#08306b",
)
"""For matrices whose numbers are written into the cells."""


def shade(stops: tuple[str, ...], share: float) -> tuple[int, int, int]:
    """Return red, green and blue of a number at ``share`` of its scale, 0 to 1.

    >>> shade(BLUES, 0.0), shade(VIRIDIS, 1.0)
    ((247, 251, 255), (253, 231, 37))
    """
    at = min(1.0, max(0.0, share)) * (len(stops) - 1)
    i = min(int(at), len(stops) - 2)
    one, other = ([int(stops[k][j : j + 2], 16) for j in (1, 3, 5)] for k in (i, i + 1))
    red, green, blue = (round(a + (at - i) * (b - a)) for a, b in zip(one, other, strict=True))
    return red, green, blue


def is_dark_shade(stops: tuple[str, ...], share: float) -> bool:
    """Return whether what is written on this colour has to be white."""
    red, green, blue = shade(stops, share)
    return 0.3 * red + 0.6 * green + 0.1 * blue < 128
