"""The commands of a replay: from a YAML file, or from a stored run."""

from __future__ import annotations

import os
from typing import Any

from looptap.protocol.files import command_file
from looptap.store import reader
from looptap.store.errors import StoreError
from looptap.streams.errors import ControlError


def commands_to_replay(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Return the commands to repeat, in order. Raises ControlError for a bad file."""
    if not reader.is_stored(path):
        return command_file.load_commands(path)
    try:
        with reader.open(path) as run:
            entries = run.commands.entries()
    except StoreError as error:
        raise ControlError(str(error)) from None
    return command_file.checked_commands(entries, lambda place: f"{os.fspath(path)}, command {place + 1}")
