"""Finds the query or command that a thread runs, by its Python frames.

So the training thread need not note what it begins, and pays nothing. A thread that reads the frames holds the GIL:
code that keeps the GIL cannot be found from inside the process; the client has to report it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import NamedTuple

from looptap.agent.control.command import LoopCommand
from looptap.agent.loop.at_event import evaluate_at_event
from looptap.agent.loop.attached_query import AttachedQuery
from looptap.agent.loop.in_columns import evaluate_in_columns
from looptap.protocol.statistics import LongEvaluation

_CODE = (evaluate_at_event, evaluate_in_columns, AttachedQuery.flush, LoopCommand.run)
_FILES = frozenset(function.__code__.co_filename for function in _CODE)


class Inside(NamedTuple):
    """A query or command that a thread runs; ``turn`` identifies the evaluation."""

    subject: AttachedQuery | LoopCommand
    turn: int
    thread: int
    seconds: float = 0.0
    client: str = ""
    """The name of its client; empty for the job itself."""

    def same(self, other: Inside) -> bool:
        """Return True if both are the same evaluation."""
        return self.subject is other.subject and self.turn == other.turn

    def as_info(self) -> LongEvaluation:
        """Describe it for a client."""
        if isinstance(self.subject, LoopCommand):
            record = self.subject.record
            kind, name, on, client = f"command {record.what}", record.name, record.event, record.client
        else:
            kind, name, on, client = "query", self.subject.name, self.subject.on, self.client
        asked = f"{kind} {name!r:.200}" if name else kind
        text = f"the {asked}{f' of {client}' * bool(client)} on {on!r}, which has run for {self.seconds:.0f} s"
        return LongEvaluation(kind=kind, name=name, client=client, on=on, seconds=self.seconds, text=text)

    def __str__(self) -> str:
        return self.as_info().text


def evaluations() -> Iterator[Inside]:
    """Return the queries and commands that other threads are running now."""
    own = threading.get_ident()
    for thread, frame in sys._current_frames().items():
        found = None if thread == own else _innermost(frame)
        if isinstance(found, LoopCommand):
            yield Inside(found, 0, thread)
        elif found is not None:
            yield Inside(found, found.events, thread)


def _innermost(frame: FrameType | None) -> AttachedQuery | LoopCommand | None:
    while frame is not None:
        if frame.f_code.co_filename in _FILES:  # of no other frame the variables are read: they may be anything
            held = frame.f_locals
            if isinstance(found := held.get("self", held.get("query")), AttachedQuery | LoopCommand):
                return found
        frame = frame.f_back
    return None
