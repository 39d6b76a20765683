"""The newest change of a control, which an undo takes back, and its ranks."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Any, NamedTuple

from looptap.client.control.controls import CHANGES
from looptap.client.rank_numbers import numbered
from looptap.client.ranks.ranks import ALL, Ranks, split_replies
from looptap.client.session.run_handle import RunHandle
from looptap.client.session.session import Session
from looptap.client.transport.timeouts import REPLY_SECONDS
from looptap.protocol import messages as m
from looptap.protocol.errors import NoSuchRun
from looptap.protocol.replies import CommandRecord
from looptap.streams.errors import ControlError

_DONE = "done"
_HOST = "the host"  # restores the controls of a resumed run, which is no change of a client


class NewestChange(NamedTuple):
    """A change of a control by a command, and the ranks that made it."""

    record: CommandRecord
    ranks: str | tuple[int, ...] = ALL

    def __str__(self) -> str:
        old, new = self.record.old, self.record.new
        return f"{self.record.name}: {old!r:.60} → {new!r:.60} by {self.record.client or 'a client'}"


def newest_change_in(records: Iterable[CommandRecord], name: str = "") -> CommandRecord | None:
    """Return the newest change of a control, or of ``name``; None without one."""
    changes = [
        one
        for one in records
        if one.what in CHANGES and one.outcome == _DONE and one.client != _HOST and name in ("", one.name)
    ]
    return max(changes, key=lambda one: one.time, default=None)


def newest_change(session: Session, ranks: Ranks[Any], name: str) -> NewestChange:
    """Return the newest change of a run, over all ranks.

    Raises ControlError if there is none, NoSuchRun if a rank that made it cannot be reached.
    """
    size = session.info.ranks
    found, unreached = split_replies(ranks.each(_commands_of, ALL if size > 1 else 0))
    newest = newest_change_in(chain.from_iterable(found.values()), name)
    if newest is None:
        what = f"{name!r} in this run" if name else "a control of this run"
        raise next(iter(unreached.values()), ControlError(f"no command has changed {what}: nothing to undo."))
    done = newest.id, _DONE
    made = tuple(rank for rank, records in found.items() if any((one.id, one.outcome) == done for one in records))
    if len(made) == size:
        return NewestChange(newest)
    if len(made) < max(1, newest.agreed) and len(found) < size:
        raise NoSuchRun(
            f"{numbered(set(range(size)) - set(found))} of {session.info.id} cannot be reached, and this change was "
            f"made on {newest.agreed} ranks: nothing is undone, since that is done on all of them or on none."
        )
    return NewestChange(newest, made)


def _commands_of(run: RunHandle) -> list[CommandRecord]:
    return run.session.inquire(m.GetCommands, "The question for the commands", REPLY_SECONDS)
