"""Accepts or refuses the commands of clients, on the I/O thread."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from looptap.agent.control.command import LoopCommand, Requester
from looptap.agent.control.command_kinds import (
    BY_NAME,
    RecordSteps,
    RestoreControl,
    RunCode,
    SetControl,
    UnknownCommand,
)
from looptap.agent.control.command_log import CommandLog
from looptap.agent.control.job_hooks import MAX_RESULT_BYTES, JobHooks
from looptap.agent.control.knobs.control_watch import ControlWatches
from looptap.agent.control.rank_consensus import RankConsensus
from looptap.agent.control.unsafe_queries import UnsafeQueries
from looptap.agent.loop.event_sources import EventSources
from looptap.agent.queries.query_registry import QueryRegistry
from looptap.protocol import messages as m
from looptap.protocol.limits import Limits
from looptap.protocol.replies import CommandRecord, Preparation
from looptap.protocol.values.unpacking import unpack
from looptap.streams.errors import CommandCancelled, ControlError, LooptapError
from looptap.streams.events import Event

_MAX_NAME_CHARACTERS = 200  # characters of a name, an id, an event
_PLAIN = (type(None), bool, int, float, str)


class CommandService:
    """The entry of client commands: turns requests into commands and schedules them."""

    def __init__(
        self,
        queries: QueryRegistry,
        sources: EventSources,
        groups: tuple[str, ...],
        limits: Limits,
        finished: Callable[[LoopCommand], None],
    ) -> None:
        self._queries, self._finished = queries, finished
        self.job = JobHooks(
            sources, groups[0] if groups else "batch", ControlWatches(queries.at_next, "".join(groups[1:2]))
        )
        self.commands = CommandLog(limits.commands_per_second)
        self.agreement = RankConsensus(self.commands, queries, sources, limits.agreement)
        self.unsafe_queries = UnsafeQueries(self.job, self.commands, finished)

    def handle(self, client: str, message: m.Call | m.Command | m.Agree, peer: bytes) -> Preparation | None:
        """Handle a request; return its reply, or None if that follows later.

        Raises LooptapError.
        """
        match message:
            case m.Call():
                return self._call(client[:_MAX_NAME_CHARACTERS], message, Requester(peer, message.request))
            case m.Command():
                return self._command(client[:_MAX_NAME_CHARACTERS], message, Requester(peer, message.request))
            case m.Agree():
                return self.agreement.agree(message, Requester(peer, message.request))

    def command_of(
        self, record: CommandRecord, *, expected: int | None = None, code: m.Code | None = None
    ) -> LoopCommand:
        """Return the unvalidated command of a new ``record``. Raises ControlError."""
        if code is not None:
            return RunCode(self.job, record, self._finished, code, self._queries)
        kind = BY_NAME.get(record.what, UnknownCommand)
        command = kind(self.job, record, self._finished)
        if isinstance(command, SetControl):
            command.expected = expected
        if isinstance(command, RecordSteps):
            command.at_next = self._queries.at_next
        return command

    def restore(self, name: str, value: Any, event: Event) -> str:
        """Set a control back to ``value`` at once; return why that failed.

        Loop thread. Counts as a command of the host.
        """
        record = CommandRecord(
            id=os.urandom(16).hex(), client="the host", what="set", on=event._source.name, name=name, value=value
        )
        command = RestoreControl(self.job, record, self._finished)
        try:
            if self.job.controls.find(name).value() == value:
                return ""
            command.validate()
        except Exception as error:
            known = error if isinstance(error, LooptapError) else LooptapError(f"{type(error).__name__}: {error}")
            self.commands.refuse(command, known)
        else:
            self.commands.accept(command).run(event)
        return command.record.error

    def close(self) -> None:
        """Release the host's objects."""
        self.agreement.close()
        self.job.close()

    # ------------------------------------------------------------ by message

    def _call(self, client: str, call: m.Call, requester: Requester) -> Preparation | None:
        """Run code at the next event."""
        if self.commands.known(call.id, requester, again=bool(call.ranks)):
            return None
        record = CommandRecord(
            id=call.id, client=client, what="call", on=call.on, checkpoint=call.checkpoint, agreed=call.ranks
        )
        command = self.command_of(record, code=call.code)
        command.validate()
        self.commands.count()
        return self._schedule(command, requester)

    def _command(self, client: str, message: m.Command, requester: Requester) -> Preparation | None:
        """Run a command at the next suitable event."""
        if message.what == "cancel":
            self._cancel(client, message.id)
            requester = requester._replace(regardless=True)
        if self.commands.known(message.id, requester, again=bool(message.ranks)):
            return None
        if message.what in ("outcome", "cancel"):
            raise ControlError(
                f"the job remembers no command with the id {message.id!r:.80}; run.commands lists those that it does."
            )
        record = CommandRecord(
            id=message.id,
            client=client,
            what=message.what,
            name=message.name,
            on=message.on,
            value=_value(message),
            schedule=message.schedule,
            checkpoint=message.checkpoint,
            agreed=message.ranks,
        )
        self.commands.count()
        command = self.command_of(record, expected=message.expected)
        try:
            if message.what == "resume":
                self.commands.settle(command, self.job.pause.resume())
                command.report(requester)
                return None
            command.validate()
            if message.what == "stop":
                self.job.pause.resume()  # a stop does not wait for the end of a pause
        except LooptapError as error:
            self.commands.refuse(command, error)
            raise
        return self._schedule(command, requester)

    def _schedule(self, command: LoopCommand, requester: Requester) -> Preparation | None:
        try:
            if command.record.agreed:
                return self.agreement.prepare(command, requester)
            self._queries.at_next(command.record.on, self.commands.accept(command).run)
        except LooptapError as error:
            self.commands.refuse(command, error)
            raise
        command.report(requester)
        return None

    def _cancel(self, client: str, id: str) -> None:
        """Cancel a command, unless it has begun."""
        error = CommandCancelled(f"this command was cancelled by {client or 'a client'}: nothing was done.")
        if self.agreement.call_off(id, error):
            return
        if (command := self.commands.waiting(id)) is not None:
            self._queries.not_at_next(command.record.on, command.run)
            command.give_up(error)


def _value(message: m.Command) -> Any:
    """Return the value of a message. Raises ControlError if it exceeds a bound."""
    for text in (message.id, message.what, message.name, message.on, message.schedule):
        if len(text) > _MAX_NAME_CHARACTERS:
            raise ControlError(
                f"{text[:40]!r}… has {len(text):,} characters; names and ids have up to {_MAX_NAME_CHARACTERS}."
            )
    value = unpack(message.value)
    if type(value) not in _PLAIN or (isinstance(value, str) and len(value) > MAX_RESULT_BYTES):
        fine = f"a number, True, False or a text of up to {MAX_RESULT_BYTES:,} characters"
        raise ControlError(f"{message.name} = {value!r:.80} must be {fine}.")
    return value
