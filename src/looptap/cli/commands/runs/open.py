"""`looptap open`: the contents of a stored run."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
from rich.text import Text
from typer import Argument, Option

from looptap.cli.formats import config_lines, json_of, printable, scalar_lines, several, text_of
from looptap.cli.options import STORED_HELP
from looptap.cli.output import DONE, console
from looptap.protocol.errors import RUN_ENDED
from looptap.store.errors import StoreError
from looptap.store.exchange.tensorboard_run import event_files
from looptap.store.kept_scalars import SPEED
from looptap.store.layout.run_path import folder_of_runs, kept
from looptap.store.reader import open as open_stored
from looptap.store.run import StoredRun
from looptap.store.stream import StoredStream
from looptap.streams.durations import duration
from looptap.streams.stream.state_and_cost import LIVE
from looptap.streams.stream.stream import Stream

_INNER = {"process", "id", "name", "started", "ended", "farewell", "errors", "withheld", "scalars_left_out"}
_OF_CONFIG = {"config", "directory", "host", "commit", "looptap", "numpy", "python", "torch"}
_OF_RANKS = {"rank", "ranks", "attempt"}
_MAX_COMMANDS = 20  # commands that people are shown


def main(
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
            print(json_of(_report(run)))
            return DONE
        lines = console()
        for line in _lines(run):
            lines.print(line)
    return DONE


def _list(folder: Path, as_json: bool) -> int:
    found = [_summary(file) for file in kept(folder=folder)]
    if as_json:
        print(json_of(found))
        return DONE
    lines = console()
    if not found:
        lines.print(
            f"No run is stored in {folder}. A run is stored once it keeps a stream (agent.stream(..., keep=True), or "
            "looptap keep RUN QUERY) or is given a command; LOOPTAP_STORE names another folder."
        )
    for run in found:
        if "problem" in run:
            lines.print(Text.assemble(("unusable file", "red"), f"  {printable(run['problem'])}"))
            continue
        when = "" if run["started"] is None else f"started {duration(time.time() - run['started'])} ago, "
        names = [*run["streams"], *(several(run["scalars"], "scalar") for _ in "1" if run["scalars"])]
        about = f"  {when}{several(run['commands'], 'command')}; {', '.join(names) or 'no stream'}"
        state = _state(run["state"], run["reason"])
        style = "bold green" if run["state"] == LIVE else "dim"
        lines.print(Text.assemble(run["path"], "  ", (printable(state), style), printable(about)))
    return DONE


def _state(state: str, reason: str) -> str:
    return f"{state}: {reason}" if reason not in ("", RUN_ENDED) else state


def _summary(file: Path) -> dict[str, Any]:
    """Return one line about a stored run."""
    try:
        with open_stored(file) as run:
            return {
                "path": str(file), "id": run.id, "name": run.name, "state": run.state, "reason": run.reason,
                "started": run.started, "ended": run.ended, "until": run.until,
                "streams": [stream.name for stream in run.streams],
                "commands": len(run.commands), "scalars": len({*run.scalar_names} - {SPEED}),
            }  # fmt: skip
    except StoreError as error:
        return {"path": str(file), "problem": str(error)}


def _report(run: StoredRun) -> dict[str, Any]:
    facts = {name: fact for name, fact in run.metadata.items() if name not in ("process", "errors", "withheld")}
    return {
        "path": str(run.path), "id": run.id, "name": run.name, "state": run.state, "reason": run.reason,
        "started": run.started, "ended": run.ended, "until": run.until, "facts": facts,
        "streams": [_described(stream) for stream in run.streams],
        "scalars": [msgspec.to_builtins(one) for one in run.scalars],
        "commands": [command._asdict() for command in run.commands],
    }  # fmt: skip


def _described(stream: StoredStream) -> dict[str, Any]:
    return {
        "name": stream.name, "query": stream.text, "on": stream.on, "window": stream.window, "fields": stream.fields,
        "unit": stream.unit, "values": stream.arrived, "errors": stream.error_count, "error": stream.traceback,
        "missing": stream.dropped, "withheld": stream.withheld, "latest": stream.latest, "notes": stream.notes,
    }  # fmt: skip


def failures(stream: Stream) -> str:
    """Return how often the query of a stream failed, and how; "" if it did not."""
    if not stream.error_count:
        return ""
    if stream.notes:  # errors ended it; the note has the first
        return f"{several(stream.error_count, 'error')}; it was ended by {stream.notes[0]}"
    return f"{several(stream.error_count, 'error')}, the first: {(stream.traceback.strip().splitlines() or [''])[-1]}"


def _lines(run: StoredRun) -> Iterator[Text]:
    """Yield a paragraph about the run, and a line for each stream and command."""
    state = _state(run.state, run.reason)
    yield Text.assemble((printable(run.name), "bold"), "  ", (printable(state), "bold green" if run.alive else "dim"))
    yield _fact("id", run.id)
    if run.started is not None:
        until = run.until
        took = "" if until is None else f", for {duration(max(0.0, until - run.started))}"
        if until is not None and run.ended is None:  # nothing says when it was killed
            took += f", until the newest thing stored at {_at(until)}"
        yield _fact("started", f"{_at(run.started)}{took}")
    for name, text in config_lines(run.config):
        yield _fact(name, text)
    hidden = _INNER | _OF_CONFIG | (_OF_RANKS if run.metadata.get("ranks") == 1 else set())
    for name, fact in run.metadata.items():
        if name not in hidden and fact != "":
            yield _fact(name, text_of(fact, 200))
    for stream in run.streams:
        facts = [several(stream.arrived, "value")]
        if stream.arrived:
            facts.append(f"the last {text_of(stream.latest, 80)}")
        if stream.dropped:
            facts.append(f"{stream.dropped:,} missing")
        if stream.withheld:
            facts.append(f"{several(stream.withheld, 'event')} withheld by the budget")
        if failed := failures(stream):
            facts.append(failed)
        query = f" = {stream.text}" if stream.text not in ("", stream.name) else ""
        on = f" on {stream.on}" if stream.on else ""
        about = printable(f"{query}{on}: {', '.join(facts)}")
        yield _fact("stream", Text.assemble((printable(stream.name), "cyan"), about))
    for line in scalar_lines(run.scalars):
        yield _fact("scalars", line)
    commands = run.commands
    for command in commands[-_MAX_COMMANDS:]:
        old, new = (text_of(value, 60) for value in (command.old, command.new))
        change = "" if command.new is None else f" {new}" if command.old is None else f" from {old} to {new}"
        where = f" at {command.event} {command.number:,}" if command.number else ""  # a refused command has no event
        yield _fact("command", f"{command.what}{change}, by {command.client}{where}: {command.outcome}")
    if len(commands) > _MAX_COMMANDS:
        yield _fact("", f"and {len(commands) - _MAX_COMMANDS:,} earlier commands; --json has them all")


def _at(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _fact(name: str, text: str | Text) -> Text:
    return Text.assemble((f"  {printable(name):<9} ", "dim"), printable(text) if isinstance(text, str) else text)
