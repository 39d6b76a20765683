"""Two-phase commands for several ranks: done at one event on all, or on none."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from time import monotonic
from typing import Any, TypeAlias

from looptap.client.rank_numbers import numbered
from looptap.client.ranks.ranks import ALL, Ranks
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
    found: dict[int, Session] = {}
    for rank, sibling in ranks.each(lambda run: run.session, chosen).items():
        if isinstance(sibling, LooptapError):
            raise NoSuchRun(f"Rank {rank} of {job} cannot be reached, so nothing was done: {sibling}") from sibling
        found[rank] = sibling
    return found


def agreed(
    sessions: Mapping[int, Session], prepare: Callable[[Session, int], m.Call | m.Command], id: str, timeout: float
) -> dict[int, Answer]:
    """Run command ``id`` on every rank; return the record or error of each.

    Raises if it cannot be prepared: then nothing was done on any rank. NoAnswer is among the errors of ranks that did
    not answer in time.
    """
    deadline = monotonic() + timeout
    for attempt in range(MAX_ATTEMPTS):
        first = _all(
            sessions, lambda session: prepare(session, len(sessions)), min(REPLY_SECONDS, timeout), id
        )
        prepared = {rank: reply for rank, reply in first.items() if isinstance(reply, Preparation)}
        if len(prepared) < len(first):  # it was done before: who asks again gets the outcome
            _let_go(sessions, id)
            never = InDoubt("this rank does not know the command.")
            return {rank: never if isinstance(reply, Preparation) else reply for rank, reply in first.items()}
        if len(events := {reply.on for reply in prepared.values()}) > 1:
            _let_go(sessions, id)
            named = ", ".join(sorted(events))
            raise NotAgreed(f"the ranks would do it at different events ({named}): name one with on=.")
        second = _all(
            sessions,
            lambda session: m.Agree(session.requests.number(), id, 0),
            min(REPLY_SECONDS, timeout),
            id,
        )
        moved = max(_number(second[rank]) - prepared[rank].number for rank in sessions)
        ahead = max(map(_number, second.values())) + 2 * moved + 2**attempt
        last = _each(sessions, lambda session: m.Agree(session.requests.number(), id, ahead), deadline)  # noqa: B023 used at once
        unclear = MessageError("The agent still waits for other ranks.")
        found = {rank: unclear if isinstance(reply, Preparation) else reply for rank, reply in last.items()}
        passed = [error for error in found.values() if isinstance(error, EventPassed)]
        if not passed or not all(isinstance(reply, NotAgreed) for reply in found.values()) or monotonic() > deadline:
            break
    return found


def judged(found: Mapping[int, Answer]) -> dict[int, CommandRecord]:
    """Return the records of all ranks. Raises unless the command was done on each."""
    done = {rank: reply for rank, reply in found.items() if not isinstance(reply, LooptapError)}
    failed = {rank: error for rank, error in found.items() if isinstance(error, LooptapError)}
    if not failed:
        return done
    if all(isinstance(error, NotAgreed | CommandCancelled) for error in failed.values()) and not done:
        telling = CommandCancelled, NotAgreed, EventPassed  # the first says most
        raise min(failed.values(), key=lambda error: telling.index(type(error)))
    doubtful = {rank: error for rank, error in failed.items() if _doubtful(error)}
    rank, error = next(iter((doubtful or failed).items()))
    where = f"It was done on {numbered(done)}." if done else "It was not done on any rank that is known of."
    if len(failed) > 1 and done:
        where += f" Not so on {numbered(failed)}."
    if doubtful:
        raise InDoubt(f"rank {rank}: {error} {where}") from error
    if isinstance(error, RemoteError):
        raise RemoteError(f"{error.text} (rank {rank}) {where}", error.kind, error.traceback) from error
    raise (type(error) if isinstance(error, ControlError) else ControlError)(f"rank {rank}: {error} {where}") from error


def _doubtful(error: LooptapError) -> bool:
    """Return True if the command may have run on that rank."""
    return isinstance(error, InDoubt | LinkError) and not isinstance(error, RemoteError)


def _all(
    sessions: Mapping[int, Session], request: Callable[[Session], m.Request[CommandReply]], timeout: float, id: str
) -> dict[int, CommandReply]:
    """Return every rank's reply; if one fails, drop the command everywhere and raise."""
    found = _each(sessions, request, monotonic() + timeout)
    for rank, reply in found.items():
        if isinstance(reply, LooptapError):
            _let_go(sessions, id)
            if not isinstance(reply, LinkError) or isinstance(reply, RemoteError | LimitReached):
                raise reply
            raise NoAnswer(f"Rank {rank}: {reply} Nothing is done on any rank.") from reply
    return {rank: reply for rank, reply in found.items() if not isinstance(reply, LooptapError)}


def _each(
    sessions: Mapping[int, Session], request: Callable[[Session], m.Request[CommandReply]], deadline: float
) -> dict[int, CommandReply | LooptapError]:
    """Return each rank's reply or error."""
    asked: dict[int, Future[CommandReply]] = {}
    found: dict[int, CommandReply | LooptapError] = {}
    for rank, session in sessions.items():
        try:
            asked[rank] = session.requests.send(request(session))
        except LooptapError as error:
            found[rank] = error
    for rank, answer in asked.items():
        try:
            found[rank] = sessions[rank].requests.wait(answer, max(0.0, deadline - monotonic()), "The command")
        except LooptapError as error:
            found[rank] = error
    return dict(sorted(found.items()))


def _let_go(sessions: Mapping[int, Session], id: str) -> None:
    """Drop the command on every rank; one that cannot be reached forgets it in time."""
    for session in sessions.values():
        with contextlib.suppress(LooptapError):
            session.requests.forget(session.requests.send(m.Agree(session.requests.number(), id, -1)))


def _number(reply: CommandReply) -> int:
    if not isinstance(reply, Preparation):
        raise MessageError("The agent did not say how far its rank is.")
    return reply.number
