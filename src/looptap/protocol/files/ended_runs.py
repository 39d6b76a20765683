"""The list of ended runs, in a file beside the connection files.

A connection file is removed with its run; this list still names a short run to a client that comes too late.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Collection
from pathlib import Path

import msgspec

from looptap.protocol.errors import LinkError
from looptap.protocol.files.connection import IPC, check_directory, is_of_this_user, read_connection_file, remove
from looptap.protocol.messages import RunInfo
from looptap.protocol.process.identity import Process
from looptap.protocol.types.built_types import built

FILE_NAME = "ended.jsonl"
MAX_BYTES = 65_536
"""Size of the file at which its older half is removed."""
_MAX_TEXT_CHARACTERS = 500  # characters of a reason


class Ended(msgspec.Struct, frozen=True):
    """An ended run, with times in seconds since the epoch and its ``store`` file."""

    id: str
    name: str
    rank: int
    started: float
    ended: float
    reason: str = ""
    store: str = ""


def note_ended_run(run: Ended, directory: Path) -> None:
    """Add a run to the list in ``directory``. Raises OSError or UnsafeFile."""
    check_directory(directory)
    path = directory / FILE_NAME
    line = msgspec.json.encode(msgspec.structs.replace(run, reason=run.reason[:_MAX_TEXT_CHARACTERS])) + b"\n"
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    with open(os.open(path, flags, 0o600), "r+b", buffering=0) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            return
        size = file.seek(0, os.SEEK_END)
        if size + len(line) > MAX_BYTES:  # if two write at once, one may lose its line
            file.seek(max(0, size - MAX_BYTES // 2))
            kept = file.read(MAX_BYTES // 2).partition(b"\n")[2]
            file.truncate(0)
            line = kept + line
        file.write(line)


def abandoned(directory: Path, open_runs: Collection[str]) -> list[tuple[Path, RunInfo]]:
    """Remove the files of this process for runs that are not open; return both."""
    found, this = [], Process.this()
    for path in directory.glob("*.json"):
        try:
            file = read_connection_file(path)
        except (LinkError, OSError):
            continue
        former = msgspec.structs.replace(file.process, program=this.program)  # which an exec has changed
        if former == this and file.run.id not in open_runs:
            found.append((path, file.run))
            for endpoint in file.endpoints:
                if endpoint.startswith(IPC):
                    Path(endpoint.removeprefix(IPC)).unlink(missing_ok=True)
            remove(path)
    return found


def ended(directory: Path) -> list[Ended]:
    """Return the ended runs in ``directory``, newest first; [] if not trusted."""
    path = directory / FILE_NAME
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    found = []
    with contextlib.suppress(OSError), open(os.open(path, flags), "rb") as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode) or not is_of_this_user(about):
            return []
        for line in file.read(2 * MAX_BYTES).splitlines():
            with contextlib.suppress(ValueError, RecursionError):  # half a line, or one of a newer looptap
                found.append(msgspec.json.decode(line, type=built(Ended)))
    return sorted(found, key=lambda run: -run.ended)
