"""Waiting for a condition, never for a time."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import psutil
from slowness import SLOWNESS

T = TypeVar("T")

LIMIT_SECONDS = 300.0
"""Until a test gives up on a condition: long, since a machine may be busy many times over."""


def soon(condition: Callable[[], T], seconds: float = LIMIT_SECONDS, *, detail: str | Callable[[], object] = "") -> T:
    """Wait until a condition is true; return its value, or fail with ``detail``.

    The seconds are those of a quiet machine.
    """
    seconds *= SLOWNESS
    begun = time.monotonic()
    while not (found := condition()):
        waited = time.monotonic() - begun
        assert waited < seconds, f"it did not happen within {seconds:g} s: {detail() if callable(detail) else detail}"
        time.sleep(min(0.002 + waited / 100, 0.05))
    return found


def freeze(pid: int) -> None:
    """Stop a process and wait until none of its threads runs."""
    os.kill(pid, signal.SIGSTOP)
    soon(lambda: _frozen(pid), detail="the process stops")


def _frozen(pid: int) -> bool:
    tasks = list(Path(f"/proc/{pid}/task").glob("*/stat"))  # "1234 (name) T ...", and a name may have brackets
    if tasks:
        return all(task.read_text().rpartition(")")[2].split()[0] == "T" for task in tasks)
    return psutil.Process(pid).status() == psutil.STATUS_STOPPED
