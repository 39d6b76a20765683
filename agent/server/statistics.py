"""Agent statistics: the counters and the stacks that a client may ask for, and heartbeats."""

from __future__ import annotations

from typing import TYPE_CHECKING

from looptap.agent.loop.guard import torch_state
from looptap.agent.run.stack_report import stacks
from looptap.agent.server.subscription import ClientSession
from looptap.protocol import messages as m
from looptap.protocol.replies import AgentStats, StackReport

if TYPE_CHECKING:
    from looptap.agent.server.request_dispatcher import RequestDispatcher


class StatisticsReporter:
    """Collects the counters of one `RequestDispatcher`. I/O thread only."""

    def __init__(self, service: RequestDispatcher) -> None:
        self._service = service

    def stacks(self) -> StackReport:
        """Report where each thread of the job is, and whether its loop moves."""
        liveness, pause = self._service.liveness, self._service.commands.job.pause
        return StackReport(
            threads=stacks(), events=liveness.report(), paused=pause.seconds(), age=liveness.age(),
            inside=liveness.as_info(),
        )  # fmt: skip

    def events(self, client: ClientSession) -> dict[str, int]:
        """How many events of each type there were; to a viewer, of those of which it sees something."""
        counts = self._service.sources.counts()
        if not client.viewer:
            return counts
        shown = {
            one.query.on for one in self._service.declared_streams.seen(self._service.access_grants.visibility(client))
        }
        return {name: count for name, count in counts.items() if name in shown}

    def beat(self, client: ClientSession, confirm: bool = False) -> m.Beat:
        """A sign of life for a client: how far the loop is, and for how long it has not moved."""
        pulse, events = self._service.liveness, self.events(client)
        idle = pulse.idle()
        ages = {name: age for name, age in pulse.ages().items() if name in events}
        inside = "" if client.viewer or not pulse.inside else str(pulse.inside[0])
        return m.Beat(events, idle, self._service.commands.job.pause.seconds(), confirm, ages, inside)

    def stats(self) -> AgentStats:
        """Collect all counters of the agent."""
        service = self._service
        streams, standing, post = list(service.exporter.streams), service.declared_streams, service.queues
        return AgentStats(
            run=service.run.id,
            events=service.sources.counts(),
            idle=service.liveness.idle(),
            ages=service.liveness.ages(),
            inside=service.liveness.as_info(),
            clients=service.sessions.stats(),
            shares=len(service.access_grants.shares),
            queries=[s.stats() for s in streams if s.reader is None],
            streams=standing.list(),
            readers=[s.stats() for s in streams if s.reader is not None],
            history_bytes=standing.history.held_bytes,
            history_peak=standing.history.peak_bytes,
            outbox_bytes=post.pending_bytes(),
            outbox_peak=post.peak_bytes,
            dropped=sum(s.source.dropped for s in streams),
            withheld=sum(s.query.withheld for s in streams if s.reader is None),
            refused_messages=service.refused,
            events_in_cuda_graphs=torch_state.captured,
            paused=service.commands.job.pause.seconds(),
            paused_before=service.commands.job.pause.total,
            store=None if service.recorder is None else service.recorder.stats(),
            io_seconds=service.io_seconds,
            io_share=service.budget.io,
            budget=service.budget.fraction,
            **service.history.describe(),
        )
