"""Queries that operators asked for with ``unsafe``: on record like commands.

Each has one record, from when it is attached until it ends. I/O thread only.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from looptap.agent.control.command import ENDED, MAX_TEXT_CHARACTERS, RUNNING, LoopCommand
from looptap.agent.control.command_log import CommandLog
from looptap.agent.control.job_hooks import JobHooks
from looptap.agent.loop.attached_query import AttachedQuery
from looptap.protocol.replies import UNSAFE, CommandRecord
from looptap.streams.durations import duration


class UnsafeQueries:
    """The unsafe queries of all clients; the host's own are part of its code."""

    def __init__(self, job: JobHooks, log: CommandLog, finished: Callable[[LoopCommand], None]) -> None:
        self._job, self._log, self._finished = job, log, finished
        self._running: dict[AttachedQuery, tuple[LoopCommand, float]] = {}  # with when it was attached

    def admit(self) -> None:
        """Count one more query, as a command. Raises LimitReached."""
        self._log.count()

    def begin(self, query: AttachedQuery, client: str, number: int) -> None:
        """Record a query of ``client``, attached after event ``number`` of its type."""
        text = " when ".join([query.pipeline.text, *([query.recorder.condition.text] if query.recorder else ())])
        record = CommandRecord(
            id=os.urandom(16).hex(),
            client=client,
            what=UNSAFE,
            name=text[:200],
            value=text[:MAX_TEXT_CHARACTERS],
            on=query.on,
            event=query.on,
            number=number,
        )
        command = LoopCommand(self._job, record, self._finished)
        self._running[query] = command, time.monotonic()
        self._log.settle(command, None, RUNNING)

    def look(self) -> None:
        """Record the end of unsafe queries that have ended."""
        for query in [one for one in self._running if one.detached or one.state != "live"]:
            self._end(query, query.reason or "closed")

    def end(self, reason: str) -> None:
        """Record the end of all, since the run ends."""
        self.look()
        for query in [*self._running]:
            self._end(query, reason)

    def _end(self, query: AttachedQuery, reason: str) -> None:
        if (running := self._running.pop(query, None)) is None:  # recorded meanwhile, by a flush that a report causes
            return
        command, began = running
        lasted = duration(time.monotonic() - began)
        said = f"after {lasted}, at {query.on} {query.seen:,}: {reason}" if query.seen else f"after {lasted}: {reason}"
        command.revise(outcome=ENDED, error=said[:MAX_TEXT_CHARACTERS])
