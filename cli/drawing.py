"""Numbers as block characters: a curve on one line, a bar, a small picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

LEVELS = "▁▂▃▄▅▆▇█"
SHADES = " ░▒▓█"
EIGHTHS = " ▏▎▍▌▋▊▉█"
ODD = "×"
"""What stands for NaN and infinities."""


def sparkline(numbers: Sequence[float], width: int = 60) -> str:
    """A curve of up to ``width`` characters; each stands for the mean of its share of ``numbers``, × for NaN in it.

    >>> sparkline([0, 1, 2, 3])
    '▁▃▆█'
    """
    count = min(width, len(numbers))
    edges = [i * len(numbers) // count for i in range(count + 1)] if count else []
    means = [math.fsum(numbers[a:b]) / (b - a) if _finite(numbers[a:b]) else math.nan for a, b in pairwise(edges)]
    known = [mean for mean in means if math.isfinite(mean)]
    low, high = (min(known), max(known)) if known else (0.0, 0.0)
    return "".join(_level(mean, low, high) for mean in means)


def bar(number: float, largest: float, width: int = 20) -> str:
    """A bar of up to ``width`` characters for a number from 0 to ``largest``, to an eighth of a character.

    >>> bar(1, 2, 4)
    '██'
    """
    if not math.isfinite(number):
        return ODD
    if number <= 0 or not 0 < largest < math.inf:
        return ""
    full, eighths = divmod(round(8 * width * min(1.0, number / largest)), 8)
    return EIGHTHS[8] * full + (EIGHTHS[eighths] if eighths else "")


def picture(pixels: Sequence[Sequence[float]]) -> list[str]:
    """The lines of a picture with two characters a pixel; pixels go from 0, left blank, to 1.

    >>> picture([[0, 1], [1, 0.5]])
    ['  ██', '██▒▒']
    """
    return ["".join(2 * SHADES[round(4 * min(1.0, max(0.0, pixel)))] for pixel in row) for row in pixels]


def beside(pictures: Sequence[Sequence[str]], gap: int = 3) -> list[str]:
    """Blocks of lines, equally wide in themselves, next to each other.

    >>> beside([["ab", "cd"], ["ef"]], gap=1)
    ['ab ef', 'cd   ']
    """
    height = max(map(len, pictures), default=0)
    padded = [[*block, *[" " * len(block[0])] * (height - len(block))] for block in pictures if block]
    return [(" " * gap).join(lines) for lines in zip(*padded, strict=True)]


def _finite(numbers: Sequence[float]) -> bool:
    return all(map(math.isfinite, numbers))


def _level(number: float, low: float, high: float) -> str:
    if not math.isfinite(number):
        return ODD
    return LEVELS[round(7 * (number - low) / (high - low)) if high > low else 0]
