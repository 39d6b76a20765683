"""Starts a script in a plain interpreter that has looptap in it: `looptap run`.

The process becomes the one of the script (exec): its id, its arguments, its signals and its exit code are those of
``python train.py``. Only the environment differs, and what it makes Python load: see `site.sitecustomize`.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

NAME_VARIABLE = "LOOPTAP_AUTO"
"""1, or the name of the run."""
PAUSE_VARIABLE = "LOOPTAP_MAY_PAUSE"
"""For how many seconds at most clients may pause the job."""


def launch(job: Sequence[str], *, module: bool = False, name: str | None = None, may_pause: float | None = None) -> int:
    """Become the process of ``job``: a script, module or program with arguments.

    Does not return, but where processes cannot be exchanged (Windows); then it returns the exit code.
    """
    command = command_that_runs(job, module)
    environment = environment_of(os.environ, name, may_pause)
    sys.stdout.flush()
    sys.stderr.flush()
    if os.name == "nt":
        return subprocess.call(command, env=environment)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Python only notes a Ctrl-C, and the note would be lost
    os.execvpe(command[0], command, environment)


def command_that_runs(job: Sequence[str], module: bool = False) -> list[str]:
    """Return the command that runs a job, with the flags of this interpreter.

    >>> command_that_runs(["train.py", "--lr", "1"])[-3:]
    ['train.py', '--lr', '1']
    """
    python = [sys.executable, *flags_of(sys.orig_argv, sys.argv)]
    if module:
        return [*python, "-m", *job]
    is_program = shutil.which(job[0]) and not job[0].endswith((".py", ".pyc", ".pyw"))
    return [*job] if is_program else [*python, *job]  # such as torchrun, whose workers inherit the environment


def flags_of(original: Sequence[str], seen: Sequence[str]) -> list[str]:
    """Return the options that the interpreter was started with.

    >>> flags_of(["python", "-u", "-Om", "looptap", "run", "a.py"], ["looptap/__main__.py", "run", "a.py"])
    ['-u', '-O']
    >>> flags_of(["python", "-X", "dev", "/bin/looptap", "run", "a.py"], ["/bin/looptap", "run", "a.py"])
    ['-X', 'dev']
    """
    count = len(original) - len(seen) + 1  # what stands before the arguments that this program sees
    if count < 1 or list(original[count:]) != list(seen[1:]):
        return subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined, no-any-return]  # as multiprocessing
    head = list(original[1:count])
    if "-c" in head:
        return head[: head.index("-c")]
    if head and re.fullmatch(r"looptap(\.cli)?(\.__main__)?", head[-1]) and len(head) > 1:
        head.pop()
        letters = head.pop().removesuffix("m")
        return [*head, letters] if letters != "-" else head
    return head[:-1]


def environment_of(environment: Mapping[str, str], name: str | None, may_pause: float | None = None) -> dict[str, str]:
    """Return the environment in which Python starts looptap, also in child processes."""
    site = str(Path(__file__).parent / "site")
    paths = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path and path != site]
    chosen = name or environment.get(NAME_VARIABLE) or "1"
    pause = {} if may_pause is None else {PAUSE_VARIABLE: str(float(may_pause))}
    return {**environment, **pause, "PYTHONPATH": os.pathsep.join([site, *paths]), NAME_VARIABLE: chosen}
