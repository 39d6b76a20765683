"""Identify a process by pid, machine, boot, pid namespace and start time."""

from __future__ import annotations

import getpass
import os
import socket
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Protocol
from weakref import WeakValueDictionary

import msgspec

GONE, REPLACED = "is gone", "has become another program (exec)"
"""How a process has ended, or the program in it, as the end of a sentence."""
_FIRST_NAMESPACE = "pid:[4026531836]"  # the kernel's name of the namespace outside any container


class Raising(Protocol):
    """The thread that raises the events of a run in this process."""

    def waits_for_itself(self, on: str, answered: Callable[[], bool]) -> bool:
        """Return True if the calling thread waits for an event that only it raises."""


RUNS_HERE: WeakValueDictionary[str, Raising] = WeakValueDictionary()
"""The runs whose agents are in this process, by id: their clients may be on the training thread."""


class Process(msgspec.Struct, frozen=True):
    """A process on one boot of one machine; fields that are unknown are empty."""

    host: str
    machine: str
    boot: str
    namespace: str
    pid: int
    start: str
    program: str = ""
    """What tells the program that it runs from one that an exec puts in its place; empty if unknown."""

    @classmethod
    def this(cls) -> Process:
        """Return the calling process."""
        pid = os.getpid()
        start = start_time(pid) or ""
        return cls(socket.gethostname(), _machine_id(), boot_id(), _namespace(), pid, start, program_of(pid))

    def alive(self) -> bool | None:
        """Return True if it runs, and the same program; None if that is unknown."""
        end = self.end()
        return None if end is None else not end

    def end(self) -> str | None:
        """Return how it has ended, `GONE` or `REPLACED`; empty if it runs.

        None if that is unknown, as on another host or in another container.
        """
        if (self.host, self.machine, self.namespace) != (socket.gethostname(), _machine_id(), _namespace()):
            return None
        if self.boot != boot_id():
            # Containers and cloned machines may share all of the above without being the same one.
            return GONE if self.machine and self.namespace == _FIRST_NAMESPACE else None
        start = start_time(self.pid)
        if not start or start != self.start:
            return None if start is None else GONE
        return REPLACED if self.program and program_of(self.pid) not in ("", self.program) else ""

    def pulse(self) -> tuple[str, float] | None:
        """Return its state, a letter of Linux, and its seconds of processor time.

        None if it is not alive, or that is unknown here.
        """
        if not self.alive() or not sys.platform.startswith("linux"):
            return None
        try:
            fields = _stat(self.pid)
        except OSError:
            return None
        return fields[0].decode("ascii"), (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def activity(self, busy_before: float) -> str:
        """Say what it does, if it is on this machine; empty if that is unknown.

        ``busy_before`` is its processor time at an earlier pulse.
        """
        if end := self.end():
            return f"the job's process {self.pid} {end}."
        if (pulse := self.pulse()) is None:
            return ""
        state, busy = pulse
        if state in "Tt":
            return f"the job's process {self.pid} is stopped; kill -CONT {self.pid} lets it run."
        if state == "D":
            return f"the job's process {self.pid} is alive, and waits for a disk or a device."
        if busy <= busy_before:
            return f"the job's process {self.pid} is alive, and waits."
        used = busy - busy_before
        return f"the job's process {self.pid} is alive, and has used {used:.1f} s of processor time since."


@cache
def boot_id() -> str:
    """Return the kernel's id of this boot; empty if there is none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return ""


@cache
def _machine_id() -> str:
    try:
        return Path("/etc/machine-id").read_text("ascii").strip()
    except (OSError, ValueError):
        return ""


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def start_time(pid: int) -> str | None:
    """Return a process's start in ticks since boot; empty if dead, None if unknown."""
    if not sys.platform.startswith("linux"):
        return _start_elsewhere(pid)
    try:
        fields = _stat(pid)
    except (FileNotFoundError, ProcessLookupError):
        return ""
    except OSError:
        return None
    return "" if fields[0] in b"ZXx" else fields[19].decode("ascii")


def program_of(pid: int) -> str:
    """Return the random addresses of a process's program and stack.

    They change with each exec, and only then. Empty if unknown: of another user, or not on Linux.
    """
    try:
        fields = _stat(pid)
    except OSError:
        return ""
    code, stack = fields[23].decode("ascii"), fields[25].decode("ascii")
    return f"{code} {stack}" if int(stack) > 1 else ""


def _stat(pid: int) -> list[bytes]:
    """Return what Linux says of a process, from its state on. Raises OSError."""
    stat = Path(f"/proc/{pid}/stat").read_bytes()
    return stat[stat.rindex(b")") + 2 :].split()  # the name in parentheses may hold anything


def _start_elsewhere(pid: int) -> str | None:
    if sys.platform == "win32":  # there, signal 0 would end the process
        return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except OSError:
        return None
    return "running"


def named_process() -> str:
    """Return user, host and pid of this process."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):  # a user without a name, as in some containers
        user = "unknown"
    return f"{user}@{socket.gethostname()}, pid {os.getpid()}"
