"""`looptap profile`: a trace of a few steps by torch's profiler."""

from __future__ import annotations

from pathlib import Path

from looptap.cli.commands.control.give_command import give
from looptap.cli.options import At, JobFile, JsonObject, Rank, RunName, Timeout, TimeSpan, TracedSteps
from looptap.client.control.controls import Outcome
from looptap.client.run import Run


def profile_command(
    run: RunName,
    steps: TracedSteps = 5,
    out: JobFile = None,
    on: At = "",
    rank: Rank = None,
    timeout: Timeout = TimeSpan(300),
    as_json: JsonObject = False,
) -> int:
    """Trace some steps of a run with torch's profiler, for Perfetto.

    \b
      looptap profile digits-cnn --steps 5

    Open the file at https://ui.perfetto.dev. The profiler runs from an event to the N-th after it, in the thread that
    raises them; steps take longer meanwhile, and results stay the same. The job writes the file by a thread of its own,
    by default RUN-profile.json.gz in the folder of this command; other names end in .json.gz, too. An existing file
    is not replaced, and a trace of more than 2 GiB is removed.
    """
    file = out or Path(f"{Path(run).name}-profile.json.gz")

    def trace(job: Run) -> Outcome:
        which = job.info.rank if rank is None else rank
        return job.profile(file, steps=steps, on=on, timeout=timeout, rank=which)

    return give(run, trace, as_json)
