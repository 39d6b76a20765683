"""`looptap open`: the contents of a stored run."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
from rich.text import Text
from typer import Argument, Option

from looptap.cli.formats import config_lines, fields, printable, problems, scalar_lines, several, stated, value_text
from looptap.cli.options import STORED_HELP
from looptap.cli.output import DONE, console, fact_line, say_json
from looptap.protocol.errors import RUN_ENDED
from looptap.store.errors import StoreError
from looptap.store.exchange.tensorboard_run import event_files
from looptap.store.kept_scalars import SPEED
from looptap.store.layout.run_path import folder_of_runs, kept
from looptap.store.queue import QueuedCommand
from looptap.store.reader import open as open_stored
from looptap.store.run import StoredRun
from looptap.store.stream import StoredStream
from looptap.streams.durations import duration
from looptap.streams.stream.state_and_cost import LIVE
from looptap.streams.stream.stream import Stream
from looptap.streams.text import last_line

_INNER = {"process", "id", "name", "started", "ended", "farewell", "errors", "withheld", "scalars_left_out"}
_OF_CONFIG = {"config", "directory", "host", "commit", "looptap", "numpy", "python", "torch"}
_OF_RANKS = {"rank", "ranks", "attempt"}
_MAX_COMMANDS = 20  # commands that people are shown


def open_command(
    file: Annotated[str | None, Argument(metavar="FILE", help=f"{STORED_HELP} By default, the runs here.")] = None,
    as_json: Annotated[
        bool, Option("--json", help="Print one JSON object with facts, streams and commands; without FILE all runs.")
    ] = False,
) -> int:
    """Show what a stored run holds.

    These are its facts, its streams, and the commands that clients gave.

    \b
      looptap open
      looptap open digits-cnn
      looptap open looptap-runs/digits-cnn-20260102-030405-1a2b.looptap
      looptap open tensorboard-logs/

    Of a folder, the runs that are stored in it are listed, the newest first; without FILE those of looptap-runs, or of
    where LOOPTAP_STORE says.
    A run that is still writing, or was killed, opens too. In Python, looptap.open(FILE) gives its streams.
    """
    folder = folder_of_runs() if file is None else Path(file).expanduser()
    if file is None or (folder.is_dir() and not event_files(folder)):
        return _list(folder, as_json)
    with open_stored(file) as run:
        if as_json:
            return say_json(_report(run))
        lines = console()
        for line in _lines(run):
            lines.print(line)
    return DONE


def _list(folder: Path, as_json: bool) -> int:
    found = [_summary(file) for file in kept(folder=folder)]
    if as_json:
        return say_json(found)
    lines = console()
    if not found:
        lines.print(
            f"No run is stored in {folder}. A run is stored once it keeps a stream (agent.stream(..., keep=True), or "
            "looptap keep RUN QUERY) or is given a command; LOOPTAP_STORE names another folder."
        )
    for run in found:
        lines.print(_listed_line(run))
    return DONE


def _listed_line(run: dict[str, Any]) -> Text:
    """Return one line about a stored run."""
    if "problem" in run:
        return Text.assemble(("unusable file", "red"), f"  {printable(run['problem'])}")
    when = "" if run["started"] is None else f"started {duration(time.time() - run['started'])} ago, "
    names = [*run["streams"], *stated((several(run["scalars"], "scalar"), run["scalars"]))]
    about = f"  {when}{several(run['commands'], 'command')}; {', '.join(names) or 'no stream'}"
    state, style = _state(run["state"], run["reason"]), "bold green" if run["state"] == LIVE else "dim"
    return Text.assemble(run["path"], "  ", (printable(state), style), printable(about))


def _state(state: str, reason: str) -> str:
    return f"{state}: {reason}" if reason not in ("", RUN_ENDED) else state


def _own(run: StoredRun) -> dict[str, Any]:
    return {"path": str(run.path), **fields(run, "id", "name", "state", "reason", "started", "ended", "until")}


def _summary(file: Path) -> dict[str, Any]:
    """Return one stored run as plain data."""
    try:
        with open_stored(file) as run:
            streams, scalars = [stream.name for stream in run.streams], len({*run.scalar_names} - {SPEED})
            return {**_own(run), "streams": streams, "commands": len(run.commands), "scalars": scalars}
    except StoreError as error:
        return {"path": str(file), "problem": str(error)}


def _report(run: StoredRun) -> dict[str, Any]:
    facts = {name: fact for name, fact in run.metadata.items() if name not in ("process", "errors", "withheld")}
    scalars = [msgspec.to_builtins(one) for one in run.scalars]
    commands = [command._asdict() for command in run.commands]
    streams = [_stream_of(stream) for stream in run.streams]
    return {**_own(run), "facts": facts, "streams": streams, "scalars": scalars, "commands": commands}


def _stream_of(stream: StoredStream) -> dict[str, Any]:
    asked = {"name": stream.name, "query": stream.text, **fields(stream, "on", "window", "fields", "unit")}
    wrong = {"errors": stream.error_count, "error": stream.traceback, "missing": stream.dropped}
    return {**asked, "values": stream.arrived, **wrong, **fields(stream, "withheld", "latest", "notes")}


def failures(stream: Stream) -> str:
    """Return how often the query of a stream failed, and how; "" if it did not."""
    if not stream.error_count:
        return ""
    count = several(stream.error_count, "error")
    if stream.notes:  # errors ended it; the note has the first
        return f"{count}; it was ended by {stream.notes[0]}"
    return f"{count}, the first: {last_line(stream.traceback)}"


def _lines(run: StoredRun) -> Iterator[Text]:
    """Yield a paragraph about the run, and a line for each stream and command."""
    state = _state(run.state, run.reason)
    yield Text.assemble((printable(run.name), "bold"), "  ", (printable(state), "bold green" if run.alive else "dim"))
    yield from (fact_line(name, text) for name, text in _facts(run))


def _facts(run: StoredRun) -> Iterator[tuple[str, str | Text]]:
    """Yield the titles and texts about a run."""
    yield "id", run.id
    if run.started is not None:
        yield "started", f"{_at(run.started)}{_lasted(run.started, run.ended, run.until)}"
    yield from config_lines(run.config)
    hidden = _INNER | _OF_CONFIG | (_OF_RANKS if run.metadata.get("ranks") == 1 else set())
    yield from ((name, value_text(one, 200)) for name, one in run.metadata.items() if name not in hidden and one != "")
    yield from (("stream", _stream_line(stream)) for stream in run.streams)
    yield from (("scalars", line) for line in scalar_lines(run.scalars))
    commands = run.commands
    yield from (("command", _command_line(command)) for command in commands[-_MAX_COMMANDS:])
    if len(commands) > _MAX_COMMANDS:
        yield "", f"and {len(commands) - _MAX_COMMANDS:,} earlier commands; --json has them all"


def _lasted(started: float, ended: float | None, until: float | None) -> str:
    """Return how long a run took, and how that is known."""
    if until is None:
        return ""
    killed = "" if ended is not None else f", until the newest thing stored at {_at(until)}"  # nothing else says when
    return f", for {duration(max(0.0, until - started))}{killed}"


def _stream_line(stream: StoredStream) -> Text:
    latest, missing = f"the last {value_text(stream.latest, 80)}", f"{stream.dropped:,} missing"
    facts = [
        several(stream.arrived, "value"),
        *stated((latest, stream.arrived), (missing, stream.dropped)),
        *problems(stream.withheld),
        *stated((failures(stream), stream.error_count)),
    ]
    query = f" = {stream.text}" if stream.text not in ("", stream.name) else ""
    on = f" on {stream.on}" if stream.on else ""
    return Text.assemble((printable(stream.name), "cyan"), printable(f"{query}{on}: {', '.join(facts)}"))


def _command_line(command: QueuedCommand) -> str:
    old, new = (value_text(value, 60) for value in (command.old, command.new))
    change = "" if command.new is None else f" {new}" if command.old is None else f" from {old} to {new}"
    where = f" at {command.event} {command.number:,}" if command.number else ""  # a refused command has no event
    return f"{command.what}{change}, by {command.client}{where}: {command.outcome}"


def _at(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
