"""Waits for the record of a command, and says how to go on if none comes."""

from __future__ import annotations

from concurrent.futures import Future

from looptap.client.session.session import Session
from looptap.protocol.errors import MessageError, NoAnswer
from looptap.protocol.process.identity import RUNS_HERE
from looptap.protocol.replies import CommandRecord, CommandReply


class CommandPending(NoAnswer, TimeoutError):
    """A command got no answer in time and may still run; `outcome` takes its ``id``."""

    def __init__(self, text: str, id: str) -> None:
        super().__init__(text)
        self.id = id


def awaited(
    session: Session, answer: Future[CommandReply], timeout: float, on: str, id: str, what: str
) -> CommandRecord:
    """Wait for the record of a command on one rank. Raises CommandPending.

    At once on the thread that raises the event waited for: the wait would hold it up.
    """
    raising = RUNS_HERE.get(session.info.id)
    in_vain = timeout > 0 and raising is not None and raising.waits_for_itself(on, answer.done)
    try:
        reply = session.requests.wait(answer, 0.0 if in_vain else timeout, "The command")
    except NoAnswer as late:
        if late.unsent:
            raise
        if in_vain:
            raise CommandPending(
                f"The command ({what}) waits for {at(on)}, which this very thread raises, so waiting here is in vain: "
                f"call it with timeout=0, or from another thread. {how_to_continue(id, what)}",
                id,
            ) from None
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
