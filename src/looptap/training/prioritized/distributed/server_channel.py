"""The connection between a parameter server and a worker: messages, timeouts."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, NamedTuple

START, PUSH, END = range(3)
"""What a worker sends: that it begins, a gradient, its buffers at the end."""

DEFAULT_TIMEOUT_SECONDS = 300.0
"""Until a process that says nothing counts as lost."""


class RankLost(RuntimeError):
    """The server, or all workers, are gone or do not answer."""

    def __init__(self, text: str, ranks: tuple[int, ...]) -> None:
        super().__init__(text)
        self.ranks = ranks
        """The ranks that are lost."""


class ServerChannel(NamedTuple):
    """A process group of the server and one worker.

    An error or timeout in it leaves the other workers alone.
    """

    group: Any
    peer: int
    """The rank at the other end."""

    def send(self, header: tuple[int, int], vector: Any) -> None:
        """Send two numbers and a vector. Raises RuntimeError if the peer is gone."""
        import torch

        torch.distributed.send(torch.tensor(header), self.peer, self.group)
        if vector.numel():
            torch.distributed.send(vector, self.peer, self.group)

    def receive_header(self) -> tuple[int, int]:
        """Wait for two numbers. Raises RuntimeError if the peer is gone or silent."""
        import torch

        header = torch.zeros(2, dtype=torch.int64)
        torch.distributed.recv(header, self.peer, self.group)
        return int(header[0]), int(header[1])

    def receive_into(self, vector: Any) -> None:
        """Wait for a vector. Raises RuntimeError if the peer is gone or silent."""
        import torch

        if vector.numel():
            torch.distributed.recv(vector, self.peer, self.group)


def open_channels(server: int | None, timeout: float) -> dict[int, ServerChannel]:
    """Return this rank's channels by the rank at the other end.

    ``server`` is the rank that serves, None: this one. Call it on all ranks. Raises ValueError where there is no
    server and worker.
    """
    import torch

    group = torch.distributed
    if not (group.is_available() and group.is_initialized()) or group.get_world_size() < 2:
        raise ValueError("A parameter server needs an initialized torch.distributed of 2 ranks or more: it is one.")
    rank, world = group.get_rank(), group.get_world_size()
    server = rank if server is None else server
    if not 0 <= server < world:
        raise ValueError(f"server={server} must be a rank from 0 to {world - 1}.")
    found = {}
    for worker in range(world):
        if worker != server:
            pair = group.new_group([server, worker], timeout=timedelta(seconds=timeout), backend="gloo")
            if rank in (server, worker):
                peer = server + worker - rank
                found[peer] = ServerChannel(pair, peer)
    return found
