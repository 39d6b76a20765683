"""Numbers as block characters: a sparkline, a bar, a matrix, a small image."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from looptap.visualizers.data.color_scales import BLUES, is_dark_shade, shade

LEVELS = "▁▂▃▄▅▆▇█"
SHADES = " ░▒▓█"
EIGHTHS = " ▏▎▍▌▋▊▉█"
ODD = "×"
"""Stands for NaN and infinities."""


def sparkline(numbers: Sequence[float | None], width: int = 60) -> str:
    """Draw a curve of up to ``width`` characters; None is a gap, × a part with NaN.

    Each character is the mean of its share of ``numbers``. Of many gaps the newest are shown.

    >>> sparkline([0, 1, 2, 3]), sparkline([0, 1, None, 2, 3])
    ('▁▃▆█', '▁▃ ▆█')
    """
    parts: list[list[float]] = [[]]
    for number in numbers:
        if number is not None:
            parts[-1].append(number)
        elif parts[-1]:
            parts.append([])
    parts = [part for part in parts if part]
    if (joined := len(parts) - max(1, width // 4) + 1) > 1:
        parts = [[number for part in parts[:joined] for number in part], *parts[joined:]]
    total, room = sum(map(len, parts)), width - 2 * (len(parts) - 1)
    curves = [_means(part, max(1, min(len(part), room * len(part) // total))) for part in parts]
    known = [mean for curve in curves for mean in curve if math.isfinite(mean)]
    low, high = (min(known), max(known)) if known else (0.0, 0.0)
    return " ".join("".join(_level(mean, low, high) for mean in curve) for curve in curves)


def _means(numbers: Sequence[float], count: int) -> list[float]:
    """Return the means of ``count`` shares of the numbers, NaN if not all are finite."""
    edges = [i * len(numbers) // count for i in range(count + 1)]
    return [math.fsum(numbers[a:b]) / (b - a) if _finite(numbers[a:b]) else math.nan for a, b in pairwise(edges)]


def bar(number: float, largest: float, width: int = 20) -> str:
    """Return a bar of up to ``width`` characters, to an eighth of a character.

    >>> bar(1, 2, 4)
    '██'
    """
    if not math.isfinite(number):
        return ODD
    if number <= 0 or not 0 < largest < math.inf:
        return ""
    full, eighths = divmod(round(8 * width * min(1.0, number / largest)), 8)
    return EIGHTHS[8] * full + (EIGHTHS[eighths] if eighths else "")


def shaded(pixels: Any, each: int = 2) -> list[str]:
    """Return the lines of a matrix of pixels from 0 (blank) to 1 (full); × is NaN.

    >>> shaded([[0, 1], [1, 0.5]])
    ['  ██', '██▒▒']
    """
    return ["".join(each * _shade(pixel) for pixel in row) for row in pixels]


def half_blocks(image: Any, width: int, height: int) -> list[str]:
    """Return the lines of a uint8 image in colours, two pixels to a character."""
    rows, columns = image.shape[:2]
    share = min(1.0, width / columns, 2 * height / rows)
    down = [int(i / share) for i in range(max(1, int(rows * share)))]
    across = [int(i / share) for i in range(max(1, int(columns * share)))]
    pixels = image[..., :3]
    lines = []
    for upper, lower in zip(down[::2], [*down[1::2], None], strict=False):
        cells = []
        for column in across:
            above = "38;2;{};{};{}".format(*pixels[upper, column])
            below = "" if lower is None else ";48;2;{};{};{}".format(*pixels[lower, column])
            cells.append(f"\x1b[{above}{below}m▀")
        lines.append("".join(cells) + "\x1b[0m" + " " * (width - len(across)))
    return lines


def side_by_side(blocks: Sequence[Sequence[str]], width: int | None = None, gap: int = 3) -> list[str]:
    """Return blocks of lines side by side, ``width`` wide or as their first line is.

    >>> side_by_side([["ab", "cd"], ["ef"]], gap=1)
    ['ab ef', 'cd   ']
    """
    height = max(map(len, blocks), default=0)
    padded = [
        [*block, *[" " * (len(block[0]) if width is None else width)] * (height - len(block))]
        for block in blocks
        if block
    ]
    return [(" " * gap).join(lines) for lines in zip(*padded, strict=True)]


def _finite(numbers: Sequence[float]) -> bool:
    return all(map(math.isfinite, numbers))


def _shade(pixel: float) -> str:
    return SHADES[round(4 * min(1.0, max(0.0, pixel)))] if pixel == pixel else ODD


def _level(number: float, low: float, high: float) -> str:
    if not math.isfinite(number):
        return ODD
    return LEVELS[round(7 * (number - low) / (high - low)) if high > low else 0]


def in_blue(text: str, cell: float, low: float, high: float, color: bool) -> str:
    """Return text on the colour of its number on the scale from low to high."""
    if not color or cell != cell:
        return text
    share = (cell - low) / (high - low)
    red, green, blue = shade(BLUES, share)
    ink = 231 if is_dark_shade(BLUES, share) else 16
    return f"\x1b[48;2;{red};{green};{blue};38;5;{ink}m{text}\x1b[0m"
