"""Agent statistics: counters and stacks that clients ask for, and heartbeats."""

from __future__ import annotations

from looptap.agent.control.pause import Pause
from looptap.agent.handoff.value_ring import RingSet
from looptap.agent.loop.event_sources import EventSources
from looptap.agent.loop.overhead_budget import OverheadBudget
from looptap.agent.run.resume_lineage import RunHistory
from looptap.agent.run.stack_report import stacks
from looptap.agent.server.access_grants import AccessGrants
from looptap.agent.server.declared_streams import DeclaredStreams
from looptap.agent.server.exporter import ValueExporter
from looptap.agent.server.liveness import LoopLiveness
from looptap.agent.server.recording import RunRecorder
from looptap.agent.server.sessions import SessionTable
from looptap.agent.server.subscription import ClientSession
from looptap.protocol import messages as m
from looptap.protocol.statistics import AgentStats, MachineReport, StackReport
from looptap.streams.preserving import graph_capture


class StatisticsReporter:
    """The counters of an agent, two of its own among them. I/O thread only."""

    def __init__(
        self,
        run: m.RunInfo,
        *,
        sources: EventSources,
        outbox: RingSet,
        liveness: LoopLiveness,
        sessions: SessionTable,
        grants: AccessGrants,
        exporter: ValueExporter,
        declared: DeclaredStreams,
        history: RunHistory,
        pause: Pause,
        recorder: RunRecorder | None,
        budget: OverheadBudget,
    ) -> None:
        self.refused_messages = 0
        """Messages that are malformed or not allowed."""
        self.io_seconds = 0.0
        """CPU time of the I/O thread."""
        self.run, self._sources, self._outbox, self._liveness = run, sources, outbox, liveness
        self._sessions, self._grants, self._exporter, self._declared = sessions, grants, exporter, declared
        self._history, self._pause, self._recorder, self._budget = history, pause, recorder, budget

    def stacks(self) -> StackReport:
        """Report the stack of each thread of the job, and whether its loop moves."""
        liveness, pause = self._liveness, self._pause
        return StackReport(
            threads=stacks(),
            events=liveness.report(),
            paused=pause.seconds(),
            age=liveness.age(),
            inside=liveness.as_info(),
        )

    def events(self, client: ClientSession) -> dict[str, int]:
        """Return the event counts by type; for a viewer, of the types it sees."""
        counts = self._sources.counts()
        if not client.viewer:
            return counts
        shown = {one.query.on for one in self._declared.seen(self._grants.visibility(client))}
        return {name: count for name, count in counts.items() if name in shown}

    def beat(self, client: ClientSession, confirm: bool = False) -> m.Beat:
        """Return a client's heartbeat: event counts, and the loop's seconds at rest."""
        liveness, events = self._liveness, self.events(client)
        idle = liveness.idle()
        ages = {name: age for name, age in liveness.ages().items() if name in events}
        inside = "" if client.viewer or not liveness.inside else str(liveness.inside[0])
        return m.Beat(events, idle, self._pause.seconds(), confirm, ages, inside)

    def stats(self, machine: MachineReport | None = None) -> AgentStats:
        """Collect all counters of the agent."""
        streams, declared = list(self._exporter.streams), self._declared
        return AgentStats(
            run=self.run.id,
            events=self._sources.counts(),
            idle=self._liveness.idle(),
            ages=self._liveness.ages(),
            inside=self._liveness.as_info(),
            clients=self._sessions.stats(),
            shares=len(self._grants.shares),
            queries=[s.stats() for s in streams if not s.declared],
            streams=declared.list(),
            readers=[s.stats() for s in streams if s.declared],
            history_bytes=declared.history.held,
            history_peak=declared.history.peak_bytes,
            outbox_bytes=self._outbox.held,
            outbox_peak=self._outbox.peak_bytes,
            dropped=sum(s.source.dropped for s in streams),
            withheld=sum({s.query: s.query.limit.withheld for s in streams if not s.declared}.values()),
            refused_messages=self.refused_messages,
            events_in_cuda_graphs=graph_capture.captured,
            paused=self._pause.seconds(),
            paused_before=self._pause.total,
            store=None if self._recorder is None else self._recorder.writer.stats(),
            io_seconds=self.io_seconds,
            io_share=self._budget.io,
            budget=self._budget.fraction,
            machine=machine,
            **self._history.describe(),
        )
