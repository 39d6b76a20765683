"""Waits for the record of a command, and says how to go on if none comes."""

from __future__ import annotations

from concurrent.futures import Future

from looptap.client.session.session import Session
from looptap.protocol.errors import MessageError, NoAnswer
from looptap.protocol.replies import CommandRecord, CommandReply


class CommandPending(NoAnswer, TimeoutError):
    """A command got no answer in time and may still run; `outcome` takes its ``id``."""

    def __init__(self, text: str, id: str) -> None:
        super().__init__(text)
        self.id = id


def awaited(
    session: Session, answer: Future[CommandReply], timeout: float, on: str, id: str, what: str
) -> CommandRecord:
    """Wait for the record of a command on one rank. Raises CommandPending."""
    try:
        reply = session.requests.wait(answer, timeout, "The command")
    except NoAnswer as late:
        if late.unsent:
            raise
        raise not_answered(session, timeout, on, id, what) from None
    if not isinstance(reply, CommandRecord):
        raise MessageError("The agent waits for other ranks with a command for one.")
    return reply


def not_answered(session: Session, timeout: float, on: str, id: str, what: str) -> CommandPending:
    """Return the error of a command that got no answer in time."""
    if what == "cancel":
        return CommandPending(
            f"The command was not cancelled within {timeout:g} s: it has begun, or its run does not answer. To "
            f"ask for its outcome, run.outcome({id!r}): it never runs twice.",
            id,
        )
    return CommandPending(
        f"The command ({what}) was not answered within {timeout:g} s.{session.outlook(on)} It may still run, at "
        f"{at(on)}. {how_to_continue(id, what)}",
        id,
    )


def at(on: str) -> str:
    """Say at which event a command runs."""
    return f"the next {on!r} event" if on else "its next event"


def how_to_continue(id: str, what: str) -> str:
    """Say how to ask for the outcome of a command, and how to call it off."""
    again = f"run.outcome({id!r})" if what != "code" else f"call again with id={id!r}"
    return f"To ask for its outcome, {again}: it never runs twice. To cancel it, run.cancel({id!r})."
