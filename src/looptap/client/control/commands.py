"""Commands of a client: controls, triggers, checkpoints, pauses, stop and calls."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any, Never, TypeAlias

import msgspec

from looptap.client.control.coming_declarations import await_declaration
from looptap.client.control.controls import ControlInfo, Controls, Outcome, Records
from looptap.client.control.pending import CommandPending, at, awaited, how_to_continue, not_answered
from looptap.client.control.two_phase import agreed, meant, records_of_all
from looptap.client.control.undoing import NewestChange, newest_change
from looptap.client.ranks.ranks import ALL, Ranks, split_replies
from looptap.client.session.session import Session
from looptap.client.streams.code import all_named, code_of, query_name
from looptap.client.transport.timeouts import COMMAND_SECONDS, REPLY_SECONDS
from looptap.protocol import messages as m
from looptap.protocol.errors import NoAnswer
from looptap.protocol.replies import CommandRecord, ControlReport
from looptap.protocol.values.number_checks import unboxed
from looptap.streams.errors import ControlError, QueryError, SnapshotError

Which: TypeAlias = "str | int | Iterable[int]"
"""Ranks: "all", one, or several."""
SEEN = "as you saw it"
"""A change is refused if another client has changed the control since you read it in `Run.controls`."""


class ControlClient:
    """Commands to a session's job, each recorded under an id and run once.

    A run on several ranks is changed on all of them, at one event number, or on none: they agree at that event.
    ``ranks=0`` or a list is for these alone. Besides what each command raises: NoSuchRun if a rank cannot be
    reached, NotAgreed if they did not all reach the event in time, InDoubt if it is unknown what the others did.
    """

    def __init__(self, session: Session, ranks: Ranks[Any]) -> None:
        self._session, self._ranks = session, ranks
        self._controls: Controls | None = None

    @property
    def controls(self) -> Controls:
        """The controls of the job, by name."""
        job = self._session.info.id
        if self._controls is None or self._controls.run != job:  # the next run has versions of its own
            self._controls = Controls(self._report, job)
        return self._controls

    def _report(self, path: str) -> ControlReport:
        ask = functools.partial(m.GetControls, path=path)
        return self._session.inquire(ask, "The question for the controls", 5.0)

    def commands(self) -> Records:
        """Return the newest 1,000 commands of all clients. Raises NoAnswer after 5 s."""
        return Records.of(self.records(), self._session.info.id)

    def records(self) -> list[CommandRecord]:
        """Return the same as `commands`, as structs. Raises NoAnswer after 5 s."""
        return self._session.inquire(m.GetCommands, "The question for the commands", 5.0)

    def commands_soon(self) -> Future[list[CommandRecord]]:
        """Return a future of `records`. Does not block."""
        return self._session.requests.send(m.GetCommands(self._session.requests.number()))

    def set(
        self,
        name: str,
        value: float | str | bool,
        *,
        on: str = "",
        schedule: str = "",
        checkpoint: bool = False,
        expected: int | ControlInfo | str | None = SEEN,
        timeout: float = COMMAND_SECONDS,
        id: str | None = None,
        ranks: Which = ALL,
    ) -> Outcome:
        """Set a control, or an exposed object's attribute by path, at a safe event.

        The outcome has ``old``, ``new``, and the ``event``, ``number`` and ``time`` at which it was done, on the
        training thread. A change by more than a factor of 10 has a ``warning``, and `undo` reverts it. A job without
        events is given 5 s to declare the control.

        Args:
            name: Of the control, or the path of an attribute, such as ``"model.dropout.p"``.
            value: The new value.
            on: The event type; by default the first at which the control is safe to change.
            schedule: What happens to a learning rate's schedule: ``"scale"`` continues it from the new value, by the
                same factor to its end; ``"freeze"`` keeps the new value.
            checkpoint: True saves a checkpoint first.
            expected: The change is refused if another client has changed the control since this version; by default
                since you read it in `controls`. None sets it regardless.
            timeout: Seconds to wait for the outcome.
            id: The id of an earlier attempt: it is never executed twice.
            ranks: "all", a rank or a list.

        Raises ControlError for an invalid name, type, value or event, ControlConflict, RemoteError if it fails there,
        CommandPending after ``timeout`` seconds (while the loop pauses, too), with the ``id`` for `outcome`.

        >>> from looptap.testing import pair
        >>> agent, run = pair("doctest")
        >>> agent.emit("batch", loss=2.5)
        >>> run.set("lr", 0.5)
        Traceback (most recent call last):
            ...
        looptap.streams.errors.ControlError: there is no control 'lr'; the job has none: expose an optimizer or Control.
        """
        match expected:
            case ControlInfo():
                version: int | None = expected.version
            case str():
                version = self.controls.seen.get(name)
            case _:
                version = expected
        return self.command(
            "set",
            name,
            value,
            timeout=timeout,
            id=id,
            ranks=ranks,
            on=on,
            schedule=schedule,
            checkpoint=checkpoint,
            expected=version,
        )

    def undo(
        self,
        name: str = "",
        *,
        on: str = "",
        expected: str | None = None,
        timeout: float = COMMAND_SECONDS,
        id: str | None = None,
    ) -> Outcome:
        """Take back the newest change of a control, by any client.

        The control gets its previous value, at an event, on all ranks where it was changed, or on none. A scaled
        schedule is scaled back, and a frozen one continues. An undo is itself a change, so a second `undo` reverts the
        first.

        Args:
            name: Revert the newest change of this control only.
            on: The event type.
            expected: The id of the change that you mean; by default the newest.
            timeout: Seconds to wait for the outcome.
            id: The id of an earlier attempt.

        Raises ControlError if no command has changed a control, or the job has changed it since; ControlConflict if
        another client has; and the errors of `set`.

        >>> from looptap.testing import pair
        >>> agent, run = pair("doctest")
        >>> run.undo()
        Traceback (most recent call last):
            ...
        looptap.streams.errors.ControlError: no command has changed a control of this run: nothing to undo.
        """
        change = self.newest_change(name)
        meant = expected or change.record.id
        return self.command("undo", change.record.name, meant, on=on, timeout=timeout, id=id, ranks=change.ranks)

    def newest_change(self, name: str = "") -> NewestChange:
        """Return what `undo` would undo. Raises ControlError if there is nothing.

        Args:
            name: As in `undo`.
        """
        return newest_change(self._session, self._ranks, name)

    def trigger(
        self,
        name: str,
        *,
        on: str = "",
        checkpoint: bool = False,
        timeout: float = COMMAND_SECONDS,
        id: str | None = None,
        ranks: Which = ALL,
    ) -> Outcome:
        """Run a function that the host declared, once, in the loop.

        ``result`` of the outcome is what it returned.

        Args:
            name: The name of the trigger.
            on: The event type; by default the first that the host allows.
            checkpoint: True saves a checkpoint first.
            timeout: Seconds to wait for the outcome.
            id: The id of an earlier attempt.
            ranks: "all", a rank or a list.

        Raises ControlError for an unknown name, RemoteError if it fails there, CommandPending after ``timeout`` s.
        """
        return self.command("trigger", name, on=on, checkpoint=checkpoint, timeout=timeout, id=id, ranks=ranks)

    def checkpoint(self, *, on: str = "", timeout: float = 300.0, id: str | None = None, ranks: Which = ALL) -> Outcome:
        """Save a checkpoint of the job; ``result`` is what the host's function returned.

        Args:
            on: The event type; by default the first that the host allows.
            timeout: Seconds to wait for the outcome.
            id: The id of an earlier attempt.
            ranks: "all", a rank or a list.

        Raises ControlError, RemoteError if it fails there, CommandPending after ``timeout`` seconds.
        """
        return self.command("checkpoint", on=on, timeout=timeout, id=id, ranks=ranks)

    def stop(
        self,
        *,
        on: str = "",
        checkpoint: bool = False,
        timeout: float = COMMAND_SECONDS,
        id: str | None = None,
        ranks: Which = ALL,
    ) -> Outcome:
        """Ask the job to stop at its next event; a pause ends.

        From then on `Agent.stop_requested` is true, and `emit` raises ``on_stop`` if the job has set it. A loop that
        uses neither continues, and `note` of the outcome says so.

        Args:
            on: The event type; by default any.
            checkpoint: True saves a checkpoint first.
            timeout: Seconds to wait for the outcome.
            id: The id of an earlier attempt.
            ranks: "all", a rank or a list.

        Raises CommandPending after ``timeout`` seconds.
        """
        return self.command("stop", on=on, checkpoint=checkpoint, timeout=timeout, id=id, ranks=ranks)

    def pause(
        self, seconds: float | None = None, *, on: str = "", timeout: float = COMMAND_SECONDS, id: str | None = None
    ) -> Outcome:
        """Pause the loop inside `emit`, for ``seconds`` or until `resume`.

        Returns once the loop pauses. Commands wait, too; streams and heartbeats continue.

        Args:
            seconds: The length of the pause; by default the longest that the job allows.
            on: The event type; by default any.
            timeout: Seconds to wait for the pause to begin.
            id: The id of an earlier attempt.

        Raises ControlError if the job allows no pause, or only a shorter one; CommandPending after ``timeout`` seconds.
        """
        return self.command("pause", value=seconds, on=on, timeout=timeout, id=id)

    def resume(self, *, timeout: float = REPLY_SECONDS) -> Outcome:
        """End or cancel a pause; ``result`` is for how many seconds the loop was paused.

        Args:
            timeout: Seconds to wait for the answer.
        """
        return self._ask_all_ranks("resume", timeout, None)

    def call(
        self,
        function: str | Callable[..., Any],
        *unnamed: Never,
        on: str = "batch",
        checkpoint: bool = False,
        timeout: float = COMMAND_SECONDS,
        id: str | None = None,
        ranks: Which = ALL,
    ) -> Any:
        """Run ``function`` once in the loop, and return its result.

        It runs on the training thread. On a run of several ranks it runs on all at one event, and returns a dict with
        the result of each.

        Args:
            function: A text of the query language, or a function of one event.
            on: The event type at which it runs.
            checkpoint: True saves a checkpoint first, if the host has declared one: `looptap.Agent.checkpoint`.
            timeout: Seconds to wait for the result.
            id: The id of an earlier attempt: returns its outcome, and never runs the function twice.
            ranks: "all", a rank or a list. On some ranks only, a collective would hang the job.

        Raises RemoteError if it raises there, and CommandPending after ``timeout`` seconds: it may still run then.
        """
        all_named("call(function", unnamed)
        id, code = id or os.urandom(16).hex(), code_of(function)
        self._session.vitals.asked(query_name(function))

        def message(session: Session, count: int) -> m.Call:
            return m.Call(session.requests.number(), id, code, on, checkpoint, count)

        found = self._wait_for(message, id, timeout, on, "code", ranks)
        if isinstance(found, CommandRecord):
            return found.result
        return {rank: record.result for rank, record in found.items()}

    def outcome(self, id: str, *, timeout: float = REPLY_SECONDS) -> Outcome:
        """Return an earlier command's outcome, or raise its error; never run it again.

        Args:
            id: The id of the command.
            timeout: Seconds to wait for the answer.

        Raises CommandPending if it has not run yet, ControlError for an unknown id: a job remembers 1,000.
        """
        return self._ask_all_ranks("outcome", timeout, id)

    def cancel(self, id: str, *, timeout: float = REPLY_SECONDS) -> Outcome:
        """Cancel a command that still waits for its event, on all ranks.

        ``outcome`` of the result is "cancelled" or, if it is too late, the command's own outcome: "done", or "failed",
        "refused" and the like, with the ``error``. A client that waits for the command gets CommandCancelled. The
        command stays on record, with the client that cancelled it.

        Args:
            id: The id of the command.
            timeout: Seconds to wait for the answer.

        Raises CommandPending if it has begun and does not end in time, ControlError for an unknown id.

        >>> from looptap.testing import pair
        >>> agent, run = pair("doctest")
        >>> agent.trigger("evaluate", lambda: 0.75)
        >>> try:
        ...     run.trigger("evaluate", on="epoch", timeout=0)
        ... except CommandPending as pending:
        ...     run.cancel(pending.id).outcome
        'cancelled'
        """
        return self._ask_all_ranks("cancel", timeout, id)

    def command(
        self,
        what: str,
        name: str = "",
        value: Any = None,
        *,
        timeout: float,
        id: str | None = None,
        on: str = "",
        ranks: Which = ALL,
        **how: Any,
    ) -> Outcome:
        """Send the command ``what``, and wait for its outcome."""
        id = id or os.urandom(16).hex()
        self._session.vitals.asked(f"{what} {name}".strip())
        try:
            packed = _packed(unboxed(value))
        except SnapshotError:
            raise QueryError(f"a control is a number, text, True or False, not {value!r:.80}.") from None

        def message(session: Session, count: int) -> m.Command:
            return m.Command(session.requests.number(), id, what, name, packed, on, ranks=count, **how)

        for session in meant(self._session, self._ranks, ranks).values():
            await_declaration(session, what, name, timeout)

        return self._seen(self._wait_for(message, id, timeout, on, f"{what} {name}".strip(), ranks))

    def _seen(self, found: CommandRecord | dict[int, CommandRecord]) -> Outcome:
        """Return the outcome; this client has now seen the change."""
        done = Outcome.of(found) if isinstance(found, CommandRecord) else Outcome.of_ranks(found)
        seen = self.controls.seen
        if done.name in seen and done.version is not None:
            seen[done.name] = max(seen[done.name], done.version)
        return done

    def _wait_for(
        self,
        message: Callable[[Session, int], m.Call | m.Command],
        id: str,
        timeout: float,
        on: str,
        what: str,
        ranks: Which,
    ) -> CommandRecord | dict[int, CommandRecord]:
        """Return the record of a command for one rank, or those of several by rank."""
        sessions = meant(self._session, self._ranks, ranks)
        try:
            if len(sessions) == 1:
                (session,) = sessions.values()
                return awaited(session, session.requests.send(message(session, 0)), timeout, on, id, what)
            found = agreed(sessions, message, id, timeout)
        except KeyboardInterrupt as pressed:
            pressed.add_note(f"The command ({what}) may still be done, at {at(on)}. {how_to_continue(id, what)}")
            raise
        if all(type(reply) is NoAnswer for reply in found.values()):
            raise not_answered(self._session, timeout, on, id, what) from None
        return records_of_all(found)

    def _ask_all_ranks(self, what: str, timeout: float, id: str | None) -> Outcome:
        """Send each rank a request that does not wait for the loop."""
        id = id or os.urandom(16).hex()

        def one(session: Session) -> CommandRecord:
            answer = session.requests.send(m.Command(session.requests.number(), id, what))
            record = awaited(session, answer, timeout, "", id, what)
            if what == "resume":
                session.vitals.resumed()
            return record

        if self._session.info.ranks == 1:
            return self._seen(one(self._session))
        found = self._ranks.each(lambda run: one(run.session))
        known = {rank: reply for rank, reply in found.items() if type(reply) is not ControlError} or found
        done, failed = split_replies(known)
        off = {rank: record for rank, record in done.items() if record.outcome == "cancelled"}
        if what == "cancel" and off:  # on one rank, so on all: they do it together or not at all
            return self._seen(off)
        if failed and not done and all(isinstance(error, CommandPending) for error in failed.values()):
            raise next(iter(failed.values()))
        return self._seen(records_of_all(known))


def _packed(value: Any) -> msgspec.Raw:
    """Pack the value of a control, of the usual types without loading numpy.

    Raises SnapshotError for what cannot be sent.
    """
    with contextlib.suppress(UnicodeEncodeError, OverflowError):
        if value is None or type(value) in (bool, int, float, str):
            return msgspec.Raw(msgspec.msgpack.encode(value))
    from looptap.protocol.values.packing import pack

    return msgspec.Raw(pack(value))
