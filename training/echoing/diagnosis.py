"""`diagnose`: measure what a loader could deliver, and what would help it most."""

from __future__ import annotations

import math
import os
import random
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from looptap.training.echoing.auto_factor import held_up
from looptap.training.echoing.pytrees import size
from looptap.training.echoing.rng import kept_random
from looptap.training.echoing.source import open_source
from looptap.training.echoing.worker_stages import Copies, Effort
from looptap.training.host_loader import OrderState, rebuildable, rebuilt, workers_of

WORKERS_COUNTS = (1, 2, 4, 8, 16)
_MIN_BATCHES, _MAX_ITEMS = 3, 512
_GAIN_RATIO = 1.1
"""More workers, or a cache, count as faster from this on."""


class ReaderRow(NamedTuple):
    """What one way of reading delivers."""

    name: str
    workers: int
    seconds: float
    """Between two fresh batches; NaN if fewer than two came."""
    examples: float
    """Examples a second."""
    effort: Effort | None = None
    """The shares of a reader's time; None if it cannot be seen."""


class Diagnosis(NamedTuple):
    """The rows that were measured, and what follows; as text, a table."""

    rows: list[ReaderRow]
    step_seconds: float
    """Of the loop for a batch; NaN if it was not given."""
    advice: str
    """What would help most, with its numbers."""

    def __str__(self) -> str:
        head = ["", "ms a batch", "examples/s", "computes", "waits for a processor", "waits for data", "R"]
        made = [head, *map(self._cells, self.rows)]
        widths = [max(map(len, column)) for column in zip(*made, strict=True)]
        lines = [
            "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in made
        ]  # fmt: skip
        return "\n".join([*lines, "", self.advice])

    def _cells(self, row: ReaderRow) -> list[str]:
        shares = ["–"] * 3 if row.effort is None else [f"{share * 100:.0f} %" for share in row.effort]
        ratio = row.seconds / self.step_seconds
        return [row.name, f"{row.seconds * 1e3:.1f}", f"{row.examples:,.0f}", *shares,
                "–" if math.isnan(ratio) else f"{ratio:.2g}"]  # fmt: skip


def diagnose(
    loader: Any,
    step: Callable[[Any], Any] | float | None = None,
    *,
    seconds: float = 60.0,
    workers: Sequence[int] = WORKERS_COUNTS,
    show: Callable[[str], Any] | None = print,
) -> Diagnosis:
    """Measure the loader with other numbers of workers, and with decoded data.

    Takes about ``seconds``, before the training. ``step`` is a function of a batch, which is called with some, or the
    seconds it takes: with it the table has R for each row. Samplers and the job's random numbers stay as they are; the
    data set is read in a random order, as by its workers. A loader that makes its batches by itself is measured as it
    is. ``show`` gets the table as text; None shows nothing.

    >>> diagnose([[1, 2], [3, 4]] * 50, 0.01, seconds=0.1, show=None).rows[0].name
    'as it is'
    """
    known = rebuildable(loader)
    counts = sorted({max(0, int(count)) for count in workers} | {workers_of(loader)}) if known else []
    share = seconds / (len(counts) + 2)
    with kept_random(), OrderState(loader), warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", "This DataLoader will create", UserWarning
        )  # more than processors: on purpose
        rows = [_measured(f"num_workers={count}", count, _with_workers(loader, count), share) for count in counts]
        rows = rows or [_measured("as it is", workers_of(loader), loader, share)]
        items, needed = _items(loader, share) if known else ([], math.nan)
        if items:
            rows.append(_cached(loader, items, share / 2))
        down = _step_seconds(loader, step, items, share / 2)
    found = Diagnosis(rows, down, _advice(rows, workers_of(loader), down, needed))
    if show is not None:
        show(str(found))
    return found


def _with_workers(loader: Any, count: int) -> Any:
    from torch.utils.data import IterableDataset

    more: dict[str, Any] = {"num_workers": count, "persistent_workers": False}
    more |= {"prefetch_factor": loader.prefetch_factor if count else None, "timeout": loader.timeout if count else 0}
    more |= {} if count else {"multiprocessing_context": None}
    if isinstance(loader.dataset, IterableDataset):
        more |= {"batch_size": loader.batch_size} | (
            {} if loader.batch_size is None else {"drop_last": loader.drop_last}
        )
    else:
        more |= {"batch_sampler": _Draws(loader)}
    return rebuilt(loader, loader.dataset, loader.collate_fn, **more)


class _Draws:
    """Batches of random indices, which take nothing from the host's sampler."""

    def __init__(self, loader: Any) -> None:
        sampler = loader.batch_sampler
        self.length = loader.batch_size or getattr(sampler, "batch_size", None) or 1
        self._count, self._random = len(loader.dataset), random.Random(0)

    def __iter__(self) -> Iterator[list[int]]:
        while self._count:
            yield [self._random.randrange(self._count) for _ in range(self.length)]


def _measured(name: str, workers: int, loader: Any, seconds: float) -> ReaderRow:
    """Time fresh batches, but those that were ready when the first one was taken."""
    source = open_source(loader, None, "diagnosis")
    source.begin(0, True, Copies(random.Random(0)))
    times, examples, efforts = list[float](), list[int](), list[Effort]()
    ready, turn = 2 * workers, max(workers, 1)  # workers that began together end together
    for fresh in source:
        times.append(time.perf_counter())
        examples.append(fresh.delivered.fresh)
        if fresh.delivered.effort is not None:
            efforts.append(fresh.delivered.effort)
        over, many = times[-1] - times[0] - seconds, len(times) - 1 - ready
        if over > seconds or (over > 0.0 and many >= max(turn, _MIN_BATCHES) and many % turn == 0):
            break
    first = ready if len(times) - 1 >= ready + turn else 0
    many = len(times) - 1 - first
    took = times[-1] - times[first] if many > 0 else math.nan
    whole = sum(map(sum, efforts))
    shares = Effort(*(sum(part) / whole for part in zip(*efforts, strict=True))) if whole else None
    return ReaderRow(
        name, workers, took / max(many, 1), sum(examples[first + 1 :]) / took if took else math.nan, shares
    )


def _items(loader: Any, seconds: float) -> tuple[list[Any], float]:
    """Read some items as a cache would hold them, and the bytes that all need."""
    from torch.utils.data import IterableDataset

    if isinstance(loader.dataset, IterableDataset):
        return [], math.nan
    draw, items, until = random.Random(1), list[Any](), time.perf_counter() + seconds / 2
    count = len(loader.dataset)
    while count and len(items) < _MAX_ITEMS and (time.perf_counter() < until or not items):
        items.append(loader.dataset[draw.randrange(count)])
    return items, sum(map(size, items)) / max(len(items), 1) * count


def _cached(loader: Any, items: list[Any], seconds: float) -> ReaderRow:
    many, begun = 0, time.perf_counter()
    length = _Draws(loader).length
    while many < _MIN_BATCHES or time.perf_counter() < begun + seconds:
        _collated(loader, items, length, many)
        many += 1
    took = (time.perf_counter() - begun) / many
    return ReaderRow("decoded data in memory", 0, took, length / took)


def _collated(loader: Any, items: list[Any], length: int, at: int) -> Any:
    if loader.batch_sampler is None:
        return loader.collate_fn(items[at % len(items)])
    return loader.collate_fn([items[(at * length + more) % len(items)] for more in range(length)])


def _step_seconds(loader: Any, step: Any, items: list[Any], seconds: float) -> float:
    if not callable(step):
        return math.nan if step is None else float(step)
    length = _Draws(loader).length if items else 0
    batches: Iterable[Any] = (_collated(loader, items, length, at) for at in range(10**9)) if items else loader
    took, until = list[float](), time.perf_counter() + seconds
    for batch in batches:
        begun = time.perf_counter()
        step(batch)
        took.append(time.perf_counter() - begun)
        if time.perf_counter() > until and len(took) > _MIN_BATCHES:
            break
    return sorted(took)[len(took) // 2]


def _advice(rows: list[ReaderRow], workers: int, down: float, needed: float) -> str:
    """Return what helps most, with the numbers it follows from."""
    read = [row for row in rows if not math.isnan(row.seconds) and row.name != "decoded data in memory"]
    if not read:
        return "Fewer than two batches came: nothing can be said."
    now = next((row for row in read if row.workers == workers), read[0])
    best = min(read, key=lambda row: row.seconds)
    best = next(
        row for row in read if row.seconds <= max(best.seconds * _GAIN_RATIO, 0.0 if math.isnan(down) else down)
    )
    gain = now.seconds / best.seconds
    lines = []
    if not math.isnan(down) and now.seconds <= down:
        return f"The data is there in time ({now.seconds / down:.2g} of a step): nothing here saves time."
    if now.effort is not None:
        lines.append(f"At {now.name} the reader is {held_up(now.effort)}.")
    if best is not now and gain >= _GAIN_RATIO:
        lines.append(f"{best.name} reads {gain:.2g} times as fast, with fresh data.")
    elif len(read) > 1:
        lines.append("No other number of workers reads faster.")
    if not math.isnan(down) and best.seconds <= down:
        return " ".join([*lines, "That feeds the loop: echoing saves nothing then."])
    if not math.isnan(needed):
        lines.append(f"Decoded data in memory would need {_bytes(needed)} ({_bytes(_free())} are free); what the data "
                     "set augments at random would stay as it is.")  # fmt: skip
    ratio = "R" if math.isnan(down) else f"R = {best.seconds / down:.2g}"
    return " ".join([*lines, f"An echo by up to {ratio} costs no time, but no fresh data comes with it."])


def _free() -> float:
    """Return the bytes of memory that are free; NaN if the system does not say."""
    try:
        return float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (ValueError, OSError, AttributeError):
        return math.nan


def _bytes(count: float) -> str:
    return f"{count / 2**30:.3g} GiB" if count >= 2**30 else f"{count / 2**20:.3g} MiB"
