"""The identity of a run, and its settings, command line, code and machine."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView
from typing import Annotated, Any

import msgspec

from looptap.protocol.replies import MAX_ENTRIES, ByName, Reply

BEING_READ = "being read"
"""The note on a diff that is not there yet."""
_Texts = Annotated[tuple[str, ...], msgspec.Meta(max_length=MAX_ENTRIES)]


class RunInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """Identity of one rank of a run.

    The ranks of one job have the same ``job`` from their launcher; no two jobs that run at the same time share it.
    ``attempt`` counts the launcher's restarts, on this host.
    """

    id: str
    name: str
    host: str
    pid: int
    started: float
    rank: int = 0
    ranks: int = 1
    python: tuple[int, int] = (0, 0)
    looptap: str = ""
    job: str = ""
    attempt: int = 0


class RunConfig(Reply, frozen=True, kw_only=True):
    """The settings of a run by name, as a mapping, and where they come from.

    Nested settings have dots in their names: ``config["optimizer.lr"]``. The settings are those of
    ``looptap.Agent(config=…)``; what a viewer is not shown, and what is unknown, is empty.

    >>> config = RunConfig(settings={"lr": 0.1, "model.width": 64})
    >>> config["model.width"], dict(config)
    (64, {'lr': 0.1, 'model.width': 64})
    """

    settings: ByName[Any] = msgspec.field(default_factory=dict)
    note: str = ""
    """What of the settings is left out, and why."""
    command: _Texts = ()
    """The command line, the interpreter first."""
    directory: str = ""
    commit: str = ""
    """The commit that is checked out around the working directory, or the script's."""
    diff: str = ""
    """The changes of tracked files that are not committed, as of the start."""
    diff_note: str = ""
    """Why the diff is empty or incomplete, if it is."""
    environment: ByName[str] = msgspec.field(default_factory=dict)
    """The environment variables of a fixed list of names."""
    versions: ByName[str] = msgspec.field(default_factory=dict)
    """The versions of Python, looptap and libraries."""
    host: str = ""
    devices: _Texts = ()
    """The names of the accelerators."""

    def __getitem__(self, name: str) -> Any:
        return self.settings[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.settings)

    def __len__(self) -> int:
        return len(self.settings)

    def __contains__(self, name: object) -> bool:
        return name in self.settings

    def keys(self) -> KeysView[str]:
        """Return the names of the settings."""
        return self.settings.keys()

    def values(self) -> ValuesView[Any]:
        """Return the values of the settings."""
        return self.settings.values()

    def items(self) -> ItemsView[str, Any]:
        """Return the settings with their names."""
        return self.settings.items()

    def get(self, name: str, default: Any = None) -> Any:
        """Return a setting, or ``default`` if there is none of that name."""
        return self.settings.get(name, default)

    @property
    def dirty(self) -> bool:
        """True if tracked files had changes that were not committed."""
        return bool(self.diff)

    def facts(self) -> dict[str, str]:
        """Return what is known besides the settings, each as a line.

        >>> RunConfig(command=("python", "train.py", "--lr", "0.1"), commit="abc").facts()
        {'command': 'python train.py --lr 0.1', 'commit': 'abc'}
        """
        changed = f" with changes of {self.diff.count(chr(10)):,} lines" if self.diff else ""
        note = f" ({self.diff_note})" if self.diff_note else ""
        found = {
            "command": " ".join(self.command),
            "directory": self.directory,
            "commit": f"{self.commit}{changed}{note}" if self.commit else "",
            "versions": ", ".join(f"{name} {version}" for name, version in self.versions.items()),
            "host": self.host,
            "devices": ", ".join(self.devices),
            "environment": " ".join(f"{name}={value}" for name, value in self.environment.items()),
            "settings left out": self.note,
        }
        return {name: text for name, text in found.items() if text}

    def shared(self) -> RunConfig:
        """Return what viewers may see, once an operator has shared the config.

        The command line, the directory, the diff and the environment stay hidden.
        """
        return RunConfig(
            settings=self.settings, note=self.note, commit=self.commit, versions=self.versions, devices=self.devices
        )


Mapping.register(RunConfig)
