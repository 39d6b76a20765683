"""Commands: code that runs once, on the training thread, at a named event, and is answered.

An id never runs twice: whoever asks again is told the outcome of the first time.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from looptap.agent.guard import LoopState
from looptap.protocol.codec import pack
from looptap.protocol.errors import LimitReached
from looptap.streams.errors import LooptapError
from looptap.streams.events import Event
from looptap.streams.pipelines import Pipeline
from looptap.streams.snapshots import Pending, take
from looptap.streams.syntax import format_error

REMEMBERED = 1000
"""Outcomes that can be asked for again."""
Asker = tuple[bytes, int]


@dataclass
class Outcome:
    """What has become of one command, and who wants to know (peer, request)."""

    asked_by: list[Asker] = field(default_factory=list)
    over: bool = False
    value: Any = None
    error: str = ""
    traceback: str = ""

    def packed(self) -> bytes:
        """The result for the wire."""
        return pack(self.value.resolve() if type(self.value) is Pending else self.value)


class Commands:
    """Accepts commands, runs each once, remembers outcomes. ``finished`` is called where the command ran."""

    def __init__(self, per_second: int, finished: Callable[[Outcome], None]) -> None:
        self._per_second, self._finished = per_second, finished
        self._outcomes: OrderedDict[str, Outcome] = OrderedDict()
        self._times: deque[float] = deque()

    def accept(self, id: str, pipeline: Pipeline, asker: Asker) -> Callable[[Event], None] | None:
        """What the training thread has to do for this command; None if it was accepted before.

        Raises LimitReached when more commands come in a second than `Limits.commands_per_second`.
        """
        known = self._outcomes.get(id)
        if known is not None:
            again = Outcome([asker], True, known.value, known.error, known.traceback)
            if known.over:
                self._finished(again)
            else:
                known.asked_by.append(asker)
            return None
        self._count()
        outcome = self._outcomes[id] = Outcome([asker])
        while len(self._outcomes) > REMEMBERED:
            self._outcomes.popitem(last=False)

        def command(event: Event) -> None:
            self._run(pipeline, event, outcome)

        return command

    def _count(self) -> None:
        now = time.monotonic()
        while self._times and self._times[0] < now - 1:
            self._times.popleft()
        if len(self._times) >= self._per_second:
            raise LimitReached(f"{len(self._times)} commands in a second, the bound (Limits.commands_per_second).")
        self._times.append(now)

    def _run(self, pipeline: Pipeline, event: Event, outcome: Outcome) -> None:
        try:
            with LoopState(randomness=False):
                outputs = pipeline.post(event, event.event_number, event.event_time)
            outcome.value = take(outputs[-1][1])[0] if outputs else None
        except KeyboardInterrupt:
            outcome.error = "interrupted by the user of the job"
            raise
        except LooptapError as error:
            outcome.error = str(error)
        except BaseException as error:
            outcome.error = f"{type(error).__name__}: {error}"
            outcome.traceback = format_error(error, pipeline.text)
        finally:
            outcome.over = True
            self._finished(outcome)
