"""The environment of a run as stored in its file: machine, versions, git commit."""

from __future__ import annotations

import contextlib
import re
import sys
from pathlib import Path
from typing import Any

from looptap.protocol.file_names import as_text
from looptap.protocol.files.regular_files import read_regular
from looptap.protocol.process.identity import Process

_MAX_REFERENCES_BYTES = 16_777_216  # bytes of git's list of references


def about() -> dict[str, Any]:
    """Return facts about this process: host, pid, folder, versions, git commit."""
    from importlib import metadata  # which takes as long to load as all of zmq

    process = Process.this()
    facts: dict[str, Any] = {
        "host": process.host,
        "pid": process.pid,
        "python": ".".join(map(str, sys.version_info[:3])),
        "process": (process.host, process.machine, process.boot, process.namespace, process.pid, process.start),
        "program": process.program,
    }
    for name in ("looptap", *sorted({"torch", "numpy"} & sys.modules.keys())):
        with contextlib.suppress(metadata.PackageNotFoundError):
            facts[name] = metadata.version(name)
    with contextlib.suppress(FileNotFoundError):  # a working directory that is gone
        facts["directory"] = as_text(str(Path.cwd()))
        if commit := git_commit(Path.cwd()):
            facts["commit"] = commit
    return facts


def git_commit(folder: Path) -> str:
    """Return the checked-out commit around ``folder``; empty if there is none."""
    for place in (folder, *folder.parents):
        try:
            return _head(place / ".git")
        except FileNotFoundError:
            continue
        except (OSError, ValueError):
            return ""
    return ""


def _head(git: Path) -> str:
    if git.is_file():  # a worktree or a submodule
        git = git.parent / _text(git).partition("gitdir:")[2].strip()
    head = _text(git / "HEAD")
    if not head.startswith("ref:"):
        return _commit(head)
    name = head.removeprefix("ref:").strip()
    common = git / "commondir"
    shared = git / _text(common) if common.exists() else git
    if (shared / name).exists():
        return _commit(_text(shared / name))
    with contextlib.suppress(FileNotFoundError):
        lines = _text(shared / "packed-refs").splitlines()
        return _commit(next((line.split()[0] for line in lines if line.endswith(f" {name}")), ""))
    return ""


def _text(path: Path) -> str:
    """Read a file of a git repository; does not block on a fifo."""
    return read_regular(path, _MAX_REFERENCES_BYTES).decode().strip()


def _commit(text: str) -> str:
    return text if re.fullmatch("[0-9a-f]{40,64}", text) else ""
