"""Builds the parts of an agent, for `looptap.Agent` and `looptap.testing`."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Collection
from typing import Any

import msgspec

from looptap.agent.connection import Connection, why_no_agent
from looptap.agent.handoff.ready_set import ReadySet
from looptap.agent.handoff.scalar_looks import ScalarLooks
from looptap.agent.loop.deferred_evaluation import DeferredEvaluator
from looptap.agent.loop.event_sources import EventSources
from looptap.agent.loop.null_sources import NullEventSources
from looptap.agent.loop.overhead_budget import OverheadBudget
from looptap.agent.run.configuration import Configuration
from looptap.agent.run.earlier_runs import EarlierRuns
from looptap.agent.run.identity import checked_groups, checked_name, run_info
from looptap.agent.run.raising_thread import RaisingThread
from looptap.agent.run.termination import require_main_thread
from looptap.agent.server.recording import RunRecorder
from looptap.agent.server.request_dispatcher import RequestDispatcher
from looptap.protocol.limits import Limits
from looptap.protocol.messages import RunInfo
from looptap.protocol.process.identity import RUNS_HERE

log = logging.getLogger("looptap")


class Components(msgspec.Struct, frozen=True):
    """The parts of an agent.

    An inert one has `NullEventSources`, and its connection is never opened.
    """

    name: str
    groups: tuple[str, ...]
    limits: Limits
    run: RunInfo
    connection: Connection
    ready_set: ReadySet
    sources: EventSources
    recorder: RunRecorder | None
    configuration: Configuration
    earlier_runs: EarlierRuns
    dispatcher: RequestDispatcher
    raising: RaisingThread

    @property
    def inert(self) -> bool:
        """True if it was built to do nothing."""
        return isinstance(self.sources, NullEventSources)


def build(
    name: str,
    *,
    connect: Callable[[RunInfo, Limits], Connection],
    groups: Collection[str] = ("batch", "epoch"),
    limits: Limits | None = None,
    budget: float = 0.03,
    ranks: Collection[int] | None = None,
    enabled: bool = True,
    record: Callable[[RunInfo], RunRecorder | None],
    clock: Callable[[], float] = time.monotonic,
    sigterm: bool = False,
    strict: bool = False,
    history: bool = True,
    config: Any = None,
) -> Components:
    """Check the arguments of an agent and make its parts, not yet open to clients.

    ``connect`` makes the connection, ``record`` the recorder; ``clock`` returns the time of events;
    ``history`` keeps the numbers that they carry. Where the recorder
    cannot be made the agent is inert, with a warning; ``strict`` raises the error. Raises ValueError for a bad name or
    group, and for ``sigterm`` off the main thread.
    """
    name, groups, limits = checked_name(name), checked_groups(groups), limits or Limits()
    run = run_info(name)
    connection = connect(run, limits)
    ready_set = ReadySet(connection.wake, connection.flush_now)
    recorder: RunRecorder | None = None
    sources: EventSources = NullEventSources()
    if enabled and (ranks is None or run.rank in ranks):
        if sigterm:
            require_main_thread()
        try:
            recorder = record(run)
            looks = ScalarLooks() if history else None
            sources = EventSources(groups, {}, run.rank, DeferredEvaluator(ready_set), clock, looks)
        except Exception as error:
            warn_inert(error, strict)
    configuration = Configuration(run, None if isinstance(sources, NullEventSources) else config)
    earlier_runs = EarlierRuns(run, None if recorder is None else recorder.writer.path, configuration.settings)
    dispatcher = RequestDispatcher(
        run,
        sources=sources,
        groups=groups,
        limits=limits,
        ready_set=ready_set,
        budget=OverheadBudget(budget),
        recorder=recorder,
        configuration=configuration,
        send=connection.send,
        link=lambda: connection.link,
    )
    raising = RUNS_HERE[run.id] = RaisingThread(sources)
    return Components(
        name,
        groups,
        limits,
        run,
        connection,
        ready_set,
        sources,
        recorder,
        configuration,
        earlier_runs,
        dispatcher,
        raising,
    )


def warn_inert(error: Exception, strict: bool) -> None:
    """Log that this machine allows no agent, and why; ``strict`` raises the error."""
    if strict:
        raise error
    log.warning("looptap: %s This run continues without an agent (strict=True would end it).", why_no_agent(error))


def enabled_here() -> bool:
    """Return True if the environment enables agents."""
    return os.environ.get("LOOPTAP_DISABLED", "") in ("", "0")
