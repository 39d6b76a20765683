"""`looptap inject`: start looptap in a process that runs without it."""

from __future__ import annotations

from typing import Annotated

from typer import Argument

from looptap.cli.commands.runs.injecting.injection import ANSWER_TIMEOUT_SECONDS, inject
from looptap.cli.commands.runs.injecting.target import target
from looptap.cli.formats import printable
from looptap.cli.options import ScriptName, Timeout, TimeSpan, integer
from looptap.cli.output import DONE, complain, say
from looptap.cli.questions import Yes, refused
from looptap.client.attach import runs

WARNING = (
    "a debugger stops it for a second or two, writes into its memory and has its main thread import looptap. That can "
    "end a job, and cannot be undone"
)


def inject_command(
    pid: Annotated[
        int, Argument(metavar="PID", parser=integer(1), help="The process of the training loop, on this machine.")
    ],
    name: ScriptName = None,
    timeout: Timeout = TimeSpan(ANSWER_TIMEOUT_SECONDS),
    yes: Yes = False,
) -> int:
    """Start looptap in a running process that has none. Experimental.

    \b
      looptap inject 4711
      looptap watch train "step, loss" --on step

    From its next optimizer step on the process is a run like one that was started with looptap run.
    Only its own user may do that, on Linux. Python 3.14 and newer run the code by themselves
    (sys.remote_exec, untested); older ones need gdb, and the right to debug (kernel.yama.ptrace_scope 0, or root; in a
    container the capability SYS_PTRACE).

    gdb stops the process for a second or two, and has its main thread import looptap between two instructions. That can
    end a job: save a checkpoint first where you can.
    """
    process = target(pid)
    found = [one for one in runs() if one.alive and pid in {one.pid, *(rank.pid for rank in one.members.values())}]
    if found:
        return complain(f"process {pid} is the run {found[0].name!r} already.")
    question = f"Inject into process {pid} ({printable(process.command)[:100]})? {WARNING}."
    if (code := refused(question, yes)) is not None:
        return code
    done = inject(process, name, timeout)
    took = f"in {done.seconds:.1f} s, by {done.method}"
    say(f"looptap {done.version} is in process {pid} ({took}); its next optimizer step makes it a run: looptap ls.")
    return DONE
