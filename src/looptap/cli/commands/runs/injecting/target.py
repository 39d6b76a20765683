"""The process to inject into: whose it is, and which Python it runs."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import NamedTuple

from looptap.streams.errors import LooptapError

_VERSION = re.compile(r"(?:^|/)(?:lib)?python(\d)\.(\d+)")
_PTRACE_SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")
MIN_VERSION = 3, 11
"""The oldest Python that looptap runs on."""


class InjectError(LooptapError):
    """A process that cannot be injected into, and why."""


class Target(NamedTuple):
    """A running Python process of this user."""

    pid: int
    python: tuple[int, int]
    """Its minor version."""
    command: str


def target(pid: int) -> Target:
    """Return the process ``pid``. Raises InjectError if it may not be injected.

    That is a process of another user (also for root), of another machine or container, without Python, or of a Python
    that looptap does not run on.
    """
    place = Path("/proc") / str(pid)
    if not sys.platform.startswith("linux"):
        raise InjectError("looptap inject works on Linux; start the job with looptap run, or with LOOPTAP_AUTO=1.")
    if pid == os.getpid():
        raise InjectError(f"{pid} is this command itself.")
    try:
        owner = place.stat().st_uid
        state = (place / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        raise InjectError(f"there is no process {pid} on this machine, or not in this container.") from None
    if owner != os.getuid():
        raise InjectError(f"process {pid} belongs to the user {owner}, and only its own user may inject.")
    if state in "ZX":
        raise InjectError(f"process {pid} has ended.")
    if state in "Tt":
        raise InjectError(f"process {pid} is stopped, by a debugger or a signal; kill -CONT {pid} lets it run.")
    command = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    return Target(pid, _python_of(pid, place), command)


def _python_of(pid: int, place: Path) -> tuple[int, int]:
    try:
        exe, maps = os.readlink(place / "exe"), (place / "maps").read_text()
    except OSError as error:
        what = "has ended" if isinstance(error, FileNotFoundError) else f"cannot be looked at: {error.strerror}"
        raise InjectError(f"process {pid} {what}.") from None
    files = dict.fromkeys([exe, *(line.rpartition(" ")[2] for line in maps.splitlines())])
    found = next((match for file in files if (match := _VERSION.search(os.path.basename(file)))), None)
    if found is None:
        raise InjectError(f"process {pid} runs {exe}, which is no Python that looptap knows.")
    version = int(found[1]), int(found[2])
    if version < MIN_VERSION:
        raise InjectError(f"process {pid} runs Python {version[0]}.{version[1]}, and looptap needs 3.11 or newer.")
    return version


def why_not_traced() -> str:
    """Return why this machine may forbid debuggers; empty if it does not."""
    try:
        scope = int(_PTRACE_SCOPE.read_text())
    except (OSError, ValueError):
        return ""
    if not scope or os.getuid() == 0:
        return ""
    return (
        f"{_PTRACE_SCOPE} is {scope}: only a parent may debug a process. root may change that with sysctl "
        "kernel.yama.ptrace_scope=0."
    )
