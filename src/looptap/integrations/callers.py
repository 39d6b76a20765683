"""Finds who calls: a framework hands its callbacks less than the loop knows."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

MAX_FRAMES_COUNT = 12
"""Frames from a callback outward that are searched."""
_COPIES_LOCALS = sys.version_info < (3, 13)


def caller_of(frame: FrameType | None, kind: type | tuple[type, ...]) -> Any:
    """Return the next object of a ``kind`` whose method is running, or None.

    >>> class Trainer:
    ...     def fit(self):
    ...         return caller_of(sys._getframe(), Trainer)
    >>> trainer = Trainer()
    >>> trainer.fit() is trainer
    True
    """
    found = (argument(frame, "self", kind) for frame in _outward(frame))
    return next((one for one in found if one is not None), None)


def argument_of(frame: FrameType | None, function: str, name: str) -> Any:
    """Return an argument of the next running function of this name, or None."""
    found = (argument(frame, name) for frame in _outward(frame) if frame.f_code.co_name == function)
    return next((one for one in found if one is not None), None)


def argument(frame: FrameType, name: str, kind: type | tuple[type, ...] = object) -> Any:
    """Return an argument of one frame if it is of a ``kind``, else None.

    Before Python 3.13 reading a frame's variables leaves a copy of them all in it, which is emptied at once, so that
    nothing lives longer for it.
    """
    code = frame.f_code
    if name not in code.co_varnames[: code.co_argcount]:
        return None
    variables = frame.f_locals
    found = variables.get(name)
    if _COPIES_LOCALS:
        variables.clear()
    return found if isinstance(found, kind) else None


def _outward(frame: FrameType | None) -> list[FrameType]:
    frames: list[FrameType] = []
    while frame is not None and len(frames) < MAX_FRAMES_COUNT:
        frames.append(frame)
        frame = frame.f_back
    return frames
