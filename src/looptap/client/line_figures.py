"""The figures of lines of numbers: first, final, smallest, largest, best."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from looptap.protocol.values.number_checks import unboxed
from looptap.streams.counts import counts
from looptap.streams.stream.stream import Stream

_PAGE_ITEMS = 4096  # of a stream that are read at once
_LARGEST = re.compile(
    r"acc|accuracy|auc|auroc|ap|map|f1|score|precision|recall|reward|return|r2|bleu|rouge|psnr|ssim|iou|dice|throughput"
)
_SMALLEST = re.compile(r"loss|losses|error|errors|err|nll|mse|mae|rmse|ppl|perplexity|regret|wer|cer|fid")


def largest_is_best(name: str) -> bool:
    """Return whether the best number of a line is the largest, by its name.

    >>> [largest_is_best(name) for name in ("loss", "val_acc", "testAccuracy", "map_loss", "lr", "events_per_second")]
    [False, True, True, False, False, True]
    """
    words = re.split(r"[^a-z0-9]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower())
    if words[-2:] in (["per", "s"], ["per", "sec"], ["per", "second"]):
        return True
    return any(map(_LARGEST.fullmatch, words)) and not any(map(_SMALLEST.fullmatch, words))


@dataclass
class Figures:
    """The figures of one line; its smallest and largest are of finite numbers."""

    count: int = 0
    first: float = math.nan
    final: float = math.nan
    """The last number, also if it is NaN or infinite, as is the first."""
    smallest: float = math.nan
    largest: float = math.nan
    smallest_at: float = math.nan
    """x of the smallest: the step, or the number of the event."""
    largest_at: float = math.nan

    def add(self, x: float, value: float) -> None:
        """Add a number."""
        self.count += 1
        if self.count == 1:
            self.first = value
        self.final = value
        if not math.isfinite(value):
            return
        if not value >= self.smallest:
            self.smallest, self.smallest_at = value, x
        if not value <= self.largest:
            self.largest, self.largest_at = value, x

    def best(self, largest: bool) -> float:
        """Return the largest or the smallest."""
        return self.largest if largest else self.smallest

    def best_at(self, largest: bool) -> float:
        """Return where that was."""
        return self.largest_at if largest else self.smallest_at


def figures_of(stream: Stream) -> dict[str, Figures]:
    """Return the figures of each line of a stream by name, none of what is no number.

    >>> from looptap.streams.stream.stream import stream_of
    >>> figures_of(stream_of([(1, 0.5), (2, 0.25), (3, 0.3)], fields=("step", "loss"), name="train"))["loss"].smallest
    0.25
    """
    found: dict[str, Figures] = {}
    names: list[tuple[Any, str]] = []
    counter: Any = None
    for page in stream.pages(_PAGE_ITEMS):
        for event, value in zip(page.events, page.values, strict=True):
            if value is None or isinstance(value, str):
                continue
            if not names:
                names, counter = _parts(value, stream)
                if not names:
                    return {}
                found = {name: Figures() for _, name in names}
            x = float(event) if counter is None else _number(value, counter)
            for key, name in names:
                if (number := _number(value, key)) is not None:
                    found[name].add(math.nan if x is None else x, number)
    return {name: figures for name, figures in found.items() if figures.count}


def _parts(value: Any, stream: Stream) -> tuple[list[tuple[Any, str]], Any]:
    """Return key and name of each part that is a line, and the key of what counts."""
    if isinstance(value, Mapping):
        return [(key, str(key)) for key in value if not counts(str(key))], None
    if isinstance(value, tuple | list):
        names = list(getattr(value, "_fields", ()) or stream.fields or ())
        if len(names) != len(value):
            return [], None
        counters = [place for place, name in enumerate(names) if counts(name)]
        lines = [(place, name) for place, name in enumerate(names) if place not in counters]
        return lines, counters[0] if counters else None
    return [(None, stream.name)] if _number(value, None) is not None else [], None


def _number(value: Any, key: Any) -> float | None:
    """Return a number, or a part that is one, as float; None for anything else."""
    try:
        found = unboxed(value if key is None else value[key])
        return float(found) if isinstance(found, bool | int | float) else None
    except (ArithmeticError, LookupError, TypeError, ValueError):
        return None


class NumberLines(NamedTuple):
    """The lines of numbers of a run: by name, and other names of them."""

    figures: dict[str, Figures]
    aliases: dict[str, str]


def lines_of(streams: Iterable[Stream]) -> NumberLines:
    """Return the lines of several streams.

    A stream with one line gives it its name, and the name of its field is another; of several lines each has the name
    of its field. A name that is taken has that of its stream before it, ``valid.loss``, or that of its type of events,
    ``epoch.loss``.
    """
    found: dict[str, Figures] = {}
    aliases: dict[str, str] = {}
    for stream in streams:
        lines = figures_of(stream)
        named = len(lines) == 1 and stream.name and stream.name != stream.text
        for field, figures in lines.items():
            name = stream.name if named else field
            if name in found:
                name = f"{stream.on if stream.name == field and stream.on else stream.name}.{field}"
            found.setdefault(name, figures)
            aliases.setdefault(field, name)
    return NumberLines(found, {alias: name for alias, name in aliases.items() if alias not in found})
