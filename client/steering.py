"""What a client does to a job: it sets controls, asks for triggers and checkpoints, pauses, resumes and stops."""

from __future__ import annotations

import os
from concurrent.futures import Future
from typing import Any

import msgspec

from looptap.client.controls import ControlInfo, Controls, Outcome, Records
from looptap.client.session import Session
from looptap.protocol import messages as m
from looptap.protocol.codec import pack
from looptap.protocol.errors import MessageError, NoAnswer
from looptap.streams.errors import QueryError, SnapshotError

SEEN = "as you saw it"
"""A change is refused if somebody else has changed the control since it was looked at in `Run.controls`."""


class CommandPending(NoAnswer, TimeoutError):
    """A command was not answered in time and may still run; ``id`` asks for its outcome later."""

    def __init__(self, text: str, id: str) -> None:
        super().__init__(text)
        self.id = id


class Steering(Session):
    """The part of a `Run` that changes the job. Every command is recorded, runs once, and has an id."""

    _controls: Controls | None = None

    @property
    def controls(self) -> Controls:
        """What can be set in the job, by name: value, bounds, unit, meaning, version.

        >>> from looptap.testing import pair
        >>> agent, run = pair("doctest")
        >>> settings = {"lr": 0.1}
        >>> agent.control("lr", lambda: settings["lr"], lambda lr: settings.update(lr=lr), maximum=1, doc="the rate")
        >>> run.controls["lr"].value
        0.1
        >>> list(run.controls)
        ['lr']
        """
        if self._controls is None or self._controls.run != self.info.id:  # the next run has versions of its own
            self._controls = Controls(self._told_controls, self.info.id)
        return self._controls

    def _told_controls(self) -> dict[str, Any]:
        found: dict[str, Any] = self._inquire("controls", "The question for the controls", 5.0, dict)
        return found

    @property
    def commands(self) -> Records:
        """The newest 1,000 commands of all clients, on record: when, where, by whom, what, old, new, outcome.

        ``run.commands.save("commands.yaml")`` writes them as a file that `looptap replay` does again in another run.
        """
        return self._records(self._inquire("commands", "The question for the commands", 5.0, list))

    def commands_soon(self) -> Future[Any]:
        """Ask for `commands` without waiting: the future holds a list of dicts once the agent has answered."""
        return self._requests.send(m.Ask(self._requests.number(), "commands"))

    def _records(self, found: list[Any]) -> Records:
        records = Records(record for record in found if isinstance(record, dict))
        records.run = self.info.id
        return records

    def set(
        self,
        name: str,
        value: float | str | bool,
        *,
        on: str = "",
        schedule: str = "",
        checkpoint: bool = False,
        expected: int | ControlInfo | str | None = SEEN,
        timeout: float = 30.0,
        id: str | None = None,
    ) -> Outcome:
        """Set a control, or an attribute of an exposed object by its path (``"model.dropout.p"``), at a safe event.

        The outcome has ``old``, ``new``, and the ``event``, ``number`` and ``time`` at which it was done, on the
        training thread. ``on`` names the event, by default the first at which the control is safe to change.
        ``schedule`` says what is to become of a learning rate's schedule: ``"scale"``, it goes on from the new value,
        by the same factor to its end; ``"freeze"``, the new value stays. With ``checkpoint`` the job makes one before.
        A change is refused if somebody else has changed the control since you looked at it in `controls`, or since
        the version ``expected``; None sets it anyhow. Raises ControlError for a name, a type, a value or an event that
        will not do, ControlConflict, RemoteError if it fails there, CommandPending after ``timeout`` seconds (while
        the loop pauses, too): asking again with its ``id``, or `outcome`, never does it twice.

        >>> from looptap.testing import pair
        >>> agent, run = pair("doctest")
        >>> run.set("model.p", 0.5)
        Traceback (most recent call last):
            ...
        looptap.streams.errors.ControlError: there is no control 'model.p'; there are: none.
        """
        match expected:
            case ControlInfo():
                version: int | None = expected.version
            case str():
                version = self.controls.seen.get(name)
            case _:
                version = expected
        return self._command(
            "set", name, value, timeout=timeout, id=id, on=on, schedule=schedule, checkpoint=checkpoint,
            expected=version,
        )  # fmt: skip

    def trigger(
        self, name: str, *, on: str = "", checkpoint: bool = False, timeout: float = 30.0, id: str | None = None
    ) -> Outcome:
        """Have a function that the host declared run once in the loop; ``result`` of the outcome is what it returned.

        Raises ControlError for an unknown name, RemoteError if it fails there, CommandPending after ``timeout`` s.
        """
        return self._command("trigger", name, on=on, checkpoint=checkpoint, timeout=timeout, id=id)

    def checkpoint(self, *, on: str = "", timeout: float = 300.0, id: str | None = None) -> Outcome:
        """Have the job make a checkpoint, if its host has said how; ``result`` is what that returned.

        Raises ControlError, RemoteError if it fails there, CommandPending after ``timeout`` seconds.
        """
        return self._command("checkpoint", on=on, timeout=timeout, id=id)

    def stop(
        self, *, on: str = "", checkpoint: bool = False, timeout: float = 30.0, id: str | None = None
    ) -> Outcome:
        """Ask the job to stop at its next event; a pause ends.

        From then on `Agent.stop_requested` is true; where the host wants it so, ``on_stop`` is raised out of `emit`.
        A loop that looks at neither goes on. Raises CommandPending after ``timeout`` seconds.
        """
        return self._command("stop", on=on, checkpoint=checkpoint, timeout=timeout, id=id)

    def pause(
        self, seconds: float | None = None, *, on: str = "", timeout: float = 30.0, id: str | None = None
    ) -> Outcome:
        """Have the loop wait inside `emit`, for ``seconds`` or as long as the host allows, or until `resume`.

        Returns once it does. Commands wait, too; streams and signs of life go on. Raises ControlError where the host
        allows none, or a shorter one only; CommandPending after ``timeout`` seconds.
        """
        return self._command("pause", value=seconds, on=on, timeout=timeout, id=id)

    def resume(self, *, timeout: float = 5.0) -> Outcome:
        """End a pause, or call off one that has not begun; ``result`` is for how many seconds the loop had paused."""
        return self._command("resume", timeout=timeout)

    def outcome(self, id: str, *, timeout: float = 5.0) -> Outcome:
        """What came of an earlier command, which does not run again; raises what that raised.

        Raises CommandPending if it has not run yet, ControlError for an id that is unknown: a job remembers 1,000.
        """
        return self._command("outcome", timeout=timeout, id=id)

    def _command(
        self, what: str, name: str = "", value: Any = None, *, timeout: float, id: str | None = None, on: str = "",
        **how: Any,
    ) -> Outcome:  # fmt: skip
        id = id or os.urandom(16).hex()
        try:
            packed = msgspec.Raw(pack(_plain(value)))
        except SnapshotError:
            raise QueryError(f"a control is a number, text, True or False, not {value!r:.80}.") from None
        message = m.Command(self._requests.number(), id, what, name, packed, on, **how)
        answer = self._requests.send(message)
        done = Outcome.of(self._awaited(answer, timeout, on, id, f"{what} {name}".strip()))
        seen = self.controls.seen
        if done.name in seen and isinstance(done.version, int):
            seen[done.name] = max(seen[done.name], done.version)
        return done

    def _awaited(self, answer: Any, timeout: float, on: str, id: str, what: str) -> Any:
        """The answer to a command. Raises CommandPending."""
        try:
            return self._requests.wait(answer, timeout, "The command")
        except NoAnswer:
            where = f"the next {on!r} event" if on else "its next event"
            again = f"run.outcome({id!r})" if what != "code" else f"call again with id={id!r}"
            raise CommandPending(
                f"The command ({what}) was not answered within {timeout:g} s.{self._outlook(on)} It may still run, at "
                f"{where}. To ask for its outcome, {again}: it never runs twice.",
                id,
            ) from None

    def _inquire(self, what: str, shown: str, timeout: float, kind: type[Any]) -> Any:
        answer = self._requests.wait(self._requests.send(m.Ask(self._requests.number(), what)), timeout, shown)
        if not isinstance(answer, kind):
            raise MessageError(f"{shown} was answered with something else.")
        return answer


def _plain(value: Any) -> Any:
    """A number of numpy or torch as Python's own."""
    return value.item() if getattr(value, "ndim", None) == 0 and hasattr(value, "item") else value

