"""The event types of an agent that does nothing."""

from __future__ import annotations

from looptap.agent.handoff.ready_set import ReadySet
from looptap.agent.loop.deferred_evaluation import DeferredEvaluator
from looptap.agent.loop.event_sources import EventSource, EventSources


class NullEventSources(EventSources):
    """The event types of an inert agent: every name leads to one idle source."""

    def __init__(self) -> None:
        super().__init__((), {}, 0, DeferredEvaluator(ReadySet(_no_wakeup, _no_wakeup)))
        self._only_source = super()._new("inert")

    def _new(self, event: str, closes: tuple[EventSource, ...] = ()) -> EventSource:
        return self._only_source

    def counts(self) -> dict[str, int]:
        """Return no counts."""
        return {}


def _no_wakeup() -> None:
    """Do nothing: the wakeup of an inert agent."""
