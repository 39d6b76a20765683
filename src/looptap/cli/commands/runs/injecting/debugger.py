"""Has a process run a line of Python at its next chance, through gdb.

gdb stops the process, writes the line into a page of its own there, and calls `Py_AddPendingCall`, which only notes
it: the main thread runs the line between two instructions of its own, once it is free. Nothing is allocated in the
stopped process, so that no lock of the allocator is waited for. The main thread makes the call: before Python 3.13 one
from another thread is noted, and not looked at. It takes a lock that the main thread holds for the moment in which it
takes a pending call out, and no longer.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from looptap.cli.commands.runs.injecting.target import InjectError, Target, why_not_traced

GDB_TIMEOUT_SECONDS = 60.0
"""Seconds for gdb to attach, call and detach; it takes one or two."""
PAGE_BYTES = 8_192
"""The page of the process in which the line stands."""

_SCRIPT = """\
set pagination off
set confirm off
set print thread-events off
handle all nostop noprint pass
sharedlibrary libpython
sharedlibrary libc[.-]
set $page = ((void *(*)(void *, unsigned long, int, int, int, long)) mmap)(0, {size}, 3, 0x22, -1, 0)
restore {line} binary $page
printf "noted %d\\n", ((int (*)(void *, void *)) Py_AddPendingCall)((void *) PyRun_SimpleString, $page)
detach
quit
"""


def run_by_gdb(process: Target, line: bytes, folder: Path) -> None:
    """Have ``process`` run ``line``, a Python statement. Raises InjectError.

    ``folder`` is a private one for the files of gdb.
    """
    gdb = shutil.which("gdb")
    if gdb is None:
        raise InjectError("gdb is needed to inject into a Python before 3.14, and is not installed: apt install gdb.")
    if len(line) >= PAGE_BYTES:
        raise InjectError(f"the line to run has {len(line):,} bytes, and {PAGE_BYTES - 1:,} fit.")
    text, script = folder / "line", folder / "gdb"
    text.write_bytes(line + b"\0")
    script.write_text(_SCRIPT.format(size=PAGE_BYTES, line=text))
    quiet = ["-n", "-q", "-batch", "-iex", "set auto-solib-add off", "-iex", "set debuginfod enabled off"]
    command = [gdb, *quiet, "-p", str(process.pid), "-x", str(script)]
    try:
        # A gdb that is killed may leave the process stopped in the middle of a call: it gets its time.
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=GDB_TIMEOUT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise InjectError(
            f"gdb did not end within {GDB_TIMEOUT_SECONDS:.0f} s; look whether process {process.pid} still runs."
        ) from None
    if "noted 0" in done.stdout:
        return
    said = [one for one in f"{done.stdout}\n{done.stderr}".splitlines() if one.strip()]
    known = "ptrace", "not permitted", "No symbol", "extended state"
    reason = next((one for one in said if any(word in one for word in known)), "")
    if "extended state" in reason:
        reason += " This gdb does not know the registers of this processor; a newer one does."
    raise InjectError(
        f"gdb could not reach the Python of process {process.pid}: {reason or ' '.join(said[-2:])[:300]} "
        f"{why_not_traced()}".strip()
    )
