"""`--id`: the outcome of a command that was given before. Nothing is done by it, whatever stands beside it."""

from __future__ import annotations

from typing import Any

from looptap.client.control.controls import Outcome, line_of
from looptap.client.run import Run
from looptap.streams.errors import ControlError


def earlier(run: Run, /, id: str, timeout: float, what: str, **asked: Any) -> Outcome:
    """What came of the command ``id``, which was ``what``, with the ``name`` and ``value`` that are ``asked`` for.

    Raises ControlError for an id that is unknown and for a command that was another one, and what the command raised.
    """
    record = _recorded(run, id)
    if record is None:
        raise ControlError(
            f"no command with the id {id!r:.80} is remembered, and nothing was done. Without --id it is a new command; "
            f"looptap commands {run.name} lists those that were given, with --json their ids."
        )
    if record.get("what") != what or any(record.get(name) != value for name, value in asked.items()):
        raise ControlError(
            f"the command {id:.80} was another one, and nothing was done: {line_of(record)}. Write that, to be told "
            "its outcome; without --id what you wrote is a new command."
        )
    return run.outcome(id, timeout=timeout)


def _recorded(run: Run, id: str) -> dict[str, Any] | None:
    """The record of a command, which may have been for one rank alone."""
    if run.info.ranks == 1:
        found = [run.commands]
    else:
        told = run.ranks.each(lambda rank: rank.commands)
        found = [records for records in told.values() if isinstance(records, list)]
    return next((one for records in found for one in records if one.get("id") == id), None)
