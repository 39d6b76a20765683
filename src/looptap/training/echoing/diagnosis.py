"""`diagnose` and `advice`: what holds a reader up, and what would help it most."""

from __future__ import annotations

import functools
import math
import os
import random
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from looptap.training.echoing.auto_factor import StageMeter
from looptap.training.echoing.pytrees import tree_bytes
from looptap.training.echoing.rng import kept_random
from looptap.training.echoing.source import open_source
from looptap.training.echoing.worker_stages import Copies, Effort
from looptap.training.host_loader import OrderState, rebuildable, rebuilt, workers_of

WORKERS_COUNTS = (1, 2, 4, 8, 16)
_MIN_BATCHES, _MAX_ITEMS = 3, 512
_GAIN_RATIO = 1.1
"""More workers, or a cache, count as faster from this on."""
_CACHED = "decoded data in memory"
_OWN_SHARE = 0.5
"""Workers that compute on this share of the processors are themselves what makes these busy."""
_STATES = {
    "waiting": "the reader is latency-bound: it {}",
    "computing": "the reader is processor-bound: it {}",
    "queued": "the machine is busy: the reader {}",
}
_SHARES = {"waiting": "waits for data", "computing": "computes", "queued": "waits for a processor"}


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
        lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in made]
        return "\n".join([*lines, "", self.advice])

    def _cells(self, row: ReaderRow) -> list[str]:
        shares = ["–"] * 3 if row.effort is None else [f"{share * 100:.0f}%" for share in row.effort]
        ratio = row.seconds / self.step_seconds
        return [
            row.name,
            f"{row.seconds * 1e3:.1f}",
            f"{row.examples:,.0f}",
            *shares,
            "–" if math.isnan(ratio) else f"{ratio:.2g}",
        ]


def diagnose(
    loader: Any,
    step: Callable[[Any], Any] | float | None = None,
    *,
    seconds: float = 60.0,
    workers: Sequence[int] = WORKERS_COUNTS,
    show: Callable[[str], Any] | None = print,
) -> Diagnosis:
    """Measure the loader with other numbers of workers, and with decoded data.

    Takes about ``seconds``. Call it before the training. ``step`` is a function of a batch, which is called several
    times, or the seconds of a step; with it the table has R for each row. Samplers and the job's random numbers do not
    change; the data set is read in a random order, as by its workers. A loader that makes its own batches is measured
    as a whole. ``show`` is called with the table as text; None shows nothing.

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
    return items, sum(map(tree_bytes, items)) / max(len(items), 1) * count


def _cached(loader: Any, items: list[Any], seconds: float) -> ReaderRow:
    many, begun = 0, time.perf_counter()
    length = _Draws(loader).length
    while many < _MIN_BATCHES or time.perf_counter() < begun + seconds:
        _collated(loader, items, length, many)
        many += 1
    took = (time.perf_counter() - begun) / many
    return ReaderRow(_CACHED, 0, took, length / took)


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
    read = [row for row in rows if not math.isnan(row.seconds) and row.name != _CACHED]
    if not read:
        return "Fewer than two batches arrived: there is nothing to measure."
    now = next((row for row in read if row.workers == workers), read[0])
    if now.seconds <= down:
        return f"The data arrives in time ({now.seconds / down:.2g} of a step): nothing here saves time."
    fastest = min(row.seconds for row in read) * _GAIN_RATIO
    best = next(row for row in read if row.seconds <= max(fastest, 0.0 if math.isnan(down) else down))
    gain, lines = now.seconds / best.seconds, list[str]()
    state = "" if now.effort is None else held_up_by(now.effort, now.workers, processors())
    if now.effort is not None:
        lines.append(f"At {now.name} {held_up(now.effort, now.workers, processors())}.")
    if state == "queued":
        lines.append("Fewer other processes, or more processors, help most.")
    if best is not now and gain >= _GAIN_RATIO:
        at_whose_cost = "but takes processors from the loop" if state == "queued" else "with fresh data"
        lines.append(f"{best.name} reads {gain:.2g} times as fast, {at_whose_cost}.")
    elif len(read) > 1:
        lines.append("No other number of workers reads faster.")
    if best.seconds <= down:
        return " ".join([*lines, "That keeps the loop busy, so echoing saves nothing."])
    if state == "waiting" and best is now and len(read) > 1:
        lines.append("The storage that it waits for is too slow: a copy of the data closer to the job helps most.")
    if state == "computing":
        lines.append("Cheaper decoding, or more processors, would help most.")
    if not math.isnan(needed):
        lines.append(
            f"Decoded data in memory would need {_bytes(needed)} ({_bytes(_free())} are free); random "
            "augmentation in the data set would then be frozen."
        )
    ratio = "R" if math.isnan(down) else f"R = {best.seconds / down:.2g}"
    return " ".join([*lines, f"Echoing by a factor up to {ratio} costs no time, but adds no fresh data."])


def held_up_by(effort: Effort, workers: int, processors: int) -> str:
    """Return what holds a reader up most: "waiting", "computing" or "queued".

    It is "queued" if others have the processors; workers that make each other wait are "computing".

    >>> held_up_by(Effort(0.14, 0.66, 0.2), 2, 2), held_up_by(Effort(0.2, 0.75, 0.05), 8, 2)
    ('queued', 'computing')
    """
    if effort.waiting >= max(effort.computing, effort.queued):
        return "waiting"
    crowded = effort.computing * max(workers, 1) >= _OWN_SHARE * processors
    return "computing" if crowded or effort.computing >= effort.queued else "queued"


def held_up(effort: Effort, workers: int, processors: int) -> str:
    """Return what a reader spends its time on, in words.

    >>> held_up(Effort(0.1, 0.02, 0.88), 2, 2)
    'the reader is latency-bound: it waits for data 88% of its time, computes 10%, and waits for a processor 2%'
    """
    state = held_up_by(effort, workers, processors)
    shares = effort._asdict()
    (first, most), (second, more), (third, least) = (
        (_SHARES[name], f"{shares[name] * 100:.0f}%")
        for name in sorted(shares, key=lambda name: (name != state, -shares[name]))
    )
    where = f"{processors} processor{'s' * (processors > 1)}"
    load = f"; the load is {os.getloadavg()[0]:.0f} on {where}" if state == "queued" else ""
    return _STATES[state].format(f"{first} {most} of its time, {second} {more}, and {third} {least}{load}")


def workers_that_feed(workers: int, ratio: float, effort: Effort, processors: int) -> int:
    """Return how many workers would feed the loop, or as many as processors allow.

    >>> workers_that_feed(2, 4.0, Effort(0.1, 0.0, 0.9), 2)
    8
    >>> workers_that_feed(2, 4.0, Effort(1.0, 0.0, 0.0), 4)
    4
    """
    needed = math.ceil(max(workers, 1) * ratio - 1e-6)
    return max(1, min(needed, int(processors / max(effort.computing + effort.queued, 0.01))))


def advice(meter: StageMeter, factor: float, mode: str, augmented: bool) -> tuple[str, str]:
    """Return the slowest stage and what would help; empty texts while unknown.

    >>> meter = StageMeter(0)
    >>> for _ in range(20):
    ...     meter.arrived(0.06, 0.07, {"read": 0.06})
    ...     meter.handed(0.01, 0.0, 0.06)
    >>> advice(meter, 1.0, "batch", False)[0]
    'read'
    """
    costs, ratio = meter.costs(factor), meter.ratio
    if math.isnan(ratio):
        return "", ""
    slowest = max(costs, key=lambda name: costs[name])
    if ratio <= 1.0:
        return slowest, f"The data arrives in time (R = {ratio:.2g}): echoing saves nothing here."
    effort, many, gain, state = meter.effort, processors(), f"R = {ratio:.2g}", ""
    if effort is not None:
        state = held_up_by(effort, meter.workers, many)
        gain += f" ({held_up(effort, meter.workers, many)})"
    if state == "queued":
        return slowest, f"{gain}: fewer other processes, or more processors, help most."
    if not meter.workers:
        return slowest, (
            f"{gain}, and the loop reads between its steps: num_workers=1 or more overlaps the two, with fresh data."
        )
    if effort is not None and state == "waiting":
        needed = workers_that_feed(meter.workers, ratio, effort, many)
        if needed > meter.workers:
            return slowest, f"{gain}: more workers help most, with fresh data: num_workers={needed}."
    return slowest, _for_processors(meter, costs, gain, mode, augmented, many - meter.workers)


def _for_processors(
    meter: StageMeter, costs: dict[str, float], gain: str, mode: str, augmented: bool, spare: int
) -> str:
    """Return what helps where workers compute; ``spare``: processors without one."""
    fresh = {name: cost for name, cost in costs.items() if name not in ("batch", "step")}
    dearest = max(fresh, key=lambda name: fresh[name]) if fresh else "read"
    if spare >= meter.workers:
        workers = f"each of {meter.workers} workers" if meter.workers > 1 else "the one worker"
        idle = f"{spare} processors have" if spare > 1 else "1 processor has"
        return (
            f"{gain}: {dearest!r} takes {fresh.get(dearest, math.nan) * meter.workers * 1e3:.3g} ms a batch in "
            f"{workers}, and {idle} no worker: more workers help more, with fresh data."
        )
    if dearest == "augment" and mode == "example_before_augment":
        return f"{gain}, most of it augmentation, which is repeated for each copy: echo after it."
    if dearest == "collate" and mode != "batch":
        return f"{gain}, most of it collating: echo batches."
    if dearest == "read" and mode.startswith("batch") and augmented:
        return f"{gain}, most of it reading: echo examples, before they are augmented."
    return f"{gain}: a factor up to R costs no time. Decoded data cached in memory, or faster decoding, helps more."


@functools.cache
def processors() -> int:
    """Return how many processors this process, or its container, may use."""
    allowed = getattr(os, "sched_getaffinity", None)
    count = len(allowed(0)) if allowed is not None else os.cpu_count() or 1
    try:
        with open("/sys/fs/cgroup/cpu.max", encoding="ascii") as file:
            quota, period = map(int, file.read().split())
    except (OSError, ValueError):  # no limit, or another system
        return count
    return max(1, min(count, math.ceil(quota / period)))


def _free() -> float:
    """Return the bytes of memory that are free; NaN if the system does not say."""
    try:
        return float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (ValueError, OSError, AttributeError):
        return math.nan


def _bytes(count: float) -> str:
    return f"{count / 2**30:.3g} GiB" if count >= 2**30 else f"{count / 2**20:.3g} MiB"
