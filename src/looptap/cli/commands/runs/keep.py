"""`looptap keep`: keeps a stream in the file of a run."""

from __future__ import annotations

from typing import Annotated

import msgspec
from typer import Argument, Option

from looptap.cli.formats import json_of
from looptap.cli.options import Every, JsonObject, On, RunName, StreamName, Unsafe, WindowSize, parsed_window
from looptap.cli.output import DONE, say
from looptap.cli.sources import warn_if_it_fails
from looptap.client.attach import attach


def keep_command(
    run: RunName,
    query: Annotated[str, Argument(metavar="QUERY", help="A query in quotes, or the name of a stream.")],
    on: On = None,
    window: WindowSize = None,
    every: Every = 1,
    unsafe: Unsafe = False,
    name: StreamName = "",
    end: Annotated[bool, Option("--end", help="Stop keeping the stream of this name.")] = False,
    as_json: JsonObject = False,
) -> int:
    """Keep a stream in the file of the run, even after you leave.

    The file gets everything that the query yields from now on.

    \b
      looptap keep digits-cnn "step, loss" --name curve
      looptap keep digits-cnn "layer_norms(model, 'grad')" --every 100 --name gradients
      looptap keep digits-cnn curve --end
      looptap open looptap-runs/digits-cnn-….looptap

    For a declared stream, the history is kept, too. looptap streams RUN shows what is kept.
    """
    with attach(run) as job:
        if end:
            found = job.keep(query, False)
        else:
            handed = job.stream(query, on=on, window=parsed_window(window), every=every, history=False, unsafe=unsafe)
            found = job.keep(handed, name=name)
            warn_if_it_fails(handed)
        recording = job.agent_stats().store
        file = "" if recording is None else recording.file
    if as_json:
        print(json_of({**msgspec.to_builtins(found), "file": file}))
    else:
        say(f"{found.name!r} {'is kept in' if found.kept else 'is no longer kept; what was kept is in'} {file}")
    return DONE
