"""`looptap stacks`: where the threads of a job are, even while its loop hangs."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from typer import Option

from looptap.cli.formats import printable, several
from looptap.cli.options import Ranks, RunName, Timeout, TimeSpan, only_with, parsed_ranks
from looptap.cli.output import DONE, complain, say, say_json
from looptap.client.attach import attach
from looptap.client.rank_numbers import numbered
from looptap.client.ranks.stack_groups import difference
from looptap.client.run import Run
from looptap.protocol.statistics import StackReport
from looptap.streams.durations import duration
from looptap.streams.errors import LooptapError


def stacks_command(
    run: RunName,
    ranks: Ranks = None,
    short: Annotated[
        bool, Option("--short", help="With --ranks, print only where the ranks differ, and no stacks.")
    ] = False,
    timeout: Timeout = TimeSpan(5),
    as_json: Annotated[
        bool, Option("--json", help="Print one JSON object with threads and events, with --ranks one for each rank.")
    ] = False,
) -> int:
    """Show where every thread of a run is, even while it hangs.

    It also says how long ago the last events of each type were.

    \b
      looptap stacks digits-cnn
      looptap stacks digits-cnn --ranks all

    With --ranks it begins with the difference: which ranks stand at which line, the collective of torch.distributed
    that each waits in, for whom, and which rank is behind.

    The answer comes from a thread of its own inside the job. A call in C that keeps Python's lock, or a stopped
    process, cannot answer. Threads of looptap itself are left out; --json has them.
    """
    only_with("--ranks", ranks is not None, short=short)
    which = parsed_ranks(ranks)
    with attach(run) as job:
        if which is None:
            answer = job.stack_report(timeout)
            if as_json:
                return say_json(msgspec.to_builtins(answer))
            _show(answer, run)
            return DONE
        found = job.ranks.each(lambda rank: _asked(rank, timeout), which, timeout)
    answers = {rank: ("", one) if isinstance(one, LooptapError) else one for rank, one in found.items()}
    silent = {rank: str(one) for rank, (_, one) in answers.items() if isinstance(one, LooptapError)}
    if as_json:
        say_json({rank: _plain(one) for rank, (_, one) in answers.items()})
        wrong = "; ".join(f"rank {rank}: {error}" for rank, error in silent.items())
    else:
        reports = {rank: one for rank, (_, one) in answers.items() if isinstance(one, StackReport)}
        places = {rank: place for rank, (place, _) in answers.items() if place}
        print(*map(printable, difference(reports, silent, places)), sep="\n")
        for rank, report in {} if short else reports.items():
            say(f"\nrank {rank}, {places[rank]}")
            _show(report, run)
        wrong = f"{numbered(silent)} did not answer"  # the text above has the reasons
    return complain(wrong) if silent else DONE


def _asked(rank: Run, timeout: float) -> tuple[str, StackReport | LooptapError]:
    """Return where a rank runs, and its stacks or why they have not come."""
    place = f"process {rank.info.pid} on {rank.info.host}"
    try:
        return place, rank.stack_report(timeout)
    except LooptapError as error:
        return place, error


def _plain(answer: StackReport | LooptapError) -> Any:
    return {"problem": str(answer)} if isinstance(answer, LooptapError) else msgspec.to_builtins(answer)


def _show(report: StackReport, name: str) -> None:
    for event, seen in report.events.items():
        say(f"{several(seen.count, f'{event} event')}, the last {duration(seen.idle)} ago")
    if not report.events:
        print(f"no event in the {duration(report.age)} since it started")
    for one in report.inside:
        print(f"the loop waits for {printable(one.text)}")
    if report.paused:
        say(f"paused for {report.paused:.1f} s; looptap resume {name} ends that")
    jobs = [thread for thread in report.threads if not thread.thread.startswith("looptap-")]
    for thread in jobs or report.threads:
        say(f"\n{thread.thread}{' (daemon)' * thread.daemon}:\n{thread.stack.rstrip()}")
