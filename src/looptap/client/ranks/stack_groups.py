"""Where the ranks of a job stand, and the collective that each waits in."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, takewhile
from typing import NamedTuple

from looptap.client.rank_numbers import numbered
from looptap.protocol.statistics import EventActivity, StackReport
from looptap.streams.durations import duration

_FRAME = re.compile(r'^  File "(.*)", line (\d+), in (.*)(?:\n    (.*))?', re.MULTILINE)
_LIBRARY = re.compile(r"[/\\](site-packages|dist-packages|lib[/\\]python[\d.]+)[/\\]")
_DISTRIBUTED = re.compile(r"[/\\]torch[/\\](distributed|cuda[/\\]nccl|nn[/\\]parallel|_C[/\\]_distributed)")
MAX_PLACES_COUNT = 4
"""Missing ranks whose machine and process are named."""
COLLECTIVES = frozenset(
    {
        "all_reduce",
        "all_gather",
        "all_gather_into_tensor",
        "all_gather_object",
        "all_gather_coalesced",
        "all_reduce_coalesced",
        "all_to_all",
        "all_to_all_single",
        "barrier",
        "monitored_barrier",
        "broadcast",
        "broadcast_object_list",
        "gather",
        "gather_object",
        "reduce",
        "reduce_scatter",
        "reduce_scatter_tensor",
        "scatter",
        "scatter_object_list",
        "send",
        "recv",
        "isend",
        "irecv",
        "batch_isend_irecv",
        "init_process_group",
        "new_group",
        "destroy_process_group",
        "split_group",
        "wait_tensor",
    }
)
"""Functions of torch.distributed in which a rank waits for others."""
_WAIT = re.compile(r"\.wait\(")
_DEVICE = re.compile(r"\.(item|cpu|tolist|numpy)\(")
_UNNAMED = {
    "synchronize": "torch.cuda.synchronize, behind which a collective may wait",
    "_engine_run_backward": "the backward pass, in which DDP and FSDP wait for the gradients of the other ranks",
}
"""Calls in which a collective may wait without a name of its own."""
_IN_C = (
    (_WAIT, "a wait in C, as for an asynchronous collective"),
    (_DEVICE, "a wait for the device, behind which a collective may stand"),
)
"""Calls of C without a frame of their own: what the innermost line of the job says where one may wait."""
_NO_EVENTS = EventActivity(count=0, idle=0.0)


class Frame(NamedTuple):
    """One line of a stack."""

    file: str
    line: int
    function: str
    code: str = ""

    @property
    def own(self) -> bool:
        """True outside of libraries."""
        return not _LIBRARY.search(self.file) and not self.file.startswith("<frozen")

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}{f': {self.code}' if self.code else ''}"


@dataclass(frozen=True)
class StackGroup:
    """Ranks whose loops stand at the same line."""

    ranks: tuple[int, ...]
    stack: tuple[Frame, ...]
    """The frames of the loop's thread, the innermost last: see `frames_of`."""
    collective: str
    """The collective that it waits in; empty if it stands in none."""
    events: Mapping[str, EventActivity]
    """Of the lowest rank."""
    idle: float | None = None
    """Seconds since the newest event of any of them; None if there was none."""

    @property
    def place(self) -> Frame | None:
        """The innermost frame outside of libraries."""
        return next((frame for frame in reversed(self.stack) if frame.own), self.stack[-1] if self.stack else None)

    def __str__(self) -> str:
        waits = f"in {self.collective}" if self.collective else "in no collective"
        since = "no event so far" if self.idle is None else f"no event for {duration(self.idle)}"
        return f"{numbered(self.ranks)}: {waits}, {since}, at {self.place}"


def stack_groups(reports: Mapping[int, StackReport]) -> list[StackGroup]:
    """Group ranks by the stacks of their loops' threads, the largest group first.

    >>> stack_groups({})
    []
    """
    by_stack: dict[tuple[Frame, ...], list[int]] = {}
    for rank in sorted(reports):
        by_stack.setdefault(frames_of(reports[rank]), []).append(rank)
    groups = [
        StackGroup(
            tuple(ranks),
            stack,
            collective_of(stack),
            reports[ranks[0]].events,
            min((event.idle for rank in ranks for event in reports[rank].events.values()), default=None),
        )
        for stack, ranks in by_stack.items()
    ]
    return sorted(groups, key=lambda group: (-len(group.ranks), group.ranks))


def frames_of(report: StackReport) -> tuple[Frame, ...]:
    """Return the frames of the loop's thread, the innermost last.

    That is the main thread, or where that runs no code of the job, as in a worker of Ray Train, the first that does.
    """
    threads = [thread for thread in report.threads if not thread.thread.startswith("looptap-")]
    stacks = [_frames(thread.stack) for thread in threads]
    own = (frames for frames in stacks if any(frame.own for frame in frames))
    return next(own, stacks[0] if stacks else ())


def _frames(stack: str) -> tuple[Frame, ...]:
    found = _FRAME.findall(stack)
    return tuple(Frame(file, int(line), function, code.strip()) for file, line, function, code in found)


def collective_of(stack: Sequence[Frame]) -> str:
    """Return the collective that a stack is in, as its caller names it; "" if none."""
    # The outermost: a barrier is made of others.
    named = (frame.function for frame in stack if frame.function in COLLECTIVES and _DISTRIBUTED.search(frame.file))
    innermost = stack[-1].code if stack and stack[-1].own else ""
    in_c = (words for call, words in _IN_C if call.search(innermost))
    library = takewhile(lambda frame: not frame.own, reversed(stack))
    unnamed = (_UNNAMED[frame.function] for frame in library if frame.function in _UNNAMED)
    return next(chain(named, in_c, unnamed), "")


def difference(
    reports: Mapping[int, StackReport], silent: Mapping[int, str] | None = None, places: Mapping[int, str] | None = None
) -> list[str]:
    """Describe where the ranks stand, a line for each group and one for what is odd.

    ``silent`` says why ranks have not answered; ``places`` where each one runs.
    """
    groups, silent, places = stack_groups(reports), silent or {}, places or {}
    lines = [f"  {group}" for group in groups]
    lines += [f"  rank {rank}: no answer: {reason}" for rank, reason in sorted(silent.items())]
    waiting = sorted(rank for group in groups if group.collective for rank in group.ranks)
    outside = sorted(set(reports).difference(waiting))
    for missing, what in ((outside, "in no collective"), (sorted(silent), "silent")):
        if waiting and missing:
            lines.append(_waits_for(waiting, missing, what, places))
    if not outside and not silent and len({group.collective for group in groups}) > 1:
        lines.append("the ranks wait in different collectives, and none of them can end")
    return [*_heading(len(reports), len(groups), bool(silent)), *lines, *_behind(reports)]


def _heading(ranks: int, places: int, silent: bool) -> list[str]:
    if places > 1:
        return [f"{ranks} ranks stand in {places} places"]
    return [f"all {ranks} ranks stand at the same line"] if ranks > 1 and not silent else []


def _waits_for(waiting: list[int], missing: list[int], what: str, places: Mapping[int, str]) -> str:
    known = [f"rank {rank} is {places[rank]}" for rank in missing[:MAX_PLACES_COUNT] if rank in places]
    verb, copula = ("waits" if len(waiting) == 1 else "wait"), ("is" if len(missing) == 1 else "are")
    where = f" ({'; '.join(known)})" if known else ""
    return f"{numbered(waiting)} {verb} for {numbered(missing)}, which {copula} {what}{where}"


def _behind(reports: Mapping[int, StackReport]) -> list[str]:
    """Describe which ranks have raised fewer events than others."""
    names = dict.fromkeys(name for report in reports.values() for name in report.events)
    lines = []
    for name in names:
        events = {rank: report.events.get(name, _NO_EVENTS) for rank, report in reports.items()}
        *fewer, most = sorted({event.count for event in events.values()})
        for count in fewer:
            ranks = [rank for rank, event in events.items() if event.count == count]
            since = f", none for {duration(max(events[rank].idle for rank in ranks))}" if count else ""
            behind = f"{most - count:,} {name} event{'s' * (most - count != 1)}"
            lines.append(f"{numbered(ranks)}: {behind} behind, at {count:,}{since}")
    return lines
