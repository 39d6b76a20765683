"""looptap: attach to a training loop that is already running, ask it anything, watch the answers live.

In the loop:    agent = looptap.Agent("name"); agent.emit("batch", step=step, loss=loss)
Beside it:      run = looptap.attach("name"); stream = run.stream("step, loss", on="batch")
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from looptap.agent.agent import Agent
    from looptap.client.attach import attach, runs
    from looptap.client.control.commands import CommandPending
    from looptap.client.control.controls import ControlInfo, Controls, Outcome
    from looptap.client.control.grants import Share
    from looptap.client.guard.guard import Guard, guard
    from looptap.client.guard.rules import Firing, Rule
    from looptap.client.run import Run
    from looptap.client.streams.live import LiveStream
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
    from looptap.store.stream import StoredStream
    from looptap.streams.control import Control
    from looptap.streams.errors import (
        CommandCancelled,
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
    from looptap.streams.operators.windows import seconds, sliding
    from looptap.streams.stream.stream import Gap, Record, Stream, stream_of
    from looptap.streams.values.probing import probe, probing
    from looptap.visualizers.charts.chart import IncompatibleStreams
    from looptap.visualizers.plot import Plot, compare, plot
    from looptap.visualizers.surfaces.notebook.overview import overview
    from looptap.visualizers.surfaces.notebook.panel import panel

_ROOMS = {
    "Agent": "agent.agent",
    "BadEndpoint": "protocol.errors",
    "CommandCancelled": "streams.errors",
    "CommandPending": "client.control.commands",
    "Control": "streams.control",
    "ControlConflict": "streams.errors",
    "ControlError": "streams.errors",
    "ControlInfo": "client.control.controls",
    "Controls": "client.control.controls",
    "EndpointBusy": "protocol.errors",
    "EndpointError": "protocol.errors",
    "Firing": "client.guard.rules",
    "Gap": "streams.stream.stream",
    "Guard": "client.guard.guard",
    "InDoubt": "streams.errors",
    "IncompatibleStreams": "visualizers.charts.chart",
    "LimitReached": "protocol.errors",
    "Limits": "protocol.limits",
    "LinkError": "protocol.errors",
    "LiveStream": "client.streams.live",
    "LooptapError": "streams.errors",
    "MessageError": "protocol.errors",
    "NoAnswer": "protocol.errors",
    "NoDirectory": "protocol.errors",
    "NoSuchRun": "protocol.errors",
    "NotAgreed": "streams.errors",
    "NotAllowed": "protocol.errors",
    "NotLooptap": "protocol.errors",
    "Outcome": "client.control.controls",
    "Plot": "visualizers.plot",
    "QueryError": "streams.errors",
    "Record": "streams.stream.stream",
    "RefusedKey": "protocol.errors",
    "RemoteError": "protocol.errors",
    "Rule": "client.guard.rules",
    "Run": "client.run",
    "RunEnded": "protocol.errors",
    "SeveralRuns": "protocol.errors",
    "Share": "client.control.grants",
    "SnapshotError": "streams.errors",
    "StoreError": "store.errors",
    "StoredRun": "store.run",
    "StoredStream": "store.stream",
    "Stream": "streams.stream.stream",
    "StreamEnded": "streams.errors",
    "StreamTimeout": "streams.errors",
    "UnsafeFile": "protocol.errors",
    "VersionMismatch": "protocol.errors",
    "WrongServer": "protocol.errors",
    "attach": "client.attach",
    "compare": "visualizers.plot",
    "guard": "client.guard.guard",
    "lazy": "streams.events",
    "open": "store.reader",
    "overview": "visualizers.surfaces.notebook.overview",
    "panel": "visualizers.surfaces.notebook.panel",
    "plot": "visualizers.plot",
    "probe": "streams.values.probing",
    "probing": "streams.values.probing",
    "runs": "client.attach",
    "seconds": "streams.operators.windows",
    "sliding": "streams.operators.windows",
    "stream_of": "streams.stream.stream",
}

__all__ = [
    "Agent",
    "BadEndpoint",
    "CommandCancelled",
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
    "overview",
    "panel",
    "plot",
    "probe",
    "probing",
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


def _show_in_notebook(what: Any) -> None:
    """Show what ended a cell as a live chart; without the libraries for it, as text that says how to get them."""
    try:
        show = import_module("looptap.visualizers.surfaces.notebook.display").show
    except ImportError as error:
        print(f"{what!r}\nIt would be a live chart here, but {error.name} is missing: pip install 'looptap[notebook]'")
        return
    show(what)


def _register_display() -> None:
    """Have streams and plots show themselves where a notebook's kernel is at hand; nothing is imported for that."""
    ipython = sys.modules.get("IPython")
    shell: Any = None if ipython is None else ipython.get_ipython()
    if getattr(shell, "kernel", None) is not None:
        shown = shell.display_formatter.ipython_display_formatter
        for room, name in (("streams.stream.stream", "Stream"), ("visualizers.plot", "Plot")):
            shown.for_type_by_name(f"looptap.{room}", name, _show_in_notebook)


_register_display()
