"""Controls and recorded commands of a run, as its client sees them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import msgspec

from looptap.client.rank_numbers import numbered
from looptap.protocol.files import command_file
from looptap.protocol.replies import UNSAFE, CommandRecord, ControlInfo, ControlReport
from looptap.streams.control import leap, no_control

__all__ = [
    "CHANGES",
    "CommandRecord",
    "ControlInfo",
    "ControlReport",
    "Controls",
    "Outcome",
    "Records",
    "command_name",
    "line_of_command",
    "question_before",
    "with_value",
]


CHANGES = ("set", "undo")
"""The commands that change a control."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a command: where it ran, and what it changed, ``old`` → ``new``."""

    id: str
    """What `Run.outcome` takes."""
    what: str
    """The kind of command, such as set, trigger or stop."""
    name: str = ""
    """The control or trigger."""
    outcome: str = ""
    """"done"; of commands that did not run: "refused", "failed", "cancelled", "pending", "in doubt"; of an unsafe query
    "running", then "ended", with the reason as ``error``."""
    event: str = ""
    """The type of the event at which it ran."""
    number: int = 0
    """The number of that event."""
    time: float = 0.0
    """The time in seconds since the epoch, by the host's clock."""
    old: Any = None
    new: Any = None
    version: int | None = None
    """The version of the control after the change."""
    result: Any = None
    """The result of a host function; of a pause its seconds."""
    saved: Any = None
    """The result of the checkpoint before the change."""

    error: str = ""
    """The reason of a failure, where that is returned and not raised (`looptap.Run.cancel`)."""
    note: str = ""
    """A remark, such as that the loop has never checked for a requested stop."""
    warning: str = ""
    """What was done and may be a slip, such as a change by a factor of 10,000, or did not last as the job itself has
    set another value since (`Run.outcome` returns what is known by then); "" otherwise."""
    stood: int | None = None
    """Events after a change at which the control was read and still had the new value, of the first 20 or so. None: it
    is not read again, as a schedule drives it, or it is no change of a control."""
    waited: float = 0.0
    """Seconds that the loop waited at the event for the other ranks."""
    ranks: dict[int, Outcome] = field(default_factory=dict)
    """The outcome on each rank of a command for several; this one is the lowest rank's."""

    def __str__(self) -> str:
        what = f"{self.what} {self.name}".strip()
        if self.outcome not in ("done", ""):
            return f"{what}: {self.outcome}{f', {self.error:.200}' if self.error else ''}"
        further = (
            (", at {}", self.event and f"{self.event} {self.number:,}"),
            (", on {}", self.ranks and numbered(self.ranks)),
            (": {:.200}", self.note),
            ("; {:.200}", self.warning),
        )
        return self._result(what) + "".join(form.format(text) for form, text in further if text)

    def _result(self, what: str) -> str:
        """Return what was done, such as ``set lr``, with what came of it."""
        change = f": {self.old!r:.60} → {self.new!r:.60}" if self.what in CHANGES else ""
        match self.what, self.result:
            case "pause" | "resume", float(seconds):
                return f"{what}: {seconds:.1f} s" if seconds else f"{what}: the loop was not paused"
            case "profile", str(file):  # the name is that of the file, too
                return f"{self.what} written to {file}"
            case _, None:
                return f"{what}{change}"
            case _, result:
                return f"{what}{change}: {result!r:.80}"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # what a notebook shows of it
        printer.text(str(self))

    @classmethod
    def of(cls, record: CommandRecord) -> Outcome:
        """Return the outcome of a command on one rank."""
        return cls(**{name: getattr(record, name) for name in _OF_RECORD})

    @classmethod
    def of_ranks(cls, records: Mapping[int, CommandRecord]) -> Outcome:
        """Return the outcome of a command on several ranks."""
        found = {rank: cls.of(one) for rank, one in sorted(records.items())}
        warning = next((one.warning for one in found.values() if one.warning), "")
        return replace(next(iter(found.values())), warning=warning, ranks=found)


_OF_RECORD = [one.name for one in fields(Outcome) if one.name != "ranks"]
"""The fields of an outcome that a record has, too."""


class Controls(Mapping[str, ControlInfo]):
    """The controls of the run ``run`` by name, requested at each access.

    The client remembers what it read: `Run.set` is refused if another client has changed the control since.
    """

    def __init__(self, report: Callable[[str], ControlReport], run: str) -> None:
        self._report, self.run = report, run
        self.seen: dict[str, int] = {}
        """The last version of each control that was read."""

    def report(self, path: str = "") -> ControlReport:
        """Ask the agent what can be set and done; also about the attribute at ``path``."""
        return self._report(path)

    def find(self, name: str) -> ControlInfo | None:
        """Return a control, or the attribute of an exposed object at the path ``name``.

        It does not count as seen.
        """
        return next((info for info in self.report(name).controls if info.name == name), None)

    def look(self, name: str | None = None, report: ControlReport | None = None) -> dict[str, ControlInfo]:
        """Return the present controls, or those in ``report``.

        Those returned (``name``: that one) count as seen.
        """
        found = {info.name: info for info in (report or self.report()).controls}
        self.seen |= {n: info.version for n, info in found.items() if name in (None, n)}
        return found

    def __getitem__(self, name: str) -> ControlInfo:
        found = self.look(name)
        if name not in found:
            raise KeyError(no_control(name, found))
        return found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.look(""))

    def __len__(self) -> int:
        return len(self.look(""))

    def _ipython_key_completions_(self) -> list[str]:
        return list(self)

    def __repr__(self) -> str:
        return "\n".join(map(str, self.look().values())) or "<no controls>"


def with_value(info: ControlInfo, value: Any) -> ControlInfo:
    """Return what is known of a control after it was set to ``value``."""
    return msgspec.structs.replace(info, value=value)


def question_before(info: ControlInfo | None, value: Any, of: str = "") -> str:
    """Return the question to ask before a large change of a control, ``of`` a run.

    It is empty for a smaller change, and for a value that the control refuses anyway.

    >>> question_before(ControlInfo(name="lr", value=0.1), 1000.0)
    'lr: 0.1 → 1000.0 is a change by a factor of 10,000. Set it?'
    >>> question_before(ControlInfo(name="lr", value=0.1, maximum=1.0), 1000.0)
    ''
    """
    far = leap(info.value, value) if info is not None else ""
    if info is None or not far:
        return ""
    low, high = info.minimum, info.maximum
    outside = (low is not None and value < low) or (high is not None and value > high)
    if outside or (info.choices and value not in info.choices):
        return ""
    return f"{info.name}{of and f' of {of}'}: {info.value!r:.60} → {value!r:.60} is a change {far}. Set it?"


class Records(list[dict[str, Any]]):
    """The commands of a run in order of arrival, each a dict (a table for pandas)."""

    run: str = ""

    @classmethod
    def of(cls, records: Iterable[CommandRecord], run: str) -> Records:
        """Return the ``records`` of the run with the id ``run``."""
        found = cls(map(msgspec.structs.asdict, records))
        found.run = run
        return found

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write them to ``path`` as YAML for ``looptap replay`` and ``Agent(replay=…)``.

        Args:
            path: The file.
        """
        return command_file.save_commands(path, self, self.run)

    def __repr__(self) -> str:
        return "\n".join(map(line_of_command, self)) or "<no commands>"


def command_name(what: str, name: str) -> str:
    """Return what to call a command where there is little room.

    >>> command_name("set", "lr"), command_name("stop", ""), command_name("unsafe", "step + 1")
    ('lr', 'stop', 'unsafe step + 1')
    """
    return f"{what} {name}" if what == UNSAFE else name or what


def line_of_command(record: Mapping[str, Any]) -> str:
    """Format a command on one line.

    >>> change = {"what": "set", "name": "lr", "old": 0.1, "new": 0.2, "event": "batch", "number": 7, "outcome": "done"}
    >>> line_of_command(change)
    'batch 7  set lr 0.1 → 0.2  done'
    >>> line_of_command({"what": "stop", "event": "batch", "number": 9, "outcome": "done", "note": "the job continues"})
    'batch 9  stop  done  the job continues'
    """
    get = record.get
    what = f"{get('what', '')} {get('name', '')}".strip()
    if get("what") in CHANGES:
        done = get("outcome") == "done"
        what += f" {get('old')!r:.40} → {get('new')!r:.40}" if done else f" {get('value')!r:.40}"
    where = f"{get('event')} {get('number')}" if get("event") else "–"
    said = (str(get(name) or "") for name in ("outcome", "note", "error", "client", "warning"))
    facts = [where, what, *said]
    if get("outcome") == "pending":
        facts.append(f"id {get('id', '')}")
    return "  ".join(filter(None, facts))
