"""Commands for several ranks, from the client's side: prepared on all of them, then done at one event, or on none."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeAlias

from looptap.client.rank_numbers import numbered
from looptap.client.ranks.ranks import ALL
from looptap.protocol import messages as m
from looptap.protocol.errors import LimitReached, LinkError, MessageError, NoAnswer, NoSuchRun, RemoteError
from looptap.streams.errors import CommandCancelled, ControlError, EventPassed, InDoubt, LooptapError, NotAgreed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from looptap.client.run import Run

MAX_ATTEMPTS = 8
"""Events that are named, each further ahead, before it is given up: a loop may be faster than we are."""
_REPLY_TIMEOUT_SECONDS = 5.0  # seconds in which an agent answers what it need not ask the loop for

Told: TypeAlias = dict[str, Any]


def meant(run: Run, ranks: str | int | Iterable[int]) -> dict[int, Run]:
    """The ranks that a command is for, all of them reached. Raises NoSuchRun if one cannot be, QueryError."""
    if run.info.ranks == 1 and ranks in (ALL, 0):
        return {0: run}
    chosen = run.ranks.select(ranks)
    if ranks == ALL and len(chosen) < run.info.ranks:
        raise NoSuchRun(
            f"{numbered(run.ranks.missing)} of {run.id} cannot be reached, and a command for all ranks is done on all "
            f"or on none: nothing is done. For those that are there: ranks={list(chosen)}."
        )
    found: dict[int, Run] = {}
    for rank, sibling in run.ranks.each(lambda one: one, chosen).items():
        if isinstance(sibling, LooptapError):
            raise NoSuchRun(f"Rank {rank} of {run.id} cannot be reached, so nothing is done: {sibling}") from sibling
        found[rank] = sibling
    return found


def agreed(
    runs: Mapping[int, Run], prepare: Callable[[Run, int], m.Call | m.Command], id: str, timeout: float
) -> dict[int, Told | LooptapError]:
    """What came of the command ``id`` on each rank: its record, or the error.

    Raises what keeps it from being prepared: then nothing is done on any rank. NoAnswer is among the errors of ranks
    that did not tell in time.
    """
    deadline = monotonic() + timeout
    for attempt in range(MAX_ATTEMPTS):
        first = _all(runs, lambda run: prepare(run, len(runs)), min(_REPLY_TIMEOUT_SECONDS, timeout), id)
        if any("prepared" not in told for told in first.values()):  # it was done before: whoever asks again is told
            _let_go(runs, id)
            never = InDoubt("this rank does not know the command.")
            return {rank: never if "prepared" in told else told for rank, told in first.items()}
        if len(events := {str(told["prepared"]) for told in first.values()}) > 1:
            _let_go(runs, id)
            named = ", ".join(sorted(events))
            raise NotAgreed(f"the ranks would do it at different events ({named}): name one with on=.")
        second = _all(
            runs, lambda run: m.Agree(run._requests.number(), id, 0), min(_REPLY_TIMEOUT_SECONDS, timeout), id
        )
        moved = max(_number(second[rank]) - _number(first[rank]) for rank in runs)
        ahead = max(map(_number, second.values())) + 2 * moved + 2**attempt
        found = _each(runs, lambda run: m.Agree(run._requests.number(), id, ahead), deadline)  # noqa: B023 used at once
        passed = [error for error in found.values() if isinstance(error, EventPassed)]
        if not passed or not all(isinstance(told, NotAgreed) for told in found.values()) or monotonic() > deadline:
            break
    return found


def judged(found: Mapping[int, Told | LooptapError]) -> dict[int, Told]:
    """The records of all ranks. Raises what the command came to, if it was not done on every one."""
    done = {rank: told for rank, told in found.items() if not isinstance(told, LooptapError)}
    failed = {rank: error for rank, error in found.items() if isinstance(error, LooptapError)}
    if not failed:
        return done
    if all(isinstance(error, NotAgreed | CommandCancelled) for error in failed.values()) and not done:
        telling = CommandCancelled, NotAgreed, EventPassed  # the first tells most
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
    """Whether it may have been done on that rank."""
    return isinstance(error, InDoubt | LinkError) and not isinstance(error, RemoteError)


def _all(runs: Mapping[int, Run], request: Callable[[Run], m.Message], timeout: float, id: str) -> dict[int, Told]:
    """What every rank answers; if one fails, the command is let go of everywhere and nothing is done."""
    found = _each(runs, request, monotonic() + timeout)
    for rank, told in found.items():
        if isinstance(told, LooptapError):
            _let_go(runs, id)
            if not isinstance(told, LinkError) or isinstance(told, RemoteError | LimitReached):
                raise told
            raise NoAnswer(f"Rank {rank}: {told} Nothing is done on any rank.") from told
    return {rank: told for rank, told in found.items() if not isinstance(told, LooptapError)}


def _each(runs: Mapping[int, Run], request: Callable[[Run], Any], deadline: float) -> dict[int, Told | LooptapError]:
    """The answer of each rank, or why there is none."""
    asked: dict[int, Future[Any]] = {}
    found: dict[int, Told | LooptapError] = {}
    for rank, run in runs.items():
        try:
            asked[rank] = run._requests.send(request(run))
        except LooptapError as error:
            found[rank] = error
    for rank, answer in asked.items():
        try:
            told = runs[rank]._requests.wait(answer, max(0.0, deadline - monotonic()), "The command")
            found[rank] = told if isinstance(told, dict) else MessageError("it was answered with something else.")
        except LooptapError as error:
            found[rank] = error
    return dict(sorted(found.items()))


def _let_go(runs: Mapping[int, Run], id: str) -> None:
    """Tell every rank that nothing will come of it; what is not told so forgets it by itself."""
    for run in runs.values():
        with contextlib.suppress(LooptapError):
            run._requests.forget(run._requests.send(m.Agree(run._requests.number(), id, -1)))


def _number(told: Told) -> int:
    number = told.get("number")
    if not isinstance(number, int):
        raise MessageError("The agent did not tell how far its rank is.")
    return number
