"""`looptap stacks`: where the threads of a job are, asked while its loop may hang."""

from __future__ import annotations

from typing import Any

import msgspec

from looptap.cli.formats import json_of, printable
from looptap.cli.output import DONE, complain
from looptap.client.attach import attach
from looptap.protocol.replies import StackReport
from looptap.streams.durations import duration
from looptap.streams.errors import LooptapError


def stacks(name: str, ranks: str | list[int] | None = None, *, timeout: float, as_json: bool) -> int:
    """Print the stacks of the run ``name``, of ``ranks`` if there are any to name; returns the exit code."""
    with attach(name) as run:
        if ranks is None:
            answer = run.stack_report(timeout)
            print(json_of(msgspec.to_builtins(answer))) if as_json else _show(answer, name)
            return DONE
        answers = run.ranks.each(lambda rank: rank.stack_report(timeout), ranks, timeout)
    if as_json:
        print(json_of({rank: _plain(answer) for rank, answer in answers.items()}))
    silent = {rank: answer for rank, answer in answers.items() if isinstance(answer, LooptapError)}
    for rank, found in answers.items():
        if not (as_json or isinstance(found, LooptapError)):
            print(f"{'' if rank == min(answers) else chr(10)}rank {rank}")
            _show(found, name)
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
