"""looptap: attach to a training loop that is already running, ask it anything, watch the answers live.

In the loop:    agent = looptap.Agent("name"); agent.emit("batch", step=step, loss=loss)
Beside it:      run = looptap.attach("name"); stream = run.stream("step, loss", on="batch")
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from looptap.agent.agent import Agent
    from looptap.client.discover import attach, runs
    from looptap.client.live import LiveStream
    from looptap.client.run import Run
    from looptap.protocol.errors import LinkError
    from looptap.protocol.limits import Limits
    from looptap.streams.errors import LooptapError, QueryError, SnapshotError
    from looptap.streams.events import lazy
    from looptap.streams.stream import Record, Stream
    from looptap.streams.windows import seconds, sliding

_ROOMS = {
    "Agent": "agent.agent",
    "Limits": "protocol.limits",
    "LinkError": "protocol.errors",
    "LiveStream": "client.live",
    "LooptapError": "streams.errors",
    "QueryError": "streams.errors",
    "Record": "streams.stream",
    "Run": "client.run",
    "SnapshotError": "streams.errors",
    "Stream": "streams.stream",
    "attach": "client.discover",
    "lazy": "streams.events",
    "runs": "client.discover",
    "seconds": "streams.windows",
    "sliding": "streams.windows",
}

__all__ = [
    "Agent",
    "Limits",
    "LinkError",
    "LiveStream",
    "LooptapError",
    "QueryError",
    "Record",
    "Run",
    "SnapshotError",
    "Stream",
    "attach",
    "lazy",
    "runs",
    "seconds",
    "sliding",
]


def __getattr__(name: str) -> Any:
    """Load a public name from its room when it is first asked for."""
    room = _ROOMS.get(name)
    if room is None:
        raise AttributeError(f"looptap has no {name!r}; it has {', '.join(__all__)}.")
    value = globals()[name] = getattr(import_module(f"looptap.{room}"), name)
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
