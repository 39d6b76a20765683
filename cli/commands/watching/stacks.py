"""`looptap stacks`: where the threads of a job are, even while its loop hangs."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from typer import Option

from looptap.cli.formats import json_of, printable
from looptap.cli.options import Ranks, RunName, ranks_of
from looptap.cli.output import DONE, complain
from looptap.client.attach import attach
from looptap.protocol.statistics import StackReport
from looptap.streams.durations import duration
from looptap.streams.errors import LooptapError


def main(
    run: RunName,
    ranks: Ranks = None,
    timeout: Annotated[float, Option(metavar="S", help="Seconds to wait for the answer.")] = 5.0,
    as_json: Annotated[
        bool, Option("--json", help="Print an object with threads and events, with --ranks one for each rank.")
    ] = False,
) -> int:
    """Show where every thread of a run is, even while it hangs.

    It also says how long ago the last events of each type were.

    \b
      looptap stacks digits-cnn
      looptap stacks digits-cnn --ranks all

    The answer comes from a thread of its own inside the job. A call in C that keeps Python's lock, or a stopped
    process, cannot answer.
    """
    which = ranks_of(ranks)
    with attach(run) as job:
        if which is None:
            answer = job.stack_report(timeout)
            print(json_of(msgspec.to_builtins(answer))) if as_json else _show(answer, run)
            return DONE
        answers = job.ranks.each(lambda rank: rank.stack_report(timeout), which, timeout)
    if as_json:
        print(json_of({rank: _plain(answer) for rank, answer in answers.items()}))
    silent = {rank: answer for rank, answer in answers.items() if isinstance(answer, LooptapError)}
    for rank, found in answers.items():
        if not (as_json or isinstance(found, LooptapError)):
            print(f"{'' if rank == min(answers) else chr(10)}rank {rank}")
            _show(found, run)
    return complain("; ".join(f"rank {rank}: {error}" for rank, error in silent.items())) if silent else DONE


def _plain(answer: StackReport | LooptapError) -> Any:
    return {"problem": str(answer)} if isinstance(answer, LooptapError) else msgspec.to_builtins(answer)


def _show(report: StackReport, name: str) -> None:
    for event, seen in report.events.items():
        print(f"{event}: {seen.count:,} events, none for {seen.idle:.1f} s")
    if not report.events:
        print(f"no event in the {duration(report.age)} since it started")
    for one in report.inside:
        print(f"the loop waits for {printable(one.text)}")
    if report.paused:
        print(f"paused for {report.paused:.1f} s; looptap resume {name} ends that")
    for thread in report.threads:
        print(f"\n{thread.thread}{' (daemon)' if thread.daemon else ''}:\n{thread.stack.rstrip()}")
