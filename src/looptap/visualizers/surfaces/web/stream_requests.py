"""Streams that a page draws: by name, by arithmetic over one, or by a query."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from looptap.client.exported_run import ExportedRun
from looptap.client.streams.kept_history import kept_history
from looptap.client.streams.live import LiveStream
from looptap.streams.errors import QueryError
from looptap.streams.operators.windows import Window, as_window, seconds, sliding
from looptap.streams.stream.state_and_cost import FAILED
from looptap.streams.stream.stream import Stream
from looptap.streams.text import last_line
from looptap.streams.waiting import poll_until
from looptap.visualizers.surfaces.web.expressions import ReadableStream, reader_query
from looptap.visualizers.surfaces.web.run_shelf import close_stream, is_live

MAX_QUERY_CHARACTERS = 4_000
"""Characters of a query that is typed into a page."""
MAX_EVERY_EVENTS = 1_000_000_000
"""The largest distance of two events that a query looks at."""
_FIRST_VALUE_SECONDS = 1.0  # to wait for a first value, or for the reason why there is none
_POLL_INTERVAL_SECONDS = 0.02
COMMANDS_STREAM = "commands"
"""The stream of the commands of all clients, which every run has."""
OPERATOR = "operator"
"""The role that may ask queries of a job."""


@dataclass(frozen=True)
class StreamRequest:
    """A text typed into a page, and the stream or events that it is about."""

    text: str
    on: str = ""
    window: str = ""
    every: int = 1
    name: str = ""
    """What the chart calls it; empty for the text."""
    unsafe: bool = False
    """True if a query of the job is to run as it is, even if it may change the job."""

    @classmethod
    def of(cls, message: Mapping[str, Any]) -> StreamRequest:
        """Return the request of a message. Raises QueryError."""
        text, on, window, name = (str(message.get(key) or "").strip() for key in ("q", "on", "window", "name"))
        every = message.get("every") or 1
        if not text:
            raise QueryError("Type the name of a stream, or a query such as: step, loss")
        if max(map(len, (text, on, name))) > MAX_QUERY_CHARACTERS:
            raise QueryError(f"A query has {MAX_QUERY_CHARACTERS:,} characters at most.")
        if not isinstance(every, int) or isinstance(every, bool) or not 1 <= every <= MAX_EVERY_EVENTS:
            raise QueryError(f"every: {every!r:.40} is no number of events.")
        typed_window(window)
        return cls(text, on, window, every, name, message.get("unsafe") is True)

    @property
    def plain(self) -> bool:
        """True if it may be the name of a stream."""
        return not (self.on or self.window) and self.every == 1


def typed_window(text: str) -> Window | None:
    """Return the window for ``100``, ``30s`` or ``sliding 100``. Raises QueryError.

    >>> typed_window("30s"), typed_window("sliding 100")
    (Seconds(size=30.0), Sliding(size=100))
    """
    if not text:
        return None
    kind, _, size = text.replace(":", " ").rpartition(" ")
    try:
        if kind.strip() == "sliding":
            return sliding(int(size))
        if not kind and size.endswith("s"):
            return seconds(float(size[:-1]))
        if not kind:
            return as_window(int(size))
    except (ValueError, OverflowError):
        pass
    raise QueryError(f"{text!r:.60}: a window is a number of events (100), of seconds (30s), or sliding 100.")


def readable(run: Any) -> dict[str, tuple[str, ...]]:
    """Return readable streams by name with their fields; of a file, scalars too."""
    found = {one.name: tuple(one.fields or ()) for one in run.streams}
    return found if is_live(run) else {one.name: () for one in run.scalars} | found


def opened(run: Any, request: StreamRequest) -> Stream:
    """Return the stream of a request. Raises LooptapError.

    Only for an operator a text becomes a query in the job.
    """
    declared = readable(run)
    if is_live(run) and run.role == OPERATOR:
        if request.plain and request.text in declared and not request.unsafe:
            return _named(run, request.text)
        how = {"on": request.on or None, "window": typed_window(request.window), "every": request.every}
        how |= {"name": request.name, "unsafe": request.unsafe}
        how["history"] = kept_history(run, request.text) if not request.window and request.every == 1 else None
        query: Stream = run.stream(request.text, **how)
        return query
    return _read(run, request, declared)


def _read(run: Any, request: StreamRequest, shown: Mapping[str, tuple[str, ...]]) -> Stream:
    """Return a stream that is there, or arithmetic over one."""
    if request.unsafe:
        raise QueryError("Only a query of a live run, asked by its operator, can be unsafe: turn the switch off.")
    if request.plain and request.text in shown:
        return _named(run, request.text)
    history: Stream | None = None if is_live(run) else run.history(request.text, request.on or None)
    if history is not None:
        return history
    whole = isinstance(run, ExportedRun) and not request.window and request.every == 1
    curve: Stream | None = run.curve(request.text, request.on) if whole else None
    if curve is not None:
        return curve
    if request.on or request.every != 1:
        raise QueryError("The streams shown here have their own events: leave 'on' and 'every' empty.")
    if not shown:
        raise QueryError("This run shows no stream, until one is exported.")
    streams = [ReadableStream(name, fields) for name, fields in shown.items()]
    window = typed_window(request.window)
    try:
        found = reader_query(request.text, streams, window)
    except QueryError as error:
        if isinstance(run, ExportedRun):
            raise QueryError(f"{error} To ask the job itself, start: looptap web --operate") from None
        raise
    source = _named(run, found.stream)
    try:
        return source.query(found.query, window=window, name=request.text)
    except BaseException:
        close_stream(source)
        raise


def _named(run: Any, name: str) -> Stream:
    """Return a stream by its name. Raises QueryError if it is none any more."""
    stream: Stream = run.stream(name)
    if isinstance(stream, LiveStream) and stream.declared != name:
        close_stream(stream)
        raise QueryError(f"There is no stream {name!r} any more.")
    return stream


def check_first_value(stream: Stream) -> None:
    """Wait a second for a first value. Raises QueryError if an error comes first."""
    poll_until(
        lambda: stream.arrived or stream.traceback or stream.state == FAILED,
        _POLL_INTERVAL_SECONDS,
        _FIRST_VALUE_SECONDS,
    )
    if not stream.arrived and (stream.traceback or stream.state == FAILED):
        raise QueryError(last_line(stream.traceback) or stream.reason)
