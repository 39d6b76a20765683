"""Declared streams: queries that run once for all readers and keep a history.

The host declares them, or a client hands its query over; such a stream continues as long as it is exported, kept or
read, and the host may take its name. Without a reader the I/O thread is not woken: arithmetic is evaluated 256 events
at a time, on the training thread.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any, TypeAlias

import msgspec

from looptap.agent.control.command_log import MAX_RECORDS
from looptap.agent.handoff.ready_set import ReadySet
from looptap.agent.handoff.value_ring import RingSet, ValueRing
from looptap.agent.loop.at_event import miss_logged, take_logged
from looptap.agent.loop.attached_query import AttachedQuery
from looptap.agent.loop.derived_query import DerivedQuery
from looptap.agent.loop.event_sources import EventSources
from looptap.agent.queries.query_registry import QueryRegistry
from looptap.protocol.errors import LimitReached
from looptap.protocol.limits import Limits
from looptap.protocol.replies import StreamInfo
from looptap.store.queue import COMMAND_FIELDS, COMMANDS, QueuedCommand
from looptap.streams.errors import QueryError
from looptap.streams.expressions import nearest
from looptap.streams.language.compiler import QuerySpec, compile_query
from looptap.streams.operators.windows import as_window
from looptap.streams.preserving.graph_capture import captures
from looptap.streams.preserving.job_modes import has_modes, outside_modes
from looptap.streams.text import public_line
from looptap.streams.values.sizing import size_of

DEFAULT_HISTORY_VALUES = 10_000
"""Values of a history, unless the host says otherwise."""
DEFAULT_MAX_VALUE_BYTES = 4_000_000
"""Bytes of one value, unless the host says otherwise."""
MAX_LAG_VALUES = 4096
"""Values besides its history that a stream holds for a reader that has yet to take them."""
RATE_WINDOW_VALUES = 128
"""Values over which the rate is taken."""


class DeclaredStream:
    """One declared stream: a query with a history that any client may read."""

    def __init__(
        self,
        name: str,
        query: AttachedQuery,
        unit: str = "",
        *,
        logged: bool = False,
        by: str = "",
    ) -> None:
        self.name, self.query, self.unit, self.logged, self.by = name, query, unit, logged, by
        self.exported = self.kept = False
        """True if viewers see it; if its values go to the file of the run."""
        self.shares: set[str] = set()
        """The shares whose viewers see it, too."""
        self.scalars = ""
        """The names whose history of scalars its readers get first; empty for none."""
        self.dropped = False
        """True once its query has failed and was detached."""

    @property
    def ring(self) -> ValueRing:
        """Its values: the output of its query."""
        return self.query.sink

    def describe(self) -> StreamInfo:
        """Describe the stream to an operator."""
        query, ring = self.query, self.ring
        elapsed = monotonic() - query.started if query.started else 0.0
        fields = query.pipeline.fields
        return StreamInfo(
            name=self.name,
            query="" if self.logged else query.pipeline.text,
            on=query.on,
            of=query.of if isinstance(query, DerivedQuery) else "",
            unit=self.unit,
            fields=tuple(fields) if fields else None,
            state=query.state,
            reason=query.reason,
            values=ring.number,
            held=len(ring),
            bytes=ring.held,
            rate=self._rate(),
            errors=query.errors,
            withheld=query.limit.withheld,
            readers=len(ring.readers) - self.kept,
            exported=self.exported,
            shares=tuple(sorted(self.shares)),
            kept=self.kept,
            by=self.by,
            nanoseconds_per_event=1e9 * query.seconds / query.events if query.events else 0.0,
            share_of_time=query.seconds / elapsed if elapsed > 0 else 0.0,
        )

    def _rate(self) -> float:
        """Return the values per second, over the newest 128 and the time since."""
        newest = self.ring.read(self.ring.number - RATE_WINDOW_VALUES, RATE_WINDOW_VALUES)
        elapsed = monotonic() - newest[0][2] if newest else 0.0
        return len(newest) / elapsed if elapsed > 0 else 0.0


Sight: TypeAlias = Callable[[DeclaredStream], bool]
"""A test whether a viewer sees a stream."""


class DeclaredStreams:
    """All declared streams of an agent, by name."""

    def __init__(self, queries: QueryRegistry, sources: EventSources, ready_set: ReadySet, limits: Limits) -> None:
        self._queries, self._sources, self._limits = queries, sources, limits
        self.history = RingSet(ready_set, limits.history_bytes_in_all, limits.history_bytes, MAX_LAG_VALUES)
        self.by_name: dict[str, DeclaredStream] = {}
        self._displaced: list[DeclaredStream] = []
        self._naming = threading.Lock()  # the host's threads and the I/O thread
        self._capturing: Callable[[], bool] | None = None
        self._logs = 0  # calls of `log` so far

    def declare(
        self,
        name: str,
        query: str | Callable[..., Any],
        on: str,
        *,
        window: Any,
        every: int,
        throttle: float,
        history: int,
        unit: str,
        max_bytes: int,
        of: str = "",
        unsafe: bool = False,
    ) -> None:
        """Start a declared stream. Raises QueryError, ValueError, LimitReached.

        ValueError is for a bad name or number.
        """
        self._check(name)
        if not isinstance(on, str) or not (on or of):
            raise ValueError(f"on={on!r} must be the name of the events, such as 'batch'.")
        for argument, number in (("history", history), ("max_bytes", max_bytes)):
            if isinstance(number, bool) or not isinstance(number, int) or number < 1:
                raise ValueError(f"{argument}={number!r} must be a whole number, 1 or more.")
        if not isinstance(unit, str):
            raise ValueError(f"unit={unit!r} must be a text, such as 'ms'.")
        over = as_window(window)
        source = self.source_of(of) if of else None
        if source is not None and source.name == name:
            raise QueryError(f"{name!r} cannot be computed from its own values.")
        attached: AttachedQuery
        if source is not None:
            ring = self.history.open(history)
            attached = self._queries.derived(
                source.query,
                of,
                query,
                ring,
                name=name,
                window=over,
                every=every,
                throttle=throttle,
                max_bytes=max_bytes,
                budget=math.inf,
                unsafe=unsafe,
            )
        else:
            pipeline = self._queries.compiled(query, over, every, throttle, unsafe=unsafe)
            ring = self.history.open(history)
            max_bytes = min(max_bytes, self._limits.outbound_message // 2)
            attached = self._queries.declared(name, pipeline, on, ring, max_bytes)
        self._add(DeclaredStream(name, attached, unit))
        self._queries.install(attached)

    def adopt(self, name: str, query: AttachedQuery, by: str) -> DeclaredStream:
        """Turn a client's query into a declared stream, which has yet to get a ring.

        Raises QueryError, LimitReached.
        """
        bound = self._limits.handed_streams
        if sum(bool(declared.by) for declared in list(self.by_name.values())) >= bound:
            raise LimitReached(f"{bound} streams are handed over, the bound (Limits.handed_streams); end one.")
        try:
            _check_name(name)
            declared = DeclaredStream(name, query, by=by or "a client")
            self._add(declared)
        except ValueError as error:
            raise QueryError(str(error), hint="run.export(stream, name='another') names it.") from None
        query.name = name
        return declared

    def find(self, name: str, sees: Sight | None = None) -> DeclaredStream:
        """Return a declared stream by name, if a viewer ``sees`` it. Raises QueryError."""
        found = self.by_name.get(name)
        if found is None or (sees is not None and not sees(found)):
            there = [one.name for one in self.seen(sees)]
            near, what = nearest(name, there), "declared" if sees is None else "exported"
            raise QueryError(
                f"there is no {what} stream {name!r:.120}; there are: {', '.join(map(repr, there[:20])) or 'none'}."
                f"{' ' * bool(near)}{near}"
            )
        return found

    def source_of(self, name: object) -> DeclaredStream:
        """Return the declared stream named by ``of=``. Raises QueryError."""
        if not isinstance(name, str):
            raise QueryError(f"of={name!r:.80} is the name of a declared stream.")
        if name == COMMANDS:
            raise QueryError(f"{name!r} is the stream of all commands, which are not values of the loop.")
        return self.find(name)

    def seen(self, sees: Sight | None) -> list[DeclaredStream]:
        """Return the streams that a client may read: for a viewer those it ``sees``."""
        return [one for one in list(self.by_name.values()) if sees is None or sees(one)]

    def log(self, values: dict[str, Any], fields: str = "value") -> list[Exception]:
        """Append one value to the stream of each name; return the errors.

        A new stream has these ``fields``. ValueError is for a bad name, LimitReached for too many; neither keeps the
        values of other names out.
        """
        if (torch := sys.modules.get("torch")) is not None and has_modes(torch):
            return outside_modes(torch, self.log, values, fields)
        capturing = self._capturing
        if capturing is not None and capturing():
            return []
        with self._sources.lock:
            self._logs += 1
            try:
                return self._log(values, fields)
            except KeyboardInterrupt:
                for name in values:
                    if (stream := self.by_name.get(name)) is not None and stream.logged:
                        miss_logged(stream.query, self._logs)
                raise

    def _log(self, values: dict[str, Any], fields: str) -> list[Exception]:
        started, now = monotonic(), self._sources.clock()
        errors: list[Exception] = []
        for name, value in values.items():
            try:
                query = self._to_log(name, started, fields).query
            except (ValueError, LimitReached) as error:
                errors.append(error)
                continue
            take_logged(query, value, now, self._logs)
            ended = monotonic()
            query.seconds += ended - started
            if query.derived:
                query.evaluate_derived()
                ended = monotonic()
            started = ended
        return errors

    def _to_log(self, name: str, now: float, fields: str) -> DeclaredStream:
        """Return the logged stream of a name, made if new.

        Raises ValueError, LimitReached.
        """
        stream = self.by_name.get(name) or self._logged(name, now, fields)
        if not stream.logged and stream.by:
            stream = self._logged(name, now, fields)
        text = stream.query.pipeline.text
        if not stream.logged:
            raise ValueError(f"{name!r} is a stream of a query ({text!r}); log another.")
        if text != fields:
            raise ValueError(f"{name!r} is a stream of {text!r}, not of {fields!r}; log another.")
        return stream

    def named(self, name: str) -> DeclaredStream | None:
        """Return the stream of that name; create that of the commands on first use."""
        return self.by_name.get(name) or (self._commands() if name == COMMANDS else None)

    def command(self, command: QueuedCommand) -> None:
        """Append a command to the stream of all commands."""
        value = tuple(getattr(command, field) for field in COMMAND_FIELDS)
        ring = (self.by_name.get(COMMANDS) or self._commands()).ring
        ring.put(command.number, command.time, value, size_of(value))

    def _commands(self) -> DeclaredStream:
        pipeline = compile_query(QuerySpec(", ".join(COMMAND_FIELDS)))  # it gives the fields their names
        ring = self.history.open(MAX_RECORDS)
        query = self._queries.declared(COMMANDS, pipeline, "", ring, DEFAULT_MAX_VALUE_BYTES)
        query.started = monotonic()
        stream = self.by_name[COMMANDS] = DeclaredStream(COMMANDS, query, logged=True)
        return stream

    def list(self, sees: Sight | None = None) -> list[StreamInfo]:
        """Describe each stream, or each that a viewer ``sees``, up to the newest event."""
        self._sources.unobserved.drain()
        if sees is None:
            return [stream.describe() for stream in self.seen(None)]
        found = [stream.describe() for stream in self.seen(sees)]
        return [msgspec.structs.replace(one, exported=True, shares=(), reason=public_line(one.reason)) for one in found]

    def tidy(self) -> Sequence[DeclaredStream]:
        """Remove and return streams that failed, are unused, or gave up their name."""
        over = []
        for stream in list(self.by_name.values()):
            query = stream.query
            if query.state == "failed" and not (stream.logged or stream.dropped):
                stream.dropped = True
                self._queries.drop(query)
            if stream.by and not (
                stream.exported or stream.shares or stream.kept or stream.ring.readers or stream.query.derived
            ):
                with self._naming:
                    if self.by_name.get(stream.name) is stream:
                        del self.by_name[stream.name]
                over.append(stream)
        displaced, self._displaced = self._displaced, []
        for stream in (*over, *displaced):
            if stream.query.state == "live":
                stream.query.state, stream.query.reason = "ended", "the job declares another stream of this name"
                stream.query.changes += 1
                stream.ring.notify()
            self._queries.drop(stream.query)
            self.history.close(stream.ring)
        return [*over, *displaced]

    def finish(self, reason: str) -> None:
        """End every stream for every reader, since the run ends."""
        for stream in list(self.by_name.values()):
            query = stream.query
            if query.state == "live":
                query.state, query.reason = "ended", reason
                query.changes += 1
                stream.ring.notify()

    def _logged(self, name: str, now: float, fields: str) -> DeclaredStream:
        self._check(name)
        self._capturing = captures()
        ring = self.history.open(DEFAULT_HISTORY_VALUES)
        pipeline = compile_query(QuerySpec(fields))  # in place of a query: the host hands the values over
        query = self._queries.declared(name, pipeline, "", ring, DEFAULT_MAX_VALUE_BYTES)
        query.started = now
        stream = DeclaredStream(name, query, logged=True)
        self._add(stream)
        return stream

    def _add(self, stream: DeclaredStream) -> None:
        """Register a stream by name; the host's replaces a client's. Raises ValueError."""
        with self._naming:
            there = self.by_name.get(stream.name)
            if there is not None:
                if stream.by or not there.by:
                    raise _taken(stream.name)
                self._displaced.append(there)
            self.by_name[stream.name] = stream
        if there is not None:
            there.ring.notify()

    def _check(self, name: str) -> None:
        _check_name(name)
        if (there := self.by_name.get(name)) is not None and not there.by:
            raise _taken(name)
        count = sum(not declared.by for declared in list(self.by_name.values()))
        if count >= self._limits.declared_streams:
            raise LimitReached(
                f"{count} streams are declared, the bound (Limits.declared_streams); put what varies into the values."
            )


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not 0 < len(name) <= 100 or not name.isprintable():
        raise ValueError(f"the name of a stream is 1 to 100 printable characters, not {name!r:.120}.")
    if name == COMMANDS:
        raise ValueError(f"{name!r} is the stream of all commands; give this one another name.")


def _taken(name: str) -> ValueError:
    return ValueError(f"there is a declared stream {name!r} already; give this one another name.")
