"""Formats numbers of ranks and processes for people."""

from __future__ import annotations

from collections.abc import Iterable


def spans(numbers: Iterable[int]) -> str:
    """Format whole numbers, with consecutive ones as a span.

    >>> spans([7, 12, 13, 14])
    '7, 12-14'
    """
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and found[-1][-1] == number - 1:
            found[-1][1:] = [number]
        else:
            found.append([number])
    return ", ".join("-".join(map(str, span)) for span in found)


def numbered(ranks: Iterable[int]) -> str:
    """Format the numbers of ranks.

    >>> numbered([0, 1, 2, 5])
    'ranks 0-2, 5'
    """
    shown = spans(ranks)
    return f"rank{'s' * (len(shown) > 1 and not shown.isdigit())} {shown}" if shown else "no rank"
