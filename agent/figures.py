"""What an agent tells of itself: the figures that a client may ask for, and whether the loop moves."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from looptap.agent import loopstate
from looptap.agent.served import Client
from looptap.agent.stacks import stacks
from looptap.protocol.errors import MessageError

if TYPE_CHECKING:
    from looptap.agent.service import Service


class Figures:
    """The counters of one service, as plain data."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def answer(self, what: str) -> Any:
        """What an operator asks for by name. Raises MessageError for a name that is none."""
        steering = self._service.steering
        match what:
            case "stats":
                return self.stats()
            case "stacks":
                return {"threads": stacks(), "events": self._service.pulse.ages(), "paused": steering.pause.seconds()}
            case "controls":
                return steering.told()
            case "commands":
                return list(steering.commands.records)
            case "clock":
                return time.monotonic()
            case "shares":
                return self._service.sharing.told(self._service.guests)
        known = "'stats', 'stacks', 'controls', 'commands', 'clock' and 'shares'"
        raise MessageError(f"there is no {what!r:.80} to ask for, only {known}.")

    def events(self, client: Client) -> dict[str, int]:
        """How many events of each type there were; to a viewer, of those of which it sees something."""
        counts = self._service.taps.counts()
        if not client.viewer:
            return counts
        shown = {one.query.on for one in self._service.standing.seen(self._service.sharing.sight(client))}
        return {name: count for name, count in counts.items() if name in shown}

    def stats(self) -> dict[str, Any]:
        """Clients, queries with their cost, the outbox's peak, drops, events: all counters of the agent."""
        service = self._service
        streams, standing, post = list(service.delivery.streams), service.standing, service.post
        return {
            "run": service.run.id,
            "events": service.taps.counts(),
            "clients": service.guests.stats(),
            "shares": len(service.sharing.shares),
            "queries": [s.stats() for s in streams if s.reader is None],
            "streams": standing.list(),
            "readers": [s.stats() for s in streams if s.reader is not None],
            "history_bytes": standing.history.held,
            "history_peak": standing.history.peak,
            "outbox_bytes": post.waiting(),
            "outbox_peak": post.peak,
            "dropped": sum(s.source.dropped for s in streams),
            "refused_messages": service.refused,
            "events_in_cuda_graphs": loopstate.captured,
            **service.lineage.told(),
            "paused": service.steering.pause.seconds(),
            "paused_before": service.steering.pause.total,
            "store": None if service.keeper is None else service.keeper.stats(),
            "io_seconds": service.io_seconds,
            "io_share": service.budget.io,
            "budget": service.budget.fraction,
        }
