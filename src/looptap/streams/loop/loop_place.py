"""Where a loop stands in a script, and whether it is left.

The iterator of a loop that failed lives on if a variable holds it, and a traceback the variable.
"""

from __future__ import annotations

import dis
import inspect
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from types import CodeType, FrameType
from typing import NamedTuple

_CACHE = dis.opmap.get("CACHE", 0)
_PASSING_ON = ("looptap.training.", "looptap.integrations.", "torch.")


class LoopPlace(NamedTuple):
    """Where a loop is, and what passes batches on to it; frame and thread by id."""

    instructions: tuple[tuple[int, int], ...] = ()
    frame: tuple[int, int] = (0, 0)
    thread: int = 0

    @property
    def runs(self) -> bool:
        """True if the function of the loop is in it, neither past it nor at its end.

        Frames that a traceback keeps do not run. The address of one that is gone may be that of another function.
        """
        frame = sys._current_frames().get(self.thread)
        while frame is not None and (id(frame), id(frame.f_code)) != self.frame:
            frame = frame.f_back
        if frame is None:
            return False
        parts = _parts_of_loop(frame.f_code, self.instructions[-1][1])
        return not parts or any(frame.f_lasti in part for part in parts)


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


def place_of_loop(frame: FrameType | None) -> LoopPlace:
    """Return where the loop stands for which ``frame`` asks for a batch."""
    frames = [*frames_to_loop(frame)]
    instructions = tuple((id(one.f_code), _instruction_of(one)) for one in frames)
    last = (id(frames[-1]), id(frames[-1].f_code)) if frames else (0, 0)
    return LoopPlace(instructions, last, threading.get_ident())


@lru_cache(maxsize=64)
def _parts_of_loop(code: CodeType, at: int) -> tuple[range, ...]:
    """Return the instructions of the `for` at ``at``; empty for anything else.

    They are those up to its end, and the handlers of `try` and `with` in it, which Python 3.12 puts at the end of the
    code. Handlers around the loop also guard its beginning.
    """
    loop = next((one for one in dis.get_instructions(code) if one.offset == at), None)
    if loop is None or loop.opname != "FOR_ITER":
        return ()
    parts, guarded = [range(loop.offset, loop.argval)], defaultdict(list)
    for entry in getattr(dis.Bytecode(code), "exception_entries", ()):  # typeshed lacks it
        guarded[entry.target].append(range(entry.start, entry.end))
    handlers = sorted(target for target in guarded if target >= loop.argval)
    for handler, following in pairwise([*handlers, len(code.co_code)]):
        begins = [one.start for one in guarded[handler]]
        inside = any(begin in part for begin in begins for part in parts)
        if inside and not any(loop.offset in one for one in guarded[handler]):
            parts.append(range(handler, following))
    return tuple(parts)


def is_left(old: LoopPlace, now: LoopPlace, within: bool = True) -> bool:
    """Return True if the loop at ``old`` is over as one begins at ``now``.

    That begins at the same place, or the function of the old one, ``within`` which its steps are, is no longer in it.
    """
    return (old.instructions, old.thread) == (now.instructions, now.thread) or (within and not old.runs)
