"""`looptap stacks`: where the threads of a job are, asked while its loop may hang."""

from __future__ import annotations

from typing import Any

from looptap.cli.formats import json_of, printable
from looptap.cli.output import DONE, complain
from looptap.client.attach import attach
from looptap.streams.durations import duration
from looptap.streams.errors import LooptapError


def stacks(name: str, ranks: str | list[int] | None = None, *, timeout: float, as_json: bool) -> int:
    """Print the stacks of the run ``name``, of ``ranks`` if there are any to name; returns the exit code."""
    with attach(name) as run:
        if ranks is None:
            answer = run.stacks(timeout)
            print(json_of(answer)) if as_json else _show(answer, name)
            return DONE
        answers = run.stacks(timeout, ranks=ranks)
    if as_json:
        print(json_of({r: {"problem": str(a)} if isinstance(a, LooptapError) else a for r, a in answers.items()}))
    silent = {rank: answer for rank, answer in answers.items() if isinstance(answer, LooptapError)}
    for rank, answer in answers.items():
        if not as_json and rank not in silent:
            print(f"{'' if rank == min(answers) else chr(10)}rank {rank}")
            _show(answer, name)
    return complain("; ".join(f"rank {rank}: {error}" for rank, error in silent.items())) if silent else DONE


def _show(answer: dict[str, Any], name: str) -> None:
    for event, seen in answer["events"].items():
        print(f"{event}: {seen['count']:,} events, none for {seen['idle']:.1f} s")
    if not answer["events"]:
        print(f"no event in the {duration(answer['age'])} since it started")
    for one in answer["inside"]:
        print(f"the loop waits for {printable(str(one['text']))}")
    if answer.get("paused"):
        print(f"paused for {answer['paused']:.1f} s; looptap resume {name} ends that")
    for thread in answer["threads"]:
        print(f"\n{thread['thread']}{' (daemon)' if thread['daemon'] else ''}:\n{thread['stack'].rstrip()}")
