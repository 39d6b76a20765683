"""Replay: run the recorded commands of one run in another, at the same events."""

from __future__ import annotations

import logging
import os
from typing import Any

from looptap.agent.control.command import FollowUp, LoopCommand
from looptap.agent.control.command_handlers import CommandService
from looptap.agent.control.event_schedule import EventSchedule
from looptap.agent.queries.query_registry import QueryRegistry
from looptap.protocol.messages import Code
from looptap.protocol.replies import CommandRecord
from looptap.streams.errors import LooptapError
from looptap.streams.events import Event

log = logging.getLogger("looptap")


class ReplayedCommand:
    """A recorded command, made at its event: its target may not exist before."""

    def __init__(self, service: CommandService, source: str, entry: dict[str, Any]) -> None:
        self._service, self._source, self._entry = service, source, entry
        self._begun = False
        self._command: LoopCommand | None = None

    def run(self, event: Event) -> FollowUp | None:
        """Execute the recorded command. Loop thread. Ctrl-C ends it for good."""
        if self._begun:
            return None
        try:
            self._begun = True
            return self._run(event)
        except KeyboardInterrupt:
            if self._command is not None:
                self._service.commands.not_begun(self._command)
            self._warn("Ctrl-C interrupted it.")
            raise

    def _run(self, event: Event) -> FollowUp | None:
        entry, service = self._entry, self._service
        more = {name: entry[name] for name in ("name", "schedule", "checkpoint") if name in entry}
        record = CommandRecord(
            id=os.urandom(16).hex(),
            client=self._source,
            what=entry["what"],
            on=entry["event"],
            value=None if entry["what"] == "undo" else entry.get("value"),
            **more,  # ids are new in each run
        )
        code = Code(record.value) if record.what == "call" else None
        try:
            command = self._command = service.command_of(record, code=code)
            command.validate()
        except LooptapError as error:
            then = None
            if self._command is not None:
                service.commands.refuse(self._command, error)
            self._warn(str(error))
        else:
            then = service.commands.accept(command).run(event)
            if command.record.error:
                self._warn(command.record.error)
        return then

    def _warn(self, why: str) -> None:
        entry = self._entry
        log.warning("looptap: %s: %s at %s %d: %s", self._source, entry["what"], entry["event"], entry["number"], why)


def replay(
    entries: list[dict[str, Any]], source: str, service: CommandService, queries: QueryRegistry
) -> dict[str, EventSchedule]:
    """Schedule recorded commands at their events, in their recorded order."""
    found: dict[str, EventSchedule] = {}
    for place, entry in enumerate(entries):
        on = entry["event"]
        schedule = found.setdefault(on, EventSchedule(queries, on))
        schedule.add(entry["number"], f"{place:09d}", ReplayedCommand(service, source, entry))
    return found
