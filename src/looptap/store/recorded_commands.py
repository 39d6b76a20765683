"""The recorded commands of a run, which can be saved as YAML and replayed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from looptap.protocol.files import command_file
from looptap.store.queue import QueuedCommand


class RecordedCommands(list[QueuedCommand]):
    """The commands of a stored run in order, each a `QueuedCommand`."""

    run: str = ""

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the commands as YAML for ``looptap replay`` and ``Agent(replay=…)``."""
        return command_file.save_commands(path, self.entries(), self.run)

    def entries(self) -> list[dict[str, Any]]:
        """Return each command as a dict, with the keys of `looptap.Run.commands`."""
        return [_entry(command) for command in self]


def _entry(command: QueuedCommand) -> dict[str, Any]:
    what, _, name = command.what.partition(" ")
    outcome, _, error = command.outcome.partition(": ")
    entry = {**command._asdict(), "what": what, "name": name, "outcome": outcome, "error": error, "time": command.wall}
    asked = entry.pop("asked")
    if isinstance(asked, dict):
        entry |= asked
    elif what == "set":  # an older file, without the requested value
        entry["value"] = command.new
    return entry
