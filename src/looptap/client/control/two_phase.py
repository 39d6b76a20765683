"""Two-phase commands for several ranks: done at one event on all, or on none."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from time import monotonic
from typing import Any, TypeAlias

from looptap.client.rank_numbers import numbered
from looptap.client.ranks.ranks import ALL, Ranks, split_replies
from looptap.client.session.session import Session
from looptap.client.transport.timeouts import REPLY_SECONDS
from looptap.protocol import messages as m
from looptap.protocol.errors import LimitReached, LinkError, MessageError, NoAnswer, NoSuchRun, RemoteError
from looptap.protocol.replies import CommandRecord, CommandReply, Preparation
from looptap.streams.errors import CommandCancelled, ControlError, EventPassed, InDoubt, LooptapError, NotAgreed

MAX_ATTEMPTS = 8
"""Events that are tried, each further ahead, before giving up: the loop may be faster."""

Answer: TypeAlias = CommandRecord | LooptapError
"""The record of a command on one rank, or its error."""


def meant(session: Session, ranks: Ranks[Any], which: str | int | Iterable[int]) -> dict[int, Session]:
    """Return the sessions of the ranks meant. Raises QueryError, NoSuchRun."""
    if session.info.ranks == 1 and which in (ALL, 0):
        return {0: session}
    chosen, job = ranks.select(which), session.info.id
    if which == ALL and len(chosen) < session.info.ranks:
        raise NoSuchRun(
            f"{numbered(ranks.missing)} of {job} cannot be reached, and a command for all ranks is done on all "
            f"or on none: nothing was done. For those that are there: ranks={list(chosen)}."
        )
    found, unreached = split_replies(ranks.each(lambda run: run.session, chosen))
    if unreached:
        rank, error = next(iter(unreached.items()))
        raise NoSuchRun(f"Rank {rank} of {job} cannot be reached, so nothing was done: {error}") from error
    return found


def agreed(
    sessions: Mapping[int, Session], prepare: Callable[[Session, int], m.Call | m.Command], id: str, timeout: float
) -> dict[int, Answer]:
    """Run command ``id`` on every rank; return the record or error of each.

    Raises if it cannot be prepared: then nothing was done on any rank. NoAnswer is among the errors of ranks that did
    not answer in time.
    """
    command = _AgreedCommand(sessions, id, min(REPLY_SECONDS, timeout))
    deadline = monotonic() + timeout
    for attempt in range(MAX_ATTEMPTS):
        first = command.ask_all(lambda session: prepare(session, len(sessions)))
        prepared = {rank: reply for rank, reply in first.items() if isinstance(reply, Preparation)}
        if len(prepared) < len(first):  # it was done before: who asks again gets the outcome
            command.let_go()
            never = InDoubt("this rank does not know the command.")
            return {rank: never if isinstance(reply, Preparation) else reply for rank, reply in first.items()}
        found = command.agree(prepared, 2**attempt, deadline)
        kinds = set(map(type, found.values()))
        passed = EventPassed in kinds and kinds <= {EventPassed, NotAgreed}
        if not passed or monotonic() > deadline:
            break
    return found


class _AgreedCommand:
    """One command on several ranks, from its preparation until all agree or let go."""

    def __init__(self, sessions: Mapping[int, Session], id: str, reply_timeout: float) -> None:
        self._sessions, self._id, self._reply_timeout = sessions, id, reply_timeout

    def ask_all(self, request: Callable[[Session], m.Request[CommandReply]]) -> dict[int, CommandReply]:
        """Return every rank's reply; if one fails, drop the command everywhere and raise."""
        found: dict[int, CommandReply]
        found, failed = split_replies(self._ask(request, monotonic() + self._reply_timeout))
        if failed:
            self.let_go()
            rank, error = next(iter(failed.items()))
            if not isinstance(error, LinkError) or isinstance(error, RemoteError | LimitReached):
                raise error
            raise NoAnswer(f"Rank {rank}: {error} Nothing is done on any rank.") from error
        return found

    def agree(self, prepared: Mapping[int, Preparation], margin: int, deadline: float) -> dict[int, Answer]:
        """Have all ranks run it at an event that none has reached, ``margin`` ahead."""
        events = sorted({reply.on for reply in prepared.values()})
        if len(events) > 1:
            self.let_go()
            raise NotAgreed(f"the ranks would do it at different events ({', '.join(events)}): name one with on=.")
        reached = {rank: _number(reply) for rank, reply in self.ask_all(self._at(0)).items()}
        moved = max(number - prepared[rank].number for rank, number in reached.items())
        replies = self._ask(self._at(max(reached.values()) + 2 * moved + margin), deadline)
        unclear = MessageError("The agent still waits for other ranks.")
        return {rank: unclear if isinstance(reply, Preparation) else reply for rank, reply in replies.items()}

    def let_go(self) -> None:
        """Drop the command on every rank; one that cannot be reached forgets it in time."""
        for session in self._sessions.values():
            with contextlib.suppress(LooptapError):
                session.requests.forget(session.requests.send(self._at(-1)(session)))

    def _at(self, number: int) -> Callable[[Session], m.Agree]:
        """Return a function that asks to run it at an event; 0 asks which, -1 drops it."""
        return lambda session: m.Agree(session.requests.number(), self._id, number)

    def _ask(
        self, request: Callable[[Session], m.Request[CommandReply]], deadline: float
    ) -> dict[int, CommandReply | LooptapError]:
        """Return each rank's reply or error."""
        asked: dict[int, Future[CommandReply]] = {}
        found: dict[int, CommandReply | LooptapError] = {}
        for rank, session in self._sessions.items():
            try:
                asked[rank] = session.requests.send(request(session))
            except LooptapError as error:
                found[rank] = error
        for rank, answer in asked.items():
            try:
                left = max(0.0, deadline - monotonic())
                found[rank] = self._sessions[rank].requests.wait(answer, left, "The command")
            except LooptapError as error:
                found[rank] = error
        return dict(sorted(found.items()))


def records_of_all(found: Mapping[int, Answer]) -> dict[int, CommandRecord]:
    """Return the records of all ranks. Raises unless the command was done on each."""
    done, failed = split_replies(found)
    if not failed:
        return done
    telling = CommandCancelled, NotAgreed, EventPassed  # the first says most
    if not done and all(isinstance(error, telling) for error in failed.values()):
        raise min(failed.values(), key=lambda error: telling.index(type(error)))
    doubtful = {rank: error for rank, error in failed.items() if _doubtful(error)}
    rank, error = next(iter((doubtful or failed).items()))
    where = f"It was done on {numbered(done)}." if done else "It was not done on any rank that is known of."
    if done and len(failed) > 1:
        where += f" Not so on {numbered(failed)}."
    if isinstance(error, RemoteError):
        raise RemoteError(f"{error.text} (rank {rank}) {where}", error.kind, error.traceback) from error
    kind = InDoubt if doubtful else type(error) if isinstance(error, ControlError) else ControlError
    raise kind(f"rank {rank}: {error} {where}") from error


def _doubtful(error: LooptapError) -> bool:
    """Return True if the command may have run on that rank."""
    return isinstance(error, InDoubt | LinkError) and not isinstance(error, RemoteError)


def _number(reply: CommandReply) -> int:
    if not isinstance(reply, Preparation):
        raise MessageError("The agent did not say how far its rank is.")
    return reply.number
