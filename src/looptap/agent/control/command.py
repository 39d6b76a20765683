"""Commands: actions that clients request once, at an event of the loop.

A command is validated on the I/O thread and applied on the loop thread; its record is immutable and replaced as a
whole, so that either thread reads one that is consistent. `claim` settles which thread decides its outcome.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeAlias

import msgspec

from looptap.agent.control.job_hooks import JobHooks, Trigger, short_result
from looptap.agent.control.process_group import group
from looptap.protocol import messages as m
from looptap.protocol.errors import LimitReached
from looptap.protocol.replies import PENDING, CommandRecord
from looptap.protocol.values.packing import pack
from looptap.streams.errors import CommandCancelled, ControlError, InDoubt, LooptapError
from looptap.streams.events import Event
from looptap.streams.expressions import format_error
from looptap.streams.preserving.torch_state import TorchStateGuard
from looptap.streams.values.device_transfer import Pending
from looptap.streams.values.snapshots import snapshot

MAX_TEXT_CHARACTERS = 4000
"""Characters of a traceback, an error or a text that a record keeps."""
CALL = "call"
DONE, FAILED, REFUSED = "done", "failed", "refused"
DOUBTFUL, CANCELLED = "in doubt", "cancelled"
"""Outcomes of a record other than `PENDING`: it ran, it raised, it was not allowed to run, it did not run here but
may have run on other ranks, it was cancelled."""
RUNNING, ENDED = "running", "ended"
"""Outcomes of a query on record."""
NOT_BEGUN = "Ctrl-C in the job came before this command began: nothing was done."
INTERRUPTED = "interrupted by Ctrl-C in the job: it had begun, and may have done part or all of its work."

FollowUp: TypeAlias = Callable[[], None]
"""An action of the loop thread after the event: wait, or raise."""


class Requester(NamedTuple):
    """The recipient of a command's outcome."""

    peer: bytes
    request: int
    regardless: bool = False
    """True to reply with the record even after a failure; else its error is the reply."""


class CommandResult(NamedTuple):
    """The value that a command returned, and its action for after the event."""

    value: Any = None
    then: FollowUp | None = None


class Vote(Protocol):
    """The decision of several ranks on one command."""

    def await_decision(self, command: LoopCommand, event: Event) -> None:
        """Wait for the decision of the ranks. Raises LooptapError if it is "no"."""


class LoopCommand:
    """Base class of all commands; a subclass says how one is checked and applied."""

    randomness = True
    """True if the state of random number generators is restored afterwards."""

    def __init__(self, job: JobHooks, record: CommandRecord, finished: Callable[[LoopCommand], None]) -> None:
        self.job, self.record = job, record
        self.requesters: list[Requester] = []
        """The clients that wait for the outcome."""
        self.source = ""
        """The text of its code, for tracebacks."""
        self.vote: Vote | None = None
        """The vote of the ranks before it is applied; None for a command of one rank."""
        self.waits = False
        """True while it waits for its event."""
        self.over = self.reported = False
        """True once it has an outcome, and once that has gone to the store and the stream of commands."""
        self.overdue = 0.0
        """Seconds that it has been running, if that is long."""
        self.kind = CALL
        """Name of the error class that a client raises for `error`."""
        self.value: Any = None
        self.size = 0
        """Bytes of the value."""
        self.error = self._traceback = ""
        self._finished = finished
        self._begun = False
        self._claims: list[object] = []

    # ------------------------------------------------------------ what a kind of command defines

    def check(self) -> tuple[str, ...]:
        """Check the request; return the events at which it is safe, empty for any.

        I/O thread. Completes the record. Raises LooptapError.
        """
        raise NotImplementedError

    def apply(self, event: Event) -> CommandResult:
        """Execute the command; an exception becomes its outcome.

        Loop thread, inside `emit`, whose torch state is preserved.
        """
        raise NotImplementedError

    def release(self) -> None:
        """Release the resources of `apply`: the record outlives the command."""

    # ------------------------------------------------------------ the life of a command

    def validate(self) -> None:
        """Check the command and settle its event. Raises LooptapError.

        I/O thread; loop thread for a command of the host. After that it can be applied at any event of type
        ``record.on``.
        """
        safe, wanted = self.check(), self.record.on
        name = self.record.name or self.record.what
        if self.record.checkpoint:
            saving = self.job.saving()
            self.check_ranks(saving, "a checkpoint")
            both = tuple(one for one in safe if one in saving.at) if safe and saving.at else safe or saving.at
            if not both and safe:
                raise ControlError(
                    f"{name} may be done at {_listed(safe)} events only, and a checkpoint at {_listed(saving.at)}: "
                    "save one first, with run.checkpoint()."
                )
            safe = both
        if wanted and safe and wanted not in safe:
            raise ControlError(f"{name} may be done at {_listed(safe)} events only, not at {wanted!r:.80}.")
        self.note(on=self.job.own_name(wanted or (safe[0] if safe else self.job.default_event)))

    def check_ranks(self, trigger: Trigger, name: str) -> None:
        """Raise ControlError if the command must run on all ranks, not on this alone."""
        if trigger.together and not self.record.agreed and group() is not None:
            raise ControlError(
                f"{name} is made by all ranks of this job together, and only this one was asked: ask all of them, "
                "which is what a command does without ranks=."
            )

    def note(self, **changes: Any) -> None:
        """Replace the record by a copy with these ``changes``."""
        self.record = msgspec.structs.replace(self.record, **changes)

    def claim(self, by: object) -> bool:
        """Return True if ``by`` is the first to claim the command. Any thread.

        `append` is atomic under the GIL, and the first entry never changes: so the I/O thread, which may cancel a
        command, and the loop thread, which is about to run it, need no lock to agree, and Ctrl-C can leave none taken.
        """
        self.waits = False
        self._claims.append(by)
        return self._claims[0] is by

    def run(self, event: Event) -> FollowUp | None:
        """Apply the command unless it was claimed, and report the outcome.

        Loop thread. Raises nothing but KeyboardInterrupt.
        """
        me = object()
        try:
            return self._run(event) if self.claim(me) else None
        except KeyboardInterrupt:
            # Without an entry of ours Ctrl-C came before the claim: the command is still due, at the next event.
            if self._claims and self._claims[0] is me:
                self._interrupted()
            raise

    def settle(self, value: Any, outcome: str = DONE) -> None:
        """Record success without running it: it took effect when accepted. I/O thread."""
        self.claim(self)
        self.value, self.over = value, True
        self.note(outcome=outcome, result=value)
        self._finished(self)

    def revise(self, **changes: Any) -> None:
        """Change the record of a command that is over, and report it again. I/O thread."""
        self.note(**changes)
        self.reported = False
        self._finished(self)

    def give_up(self, error: LooptapError) -> None:
        """Report that the command will not run, unless it has begun. Any thread."""
        if not self.claim(self):
            return
        self.error, self.kind, self.over = str(error), type(error).__name__, True
        self.note(outcome=_refusal(self.kind), error=self.error[:MAX_TEXT_CHARACTERS], time=time.time())
        self.release()
        self._finished(self)

    def report(self, requester: Requester) -> None:
        """Send the outcome to another ``requester``, at once if known. I/O thread."""
        self.requesters.append(requester)
        if self.over:  # else the loop thread reports; if it has just begun to, both do, and the client ignores one
            self._finished(self)

    def forget(self, kept_bytes: int) -> None:
        """Release a value of more than ``kept_bytes``, but remember that it has run."""
        self.value, self.size, self.kind = None, 0, LimitReached.__name__
        self.error = f"This command has run; of all results {kept_bytes:,} bytes are kept, and this is older."

    def reply(self, requester: Requester) -> m.Message:
        """Build the reply to ``requester``."""
        if self.error and not requester.regardless:
            return m.Failed(requester.request, self.kind, self.error, self._traceback)
        try:
            value = self.value.resolve() if type(self.value) is Pending else self.value
            record = msgspec.structs.replace(self.record, result=value)
            return m.Done(requester.request, msgspec.Raw(pack(record)))
        except Exception as error:
            return m.Failed(requester.request, type(error).__name__, str(error))

    # ------------------------------------------------------------ inside

    def _run(self, event: Event) -> FollowUp | None:
        then = None
        self.note(event=event._source.name, number=event._number, time=time.time())
        state = TorchStateGuard(randomness=self.randomness)
        try:
            with state:
                self._begun = True
                value, then = self._decide_and_apply(event)
                self.value, self.size = snapshot(value)
                self.job.observers.current().on_command()
            self.note(outcome=DONE, result=None if self.record.what == CALL else self.value)
        except KeyboardInterrupt as error:
            state.restore()  # Ctrl-C may have come before the `with` has done that
            self.error = _with_notes(INTERRUPTED, error)
            raise
        except LooptapError as error:
            self.error = _with_notes(str(error), error)
            self.kind = type(error).__name__ if isinstance(error, ControlError) else CALL
        except BaseException as error:
            self.error = _with_notes(f"{type(error).__name__}: {error}", error)
            self._traceback = format_error(error, self.source)
        self.job.watches.after(self)
        self._finish()
        return then

    def _decide_and_apply(self, event: Event) -> CommandResult:
        if self.vote is not None:
            self.vote.await_decision(self, event)
        if self.record.checkpoint:
            self._save(self.job.saving().function)
        return self.apply(event)

    def _save(self, function: Callable[[], Any]) -> None:
        """Save the requested checkpoint; if that fails, nothing changes."""
        state = TorchStateGuard()
        try:
            with state:
                self.note(saved=short_result(function()))
        except BaseException as error:
            state.restore()  # as above
            error.add_note("This was the checkpoint before the change, which was not made.")
            raise

    def _interrupted(self) -> None:
        """Report the outcome of a command that Ctrl-C interrupted."""
        if not self._begun:
            self.error = NOT_BEGUN
        elif not self.error and self.record.outcome == PENDING:
            self.error = INTERRUPTED
        self._finish()

    def _finish(self) -> None:
        """Record and report the outcome. A second call changes nothing."""
        if self.error:
            became = FAILED if self.kind == CALL else _refusal(self.kind)
            self.note(
                outcome=became,
                error=self.error[:MAX_TEXT_CHARACTERS],
                traceback=self._traceback[-MAX_TEXT_CHARACTERS:],
            )
        self.vote = None
        self.release()
        self.over = True
        self._finished(self)


def _listed(events: tuple[str, ...]) -> str:
    return " or ".join(map(repr, events))


def _refusal(kind: str) -> str:
    """Return the outcome of a command that did not run, by the class of its error."""
    return {InDoubt.__name__: DOUBTFUL, CommandCancelled.__name__: CANCELLED}.get(kind, REFUSED)


def _with_notes(text: str, error: BaseException) -> str:
    return " ".join([text, *getattr(error, "__notes__", ())])
