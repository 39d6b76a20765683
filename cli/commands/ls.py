"""`looptap ls`: the runs that announce themselves, asked one by one how they are."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from looptap.cli.commands.streams import described, plain
from looptap.cli.formats import cost, json_of, printable, several, size
from looptap.client.attach import resolve, runs
from looptap.client.directory.listing import RunListing
from looptap.client.rank_numbers import numbered, spans
from looptap.client.run import Run
from looptap.client.session.vitals import moving
from looptap.protocol.files.connection import runtime_dir, sweep
from looptap.protocol.keys import VIEWER
from looptap.streams.durations import duration
from looptap.streams.errors import LooptapError

ALIVE, ENDED, SILENT, UNUSABLE = "alive", "ended", "silent", "unusable"
"""What a run can be: it answers; its process is gone; it does not answer; its file cannot be used."""
REPLY_TIMEOUT_SECONDS = 3.0
"""Seconds that a run has to answer."""


def ls(as_json: bool, clean: bool, name: str | None = None) -> int:
    """Print what is known of every run, or of ``name``, with ``clean`` of those that live; returns the exit code."""
    if clean:
        sweep(runtime_dir())
    found = runs() if name is None else [resolve(name)]
    with ThreadPoolExecutor(max(1, min(16, len(found)))) as pool:
        reports = list(pool.map(_report, found))
    if as_json:
        print(json_of(reports))
        return 0
    console = Console(highlight=False, soft_wrap=True)
    if not reports:
        console.print(
            f"No run announces itself in {runtime_dir()}. One does while its process has a looptap.Agent; "
            "to see one, run: looptap demo"
        )
    for report in reports:
        for line in _lines(report):
            console.print(line)
    return 0


def _report(listed: RunListing) -> dict[str, Any]:
    """What the connection file says of a run, and what its agent answers."""
    report = {
        "name": listed.name, "id": listed.id, "rank": listed.rank, "ranks": listed.ranks, "host": listed.host,
        "pid": listed.pid, "started": listed.started, "age": max(0.0, time.time() - listed.started),
        "role": listed.role, "path": str(listed.path), "state": ENDED, "problem": listed.problem,
        "missing": listed.missing, "members": [_member(one) for one in listed.members.values()],
    }  # fmt: skip
    if listed.problem:
        return {"state": UNUSABLE, "path": str(listed.path), "problem": listed.problem}
    if listed.alive is False:
        return report
    try:
        with listed.attach(REPLY_TIMEOUT_SECONDS) as run:
            if run.role == VIEWER:
                known = {"idle": run.idle, "ages": run.ages(), "events": run.events()}
                return {**report, **known, "state": ALIVE, "streams": _shown(run)}
            stats = run.stats(REPLY_TIMEOUT_SECONDS)
    except LooptapError as error:
        return {**report, "state": SILENT, "problem": str(error)}
    others = len(stats["clients"]) - 1  # this process is one of them
    return {**report, **stats, "clients": others, "state": ALIVE}


def _member(listed: RunListing) -> dict[str, Any]:
    """One of several ranks."""
    return {
        "rank": listed.rank, "id": listed.id, "host": listed.host, "pid": listed.pid, "alive": listed.alive,
        "path": str(listed.path),
    }  # fmt: skip


def _processes(report: dict[str, Any]) -> str:
    """Which processes a run is, by host."""
    hosts: dict[str, list[dict[str, Any]]] = {}
    for one in report["members"]:
        if one["alive"] is not False:
            hosts.setdefault(one["host"], []).append(one)
    if len(report["members"]) < 2:
        return f"{report['pid']} on {report['host']}"
    return "; ".join(
        f"{numbered(one['rank'] for one in found)}: {'pids' if len(found) > 1 else 'pid'} "
        f"{spans(one['pid'] for one in found)} on {host}"
        for host, found in hosts.items()
    )


def _lines(report: dict[str, Any]) -> Iterator[Text]:
    """A paragraph about one run."""
    state = report["state"]
    if state == UNUSABLE:
        yield Text.assemble(("unusable file", "red"), f"  {report['path']}: {report['problem']}")
        return
    members = len(report["members"])
    rank = f", rank {report['rank']} of {report['ranks']}" if report["ranks"] > 1 else ""
    if members > 1:
        rank = f", {report['ranks']} ranks"
    style = {ALIVE: "bold green", ENDED: "dim"}.get(state, "bold yellow")
    head = Text.assemble((printable(report["name"]), "bold" if state == ALIVE else "dim"), rank, "  ", (state, style))
    if state == ENDED:
        gone = f", process {report['pid']} is gone; its file is still there: {report['path']}"
        if members > 1:
            pids, place = spans(one["pid"] for one in report["members"]), Path(report["path"]).parent
            gone = f", its processes ({pids}) are gone; their files are still in {place}"
        yield Text.assemble(head, (f"  {report['id']}{gone}; looptap ls --clean removes what is left", "dim"))
        return
    yield Text.assemble(head, f" for {duration(report['age'])}")
    yield _fact("id", report["id"])
    yield _fact("process", _processes(report))
    if report["missing"]:
        yield _fact("ranks", f"no agent, or a dead process, on {numbered(report['missing'])}")
    if state == SILENT:
        yield _fact("answer", report["problem"])
        return
    yield _fact("events", moving(report["events"], report["ages"], report["idle"]))
    for one in report.get("inside", ()):
        yield _fact("inside", Text(printable(str(one["text"])), "red"))
    if report.get("paused"):
        yield _fact("paused", f"for {duration(report['paused'])}; looptap resume {report['name']} ends that")
    if report["role"] == VIEWER:
        yield _fact("role", "viewer: what is exported can be read, and nothing else")
        for stream in report["streams"]:
            yield _fact("stream", described(stream))
        return
    queries = "1 query" if len(report["queries"]) == 1 else f"{len(report['queries'])} queries"
    yield _fact("clients", f"{report['clients']} with {queries}")
    for stream in report.get("streams", ()):
        yield _fact("stream", described(stream))
    for query in report["queries"]:
        yield _fact("query", _query(query))
    dropped, waiting = several(report["dropped"], "value"), size(report["outbox_bytes"])
    yield _fact("outbox", f"{waiting} waiting, {size(report['outbox_peak'])} at its peak; {dropped} dropped")


def _shown(run: Run) -> list[dict[str, Any]]:
    """The streams that a viewer sees."""
    return [plain(stream) for stream in run.streams]


def _query(query: dict[str, Any]) -> Text:
    facts = [
        several(query["values"], "value"),
        cost(query["nanoseconds_per_event"], query["share_of_time"]),
        f"{query['dropped']:,} dropped",
    ]
    if query.get("withheld"):
        facts.append(f"{several(query['withheld'], 'event')} withheld by the budget")
    if query["errors"]:
        facts.append(several(query["errors"], "error"))
    if query["state"] != "live":
        facts.append(query["state"])
    name, on = printable(str(query["name"])), printable(str(query["on"]))
    return Text.assemble((name, "cyan"), f" on {on}: {', '.join(facts)}")


def _fact(name: str, text: str | Text) -> Text:
    return Text.assemble((f"  {name:<9}", "dim"), printable(text) if isinstance(text, str) else text)
