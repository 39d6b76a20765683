"""The changes of a git repository that are not committed, read in bounded time."""

from __future__ import annotations

import os
import re
import selectors
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import subprocess

MAX_DIFF_BYTES = 131_072
"""Bytes of a diff that are kept."""
DIFF_TIMEOUT_SECONDS = 10.0
"""Seconds after which git is given up."""
_REAP_TIMEOUT_SECONDS = 5.0
_CALM = {
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_PAGER": "cat",
    "LC_ALL": "C",
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_NO_LAZY_FETCH": "1",
}
_QUIET = ("core.fsmonitor=false", f"core.hooksPath={os.devnull}", "diff.autoRefreshIndex=false")
"""Settings without which git would run a monitor or a hook, or write its index."""
_FILTER = re.compile(r"(?s)(filter\..*)\.(?:clean|process|smudge|required)")  # a program that git runs on changed files
_NO_FILTER = ("process=", "clean=", "smudge=", "required=false")
_NOTHING_FOUND = "git ended with 1"


class Diff(NamedTuple):
    """The text of a diff, and why it is empty or incomplete."""

    text: str = ""
    note: str = ""


def uncommitted(folder: Path) -> Diff:
    """Return the changes of tracked files around ``folder``. Raises nothing.

    It starts git, which runs no hook, filter or program of the repository's own choice, and takes no lock.
    """
    asked = _ask(folder, "config", "-z", "--name-only", "--get-regexp", r"^filter\.")
    if asked.note not in ("", _NOTHING_FOUND):
        return Diff(note=asked.note)
    names = {found[1] for one in asked.text.split("\0") if (found := _FILTER.fullmatch(one))}
    if any(character in name for name in names for character in "=\ufffd"):
        return Diff(note="a filter of git has a name that cannot be switched off")
    settings = [*_QUIET, *(f"{name}.{end}" for name in sorted(names) for end in _NO_FILTER)]
    return _ask(
        folder,
        *(word for setting in settings for word in ("-c", setting)),
        "diff",
        "HEAD",
        "--no-ext-diff",
        "--no-textconv",
        "--no-color",
        "--ignore-submodules=dirty",
        "--submodule=short",
    )


def _ask(folder: Path, *words: str) -> Diff:
    """Return the output of git, and why it is incomplete. Raises nothing."""
    import subprocess  # on the thread that reads the settings, if there are any

    try:
        with subprocess.Popen(
            ["git", "-C", str(folder), *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, **_CALM},
        ) as git:
            try:
                return _read(git)
            finally:
                with suppress(OSError):
                    git.kill()
                with suppress(subprocess.TimeoutExpired):
                    git.wait(_REAP_TIMEOUT_SECONDS)
    except Exception as error:  # git is missing, or the machine allows no process
        return Diff(note=f"git cannot be asked: {type(error).__name__}")


def _read(git: subprocess.Popen[bytes]) -> Diff:
    """Read up to the bound, until the end or the deadline."""
    assert git.stdout is not None
    found, deadline = b"", time.monotonic() + DIFF_TIMEOUT_SECONDS
    with selectors.DefaultSelector() as selector:
        selector.register(git.stdout, selectors.EVENT_READ)
        while len(found) <= MAX_DIFF_BYTES:
            if not selector.select(max(0.0, deadline - time.monotonic())):
                return Diff(_decoded(found), f"git took longer than {DIFF_TIMEOUT_SECONDS:g} s")
            if not (read := os.read(git.stdout.fileno(), 65_536)):
                break
            found += read
    if len(found) > MAX_DIFF_BYTES:
        return Diff(_decoded(found), f"the first {MAX_DIFF_BYTES:,} bytes")
    failed = git.wait(_REAP_TIMEOUT_SECONDS)
    return Diff(_decoded(found), f"git ended with {failed}" if failed else "")


def _decoded(found: bytes) -> str:
    return found[:MAX_DIFF_BYTES].decode(errors="replace")
