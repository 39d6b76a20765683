"""`looptap memory`: which lines and tensors of a job hold memory."""

from __future__ import annotations

from typing import Annotated

import msgspec
from typer import Option

from looptap.cli.commands.control.give_command import for_run, interrupted
from looptap.cli.formats import printable, several, sized, stated
from looptap.cli.options import At, JobFile, Rank, RunName, Timeout, TimeSpan, TracedSteps, integer
from looptap.cli.output import DONE, FAILED, complain, say, say_json
from looptap.cli.shell_names import in_shell
from looptap.client.attach import attach
from looptap.client.control.pending import CommandPending
from looptap.protocol.errors import RemoteError
from looptap.protocol.statistics import LiveTensors, MemoryLine, MemoryReport
from looptap.streams.durations import short_time
from looptap.streams.errors import ControlError

TRACERS = {"cuda": "blocks of CUDA memory, allocated before or within", "python": "Python's memory, allocated within"}
"""What the lines are of, by the tracer."""


def memory_command(
    run: RunName,
    steps: TracedSteps = 5,
    out: JobFile = None,
    rows: Annotated[
        int, Option(metavar="N", parser=integer(1, 100), help="The most lines, and the most tensors.")
    ] = 15,
    on: At = "",
    rank: Rank = None,
    timeout: Timeout = TimeSpan(300),
    as_json: Annotated[bool, Option("--json", help="Print one JSON object, with up to 100 lines and tensors.")] = False,
) -> int:
    """Show which lines and which tensors of a run hold memory.

    \b
      looptap memory digits-cnn --steps 5

    Where the job uses CUDA, torch notes for N steps which line allocates each block; `-o FILE.pickle` is then for
    https://pytorch.org/memory_viz. Elsewhere it is Python's tracemalloc, which sees the memory of Python and numpy,
    and a line has what was allocated there within these steps and is still held at their end.

    Tensors are all that Python knows, named after what holds them: a parameter, an optimizer's state, a variable of the
    job, or a list in one, `history[…]`. What only torch holds, such as activations for the backward pass, is none of
    them.

    N steps before are only timed: the output says how long a step took with and without. The loop waits once, while the
    tensors are listed. Results stay the same. It ends by itself after 120 s, however slow the steps are.
    """
    try:
        with attach(run) as job:
            which = job.info.rank if rank is None else rank
            report = job.memory(out or "", steps=steps, on=on, timeout=timeout, rank=which)
    except KeyboardInterrupt as pressed:
        raise interrupted(pressed, run) from None
    except (RemoteError, ControlError, CommandPending) as error:
        text = for_run(in_shell(error), run)
        if as_json:
            say_json({"outcome": type(error).__name__, "error": text, "id": getattr(error, "id", None)})
            return FAILED
        return complain(text)
    if as_json:
        return say_json(msgspec.to_builtins(report))
    _show(report, rows)
    return DONE


def _show(report: MemoryReport, rows: int) -> None:
    facts = [f"the process has {sized(report.resident)} in memory"]
    for one in report.devices:
        allocated, reserved, peak = map(sized, (one.allocated, one.reserved, one.peak))
        facts.append(f"device {one.index}: {allocated} allocated, {reserved} reserved, {peak} at most")
    say("; ".join(facts))
    if report.kind:
        peak = f", {sized(report.peak)} at most" if report.peak else ""
        within = f"{several(report.steps, 'step')}, and held: {sized(report.held)}{peak}"
        _print_table(
            f"lines: {TRACERS.get(report.kind, printable(report.kind))} {within}",
            ["size", "blocks", "line"],
            [(sized(one.size), f"{one.count:,}", _line(one)) for one in report.lines[:rows]],
            len(report.lines) + report.lines_left_out,
        )
    parts = ", ".join(f"{sized(bytes)} on {printable(device)}" for device, bytes in sorted(report.tensor_bytes.items()))
    _print_table(
        f"tensors: {report.tensor_count:,} alive{': ' if parts else ''}{parts}",
        ["size", "tensors", "name"],
        [(sized(one.size), f"{one.count:,}", _tensor(one)) for one in report.tensors[:rows]],
        len(report.tensors) + report.tensors_left_out,
    )
    took, before = short_time(report.step_seconds), short_time(report.step_seconds_before)
    where = "https://pytorch.org/memory_viz" if report.kind == "cuda" else "tracemalloc.Snapshot.load"
    notes = [
        *stated(
            (f"a step took {took} while memory was traced, {before} before", report.steps),
            (f"the loop waited {short_time(report.stood)} once, while its tensors were listed", report.stood),
        ),
        *report.notes,
        *stated((f"{report.path}: {sized(report.file_bytes)}, for {where}", report.path)),
    ]
    print("", *map(printable, notes), sep="\n")


def _line(one: MemoryLine) -> str:
    place = f"{one.file}:{one.line}" if one.file else "allocated before the recording"
    return printable(f"{place}  {one.code}".rstrip())


def _tensor(one: LiveTensors) -> str:
    shape = f"{one.dtype}[{', '.join(map(str, one.shape))}]{'' if one.device == 'cpu' else f' on {one.device}'}"
    return printable(f"{one.name or '(no name)'}  {shape}")


def _print_table(title: str, heads: list[str], cells: list[tuple[str, str, str]], count: int) -> None:
    say(f"\n{title}")
    rows = [tuple(heads), *cells] if cells else []
    firsts, seconds = (max((len(row[place]) for row in rows), default=0) for place in (0, 1))
    for first, second, third in rows:
        say(f"  {first:>{firsts}}  {second:>{seconds}}  {third}")
    if count > len(cells):
        print(f"  and {count - len(cells):,} more rows: --rows shows up to 100, --json 100 of each")
