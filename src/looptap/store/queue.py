"""The writer's jobs: batches of streams, and statements of SQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

from looptap.streams.stream.buffer import Batch

_MIN_ITEM_BYTES = 1024  # bytes that a statement counts as, plus its texts


class QueuedCommand(NamedTuple):
    """A client's command: what it changed, at which event, and its outcome."""

    id: str
    time: float
    wall: float
    event: str
    number: int
    client: str
    what: str
    old: Any
    new: Any
    outcome: str
    asked: Any = None
    """The requested ``value``, ``schedule`` and ``checkpoint``; None if unknown."""


COMMANDS = "commands"
"""The name of the stream of all commands, of a live run and of a stored one."""
COMMAND_FIELDS = ("wall", "event", "number", "client", "what", "old", "new", "outcome", "id")
"""The fields of a value of that stream."""


class QueuedItems(NamedTuple):
    """A batch of a stream."""

    stream: int
    batch: Batch
    nbytes: int


class QueuedStatement(NamedTuple):
    """Anything else: one statement of SQL."""

    sql: str
    parameters: Sequence[Any]


Job: TypeAlias = QueuedItems | QueuedStatement


def items_and_bytes(job: Job) -> tuple[int, int]:
    """Return how many items a job has, and how many bytes it counts as."""
    if isinstance(job, QueuedItems):
        return len(job.batch.values), job.nbytes
    return 0, _MIN_ITEM_BYTES + sum(len(column) for column in job.parameters if isinstance(column, str | bytes))
