"""looptap: attach to a training loop that is already running, ask it anything, watch the answers live.

In the loop:    agent = looptap.Agent("name"); agent.emit("batch", step=step, loss=loss)
Beside it:      run = looptap.attach("name"); stream = run.stream("step, loss", on="batch")
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from looptap.agent.agent import Agent
    from looptap.client.controls import ControlInfo, Controls, Outcome
    from looptap.client.discover import attach, runs
    from looptap.client.guard import Guard, guard
    from looptap.client.guard_rules import Firing, Rule
    from looptap.client.live import LiveStream
    from looptap.client.run import Run
    from looptap.client.sharing import Share
    from looptap.client.steering import CommandPending
    from looptap.protocol.errors import (
        BadEndpoint,
        EndpointBusy,
        EndpointError,
        LimitReached,
        LinkError,
        MessageError,
        NoAnswer,
        NoDirectory,
        NoSuchRun,
        NotAllowed,
        NotLooptap,
        RefusedKey,
        RemoteError,
        RunEnded,
        SeveralRuns,
        UnsafeFile,
        VersionMismatch,
        WrongServer,
    )
    from looptap.protocol.limits import Limits
    from looptap.store.errors import StoreError
    from looptap.store.reader import open
    from looptap.store.run import StoredRun
    from looptap.store.stored import StoredStream
    from looptap.streams.control import Control
    from looptap.streams.errors import (
        ControlConflict,
        ControlError,
        InDoubt,
        LooptapError,
        NotAgreed,
        QueryError,
        SnapshotError,
        StreamEnded,
        StreamTimeout,
    )
    from looptap.streams.events import lazy
    from looptap.streams.stream import Gap, Record, Stream, stream_of
    from looptap.streams.windows import seconds, sliding
    from looptap.visualizers.chart import IncompatibleStreams
    from looptap.visualizers.plots import Plot, compare, plot

_ROOMS = {
    "Agent": "agent.agent",
    "BadEndpoint": "protocol.errors",
    "CommandPending": "client.steering",
    "Control": "streams.control",
    "ControlConflict": "streams.errors",
    "ControlError": "streams.errors",
    "ControlInfo": "client.controls",
    "Controls": "client.controls",
    "EndpointBusy": "protocol.errors",
    "EndpointError": "protocol.errors",
    "Firing": "client.guard_rules",
    "Gap": "streams.stream",
    "Guard": "client.guard",
    "InDoubt": "streams.errors",
    "IncompatibleStreams": "visualizers.chart",
    "LimitReached": "protocol.errors",
    "Limits": "protocol.limits",
    "LinkError": "protocol.errors",
    "LiveStream": "client.live",
    "LooptapError": "streams.errors",
    "MessageError": "protocol.errors",
    "NoAnswer": "protocol.errors",
    "NoDirectory": "protocol.errors",
    "NoSuchRun": "protocol.errors",
    "NotAgreed": "streams.errors",
    "NotAllowed": "protocol.errors",
    "NotLooptap": "protocol.errors",
    "Outcome": "client.controls",
    "Plot": "visualizers.plots",
    "QueryError": "streams.errors",
    "Record": "streams.stream",
    "RefusedKey": "protocol.errors",
    "RemoteError": "protocol.errors",
    "Rule": "client.guard_rules",
    "Run": "client.run",
    "RunEnded": "protocol.errors",
    "SeveralRuns": "protocol.errors",
    "Share": "client.sharing",
    "SnapshotError": "streams.errors",
    "StoreError": "store.errors",
    "StoredRun": "store.run",
    "StoredStream": "store.stored",
    "Stream": "streams.stream",
    "StreamEnded": "streams.errors",
    "StreamTimeout": "streams.errors",
    "UnsafeFile": "protocol.errors",
    "VersionMismatch": "protocol.errors",
    "WrongServer": "protocol.errors",
    "attach": "client.discover",
    "compare": "visualizers.plots",
    "guard": "client.guard",
    "lazy": "streams.events",
    "open": "store.reader",
    "plot": "visualizers.plots",
    "runs": "client.discover",
    "seconds": "streams.windows",
    "sliding": "streams.windows",
    "stream_of": "streams.stream",
}

__all__ = [
    "Agent",
    "BadEndpoint",
    "CommandPending",
    "Control",
    "ControlConflict",
    "ControlError",
    "ControlInfo",
    "Controls",
    "EndpointBusy",
    "EndpointError",
    "Firing",
    "Gap",
    "Guard",
    "InDoubt",
    "IncompatibleStreams",
    "LimitReached",
    "Limits",
    "LinkError",
    "LiveStream",
    "LooptapError",
    "MessageError",
    "NoAnswer",
    "NoDirectory",
    "NoSuchRun",
    "NotAgreed",
    "NotAllowed",
    "NotLooptap",
    "Outcome",
    "Plot",
    "QueryError",
    "Record",
    "RefusedKey",
    "RemoteError",
    "Rule",
    "Run",
    "RunEnded",
    "SeveralRuns",
    "Share",
    "SnapshotError",
    "StoreError",
    "StoredRun",
    "StoredStream",
    "Stream",
    "StreamEnded",
    "StreamTimeout",
    "UnsafeFile",
    "VersionMismatch",
    "WrongServer",
    "attach",
    "compare",
    "guard",
    "lazy",
    "open",
    "plot",
    "runs",
    "seconds",
    "sliding",
    "stream_of",
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
