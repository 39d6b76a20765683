"""Pauses: the training thread waits inside `emit`, for a bounded time."""

from __future__ import annotations

import contextlib
import time
from _queue import Empty, SimpleQueue  # those of queue may be gevent's, which wait for no other thread

from looptap.agent.control.process_group import ProcessGroup
from looptap.streams.durations import duration
from looptap.streams.errors import ControlError
from looptap.streams.waiting import INTERRUPT_CHECK_SECONDS

MAX_SHARE_OF_COLLECTIVE_TIMEOUT = 4
"""On several ranks a pause takes at most one part in this many of the collective timeout."""


class Pause:
    """The state of a pause, and its ``bound`` in seconds (None: not allowed)."""

    def __init__(self) -> None:
        self.bound: float | None = None
        self.total = 0.0
        """Seconds of all pauses that have ended."""
        self.resumes = 0
        self._began = self._ends = 0.0
        # Not a Condition: the locks of those stay taken when Ctrl-C comes at the wrong moment.
        self._resumed: SimpleQueue[None] = SimpleQueue()

    def seconds(self) -> float:
        """Return for how many seconds the loop has paused; 0 if it does not."""
        began = self._began
        return time.monotonic() - began if began else 0.0

    def left(self) -> float:
        """Return the seconds until it resumes by itself."""
        return max(0.0, self._ends - time.monotonic()) if self._began else 0.0

    def most(self, world: ProcessGroup | None) -> float | None:
        """Return the longest allowed pause in seconds; None if there is none.

        On several ranks it is far shorter than their timeout.
        """
        return (
            self.bound
            if self.bound is None or world is None
            else min(self.bound, world.timeout / MAX_SHARE_OF_COLLECTIVE_TIMEOUT)
        )

    def allowed(self, seconds: float | None, world: ProcessGroup | None = None, ranks: int = 0) -> float:
        """Return the duration of a pause in seconds, by default the longest allowed.

        Raises ControlError, also for a pause of some of the ranks, and while the loop is paused.
        """
        if self.seconds():
            left = duration(self.left())
            raise ControlError(f"the loop is paused already, for another {left}; run.resume() ends that.")
        most = self.most(world)
        if most is None:
            raise ControlError(
                "this job does not allow pauses; to allow them, create it with looptap.Agent(..., may_pause=300.0), or "
                "start a script that has no agent with looptap run --may-pause 5m."
            )
        if world is not None and ranks != world.size:
            raise ControlError(
                f"a pause of {ranks or 1} of {world.size} ranks would make the others wait in their next collective, "
                "until that fails: pause all of them, with ranks='all'."
            )
        if seconds is None:
            return most
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= most:
            why = (
                "may_pause"
                if most == self.bound
                else f"a {MAX_SHARE_OF_COLLECTIVE_TIMEOUT}th of the process group's timeout"
            )
            asked = duration(seconds) if type(seconds) in (int, float) and seconds > 0 else f"{seconds!r:.80} s"
            most_text = f"more than 0 s, and up to {duration(most)}"
            raise ControlError(f"a pause of {asked}: this job allows {most_text} ({why}).")
        return float(seconds)

    def resume(self) -> float:
        """End the pause, or cancel one that has not begun; return its seconds."""
        lasted, self._began = self.seconds(), 0.0  # a heartbeat from here on says so, if the loop wakes later
        self.resumes += 1
        self._resumed.put(None)
        return lasted

    def wait(self, seconds: float, resumes: int) -> float:
        """Wait for ``seconds`` or until resumed; return how long that took.

        ``resumes`` is how often it had been resumed before.
        """
        began = time.monotonic()
        try:
            self._began, self._ends = began, began + seconds
            while self.resumes == resumes and (left := self._ends - time.monotonic()) > 0:
                with contextlib.suppress(Empty):
                    self._resumed.get(timeout=min(left, INTERRUPT_CHECK_SECONDS))
        finally:
            self._began = 0.0
            lasted = time.monotonic() - began
            self.total += lasted
        return lasted
