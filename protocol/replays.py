"""The commands of a run as a file that can be read, edited, compared, and done again in another run.

It is YAML, of the kind that is JSON too: a list with an entry on each line, so that it needs no parser but Python's.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from looptap.streams.errors import ControlError

REPLAYED = ("set", "trigger", "checkpoint", "stop", "call")
"""What is done again. A pause changes nothing but the time."""
_FIELDS = ("event", "number", "what", "name", "value", "schedule", "checkpoint", "old", "new", "outcome", "client",
           "time", "error")  # fmt: skip
_HEAD = "# Commands of {run}: looptap replay FILE COMMAND..., or looptap.Agent(..., replay=FILE)\n"
_EXPONENT = re.compile(r'("(?:[^"\\]|\\.)*")|(?<![\d.])(-?\d+)(e[-+]\d+)')


def text_of(records: Iterable[Mapping[str, Any]], run: str) -> str:
    """The file's text: what was done, and what failed or was refused, for the record.

    >>> print(text_of([{"event": "batch", "number": 3, "what": "set", "name": "lr", "value": 1e-05}], "a"), end="")
    # Commands of a: looptap replay FILE COMMAND..., or looptap.Agent(..., replay=FILE)
    - {"event": "batch", "number": 3, "what": "set", "name": "lr", "value": 1.0e-05}
    """
    lines = []
    for record in records:
        entry = {name: record[name] for name in _FIELDS if record.get(name) not in (None, "", False)}
        line = json.dumps(entry, ensure_ascii=True, default=lambda value: f"{value!r:.200}")
        lines.append("- " + _EXPONENT.sub(lambda m: m[1] or f"{m[2]}.0{m[3]}", line) + "\n")  # 1e-05 is text in YAML
    return _HEAD.format(run=" ".join(run.split())) + "".join(lines)


def save(path: str | os.PathLike[str], records: Iterable[Mapping[str, Any]], run: str) -> Path:
    """Write the commands of a run to ``path``, which is replaced as a whole."""
    target = Path(path)
    beside = target.with_name(f"{target.name}.{os.getpid()}.part")
    beside.write_text(text_of(records, run))
    return beside.replace(target)


def load(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """What is to be done again, in its order. Raises ControlError for a file that holds anything else."""
    try:
        lines = Path(path).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ControlError(f"the commands in {path} cannot be read: {error}") from None
    entries = [
        _entry(line.strip(), f"{path}, line {number}")
        for number, line in enumerate(lines, 1)
        if line.strip() and not line.lstrip().startswith("#")
    ]
    return [entry for entry in entries if entry["what"] in REPLAYED and entry.get("outcome", "done") == "done"]


def _entry(line: str, where: str) -> dict[str, Any]:
    try:
        entry = json.loads(line.removeprefix("- "))
    except (ValueError, RecursionError) as error:
        raise ControlError(f'{where}: {error}. A line is one command: - {{"event": "batch", "number": 3, …}}') from None
    kinds = {"event": str, "number": int, "what": str, "name": str, "schedule": str, "checkpoint": bool}
    done = isinstance(entry, dict) and entry.get("outcome", "done") == "done"
    needed = {"event", "number", "what"} if done else {"what"}
    if not isinstance(entry, dict) or not needed <= entry.keys():
        raise ControlError(f"{where}: a command has an event, a number and what was done, not {line!r:.80}.")
    for name, kind in kinds.items():
        if name in entry and type(entry[name]) is not kind:
            raise ControlError(f"{where}: {name} is {entry[name]!r:.80}.")
    value = entry.get("value")
    if entry["what"] == "call" and done and not isinstance(value, str):
        raise ControlError(
            f"{where}: this function was called by value and its text is not known; take the line away, or give its "
            "text as value."
        )
    if isinstance(value, float) and math.isnan(value):
        raise ControlError(f"{where}: the value is not a number.")
    return entry
