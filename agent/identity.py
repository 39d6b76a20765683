"""What a run says of itself: its id, where it is, which rank."""

from __future__ import annotations

import os
import platform
import secrets
import socket
import sys
import time
from collections.abc import Collection
from importlib.metadata import PackageNotFoundError, version

from looptap.protocol.messages import RunInfo


def run_info(name: str) -> RunInfo:
    """The facts of a run that begins now, with an id that no other has."""
    started = time.time()
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(started))
    return RunInfo(
        id=f"{name}-{stamp}-{secrets.token_hex(3)}",
        name=name,
        host=socket.gethostname() or platform.node(),
        pid=os.getpid(),
        started=started,
        rank=_environment_int("RANK", 0),
        ranks=_environment_int("WORLD_SIZE", 1),
        python=sys.version_info[:2],
        looptap=_version(),
    )


def _environment_int(name: str, default: int) -> int:
    try:
        return int(os.environ.get(name, default))
    except ValueError:
        return default


def _version() -> str:
    try:
        return version("looptap")
    except PackageNotFoundError:
        return ""


def checked_name(name: str) -> str:
    """The name of a run. Raises ValueError for one that cannot be."""
    if not isinstance(name, str) or not 0 < len(name) <= 100 or not name.isprintable() or "/" in name:
        raise ValueError(f"a run's name is 1 to 100 printable characters without '/', not {name!r}.")
    return name


def checked_groups(groups: Collection[str]) -> tuple[str, ...]:
    """The types of events whose groups nest. Raises ValueError for what are no names."""
    names = tuple(groups) if not isinstance(groups, str) else ()
    if not all(isinstance(g, str) for g in names) or len(set(names)) != len(names) or isinstance(groups, str):
        raise ValueError(f"groups={groups!r}: they are different names of events, the innermost first.")
    return names
