"""Commands for several ranks: done at the same event number on all, or on none.

A client has a command prepared on every rank, asks each how far it is, and names an event ahead of all. At that event
each rank's training thread votes by the store of the process group, and waits, bounded, for the decision: to run the
command once all have voted, not to run it as soon as one has passed the event or does not come. The last to vote, and
the first to give up waiting, decide by one atomic compare-and-set, so that all find the same.
"""

from __future__ import annotations

from queue import Empty
from time import monotonic
from typing import NamedTuple

from looptap.agent.control.command import LoopCommand, Requester
from looptap.agent.control.command_log import CommandLog
from looptap.agent.control.event_schedule import EventSchedule
from looptap.agent.control.process_group import COMMIT, LATE, OFF, Ballots, group
from looptap.agent.loop.event_sources import EventSources
from looptap.agent.queries.query_registry import QueryRegistry
from looptap.protocol import messages as m
from looptap.protocol.errors import LimitReached
from looptap.protocol.replies import Preparation
from looptap.streams.errors import CommandCancelled, ControlError, EventPassed, InDoubt, LooptapError, NotAgreed
from looptap.streams.events import Event
from looptap.streams.waiting import INTERRUPT_CHECK_SECONDS

PREPARED_LIFETIME_SECONDS = 10.0
"""Seconds for which a prepared command waits for its event to be named."""
MAX_PREPARED_COMMANDS = 64
"""Commands that may wait for the agreement of the ranks."""
STORE_GRACE_SECONDS = 1.0
"""Seconds beyond the vote's timeout after which a silent store counts as unreachable."""


class Prepared(NamedTuple):
    """A validated command whose event has yet to be named."""

    command: LoopCommand
    peer: bytes
    until: float


class VoteAtEvent(NamedTuple):
    """The vote of all ranks on one command, held at event ``number``."""

    consensus: RankConsensus
    on: str
    number: int

    def await_decision(self, command: LoopCommand, event: Event) -> None:
        """See `RankConsensus.await_decision`."""
        self.consensus.await_decision(command, self.on, self.number, event)


class RankConsensus:
    """This rank's commands that other ranks run too."""

    def __init__(self, commands: CommandLog, queries: QueryRegistry, sources: EventSources, patience: float) -> None:
        self._commands, self._queries, self._sources, self._vote_timeout = commands, queries, sources, patience
        self.ballots = Ballots()
        self.prepared: dict[str, Prepared] = {}
        self._schedules: dict[str, EventSchedule] = {}

    def prepare(self, command: LoopCommand, requester: Requester) -> Preparation:
        """Keep a command until its event is named; return this rank's position.

        Raises ControlError where ranks cannot agree, LimitReached.
        """
        record = command.record
        world = group()
        if world is None:
            raise ControlError(
                "the ranks of this job cannot agree: torch.distributed is not initialized in it, and they "
                "need the store of its process group. For a command on one rank only, use ranks=0."
            )
        if record.agreed > world.size:
            raise ControlError(f"{record.agreed} ranks are to agree, and the process group has {world.size}.")
        since = self.ballots.since
        if since is not None and monotonic() - since > self._vote_timeout + STORE_GRACE_SECONDS:
            raise ControlError(f"the store of the process group has not answered for {monotonic() - since:.0f} s.")
        self._expire()
        if len(self.prepared) + sum(len(due.pending) for due in self._schedules.values()) >= MAX_PREPARED_COMMANDS:
            raise LimitReached(f"{MAX_PREPARED_COMMANDS} commands already wait for the ranks to agree: the limit.")
        self.ballots.connect(self._vote_timeout)
        self.prepared[record.id] = Prepared(command, requester.peer, monotonic() + PREPARED_LIFETIME_SECONDS)
        return self._position(record.on)

    def agree(self, message: m.Agree, requester: Requester) -> Preparation | None:
        """Set the event of a prepared command, drop it, or return this rank's position.

        Returns None if the outcome follows. Raises ControlError.
        """
        self._expire()
        prepared = self.prepared.get(message.id)
        if prepared is None:
            if message.number > 0 and self._commands.known(message.id, requester):
                return None
            if message.number > 0:
                self.ballots.refuse(_key(message.id, message.number))
            raise NotAgreed(
                f"this command is not prepared, or no longer: it is forgotten after {PREPARED_LIFETIME_SECONDS:g} s."
            )
        command, on = prepared.command, prepared.command.record.on
        if message.number <= 0:
            if message.number < 0:
                del self.prepared[message.id]
            return self._position(on)
        del self.prepared[message.id]
        command.vote = VoteAtEvent(self, on, message.number)
        due = self._schedules.setdefault(on, EventSchedule(self._queries, on))
        due.add(message.number, message.id, self._commands.accept(command))
        command.report(requester)
        # A rank that has passed the event may be in a collective by now, and reach no further event while others wait
        # for it at theirs: so the I/O thread refuses, not its loop thread.
        if self._sources.counts().get(on, 0) >= message.number and due.drop(message.id):
            command.give_up(self._passed(_key(message.id, message.number), on, message.number))
        return None

    def forget(self, peer: bytes) -> None:
        """Forget a client and the commands that it has prepared."""
        for id, one in list(self.prepared.items()):
            if one.peer == peer:
                del self.prepared[id]

    def call_off(self, id: str, error: LooptapError) -> bool:
        """Cancel a command that has not begun; return False if it has.

        That settles it for all ranks: a command runs only if every rank votes for it.
        """
        prepared = self.prepared.pop(id, None)
        if prepared is not None:
            self._commands.refuse(prepared.command, error)
            return True
        for due in self._schedules.values():
            if number := due.drop(id):
                self.ballots.refuse(_key(id, number), OFF)  # ends the wait for this rank
                self.ballots.forget_later(_key(id, number))
                self._commands.give_up(id, error)
                return True
        return False

    def close(self) -> None:
        """Release everything."""
        self.prepared.clear()
        self.ballots.close()

    def _expire(self) -> None:
        now = monotonic()
        for id in [id for id, one in self.prepared.items() if one.until < now]:
            del self.prepared[id]

    def _position(self, on: str) -> Preparation:
        return Preparation(on=on, number=self._sources.counts().get(on, 0))

    def await_decision(self, command: LoopCommand, on: str, number: int, event: Event) -> None:
        """Vote for a command, and wait for the decision of all ranks. Loop thread.

        Returns if it is to run. Raises NotAgreed, EventPassed, CommandCancelled and InDoubt.
        """
        key, ranks = _key(command.record.id, number), command.record.agreed
        event_named = f"{on} {number:,}"
        if event._number > number:
            raise self._passed(key, on, number)
        began = monotonic()
        try:
            decision = self._decision(key, ranks)
        except KeyboardInterrupt as pressed:
            self.ballots.refuse(key)
            pressed.add_note("The ranks were about to agree on it: if they have, the others do it.")
            raise
        finally:
            waited = monotonic() - began
            command.note(waited=waited)
            self.ballots.forget_later(key)
            self._sources.exclude_pause(waited)
        if decision == OFF:
            raise CommandCancelled("this command was cancelled on another rank: nothing was done.")
        if decision == LATE:
            raise EventPassed(f"another rank had already passed {event_named}: nothing was done.")
        if decision != COMMIT:
            raise NotAgreed(
                f"not all of {ranks} ranks reached {event_named} in {waited:.1f} s: nothing was done on any."
            )

    def _passed(self, key: str, on: str, number: int) -> EventPassed:
        """Refuse a command for all ranks: this one has passed its event."""
        self.ballots.refuse(key)
        self.ballots.forget_later(key)
        return EventPassed(f"this rank had passed {on} {number:,} when the command arrived: nothing was done.")

    def _decision(self, key: str, size: int) -> str:
        """Wait for the ranks' decision. Raises InDoubt if the store does not answer."""
        world = group()
        patience = self._vote_timeout if world is None else min(self._vote_timeout, world.timeout / 10)
        answer = self.ballots.vote(key, size, patience)
        deadline = monotonic() + patience + STORE_GRACE_SECONDS
        while True:
            try:
                return str(answer.result(min(INTERRUPT_CHECK_SECONDS, max(0.0, deadline - monotonic()))))
            except Empty:
                if monotonic() < deadline:
                    continue
                why = f"has not answered for {patience + STORE_GRACE_SECONDS:g} s"
            except NotAgreed:
                raise
            except Exception as error:  # whatever a store raises, and it may have counted us before
                why = f"failed: {str(error).splitlines()[0]:.200}" if str(error) else f"failed: {type(error).__name__}"
            raise InDoubt(
                f"in doubt: the store of the process group {why}. It is not done on this rank; others may have done it."
            ) from None


def _key(id: str, number: int) -> str:
    return f"looptap/{id}/{number}"
