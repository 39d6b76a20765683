"""Where a loop stands in a script, and whether it is left.

The iterator of a loop that failed lives on if a variable holds it, and a traceback the variable.
"""

from __future__ import annotations

import dis
import inspect
import re
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from types import CodeType, FrameType
from typing import Any, NamedTuple

_CACHE = dis.opmap.get("CACHE", 0)
_BACK = re.compile("(POP_)?JUMP_BACKWARD(_IF.*)?")
Handler = tuple[range, list[range]]
"""The instructions of a handler of `try` or `with`, and those that it guards."""
MAX_FRAMES_COUNT = 40
"""Frames that tell where a batch is fetched."""
_PASSING_ON = ("looptap.training.", "looptap.integrations.", "torch.")


class CallSite(NamedTuple):
    """The instruction at which a frame is; frame and code by id."""

    frame: int
    code: int
    instruction: int


class LoopPlace(NamedTuple):
    """Where a loop is, and what passes batches on to it; the thread by id."""

    spots: tuple[CallSite, ...] = ()
    """From what asks for a batch outward to the function of the loop."""
    callers: tuple[CallSite, ...] = ()
    """Further outward."""
    thread: int = 0
    made: tuple[CallSite, ...] = ()
    """Where the iterator was made, if known."""

    @property
    def runs(self) -> bool:
        """True if the function of the loop is in it, neither past it nor at its end.

        Frames that a traceback keeps do not run. The address of one that is gone may be that of another function.
        """
        frame = _running(self.thread).get(self.spots[-1][:2])
        if frame is None:
            return False
        loop, _ = self._loop(frame.f_code, self.spots[-1])
        return not loop or frame.f_lasti in loop

    def at_steps(self) -> LoopPlace:
        """Return the place with the loop that the iterator was made for.

        Called in a step: a function that only fetches batches has returned by then. The loop is in the innermost
        function that runs, or around its call, after the iterator was made.
        """
        running, spots = _running(self.thread), (*self.spots, *self.callers)
        counts = [count for count in range(len(self.spots), len(spots) + 1) if spots[count - 1][:2] in running]
        around = (count for count in counts if self._loop(running[spots[count - 1][:2]].f_code, spots[count - 1])[1])
        count = next(around, (counts or [len(self.spots)])[0])
        return self._replace(spots=spots[:count], callers=spots[count:])

    def _loop(self, code: CodeType, spot: CallSite) -> tuple[frozenset[int], bool]:
        """Return a function's loop, and whether the iterator was made in it before."""
        made = next((one.instruction for one in self.made if one[:2] == spot[:2]), -1)
        return _loop_around(code, spot.instruction, made)

    def is_at(self, old: LoopPlace) -> bool:
        """Return True if the instructions up to the loop at ``old`` are the same."""
        spots = (*self.spots, *self.callers)[: len(old.spots)]
        return self.thread == old.thread and [one[1:] for one in spots] == [one[1:] for one in old.spots]


def _running(thread: int) -> dict[tuple[int, ...], FrameType]:
    """Return the frames of a thread, each by its address and that of its code."""
    found: dict[tuple[int, ...], FrameType] = {}
    frame = sys._current_frames().get(thread)
    while frame is not None:
        found[id(frame), id(frame.f_code)] = frame
        frame = frame.f_back
    return found


def frames_to_loop(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield ``frame``, which asks for a batch, and more, up to that of the loop.

    Generators and DataLoaders pass batches on.
    """
    while frame is not None:
        yield frame
        module = str(frame.f_globals.get("__name__"))
        passes_on = frame.f_code.co_flags & inspect.CO_GENERATOR or module.startswith(_PASSING_ON)
        frame = frame.f_back if passes_on else None


def _instruction_of(frame: FrameType) -> int:
    """Return where a frame is; Python may stand in the cache behind it."""
    code, at = frame.f_code.co_code, frame.f_lasti
    while at > 0 and code[at] == _CACHE:
        at -= 2
    return at


def spots_from(frame: FrameType | None) -> tuple[CallSite, ...]:
    """Return where ``frame`` and its callers are, outward."""
    found: list[CallSite] = []
    while frame is not None and len(found) < MAX_FRAMES_COUNT:
        found.append(CallSite(id(frame), id(frame.f_code), _instruction_of(frame)))
        frame = frame.f_back
    return tuple(found)


def place_of_loop(frame: FrameType | None, made: tuple[CallSite, ...] = ()) -> LoopPlace:
    """Return where the loop stands for which ``frame`` asks for a batch.

    ``made`` is where its iterator was made, if that is known.
    """
    spots, count = spots_from(frame), len([*frames_to_loop(frame)])
    return LoopPlace(spots[:count], spots[count:], threading.get_ident(), made)


@lru_cache(maxsize=64)
def _loop_around(code: CodeType, at: int, made: int) -> tuple[frozenset[int], bool]:
    """Return the instructions of the loop that fetches at ``at``, if there is one.

    And whether its iterator was made at ``made`` before. Of several such loops it is the outer one. ``made`` is -1
    where that is unknown. Then it is the inner one, if that is a `for`, which makes its own.
    """
    positions, spans, handlers = _parts_of(code)
    # Python writes the test of a `while` twice: before the loop and at its end.
    twins = {offset for offset, position in positions.items() if position == positions.get(at)}
    spans = [span for span in spans if any(twin in span for twin in twins)] or spans  # or it is in a handler
    loops = sorted((_with_handlers(span, handlers) for span in spans), key=len)
    around = [loop for loop in loops if loop & twins]
    outside = [loop for loop in around if made not in {-1, at, *loop}]
    if not outside and any(span.start == at for span in spans):
        return around[0], False
    return (outside or around or [frozenset()])[-1], bool(outside)


@lru_cache(maxsize=16)
def _parts_of(code: CodeType) -> tuple[dict[int, Any], list[range], list[Handler]]:
    """Return where each instruction is in the source, the loops, and the handlers.

    It takes about 10 µs an instruction, once.
    """
    instructions = {one.offset: one for one in dis.get_instructions(code)}
    ends = {one.argval: offset for offset, one in instructions.items() if _BACK.fullmatch(one.opname)}
    ends |= {offset: one.argval - 1 for offset, one in instructions.items() if one.opname == "FOR_ITER"}
    guarded = defaultdict(list)
    for entry in getattr(dis.Bytecode(code), "exception_entries", ()):  # typeshed lacks it
        guarded[entry.target].append(range(entry.start, entry.end))
    handlers = pairwise([*sorted(guarded), len(code.co_code)])
    return (
        {offset: one.positions for offset, one in instructions.items()},
        [range(begin, end + 1) for begin, end in ends.items()],
        [(range(handler, following), guarded[handler]) for handler, following in handlers],
    )


def _with_handlers(loop: range, handlers: list[Handler]) -> frozenset[int]:
    """Return the instructions of a loop, and of the handlers in it.

    Python 3.12 puts these at the end of the code. Handlers around the loop also guard its beginning.
    """
    found = set(loop)
    for handler, guards in handlers:
        inside = handler.start >= loop.stop and not found.isdisjoint(one.start for one in guards)
        if inside and not any(loop.start in one for one in guards):
            found.update(handler)
    return frozenset(found)


def is_left(old: LoopPlace, now: LoopPlace, within: bool = True, again: bool = True) -> bool:
    """Return True if the loop at ``old`` is over as one begins at ``now``.

    That begins ``again`` at the same place, or the function of the old one is no longer in it, while its steps are
    ``within`` that.
    """
    return (again and now.is_at(old)) or (within and not old.runs)
