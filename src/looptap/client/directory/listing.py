"""`RunListing`: a run according to its connection files."""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from looptap.client.rank_numbers import numbered
from looptap.client.transport.connect_errors import is_on_this_machine, unreachable_share
from looptap.client.transport.timeouts import REPLY_SECONDS
from looptap.client.transport.tunnel.process import CommandRoute
from looptap.protocol.errors import LinkError, NoAnswer, RefusedKey, RunEnded, UnsafeFile
from looptap.protocol.files.connection import IPC, ConnectionFile
from looptap.protocol.keys import VIEWER
from looptap.protocol.process.identity import GONE

if TYPE_CHECKING:
    from looptap.client.run import Run

Opener: TypeAlias = "Callable[[RunListing, float, bool], Run]"


@dataclass(frozen=True)
class RunListing:
    """A run according to its connection files, and whether it is alive (or None).

    ``alive`` is None on another machine. Of a job on several ranks this is the lowest rank that may be alive;
    ``members`` has the listings of all by rank. A file that cannot be used has a ``problem``, one sentence with the
    command that repairs it, and nothing else.
    """

    name: str
    id: str
    rank: int
    ranks: int
    host: str
    pid: int
    started: float
    """Seconds since the epoch."""
    role: str
    alive: bool | None
    path: Path
    problem: str = ""
    file: ConnectionFile | None = field(default=None, repr=False, compare=False)
    route: CommandRoute | None = field(default=None, repr=False, compare=False)
    members: Mapping[int, RunListing] = field(default_factory=dict, repr=False, compare=False)
    opener: Opener | None = field(default=None, repr=False, compare=False)
    """The function that `attach` calls with the listing, the timeout in seconds, and whether to follow."""

    @property
    def missing(self) -> tuple[int, ...]:
        """The ranks that have no agent, or whose process is gone."""
        if self.problem or self.alive is False or not self.members:
            return ()
        there = {rank for rank, run in self.members.items() if run.alive is not False}
        return tuple(rank for rank in range(self.ranks) if rank not in there)

    @property
    def end(self) -> str:
        """What has become of its process, of one that is not alive."""
        return f"its process {self.pid} {(self.file.process.end() if self.file else GONE) or GONE}"

    def attach(self, timeout: float = REPLY_SECONDS, *, follow: bool = False) -> Run:
        """Attach to this run. Raises what `attach` raises."""
        self.usable()
        assert self.opener is not None, "a listing of a usable file was made without a way to attach"
        return self.opener(self, timeout, follow)

    def usable(self) -> ConnectionFile:
        """Return the connection file if the run may be alive; else UnsafeFile, RunEnded."""
        if self.file is None:
            raise UnsafeFile(self.problem)
        if self.alive is False:
            raise RunEnded(f"The run {self.id} has ended: {self.end}.")
        return self.file

    def unreachable(self, error: LinkError) -> LinkError:
        """Return ``error``, or the likelier cause if nothing listens at the endpoints."""
        file = self.usable()
        if 0 < file.expires < time.time():
            return RefusedKey(f"This share of {self.id} expired {_ago(file.expires)} ago; ask for a new file.")
        near = self.route is None and all(map(is_on_this_machine, file.endpoints))
        refused = isinstance(error, RefusedKey)
        if file.role == VIEWER and (near or refused):
            return unreachable_share(file, self.alive, refused)
        if refused or not near:
            return error
        if self.alive is None:
            host = file.process.host
            return NoAnswer(
                f"The run {self.id} is on host {host}, and listens on a socket that can only be reached there (this "
                f"is {socket.gethostname()}). Use ssh: looptap.attach('ssh://{host}/{self.id}'); or start the "
                f"job with looptap.Agent(..., listen='tcp://{host}:*')."
            )
        paths = [endpoint.removeprefix(IPC) for endpoint in file.endpoints if endpoint.startswith(IPC)]
        if paths and not any(map(os.path.lexists, paths)):
            return RunEnded(
                f"{error} But its process {self.pid} is there: unless its agent was closed, the directory of "
                f"{paths[0]} is private to the job, or was emptied, or the job has no file descriptor for one more "
                "client. For a directory of its own, start it with LOOPTAP_DIR, a short path that both sides see and "
                "only you can read, or with looptap.Agent(..., listen='tcp')."
            )
        if not isinstance(error, NoAnswer):
            return error
        now = file.process.activity(math.inf)
        return NoAnswer(
            f"{error} {now[:1].upper()}{now[1:]} Or a call in it, such as a query, keeps the interpreter for "
            "itself. A client that was attached before says which query that may be (run.reason)."
        )

    def __str__(self) -> str:
        if self.problem:
            return f"{self.path.name}: {self.problem}"
        state = {True: "alive", False: "ended", None: "on another machine"}[self.alive]
        rank = f", rank {self.rank} of {self.ranks}" if self.ranks > 1 else ""
        without = f", without {numbered(self.missing)}" if self.missing else ""
        return f"{self.id}{rank} on {self.host}, pid {self.pid}, started {_ago(self.started)} ago, {state}{without}"


def _ago(started: float) -> str:
    seconds = max(0.0, time.time() - started)
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
