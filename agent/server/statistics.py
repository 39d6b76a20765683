"""What an agent tells of itself: the figures that a client may ask for, and whether the loop moves."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from looptap.agent.loop.guard import torch_state
from looptap.agent.run.stack_report import stacks
from looptap.agent.server.subscription import Client
from looptap.protocol import messages as m
from looptap.protocol.errors import MessageError

if TYPE_CHECKING:
    from looptap.agent.server.request_dispatcher import Service


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
                pulse = self._service.pulse
                events, inside = pulse.report(), pulse.as_info()
                paused = steering.pause.seconds()
                return {"threads": stacks(), "events": events, "paused": paused, "age": pulse.age(), "inside": inside}
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

    def beat(self, client: Client, confirm: bool = False) -> m.Beat:
        """A sign of life for a client: how far the loop is, and for how long it has not moved."""
        pulse, events = self._service.pulse, self.events(client)
        idle = pulse.idle()
        ages = {name: age for name, age in pulse.ages().items() if name in events}
        inside = "" if client.viewer or not pulse.inside else str(pulse.inside[0])
        return m.Beat(events, idle, self._service.steering.pause.seconds(), confirm, ages, inside)

    def stats(self) -> dict[str, Any]:
        """Clients, queries with their cost, the outbox's peak, drops, events: all counters of the agent."""
        service = self._service
        streams, standing, post = list(service.delivery.streams), service.standing, service.post
        return {
            "run": service.run.id,
            "events": service.taps.counts(),
            "idle": service.pulse.idle(),
            "ages": service.pulse.ages(),
            "inside": service.pulse.as_info(),
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
            "withheld": sum(s.query.withheld for s in streams if s.reader is None),
            "refused_messages": service.refused,
            "events_in_cuda_graphs": torch_state.captured,
            **service.lineage.told(),
            "paused": service.steering.pause.seconds(),
            "paused_before": service.steering.pause.total,
            "store": None if service.keeper is None else service.keeper.stats(),
            "io_seconds": service.io_seconds,
            "io_share": service.budget.io,
            "budget": service.budget.fraction,
        }
