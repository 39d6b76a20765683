"""Commands: what runs once, on the training thread, at a named event, is answered, and is on record.

An id never runs twice: whoever asks again is told the outcome of the first time.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import msgspec

from looptap.agent.control.exposed_observers import ExposedObservers
from looptap.agent.loop.guard.torch_state import TorchStateGuard
from looptap.protocol import messages as m
from looptap.protocol.codec import pack
from looptap.protocol.errors import LimitReached
from looptap.streams.errors import (
    CommandCancelled,
    ControlError,
    EventPassed,
    InDoubt,
    LooptapError,
    NotAgreed,
)
from looptap.streams.events import Event
from looptap.streams.expressions import format_error
from looptap.streams.values.snapshots import Pending, snapshot

MAX_RECORDS = 1000
"""Outcomes that can be asked for again, and records that are kept."""
MAX_RECORD_BYTES = 33_554_432
"""Bytes of results and of code that are remembered; beyond, the oldest are let go of, but not that they have run."""
MAX_TEXT_CHARACTERS = 4000
"""Characters of a traceback, an error or a text that a record keeps."""
CALL = "call"
PENDING, DONE, FAILED, REFUSED = "pending", "done", "failed", "refused"
DOUBTFUL, CANCELLED = "in doubt", "cancelled"
NOT_BEGUN = "Ctrl-C in the job came before this command had begun: nothing is done."
INTERRUPTED = "interrupted by Ctrl-C in the job: it has begun, and may have done a part or all of its work."
"""What a record says of a command: it waits for its event, it ran, it ran into an error, it was not let run, it did not
run here and may have run on other ranks, it was called off."""


class Requester(NamedTuple):
    """Who wants to know what came of a command."""

    peer: bytes
    request: int
    whole: bool = True
    """Whether it wants the record, or the result alone."""
    anyhow: bool = False
    """Whether the record is wanted also of a command that failed; else its error is the answer."""


Then: TypeAlias = Callable[[], None]
"""What the training thread has to do when the event is over: wait, or raise."""


class CommandResult(NamedTuple):
    """What came of a command, and what is to be done when its event is over."""

    value: Any = None
    then: Then | None = None


Work: TypeAlias = Callable[[Event], CommandResult]


def record_of(id: str, client: str, what: str, on: str = "", **more: Any) -> dict[str, Any]:
    """The record of a command that has just come: all its fields are there, so that it can be read while it changes."""
    record = {
        "id": id, "client": client, "what": what, "name": "", "value": None, "on": on, "event": "", "number": 0,
        "time": time.time(), "old": None, "new": None, "version": None, "schedule": "", "checkpoint": False,
        "saved": None, "result": None, "agreed": 0, "waited": 0.0, "outcome": PENDING, "error": "", "traceback": "",
    }  # fmt: skip
    return record | more


@dataclass
class CommandState:
    """What has become of one command, and who wants to know."""

    record: dict[str, Any]
    asked_by: list[Requester] = field(default_factory=list)
    over: bool = False
    value: Any = None
    kind: str = CALL
    error: str = ""
    traceback: str = ""
    size: int = 0
    """Bytes of the result."""
    on_record: bool = False
    """Whether it was handed to who keeps commands."""
    overdue: float = 0.0
    """Seconds that it has run, once they are many."""
    command: Callable[[Event], Then | None] | None = None
    """What waits for its event."""
    begun: bool = False
    """Whether its work was begun."""
    claims: list[object] = field(default_factory=list, repr=False)
    """Who wanted to decide what becomes of it; the first does."""

    def claim(self, by: object) -> bool:
        """Whether ``by`` decides what becomes of it: true for the first, from whichever thread."""
        self.command = None
        self.claims.append(by)
        return self.claims[0] is by

    def forget(self) -> None:
        """Keep that it has run, and no longer what came of it."""
        self.value, self.size, self.kind = None, 0, LimitReached.__name__
        self.error = f"This command has run; of all results {MAX_RECORD_BYTES:,} bytes are kept, and this is older."

    def reply(self, asker: Requester) -> m.Message:
        """The answer to who asked."""
        if self.error and not asker.anyhow:
            return m.Failed(asker.request, self.kind, self.error, self.traceback)
        try:
            value = self.value.resolve() if type(self.value) is Pending else self.value
            told = {**self.record, "result": value} if asker.whole else value
            return m.Done(asker.request, msgspec.Raw(pack(told)))
        except Exception as error:
            return m.Failed(asker.request, type(error).__name__, str(error))


class CommandLog:
    """Accepts commands, runs each once, remembers outcomes. ``finished`` is called where the command ran."""

    def __init__(self, per_second: int, finished: Callable[[CommandState], None], observers: ExposedObservers) -> None:
        self._per_second, self._finished, self._observers = per_second, finished, observers
        self._outcomes: OrderedDict[str, CommandState] = OrderedDict()
        self._times: deque[float] = deque()
        self.records: deque[dict[str, Any]] = deque(maxlen=MAX_RECORDS)
        """Plain data, in the order in which the commands came."""

    def known(self, id: str, asker: Requester, *, again: bool = False) -> bool:
        """Whether a command of this id came before; then whoever asks is told its outcome.

        With ``again`` one that the ranks agreed not to do counts as if it had not come.
        """
        known = self._outcomes.get(id)
        if known is None or (again and known.kind in (NotAgreed.__name__, EventPassed.__name__)):
            return False
        known.asked_by.append(asker)
        if known.over:  # else the training thread will tell; if it has just begun to, both do, and one is ignored
            self._finished(known)
        return True

    def count(self) -> None:
        """Count one more. Raises LimitReached if too many wait, or come in a second (`Limits.commands_per_second`)."""
        if sum(not one.over for one in self._outcomes.values()) >= MAX_RECORDS:
            raise LimitReached(f"{MAX_RECORDS:,} commands wait for their events, the bound; run.cancel(id) ends one.")
        now = time.monotonic()
        while self._times and self._times[0] < now - 1:
            self._times.popleft()
        if len(self._times) >= self._per_second:
            raise LimitReached(f"{len(self._times)} commands in a second, the bound (Limits.commands_per_second).")
        self._times.append(now)

    def accept(
        self, record: dict[str, Any], asker: Requester | None, work: Work, source: str = ""
    ) -> Callable[[Event], Then | None]:
        """What the training thread has to do for this command, whose code is ``source``."""
        outcome = self._remember(record, asker)

        def command(event: Event) -> Then | None:
            me = object()
            try:
                return self._run(work, event, outcome, source) if outcome.claim(me) else None
            except KeyboardInterrupt:
                if outcome.claims and outcome.claims[0] is me:
                    self._interrupted(outcome)
                raise

        outcome.command = command
        return command

    def settle(self, record: dict[str, Any], asker: Requester | None, value: Any) -> None:
        """Note a command that was done where it was accepted."""
        outcome = self._remember(record, asker)
        outcome.claim(self)
        outcome.value, outcome.over = value, True
        record.update(outcome=DONE, result=value)
        self._finished(outcome)

    def refuse(self, record: dict[str, Any], error: LooptapError) -> None:
        """Note a command that will not run."""
        self._remember(record, None)
        self.give_up(record["id"], error)

    def give_up(self, id: str, error: LooptapError) -> None:
        """Note that a command will not run that is on record; no harm if it has begun to, or is over."""
        outcome = self._outcomes[id]
        if not outcome.claim(self):
            return
        outcome.error, outcome.kind, outcome.over = str(error), type(error).__name__, True
        outcome.record.update(outcome=_refusal(outcome.kind), error=str(error)[:MAX_TEXT_CHARACTERS], time=time.time())
        self._finished(outcome)

    def not_begun(self, record: dict[str, Any]) -> None:
        """Note that Ctrl-C came before a command; no harm if it has begun after all."""
        if record["id"] not in self._outcomes:
            self._remember(record, None)
        self.give_up(record["id"], ControlError(NOT_BEGUN))

    def waiting(self, id: str) -> tuple[str, Callable[[Event], Then | None]] | None:
        """The type of event that a command waits for, and the command; None if it does not wait."""
        outcome = self._outcomes.get(id)
        command = None if outcome is None else outcome.command
        return None if outcome is None or command is None else (outcome.record["on"], command)

    def _remember(self, record: dict[str, Any], asker: Requester | None) -> CommandState:
        outcome = self._outcomes[record["id"]] = CommandState(record, [] if asker is None else [asker])
        self.records.append(record)
        if len(self._outcomes) > MAX_RECORDS:  # what waits is remembered until it is over
            self._outcomes.pop(next((id for id, one in self._outcomes.items() if one.over), ""), None)
        held = sum(one.size for one in self._outcomes.values())
        for one in self._outcomes.values():
            if held <= MAX_RECORD_BYTES:
                break
            if one.over and one.size and not one.asked_by:
                held -= one.size
                one.forget()
        code = sum(map(_length, self.records))
        while code > MAX_RECORD_BYTES:
            code -= _length(self.records.popleft())
        return outcome

    def _run(self, work: Work, event: Event, outcome: CommandState, source: str) -> Then | None:
        record, then = outcome.record, None
        record.update(event=event._source.name, number=event._number, time=time.time())
        state = TorchStateGuard(randomness=record["what"] != CALL)
        try:
            with state:
                outcome.begun = True
                value, then = work(event)
                outcome.value, outcome.size = snapshot(value)
            self._observers.current().on_command()
            record.update(outcome=DONE, result=None if record["what"] == CALL else outcome.value)
        except KeyboardInterrupt as error:
            state.restore()  # it may have come before that was done
            outcome.error = _with_notes(INTERRUPTED, error)
            raise
        except LooptapError as error:
            outcome.error = _with_notes(str(error), error)
            outcome.kind = type(error).__name__ if isinstance(error, ControlError) else CALL
        except BaseException as error:
            outcome.error = _with_notes(f"{type(error).__name__}: {error}", error)
            outcome.traceback = format_error(error, source)
        self._conclude(outcome)
        return then

    def _interrupted(self, outcome: CommandState) -> None:
        """Say what has become of a command into which Ctrl-C came."""
        if not outcome.begun:
            outcome.error = NOT_BEGUN
        elif not outcome.error and outcome.record["outcome"] == PENDING:
            outcome.error = INTERRUPTED
        self._conclude(outcome)

    def _conclude(self, outcome: CommandState) -> None:
        """Put on record what has become of a command, and tell who asked; done again, it changes nothing."""
        record = outcome.record
        if outcome.error:
            became = FAILED if outcome.kind == CALL else _refusal(outcome.kind)
            record.update(outcome=became, error=outcome.error[:MAX_TEXT_CHARACTERS])
            record["traceback"] = outcome.traceback[-MAX_TEXT_CHARACTERS:]
        outcome.over = True
        self._finished(outcome)


def _refusal(kind: str) -> str:
    """What a record says of a command that was not done, by the kind of the error that says why."""
    return {InDoubt.__name__: DOUBTFUL, CommandCancelled.__name__: CANCELLED}.get(kind, REFUSED)


def _length(record: dict[str, Any]) -> int:
    value = record["value"]
    return len(value) if isinstance(value, str) else 0


def _with_notes(text: str, error: BaseException) -> str:
    return " ".join([text, *getattr(error, "__notes__", ())])
