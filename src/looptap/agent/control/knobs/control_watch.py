"""Watches whether a job keeps a value that a command has set.

A script that writes its own learning rate at each step, or after each epoch, undoes a change without an error. So
after a change the control is read again at a few events, and a value that no command has set becomes a warning in the
command's record. Nothing is read before a change, nor long after it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from looptap.agent.control.knobs.controls import BoundControls
from looptap.agent.loop.event_sources import EventCommand
from looptap.protocol.replies import CommandRecord
from looptap.streams.events import Event

WATCHED_EVENTS_COUNT = 20
"""Events after a change at which the control is read."""
WATCHED_GROUPS_COUNT = 2
"""Ends of groups after which it is read again: what follows an epoch may write it."""
_EVENTS_AFTER_GROUP_COUNT = 2


class WatchedChange(Protocol):
    """A command that has set a control."""

    record: CommandRecord

    def note(self, **changes: Any) -> None:
        """Replace the record by a copy with these changes."""


class ControlWatches:
    """The watches of a job, one for each control that commands have set. Loop thread.

    ``group`` is the type of events that ends groups of others, such as "epoch"; empty if there is none.
    """

    def __init__(self, at_next: Callable[[str, EventCommand], None], group: str) -> None:
        self._at_next, self._group = at_next, group
        self._watches: dict[str, _Watch] = {}

    def begin(self, change: WatchedChange, event: str, value: Any, controls: BoundControls) -> None:
        """Watch ``change``, made at an event of this type: the control is ``value`` now."""
        name = change.record.name
        if name not in self._watches:
            self._watches[name] = _Watch(self._at_next, self._group)
        self._watches[name].begin(change, event, value, controls)

    def after(self, command: object) -> None:
        """Note that a command has run: it may have changed any control itself."""
        for watch in self._watches.values():
            watch.after(command)


class _Watch:
    """The watch of one control: of its newest change."""

    def __init__(self, at_next: Callable[[str, EventCommand], None], group: str) -> None:
        self._at_next, self._group = at_next, group
        self._change: WatchedChange | None = None
        self._awaited: set[str] = set()  # the types of events at which `_look` is called

    def begin(self, change: WatchedChange, event: str, value: Any, controls: BoundControls) -> None:
        """Watch this change, in place of an earlier one."""
        self._change, self._event, self._value, self._controls = change, event, value, controls
        self._events_left, self._groups_left = WATCHED_EVENTS_COUNT, WATCHED_GROUPS_COUNT
        change.note(stood=0)
        self._await(event)

    def after(self, command: object) -> None:
        """End the watch if another command has changed the control."""
        change = self._change
        if change is None or change is command:
            return
        try:
            stands = self._controls.find(change.record.name).value() == self._value
        except Exception:  # as below
            stands = False
        if not stands:
            self._change = None

    def _await(self, event: str) -> None:
        if event not in self._awaited:
            self._awaited.add(event)
            self._at_next(event, self._look)

    def _look(self, event: Event) -> None:
        """Read the control, and wait for the next event if it is as it was set."""
        kind = event._source.name
        self._awaited.discard(kind)
        if self._change is None:
            return
        try:
            if kind != self._event:
                self._events_left = max(self._events_left, _EVENTS_AFTER_GROUP_COUNT)
                self._await(self._event)
            elif self._stands(self._change, event):
                self._wait(kind)
            else:
                self._change = None
        except Exception:  # the job exposes the object no longer, or cannot read it
            self._change = None

    def _wait(self, kind: str) -> None:
        self._events_left -= 1
        if self._events_left > 0:
            self._await(kind)
        elif self._groups_left > 0 and self._group not in ("", kind):
            self._groups_left -= 1
            self._await(self._group)
        else:
            self._change = None

    def _stands(self, change: WatchedChange, event: Event) -> bool:
        """Return True if the job has not changed it; note in the record if it has."""
        now = self._controls.find(change.record.name).value()
        if now == self._value:
            change.note(stood=(change.record.stood or 0) + 1)
            return True
        warnings = overwritten(now, event._source.name, event._number), change.record.warning
        change.note(warning="; ".join(filter(None, warnings)))
        return False


def overwritten(now: Any, event: str, number: int) -> str:
    """Return the warning for a change that the job's own code has undone.

    >>> overwritten(0.001, "batch", 13)
    "it did not last: the job's own code set it to 0.001 by batch 13, and may do so again"
    """
    return f"it did not last: the job's own code set it to {now!r:.40} by {event} {number:,}, and may do so again"
