"""A replay: the recorded commands of one run are done in another one, at the same events."""

from __future__ import annotations

import logging
import secrets
from collections import deque
from typing import Any

from looptap.agent.control.command_handlers import CommandService
from looptap.agent.control.command_log import Then, record_of
from looptap.agent.loop.event_sources import DeferredActions
from looptap.agent.queries.query_registry import QueryRegistry
from looptap.protocol.messages import Code
from looptap.streams.errors import LooptapError
from looptap.streams.events import Event

log = logging.getLogger("looptap")


class Replay:
    """The commands of one type of events that are still to come; it is called at each of these events."""

    def __init__(self, steering: CommandService, queries: QueryRegistry, source: str, on: str) -> None:
        self._steering, self._queries, self._source, self._on = steering, queries, source, on
        self.due: deque[dict[str, Any]] = deque()

    def __call__(self, event: Event) -> Then | None:
        """Do what was done at this event, and come back at the next one if there is more."""
        thens = []
        while self.due and self.due[0]["number"] <= event._number:
            if (then := self._do(event)) is not None:
                thens.append(then)
        if self.due:  # after Ctrl-C it is called at the next event anyway
            self._queries.at_next(self._on, self)
        return DeferredActions(thens).run if thens else None

    def _do(self, event: Event) -> Then | None:
        entry, record = self.due[0], None
        del self.due[0]
        try:
            record = record_of(secrets.token_hex(16), self._source, entry["what"], self._on, value=entry.get("value"))
            return self._done(entry, record, event)
        except KeyboardInterrupt:
            if record is not None:
                self._steering.commands.not_begun(record)
            what, number = entry["what"], entry["number"]
            log.warning("looptap: %s: Ctrl-C came into %s at %s %d.", self._source, what, self._on, number)
            raise

    def _done(self, entry: dict[str, Any], record: dict[str, Any], event: Event) -> Then | None:
        steering, what = self._steering, entry["what"]
        record.update({name: entry[name] for name in ("name", "schedule", "checkpoint") if name in entry})
        text = ""
        try:
            if what == "call":
                work, text = steering.calling(Code(record["value"]), record)
            else:
                work, _ = steering.prepared(record)
        except LooptapError as error:
            steering.commands.refuse(record, error)
            then = None
        else:
            then = steering.commands.accept(record, None, work, text)(event)
        if record["error"]:
            number = entry["number"]
            log.warning("looptap: %s: %s at %s %d: %s", self._source, what, self._on, number, record["error"])
        return then


def replay(
    entries: list[dict[str, Any]], source: str, steering: CommandService, queries: QueryRegistry
) -> dict[str, Replay]:
    """Have these commands done at their events; they are in order within each type."""
    found: dict[str, Replay] = {}
    for entry in entries:
        on = entry["event"]
        found.setdefault(on, Replay(steering, queries, source, on)).due.append(entry)
    for on, one in found.items():
        one.due = deque(sorted(one.due, key=lambda entry: entry["number"]))
        queries.at_next(on, one)
    return found
