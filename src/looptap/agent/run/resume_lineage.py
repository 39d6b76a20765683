"""The lineage of a resumed run: earlier runs, event numbers, repeated events."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic
from typing import TypedDict

from looptap.store.errors import StoreError
from looptap.streams.flags import REPEATED
from looptap.streams.stream.buffer import Batch

MAX_EARLIER_RUNS = 100
"""Earlier runs that are remembered, the newest."""


class ResumeFacts(TypedDict, total=False):
    """The facts of a resumed run; empty if it resumes nothing."""

    lineage: list[str]
    resumed_from: str | None
    resumed_at: dict[str, int]
    rewound: dict[str, tuple[int, int]]


class RunHistory:
    """The earlier runs, and the event numbers that they had reached, by type."""

    def __init__(self) -> None:
        self.runs: tuple[str, ...] = ()
        """Ids, the oldest first."""
        self.taken_up: dict[str, int] = {}
        """The numbers of the last events before the state that was loaded."""
        self.seen: dict[str, int] = {}
        """The highest known event numbers of the earlier runs."""
        self._since = math.inf
        self._find: Callable[[], Mapping[str, int]] | None = None

    def resume_from(
        self,
        runs: tuple[str, ...],
        taken_up: Mapping[str, int],
        seen: Mapping[str, int],
        find: Callable[[], Mapping[str, int]] | None = None,
    ) -> None:
        """Continue after these runs and event numbers.

        ``find`` returns further events that had occurred; the I/O thread calls it before it reads new values.
        """
        self._since = monotonic()
        self.runs, self.taken_up = runs[-MAX_EARLIER_RUNS:], dict(taken_up)
        self.learn(seen)
        self._find = find

    def learn(self, seen: Mapping[str, int]) -> None:
        """Record further events that had occurred, by their newest numbers."""
        self.seen |= {name: max(number, self.seen.get(name, 0)) for name, number in seen.items()}

    def flagged(self, on: str, columns: Batch, flags: bytearray) -> bytearray:
        """Return the flags of values, marking those whose event is repeated."""
        if self._find is not None:
            self._look()
        seen = self.seen.get(on, 0)
        if not seen or columns.times[-1] < self._since or min(columns.events) > seen:
            return flags
        flags = flags or bytearray(len(columns.events))
        for i, (event, time) in enumerate(zip(columns.events, columns.times, strict=True)):
            if event <= seen and time >= self._since:
                flags[i] |= REPEATED
        return flags

    def describe(self) -> ResumeFacts:
        """Return the history as facts of the run; none if it resumes nothing."""
        if self._find is not None:
            self._look()
        if not self.taken_up:
            return {}
        again = {n: (self.taken_up[n] + 1, seen) for n, seen in self.seen.items() if seen > self.taken_up.get(n, seen)}
        return {
            "lineage": list(self.runs),
            "resumed_from": self.runs[-1] if self.runs else None,
            "resumed_at": self.taken_up,
            "rewound": again,
        }

    def _look(self) -> None:
        find, self._find = self._find, None
        if find is not None:
            self.learn(find())


def seen_by(file: str, sibling: Path | None) -> dict[str, int]:
    """Return the newest event numbers in an earlier run's file.

    It may have moved next to ``sibling``.
    """
    for path in (Path(file), *([sibling.parent / Path(file).name] if sibling else ())):
        if path == sibling or not path.is_file():
            continue
        try:
            from looptap.store.reader import open as open_stored  # which a job that resumes nothing does not need

            with open_stored(path) as run:
                return run.events()
        except StoreError:
            continue
    return {}
