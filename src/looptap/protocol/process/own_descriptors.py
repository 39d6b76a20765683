"""Descriptors of looptap, which other code may close by their numbers.

Code that makes a daemon of its process closes all descriptors, and the next files of the job get their numbers: what
used a descriptor of its own by number alone would then write into a file of the job.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from pathlib import Path
from typing import TypeAlias

Identity: TypeAlias = tuple[int, int]
"""What tells a file from all others."""
LISTS_DESCRIPTORS = os.path.isdir("/dev/fd")
"""Whether this system lists the descriptors of a process."""


class OwnDescriptor:
    """The number of a descriptor, as long as it stands for the same thing."""

    def __init__(self, number: int) -> None:
        self.number, self._identity = number, identity(number)

    def is_there(self) -> bool:
        """Return True unless it has been closed, even if the number is in use again."""
        return identity(self.number) == self._identity

    def close(self) -> None:
        """Close it, unless other code has."""
        if self.is_there():
            os.close(self.number)


class Sentinel(OwnDescriptor):
    """A descriptor that is closed with those opened after it, if code closes all."""

    def __init__(self) -> None:
        number, other = os.pipe()  # which no other descriptor of the system is equal to, unlike a file or an eventfd
        os.close(other)
        super().__init__(number)
        weakref.finalize(self, OwnDescriptor.close, OwnDescriptor(number)).atexit = False


def descriptors_of(file: Identity | None) -> tuple[OwnDescriptor, ...]:
    """Return this process's descriptors of a file, which may be removed.

    Where there is no list of them, there are none. Raises OSError without a free one.
    """
    names = os.listdir("/dev/fd") if LISTS_DESCRIPTORS else ()
    return tuple(OwnDescriptor(int(name)) for name in names if file is not None and identity(int(name)) == file)


def keep_for_ever(*things: object) -> None:
    """Have ``things`` outlive the interpreter.

    Their ends would use numbers of descriptors that they no longer own.
    """
    for thing in things:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def identity(which: int | str | Path) -> Identity | None:
    """Return what tells a file from all others; None if there is none."""
    try:
        status = os.stat(which)
    except OSError:
        return None
    return status.st_dev, status.st_ino
