"""`looptap ls`: the runs that announce themselves, and their state."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgspec
from rich.text import Text
from typer import Argument, Option

from looptap.cli.commands.watching.streams import stream_line
from looptap.cli.formats import config_lines, cost, fields, printable, problems, several, sized, stated
from looptap.cli.options import RUN_HELP
from looptap.cli.output import DONE, console, fact_line, say_json
from looptap.client.attach import resolve, runs
from looptap.client.directory.listing import RunListing
from looptap.client.rank_numbers import numbered, spans
from looptap.client.session.vitals import moving
from looptap.protocol.errors import RUN_ENDED, NotAllowed
from looptap.protocol.files.connection import runtime_dir, sweep
from looptap.protocol.files.ended_runs import Ended, ended
from looptap.protocol.keys import VIEWER
from looptap.protocol.replies import StreamInfo
from looptap.protocol.run_config import RunConfig
from looptap.protocol.statistics import AgentStats, RecordingStats, SubscriptionStats
from looptap.store.layout.run_path import store_path
from looptap.streams.durations import duration
from looptap.streams.errors import LooptapError

ALIVE, ENDED, SILENT, UNUSABLE = "alive", "ended", "silent", "unusable"
"""States of a run: it answers; its process is gone; it does not answer; its file cannot be used."""
REPLY_TIMEOUT_SECONDS = 3.0
"""Seconds to wait for the reply of a run."""


def ls_command(
    run: Annotated[str | None, Argument(metavar="RUN", help=f"Only this one. {RUN_HELP}", show_default=False)] = None,
    all_: Annotated[bool, Option("--all", help="Also the runs that have ended.")] = False,
    clean: Annotated[bool, Option("--clean", help="First remove what ended runs left behind.")] = False,
    as_json: Annotated[bool, Option("--json", help="Print one JSON array with an object for each run.")] = False,
) -> int:
    """List the living runs, one line each; RUN shows all of one.

    That is its settings, events, clients, and its queries with their cost: the time that the training
    thread spends on one at each event, and its share of the time that the job takes.

    \b
      looptap ls
      looptap ls --all
      looptap ls digits-cnn
      looptap ls ssh://login/node7/digits-cnn
      looptap ls --json | jq -r '.[] | select(.state == "alive") | .id'

    Runs announce themselves in the directory that LOOPTAP_DIR names, else in a private one of this user on this
    machine.
    """
    if clean:
        sweep(runtime_dir())
    listed = runs() if run is None else [resolve(run)]
    found = [one for one in listed if all_ or run is not None or one.alive is not False]
    with ThreadPoolExecutor(max(1, min(16, len(found)))) as pool:
        reports = list(pool.map(partial(_report, detailed=run is not None), found))
    over = ended(runtime_dir()) if all_ and run is None else []
    if as_json:
        return say_json([*(report.plain() for report in reports), *map(_plain_of_ended, over)])
    lines = console()
    if not reports and not over:
        dead = f"; {len(listed)} that ended: looptap ls --all" if listed else ""
        lines.print(
            f"No runs found in {printable(str(runtime_dir()))}{dead}. A run is listed while its process has a "
            "looptap.Agent; under looptap run, from its first update on. To see one, run: looptap demo"
        )
    texts = _line if run is None else _paragraph
    for text in [*(line for report in reports for line in texts(report)), *map(_line_of_ended, over)]:
        lines.print(text)
    return DONE


def _plain_of_ended(over: Ended) -> dict[str, Any]:
    return {**msgspec.to_builtins(over), "state": ENDED}


def _line_of_ended(over: Ended) -> Text:
    """Return one line about a run that has ended properly."""
    lasted, ago = duration(max(0.0, over.ended - over.started)), duration(max(0.0, time.time() - over.ended))
    stored = f"; stored in {over.store}" if over.store and Path(over.store).exists() else ""
    why = f": {over.reason}" if over.reason not in ("", RUN_ENDED) else ""
    text = f"  {over.id}, ran for {lasted}, until {ago} ago{why}{stored}"
    return Text.assemble((printable(over.name), "dim"), "  ", (ENDED, "dim"), (printable(text), "dim"))


@dataclass(frozen=True)
class StoredFile:
    """The file of a run that cannot be asked, and how old the newest thing in it is."""

    path: Path
    age: float | None

    @property
    def text(self) -> str:
        """What a line says of it."""
        newest = "" if self.age is None else f", the newest {duration(self.age)} ago"
        return f"stored in {self.path}{newest}"


def _stored(listed: RunListing) -> StoredFile | None:
    """Return the file of a run, if it is where stored runs are by default."""
    path = store_path(listed.id, rank=listed.rank)
    if not path.exists():
        return None
    from looptap.store.errors import StoreError
    from looptap.store.reader import open as open_stored  # it takes a while, and few runs need it

    try:
        with open_stored(path) as run:
            newest = run.newest()
    except StoreError:
        newest = None
    return StoredFile(path, None if newest is None else max(0.0, time.time() - newest))


def _line(report: RunReport) -> Iterator[Text]:
    """Yield one line about a run."""
    listed, stats, stored = report.listing, report.stats, report.stored
    if report.state in (UNUSABLE, ENDED):
        yield from _paragraph(report)
        return
    facts = stated(
        (listed.id, True),
        (f"pid {listed.pid} on {listed.host}", len(listed.members) < 2),
        (f"without {numbered(listed.missing)}", listed.missing),
    )
    if stats is not None:
        facts += [one.text for one in stats.inside]
        facts += stated((f"paused for {duration(stats.paused)}", stats.paused))
        facts += [_keeping(stats.store)] if stats.store and stats.store.reason else []
    facts += [] if stored is None else [stored.text]
    facts.append(report.problem if report.activity is None else moving(*report.activity.counts))
    yield Text.assemble(_head(report), f"{_since(report)}  ", (printable("; ".join(facts)), "dim"))


def _since(report: RunReport) -> str:
    """Return since when a run is alive; of another, when it started."""
    age = duration(_age(report.listing))
    return f" for {age}" if report.state == ALIVE else f", started {age} ago"


@dataclass(frozen=True)
class RunReport:
    """A run: its connection file, and the reply of its agent."""

    listing: RunListing
    state: str
    problem: str = ""
    stats: AgentStats | None = None
    """None for a viewer, and for a run that does not answer."""
    activity: Activity | None = None
    """None for a run that does not answer."""
    config: RunConfig | None = None
    """What the run was started with; None if that was not asked for, or is not shared."""
    stored: StoredFile | None = None
    """The file of a run that does not answer, if there is one."""

    def plain(self) -> dict[str, Any]:
        """Return the report as plain data, for JSON."""
        listed = self.listing
        if self.state == UNUSABLE:
            return {"state": UNUSABLE, "path": str(listed.path), "problem": self.problem}
        answer: dict[str, Any] = {}
        if self.stats is not None:
            others = len(self.stats.clients) - 1  # this process is one of them
            answer = {**msgspec.to_builtins(self.stats), "clients": others}
        elif self.activity is not None:
            answer = msgspec.to_builtins(self.activity)
        if self.config is not None:
            answer["config"] = msgspec.to_builtins(self.config)
        own = fields(listed, "name", "id", "rank", "ranks", "host", "pid", "started")
        own |= {"age": _age(listed), "role": listed.role, "path": str(listed.path), "problem": self.problem}
        own |= {"missing": listed.missing, "members": [_member(one) for one in listed.members.values()]}
        stored = {} if self.stored is None else {"store": str(self.stored.path), "newest": self.stored.age}
        return {**own, **answer, "state": self.state, **stored}


@dataclass(frozen=True)
class Activity:
    """What every client may read of a run: the loop's progress, and its streams."""

    events: Mapping[str, int]
    ages: Mapping[str, float]
    idle: float
    streams: Sequence[StreamInfo]

    @property
    def counts(self) -> tuple[Mapping[str, int], Mapping[str, float], float]:
        """What `moving` describes."""
        return self.events, self.ages, self.idle


def _report(listed: RunListing, detailed: bool) -> RunReport:
    """Ask a run for its state, and in ``detailed`` reports for its config."""
    if listed.problem:
        return RunReport(listed, UNUSABLE, listed.problem)
    if listed.alive is False:
        return RunReport(listed, ENDED, stored=_stored(listed))
    try:
        with listed.attach(REPLY_TIMEOUT_SECONDS) as run:
            config = None
            if detailed:
                with contextlib.suppress(NotAllowed):
                    config = run.config
            if run.role == VIEWER:
                activity = Activity(run.events(), run.ages(), run.idle, run.streams)
                return RunReport(listed, ALIVE, activity=activity, config=config)
            stats = run.agent_stats(REPLY_TIMEOUT_SECONDS)
    except LooptapError as error:
        return RunReport(listed, SILENT, str(error), stored=_stored(listed))
    return RunReport(listed, ALIVE, "", stats, Activity(stats.events, stats.ages, stats.idle, stats.streams), config)


def _age(listed: RunListing) -> float:
    return max(0.0, time.time() - listed.started)


def _member(listed: RunListing) -> dict[str, Any]:
    """Return one of several ranks as plain data."""
    return {**fields(listed, "rank", "id", "host", "pid", "alive"), "path": str(listed.path)}


def _processes(listed: RunListing) -> str:
    """Return the processes of a run, by host."""
    hosts: dict[str, list[RunListing]] = {}
    for one in listed.members.values():
        if one.alive is not False:
            hosts.setdefault(one.host, []).append(one)
    if len(listed.members) < 2:
        return f"{listed.pid} on {listed.host}"
    return "; ".join(
        f"{numbered(one.rank for one in found)}: {'pids' if len(found) > 1 else 'pid'} "
        f"{spans(one.pid for one in found)} on {host}"
        for host, found in hosts.items()
    )


def _head(report: RunReport) -> Text:
    """Return the name, the ranks and the state of a run."""
    listed, state = report.listing, report.state
    rank = f", rank {listed.rank} of {listed.ranks}" if listed.ranks > 1 else ""
    if len(listed.members) > 1:
        rank = f", {listed.ranks} ranks"
    style = {ALIVE: "bold green", ENDED: "dim"}.get(state, "bold yellow")
    return Text.assemble((printable(listed.name), "bold" if state == ALIVE else "dim"), rank, "  ", (state, style))


def _paragraph(report: RunReport) -> Iterator[Text]:
    """Yield a paragraph about one run."""
    listed = report.listing
    if report.state == UNUSABLE:
        yield Text.assemble(("unusable file", "red"), printable(f"  {listed.path}: {report.problem}"))
        return
    if report.state == ENDED:
        stored = "" if report.stored is None else f"{report.stored.text}; "
        text = f"  {listed.id}{_since(report)}; {stored}{_gone(listed)}, until looptap ls --clean"
        yield Text.assemble(_head(report), (printable(text), "dim"))
        return
    yield Text.assemble(_head(report), _since(report))
    yield from (fact_line(name, text) for name, text in _facts(report))


def _gone(listed: RunListing) -> str:
    """Return why a run has ended, and what is left of it."""
    if len(listed.members) < 2:
        return f"{listed.end}; its connection file is still there: {listed.path}"
    pids, place = spans(one.pid for one in listed.members.values()), Path(listed.path).parent
    return f"its processes ({pids}) no longer run it; their connection files are still in {place}"


def _facts(report: RunReport) -> Iterator[tuple[str, str | Text]]:
    """Yield the titles and texts about a run that has not ended."""
    listed, stats, activity = report.listing, report.stats, report.activity
    yield "id", listed.id
    yield "process", _processes(listed)
    if listed.missing:
        yield "ranks", f"no agent, or a dead process, on {numbered(listed.missing)}"
    if activity is None:
        if report.stored is not None:
            yield "file", report.stored.text
        yield "answer", report.problem
        return
    if report.config is not None:
        yield from (line for line in config_lines(report.config) if line[0] != "host")
    yield "events", moving(*activity.counts)
    yield from _loop_facts(stats, listed.name)
    yield from (("stream", stream_line(stream)) for stream in activity.streams)
    if stats is not None:
        yield from (("query", _query(query)) for query in stats.queries)
        dropped, waiting = several(stats.dropped, "value"), sized(stats.outbox_bytes)
        yield "outbox", f"{waiting} waiting, {sized(stats.outbox_peak)} at its peak; {dropped} dropped"


def _loop_facts(stats: AgentStats | None, name: str) -> Iterator[tuple[str, str | Text]]:
    """Yield what the loop waits for, and whom it serves."""
    if stats is None:
        yield "role", "viewer: what is exported can be read, and nothing else"
        return
    yield from (("inside", Text(printable(one.text), "red")) for one in stats.inside)
    if stats.paused:
        yield "paused", f"for {duration(stats.paused)}; looptap resume {name} ends that"
    if stats.store is not None and stats.store.state != "waiting":
        yield "file", Text(printable(_keeping(stats.store)), "red" if stats.store.reason else "")
    queries = "1 query" if len(stats.queries) == 1 else f"{len(stats.queries)} queries"
    yield "clients", f"{len(stats.clients) - 1} with {queries}"  # this process is one of them


def _keeping(store: RecordingStats) -> str:
    """Return what a run does with its file, and what of its values is not there."""
    lost = f"; {several(store.dropped, 'value')} dropped" if store.dropped else ""
    return f"{store.state} in {store.file}{lost}{': ' if store.reason else ''}{store.reason}"


def _query(query: SubscriptionStats) -> Text:
    facts = [
        several(query.values, "value"),
        cost(query.nanoseconds_per_event, query.share_of_time),
        f"{query.dropped:,} dropped",
        *problems(query.withheld, query.errors, query.state),
    ]
    return Text.assemble((printable(query.name), "cyan"), f" on {printable(query.on)}: {', '.join(facts)}")
