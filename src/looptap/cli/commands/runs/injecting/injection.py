"""Starts looptap in another process and waits for what it says."""

from __future__ import annotations

import json
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from looptap.cli.commands.runs.injecting.debugger import run_by_gdb
from looptap.cli.commands.runs.injecting.target import InjectError, Target, target

ANSWER_TIMEOUT_SECONDS = 60.0
"""Seconds for the main thread to come back to Python and import looptap."""
LOOK_SECONDS = 0.05
REMOTE_EXEC_MIN_VERSION = 3, 14
"""The first Python that can run a file in another process by itself: `sys.remote_exec`."""

_CODE = """
def begin(answer, name, place, version):
    import json, os, sys
    said = {}
    try:
        try:
            import looptap
        except ImportError:
            if sys.version_info[:2] != tuple(version):
                raise
            sys.path.append(place)
            import looptap
        if hasattr(looptap, "auto"):
            looptap.auto(name)
        else:  # an older one, which knows no scripts as they are
            sys._looptap_injected = looptap.Agent(name or f"pid-{os.getpid()}")
        said["looptap"] = looptap.__version__
    except KeyboardInterrupt:  # it is the job's
        import _thread
        said["error"] = "Ctrl-C came meanwhile"
        _thread.interrupt_main()
    except BaseException as error:
        said["error"] = f"{type(error).__name__}: {error}"
    try:
        with open(answer + ".part", "w") as file:
            json.dump(said, file)
        os.replace(answer + ".part", answer)
    except OSError:
        pass  # who has asked waits no longer
"""


class Injected(NamedTuple):
    """How an injection went."""

    version: str
    """Of looptap, in the process."""
    method: str
    """gdb, or sys.remote_exec."""
    seconds: float
    """From the first step to the answer."""


def inject(process: Target, name: str | None = None, timeout: float = ANSWER_TIMEOUT_SECONDS) -> Injected:
    """Do what `looptap.auto` does in ``process``. Raises InjectError.

    Its main thread imports looptap; if that is not installed for its Python, and this command's is of the same
    version, it is taken from here.
    """
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="looptap-inject-") as made:  # 0700
        folder = Path(made)
        answer, file = folder / "answer", folder / "begin.py"
        given = str(answer), name, sysconfig.get_paths()["purelib"], sys.version_info[:2]
        call = f"exec(compile({_CODE!r}, '<looptap inject>', 'exec'), (names := {{}})) or names['begin'](*{given!r})"
        # In a scope of its own, since a job's __main__ gets no name; and an error would be raised in the job.
        line = f"try:\n    (lambda: [{call}])()\nexcept BaseException:\n    pass\n"
        if process.python >= REMOTE_EXEC_MIN_VERSION and process.python == sys.version_info[:2]:
            method = "sys.remote_exec"
            file.write_text(line)
            sys.remote_exec(process.pid, str(file))  # type: ignore[attr-defined, unused-ignore] # since Python 3.14
        else:
            method = "gdb"
            run_by_gdb(process, line.encode(), folder)
        said = _answer(answer, process, timeout)
    if "error" in said:
        raise InjectError(f"process {process.pid} could not start looptap: {said['error']}")
    return Injected(str(said.get("looptap", "")), method, time.monotonic() - begun)


def _answer(answer: Path, process: Target, timeout: float) -> dict[str, str]:
    deadline = time.monotonic() + timeout
    while not answer.exists():
        target(process.pid)  # raises if it has ended
        if time.monotonic() > deadline:
            raise InjectError(
                f"the main thread of process {process.pid} has not come back to Python within {timeout:.0f} s: it runs "
                "a long call in C, or waits. It will start looptap then; looptap ls shows whether it has."
            )
        time.sleep(LOOK_SECONDS)
    found: dict[str, str] = json.loads(answer.read_text())
    return found
