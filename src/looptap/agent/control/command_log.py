"""The commands of a run: rate limit, outcomes, and unique ids."""

from __future__ import annotations

import time
from collections import OrderedDict, deque

from looptap.agent.control.command import DONE, NOT_BEGUN, LoopCommand, Requester
from looptap.protocol.errors import LimitReached
from looptap.protocol.replies import CommandRecord
from looptap.streams.errors import ControlError, EventPassed, LooptapError, NotAgreed

MAX_RECORDS = 1000
"""Number of records, and of outcomes that can be requested again."""
MAX_RECORD_BYTES = 33_554_432
"""Bytes of results and code that are kept; beyond, the oldest are dropped, but not the fact that they have run."""


class CommandLog:
    """The newest accepted and refused commands, up to a bound."""

    def __init__(self, per_second: int) -> None:
        self._per_second = per_second
        self._by_id: OrderedDict[str, LoopCommand] = OrderedDict()
        self._times: deque[float] = deque()
        self._listed: deque[LoopCommand] = deque(maxlen=MAX_RECORDS)

    @property
    def records(self) -> list[CommandRecord]:
        """The records of all commands, in order of arrival."""
        return [command.record for command in list(self._listed)]

    @property
    def remembered(self) -> int:
        """The number of command ids kept, so that no command runs twice."""
        return len(self._by_id)

    def known(self, id: str, requester: Requester, *, again: bool = False) -> bool:
        """Return True if ``id`` is known; if so, send its outcome to ``asker``.

        With ``again``, a command that the ranks agreed not to run counts as unknown.
        """
        known = self._by_id.get(id)
        if known is None or (again and known.kind in (NotAgreed.__name__, EventPassed.__name__)):
            return False
        known.report(requester)
        return True

    def count(self) -> None:
        """Count one more command against ``Limits.commands_per_second``.

        Raises LimitReached if too many are pending or arrive.
        """
        if sum(not one.over for one in self._by_id.values()) >= MAX_RECORDS:
            raise LimitReached(f"{MAX_RECORDS:,} commands wait for their events, the bound; run.cancel(id) ends one.")
        now = time.monotonic()
        while self._times and self._times[0] < now - 1:
            self._times.popleft()
        if len(self._times) >= self._per_second:
            raise LimitReached(f"{len(self._times)} commands in a second, the bound (Limits.commands_per_second).")
        self._times.append(now)

    def accept(self, command: LoopCommand) -> LoopCommand:
        """Record a command that waits for its event; return it."""
        self._remember(command)
        command.waits = True
        return command

    def settle(self, command: LoopCommand, value: object, outcome: str = DONE) -> None:
        """Record a command that took effect when it was accepted."""
        self._remember(command)
        command.settle(value, outcome)

    def refuse(self, command: LoopCommand, error: LooptapError) -> None:
        """Record a command that will not run."""
        self._remember(command)
        command.give_up(error)

    def give_up(self, id: str, error: LooptapError) -> None:
        """Record that a command will not run, unless it has begun."""
        self._by_id[id].give_up(error)

    def not_begun(self, command: LoopCommand) -> None:
        """Record that Ctrl-C came before a command, unless it has begun."""
        self._remember(command)
        command.give_up(ControlError(NOT_BEGUN))

    def waiting(self, id: str) -> LoopCommand | None:
        """Return the command that waits for its event, or None."""
        command = self._by_id.get(id)
        return command if command is not None and command.waits else None

    def _remember(self, command: LoopCommand) -> None:
        if self._by_id.get(command.record.id) is command:
            return
        self._by_id[command.record.id] = command
        self._listed.append(command)
        if len(self._by_id) > MAX_RECORDS:  # what waits is remembered until it is over
            self._by_id.pop(next((id for id, one in self._by_id.items() if one.over), ""), None)
        remembered = dict.fromkeys((*self._listed, *self._by_id.values()))
        held = sum(one.size for one in remembered)
        for one in remembered:
            if held <= MAX_RECORD_BYTES:
                break
            if one.over and one.size and not one.requesters:
                held -= one.size
                one.forget(MAX_RECORD_BYTES)
        code = sum(_length(one.record) for one in self._listed)
        while code > MAX_RECORD_BYTES:
            code -= _length(self._listed.popleft().record)


def _length(record: CommandRecord) -> int:
    return len(record.value) if isinstance(record.value, str) else 0
