"""The facts that `looptap top` shows: events, costs, streams, controls, commands."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import msgspec

from looptap.cli.formats import fields
from looptap.client.attach import runs
from looptap.client.estimates import Estimates
from looptap.client.run import Run
from looptap.protocol.keys import VIEWER
from looptap.protocol.replies import ControlInfo, ScalarInfo, StreamInfo
from looptap.protocol.statistics import MachineReport
from looptap.streams.errors import LooptapError

REPLY_TIMEOUT_SECONDS = 3.0
"""Seconds to wait for a reply of the agent."""
_MAX_ENTRIES = 200  # of a list that the agent reports


@dataclass(frozen=True)
class EventRate:
    """A type of event, its count, and its rate per second (None if unknown)."""

    name: str
    count: int
    rate: float | None = None
    idle: float = 0.0
    """Seconds since the last."""


@dataclass(frozen=True)
class Rank:
    """A rank of the run; ``alive`` is None if that cannot be known here."""

    rank: int
    host: str
    pid: int
    alive: bool | None


@dataclass(frozen=True)
class Facts:
    """A run at one moment; numbers are 0 or empty if the agent has not reported them."""

    id: str
    host: str
    pid: int
    rank: int
    size: int
    """The number of ranks."""
    role: str
    """operator or viewer."""
    state: str
    reason: str
    idle: float
    """Seconds since the last event."""
    silence: float
    """Seconds since the last message of the agent."""
    paused: float = 0.0
    """Seconds for which the loop has paused."""
    inside: str = ""
    """The query or command that has kept the loop for long."""
    events: tuple[EventRate, ...] = ()
    queries: int = 0
    share: float = 0.0
    """The share of the loop's time that all queries and declared streams take."""
    io_share: float = 0.0
    """The share of the loop's time that the I/O thread takes."""
    budget: float | None = None
    """The share that they may take together; None without a limit."""
    clients: int = 0
    dropped: int = 0
    withheld: int = 0
    """Events that the budget has kept from queries."""
    outbox: int = 0
    """Bytes waiting to be sent."""
    streams: tuple[StreamInfo, ...] = ()
    scalars: tuple[ScalarInfo, ...] = ()
    """The numbers that events carry, with their histories."""
    controls: Mapping[str, ControlInfo] = field(default_factory=dict)
    machine: MachineReport | None = None
    """Host and devices of this rank."""
    commands: tuple[Mapping[str, Any], ...] = ()
    """The newest commands, the oldest first."""
    ranks: tuple[Rank, ...] = ()
    progress: Mapping[str, Any] | None = None
    """The job's own report of the remaining time, if it has one."""
    problems: tuple[str, ...] = ()
    """Requests that failed, and why."""

    def new_warnings(self, before: Facts) -> list[tuple[str, str]]:
        """Return name and warning of each command that had not this one ``before``."""
        known = {(one["id"], one["warning"]) for one in before.commands}
        fresh = [one for one in self.commands if one["warning"] and (one["id"], one["warning"]) not in known]
        return [(one["name"], one["warning"]) for one in fresh] if self.id == before.id else []


class Watcher:
    """Poller of a run's state; a failed request keeps the last answer, and is noted."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._estimates = Estimates(run)
        self._seen = Facts(**_own(run))
        self._counts: tuple[str, float, Mapping[str, int]] = (run.id, time.monotonic(), {})

    def look(self) -> Facts:
        """Request the state of the run. Blocks for a few seconds at most."""
        seen = replace(self._seen, **_own(self.run)) if self._seen.id == self.run.id else Facts(**_own(self.run))
        problems: list[str] = []
        all_ = (self._stats, self._streams, self._scalars, self._controls, self._commands, self._ranks, self._progress)
        viewer = (self._events, self._streams, self._ranks, self._progress)  # a viewer's other requests are refused
        for ask in viewer if self.run.role == VIEWER else all_:
            if self.run.state != "live":  # the agent cannot answer
                break
            try:
                seen = ask(seen)
            except LooptapError as error:
                problems.append(str(error))
        self._seen = replace(seen, **_own(self.run), problems=tuple(dict.fromkeys(problems)))
        return self._seen

    def _stats(self, seen: Facts) -> Facts:
        stats = self.run.agent_stats(REPLY_TIMEOUT_SECONDS, machine=True)
        return replace(
            seen,
            events=self._rates(stats.events),
            queries=len(stats.queries) + len(stats.streams),
            share=_finite(sum(q.share_of_time for q in stats.queries) + sum(s.share_of_time for s in stats.streams)),
            io_share=_finite(stats.io_share),
            budget=stats.budget if stats.budget < 1 else None,
            clients=len(stats.clients) - 1,  # this process is one of them
            dropped=stats.dropped,
            withheld=stats.withheld,
            outbox=stats.outbox_bytes,
            machine=stats.machine,
        )

    def _events(self, seen: Facts) -> Facts:
        """Update the events that a viewer may know: those of exported streams."""
        ages = self.run.ages()
        events = tuple(EventRate(*event, idle=ages.get(event[0], 0.0)) for event in self.run.events().items())
        return replace(seen, events=events)

    def _rates(self, events: Mapping[str, int]) -> tuple[EventRate, ...]:
        now, counts = time.monotonic(), dict(list(events.items())[:_MAX_ENTRIES])
        run, then, before = self._counts
        if run != self.run.id:
            before = {}
        self._counts = (self.run.id, now, counts)
        span, ages = now - then, self.run.ages()
        rates = {name: (count - before[name]) / span for name, count in counts.items() if name in before and span > 0}
        return tuple(EventRate(name, count, rates.get(name), ages.get(name, 0.0)) for name, count in counts.items())

    def _streams(self, seen: Facts) -> Facts:
        return replace(seen, streams=tuple(self.run.streams[:_MAX_ENTRIES]))

    def _scalars(self, seen: Facts) -> Facts:
        return replace(seen, scalars=tuple(self.run.scalars[:_MAX_ENTRIES]))

    def _controls(self, seen: Facts) -> Facts:
        return replace(seen, controls=dict(list(self.run.controls.look().items())[:_MAX_ENTRIES]))

    def _commands(self, seen: Facts) -> Facts:
        return replace(seen, commands=tuple(self.run.commands[-20:]))

    def _ranks(self, seen: Facts) -> Facts:
        if self.run.info.ranks < 2:
            return seen
        with contextlib.suppress(OSError):
            members = (one.members for one in runs() if not one.problem)
            found = next((job for job in members if any(one.id == self.run.id for one in job.values())), {})
            ranks = tuple(Rank(n, one.host, one.pid, one.alive) for n, one in sorted(found.items())[:_MAX_ENTRIES])
            return replace(seen, ranks=ranks)
        return seen

    def _progress(self, seen: Facts) -> Facts:
        return replace(seen, progress=self._estimates.newest())


def _own(run: Run) -> dict[str, Any]:
    """Return what the client knows without a request."""
    own = fields(run, "id", "role", "state", "reason", "idle", "silence", "paused", "inside")
    return {**own, **fields(run.info, "host", "pid", "rank"), "size": run.info.ranks}


def _finite(number: float) -> float:
    """Return ``number``, or 0 if a hostile agent sent one that is not finite."""
    return number if math.isfinite(number) else 0.0


def report(seen: Facts) -> dict[str, Any]:
    """Return the facts as plain data, for JSON."""
    plain = asdict(replace(seen, streams=(), scalars=(), controls={}, machine=None))
    return {
        **plain,
        "machine": msgspec.to_builtins(seen.machine),
        "streams": msgspec.to_builtins(seen.streams),
        "scalars": msgspec.to_builtins(seen.scalars),
        "controls": list(map(msgspec.structs.asdict, seen.controls.values())),
    }


def measured(run: Run, pause: Callable[[float], object] = time.sleep) -> Facts:
    """Return the facts with the rates of events, measured for a second."""
    watcher = Watcher(run)
    watcher.look()
    pause(1.0)
    return watcher.look()
