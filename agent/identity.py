"""What a run says of itself: its id, where it is, which rank."""

from __future__ import annotations

import os
import platform
import secrets
import socket
import sys
import time
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
