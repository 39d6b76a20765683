"""Heartbeats: each second every client learns that the job is alive."""

from __future__ import annotations

import time
from collections.abc import Callable

from looptap.agent.io.server_socket import SendResult
from looptap.agent.loop.overhead_budget import OverheadBudget
from looptap.agent.server.liveness import LoopLiveness
from looptap.agent.server.sessions import SessionTable
from looptap.agent.server.statistics import StatisticsReporter
from looptap.agent.server.subscription import expired_sessions
from looptap.protocol.codec import encode


class Heartbeat:
    """An agent's heartbeats; ``writer_seconds`` is the CPU time of its store thread."""

    def __init__(
        self,
        sessions: SessionTable,
        statistics: StatisticsReporter,
        liveness: LoopLiveness,
        budget: OverheadBudget,
        writer_seconds: Callable[[], float],
        send: Callable[[bytes, bytes], SendResult],
    ) -> None:
        self._sessions, self._statistics, self._liveness, self._budget = sessions, statistics, liveness, budget
        self._writer_seconds, self._send = writer_seconds, send
        self._cpu, self._last = 0.0, time.monotonic()

    def expired(self) -> list[bytes]:
        """Return the clients that have been silent for too long. Call before `update`."""
        return expired_sessions(self._sessions.clients, self._sessions.limits, time.monotonic(), self._last)

    def update(self) -> None:
        """Update what looptap's threads cost, and whether the loop moves. I/O thread."""
        now, cpu = time.monotonic(), time.thread_time() + self._writer_seconds()
        if now > self._last:
            self._budget.io = (cpu - self._cpu) / (now - self._last)
        self._cpu, self._last = cpu, now
        self._liveness.beat()

    def send(self, confirm: bool = False) -> None:
        """Send each connected client a heartbeat; ``confirm`` asks what it has received."""
        shared = b""  # the same for all operators
        for peer, client in list(self._sessions.clients.items()):
            if client.disconnected:
                continue
            if client.viewer:
                self._send(peer, encode(self._statistics.beat(client, confirm)))
            else:
                shared = shared or encode(self._statistics.beat(client, confirm))
                self._send(peer, shared)

    def confirmed(self) -> bool:
        """Return whether clients have confirmed everything that was sent. Any thread."""
        clients = list(self._sessions.clients.values())
        return all(client.disconnected or client.got_bytes >= client.sent_bytes for client in clients)
