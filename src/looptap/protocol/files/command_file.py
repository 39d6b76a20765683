"""Save the commands of a run as YAML that people edit and another run replays.

It is a list with an entry on each line.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from looptap.protocol.files.regular_files import open_for_writing
from looptap.streams.errors import ControlError

REPLAYED = ("set", "undo", "trigger", "checkpoint", "stop", "call")
"""Commands that a replay repeats. A pause changes only the timing."""
_FIELDS = (
    "event",
    "number",
    "what",
    "name",
    "value",
    "schedule",
    "checkpoint",
    "old",
    "new",
    "outcome",
    "client",
    "time",
    "error",
)
_PLACE = {"event", "number", "what"}
_VALUES = ("value", "old", "new")  # kept even if 0, False or ""
_HEAD = "# Commands of {run}: looptap replay FILE COMMAND..., or looptap.Agent(..., replay=FILE)\n"


def file_text(records: Iterable[Mapping[str, Any]], run: str) -> str:
    """Return the text of the file, failed and refused commands included.

    >>> print(file_text([{"event": "batch", "number": 3, "what": "set", "name": "lr", "value": 1e-05}], "a"), end="")
    # Commands of a: looptap replay FILE COMMAND..., or looptap.Agent(..., replay=FILE)
    - {event: batch, number: 3, what: set, name: lr, value: 1.0e-05}
    """
    from looptap.protocol.files.documents import entries

    listed = [{name: one[name] for name in _FIELDS if _says(name, one.get(name))} for one in records]
    return _HEAD.format(run=" ".join(run.split())) + entries(listed)


def _says(name: str, value: Any) -> bool:
    return value is not None and (name in _VALUES or bool(value))


def save_commands(path: str | os.PathLike[str], records: Iterable[Mapping[str, Any]], run: str) -> Path:
    """Write the commands of a run to ``path``, replacing it atomically."""
    target = Path(path)
    beside = target.with_name(f"{target.name}.{os.urandom(8).hex()}.part")
    try:
        with open_for_writing(beside, new=True) as file:
            file.write(file_text(records, run).encode())
        return beside.replace(target)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def load_commands(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Load the commands of a file in order. Raises ControlError for bad content."""
    from looptap.protocol.files.documents import Document

    document = Document(path, ControlError)
    found = [] if document.value is None else document.value
    if not isinstance(found, list):
        raise ControlError(f"{document.where()}: the commands are a list: - {{event: batch, number: 3, …}}")
    return checked_commands(found, document.where)


def checked_commands(entries: Iterable[Any], where: Callable[[int], str]) -> list[dict[str, Any]]:
    """Return the ``entries`` to replay; ``where`` locates each. Raises ControlError."""
    found = [_checked(entry, where(place)) for place, entry in enumerate(entries)]
    return [entry for entry in found if entry["what"] in REPLAYED and entry.get("outcome", "done") == "done"]


def _checked(entry: Any, where: str) -> dict[str, Any]:
    kinds = {"event": str, "number": int, "what": str, "name": str, "schedule": str, "checkpoint": bool}
    done = isinstance(entry, dict) and entry.get("outcome", "done") == "done"
    repeated = done and entry.get("what", "set") in REPLAYED  # a resume, for one, is not given at an event
    if not isinstance(entry, dict) or not (_PLACE if repeated else {"what"}) <= entry.keys():
        raise ControlError(f"{where}: a command has an event, a number and what was done, not {entry!r:.80}.")
    for name, kind in kinds.items():
        if name in entry and type(entry[name]) is not kind:
            raise ControlError(f"{where}: {name} is {entry[name]!r:.80}.")
    value = entry.get("value")
    if entry["what"] == "call" and done and not isinstance(value, str):
        raise ControlError(
            f"{where}: this function was sent without its source text; delete the line, or put its source "
            "text in value."
        )
    if isinstance(value, float) and math.isnan(value):
        raise ControlError(f"{where}: the value is not a number.")
    return entry
