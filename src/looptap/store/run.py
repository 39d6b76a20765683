"""`StoredRun`: a run read from its file, also while it is still being written."""

from __future__ import annotations

import struct
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import msgspec

from looptap.protocol.errors import RUN_ENDED
from looptap.protocol.files.ended_runs import ended
from looptap.protocol.process.identity import REPLACED, Process
from looptap.protocol.replies import MAX_VALUE_NUMBER, ScalarReport
from looptap.protocol.run_config import BEING_READ, RunConfig
from looptap.protocol.types.built_types import built
from looptap.store.errors import StoreError
from looptap.store.kept_scalars import Scalars, table_with
from looptap.store.layout.columns import fact_of
from looptap.store.layout.database import Database, connect, logs_ahead
from looptap.store.layout.schema import MAX_WALL_SECONDS
from looptap.store.queue import COMMANDS
from looptap.store.recorded_commands import RecordedCommands
from looptap.store.stored_scalars import StoredScalars, tables_of
from looptap.store.stream import StoredCommands, StoredStream, declared_of, stored_command
from looptap.streams.stream.state_and_cost import ENDED, LIVE
from looptap.streams.text import did_you_mean

POLL_INTERVAL_SECONDS = 0.1
"""Seconds between looks at a file that is still being written."""
MAX_STREAMS = 10_000
"""Streams of a file."""
REMOTE_DEAD_AFTER_SECONDS = 3600.0
"""Seconds without new values after which a process of another machine counts as dead."""
LIVENESS_CHECK_AFTER_SECONDS = 2.0
"""Seconds without new values before checking that the writing process is alive."""

_ProcessRow = tuple[str, str, str, str, int, str]
S = TypeVar("S", StoredStream, StoredCommands, StoredScalars)
_TIME = struct.Struct("<d")  # of the newest item of a page or of scalars


class StoredRun:
    """A stored run: its streams, commands and metadata; made by `looptap.open`.

    `state` is live while the run is being written, else ended, and `reason` says why. The streams of a live run grow
    automatically. All methods may be called from any thread. Close it with `close`, use it as a context manager, or
    drop it together with its streams.
    """

    def __init__(self, database: Database, path: Path) -> None:
        self.path = path
        self.state, self.reason = LIVE, ""
        self._database: Database | None = database
        self._end_database = weakref.finalize(self, database.close)
        self._lock = threading.RLock()
        self._opened: dict[object, Any] = {}
        """The streams that were asked for: by id, the commands by their name, scalars by their names and event."""
        self._data_version: object = None
        database.complete()
        self._last_change = time.monotonic()
        self.metadata: dict[str, Any] = {}
        """Facts about the run: id, name, host, pid, started, ended, commit, versions, ..."""
        self.look()
        if self.state == LIVE:
            self._check_writer()
        if self.state == LIVE:
            threading.Thread(target=_watch, args=(weakref.ref(self),), name="looptap-stored", daemon=True).start()

    # ------------------------------------------------------------ properties

    @property
    def id(self) -> str:
        """The id of the run, else the name of its file."""
        return str(self.metadata.get("id", self.path.stem))

    @property
    def name(self) -> str:
        """The name that the host gave to the job, else the name of its file."""
        return str(self.metadata.get("name", self.path.stem))

    @property
    def config(self) -> RunConfig:
        """What the run was started with; of a file without that, what it has of it."""
        stored = self.metadata.get("config")
        try:
            found = msgspec.convert(stored, built(RunConfig)) if isinstance(stored, dict) else self._former_config()
        except (msgspec.ValidationError, RecursionError):
            return self._former_config()
        if self.state != LIVE and found.diff_note == BEING_READ:
            found = msgspec.structs.replace(found, diff_note="the run ended before it was read")
        return found if found.commit else msgspec.structs.replace(found, commit=self._former_config().commit)

    def _former_config(self) -> RunConfig:
        host, directory, commit = (str(self.metadata.get(name, "")) for name in ("host", "directory", "commit"))
        names: tuple[str, ...] = ("python", "looptap", "torch", "numpy")
        found = {name: self.metadata[name] for name in names if name in self.metadata}
        versions = {  # of Python, (3, 13)
            name: ".".join(map(str, one)) if isinstance(one, list | tuple) else str(one) for name, one in found.items()
        }
        return RunConfig(host=host, directory=directory, commit=commit, versions=versions)

    @property
    def alive(self) -> bool:
        """True while the run is still being written."""
        return self.state == LIVE

    @property
    def started(self) -> float | None:
        """Time at which it began to store, in seconds since 1970."""
        return self._time("started")

    @property
    def ended(self) -> float | None:
        """Time at which it ended, in seconds since 1970; None if alive or killed."""
        return self._time("ended")

    @property
    def until(self) -> float | None:
        """Time of its end, else of the newest thing in its file; None while it is alive."""
        return self.ended if self.alive or self.ended is not None else self.newest()

    def newest(self) -> float | None:
        """Return when the newest value or command was stored, else the file was written.

        In seconds since 1970.
        """
        walls = self._select(
            "SELECT (SELECT wall FROM items WHERE stream = streams.id ORDER BY number DESC LIMIT 1) FROM streams "
            "UNION ALL SELECT max(wall) FROM commands"
        )
        tables = self._select(
            "SELECT clock, substr(times, -8) FROM scalars UNION ALL "
            "SELECT clock, substr(times, -8) FROM pages WHERE (stream, first) IN "
            "(SELECT stream, max(first) FROM pages GROUP BY stream)"
        )
        for clock, time_ in tables:
            if isinstance(clock, int | float) and isinstance(time_, bytes) and len(time_) == _TIME.size:
                walls.append((clock + _TIME.unpack(time_)[0],))
        found = (wall for (wall,) in walls if isinstance(wall, int | float) and 0 < wall < MAX_WALL_SECONDS)
        return max(found, default=None) or self._written()

    def _time(self, name: str) -> float | None:
        found = self.metadata.get(name)
        return float(found) if isinstance(found, int | float) and abs(found) < MAX_WALL_SECONDS else None

    def events(self) -> dict[str, int]:
        """Return the highest number of an event of each type in the file."""
        of_streams = (
            f"SELECT event, (SELECT {table}.event FROM {table} WHERE stream = streams.id ORDER BY {key} DESC LIMIT 1) "
            "FROM streams"
            for table, key in (("items", "number"), ("pages", "first"))
        )
        rows = self._select(" UNION ALL ".join([*of_streams, "SELECT event, number FROM commands"]))
        rewound = self.metadata.get("rewound")
        spans = rewound.items() if isinstance(rewound, dict) else ()
        again = [(name, span[-1]) for name, span in spans if isinstance(span, list | tuple) and span]
        found: dict[str, int] = {}
        for name, number in [*rows, *again]:
            if name and isinstance(name, str) and isinstance(number, int):
                found[name] = max(number, found.get(name, 0))
        return found

    @property
    def streams(self) -> list[StoredStream]:
        """The stored streams."""
        rows = self._select(
            'SELECT id, name, query, event, "window", fields, unit, first FROM streams ORDER BY id LIMIT ?',
            (MAX_STREAMS + 1,),
        )
        if len(rows) > MAX_STREAMS:
            raise StoreError(f"{self.path} has more than {MAX_STREAMS:,} streams: looptap did not make it.")
        return [self._open(row[0], partial(self._stored, row)) for row in rows]

    def _stored(self, row: tuple[Any, ...]) -> StoredStream:
        return StoredStream(declared_of(row), self._select)

    def _open(self, key: object, make: Callable[[], S]) -> S:
        """Return the stream of a key, made when it is first asked for."""
        with self._lock:
            if key not in self._opened:
                stream = make()
                stream.run = self
                stream.read_facts(self.metadata)
                if self.state != LIVE:
                    stream.feed.finish(ENDED, self.reason)
                self._opened[key] = stream
            found: S = self._opened[key]
            return found

    @property
    def scalars(self) -> Scalars:
        """The numbers whose history is stored, as `Run.scalars` lists them.

        `stream` reads them if no kept stream has that name, and `history` reads those of one event type. They are
        written at least every 30 s and at the end, so a killed process loses at most its last 30 s.
        """
        tables = tables_of(self._select, self._rank)
        left_out = self.metadata.get("scalars_left_out")
        infos = [one for table in tables for one in table.infos()]
        return Scalars.of(ScalarReport(scalars=tuple(infos), left_out=left_out if isinstance(left_out, int) else 0))

    @property
    def scalar_names(self) -> list[str]:
        """The names in `scalars`, each once, without reading their values."""
        tables = tables_of(self._select, self._rank)
        return list(dict.fromkeys(name for table in tables for name in table.columns))

    def history(self, text: str, on: str | None = None) -> StoredScalars | None:
        """Return the history of a name, or of several with commas; None without one.

        Args:
            text: The name or names.
            on: The type of events; by default the first that has them.
        """
        key = text, on
        found = None if key in self._opened else table_with(text, tables_of(self._select, self._rank, on))
        if found is None:
            return self._opened.get(key)
        return self._open(key, partial(StoredScalars, self._select, *found, self._rank))

    @property
    def _rank(self) -> int:
        rank = self.metadata.get("rank")
        return rank if isinstance(rank, int) and 0 <= rank <= MAX_VALUE_NUMBER else 0

    def stream(self, name: str) -> StoredStream | StoredCommands | StoredScalars:
        """Return a stream by name or query, the last of several. Raises StoreError.

        A name, or several with commas, that no stream has is read from the history of scalars.

        Args:
            name: The name or the query; ``"commands"`` is the stream of all commands.
        """
        streams = self.streams
        if name == COMMANDS:
            return self._open(COMMANDS, partial(StoredCommands, self._select))
        for stream in reversed(streams):
            if name in (stream.name, stream.text):
                return stream
        if (history := self.history(name)) is not None:
            return history
        names = list(dict.fromkeys([*(stream.name for stream in streams), *self.scalar_names]))
        if not names:
            raise StoreError(f"There is no stream {name!r:.80} in {self.path}. {self.lacks or 'This run kept none.'}")
        hint = did_you_mean(name, names) or f" {self.lacks}".rstrip()
        shown = ", ".join(map(repr, names[:20])) + (", …" if len(names) > 20 else "")
        raise StoreError(f"There is no stream {name!r:.80} in {self.path}; there are {shown}.{hint}")

    @property
    def lacks(self) -> str:
        """What the file lacks if it looks like an incomplete copy; else empty."""
        log = self.path.with_name(self.path.name + "-wal")
        if self.ended is not None or not logs_ahead(self.path) or (log.exists() and log.stat().st_size):
            return ""
        return (
            "It looks like a copy without the original's -wal file, which has the newest values. Copy both, the second "
            f"one as {log.name}."
        )

    @property
    def commands(self) -> RecordedCommands:
        """The commands of clients, in order, with their outcomes.

        ``run.commands.save("commands.yaml")`` writes them to a file that `looptap replay` repeats in another run; it
        accepts the file of a stored run, too.
        """
        rows = self._select(
            "SELECT id, time, wall, event, number, client, what, old, new, outcome, asked FROM commands "
            "ORDER BY wall, time"
        )
        commands = RecordedCommands(stored_command(row) for row in rows)
        commands.run = self.id
        return commands

    def __repr__(self) -> str:
        count = len(self._select("SELECT id FROM streams")) if self._database else 0
        state = f"{self.state}: {self.reason}" if self.reason else self.state
        return f"<StoredRun {self.name!r} ({self.id}): {state}; {count:,} stream{'s' * (count != 1)}; {self.path}>"

    # ------------------------------------------------------------ reading

    def _select(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self._lock:
            if self._database is None:
                raise StoreError(f"The stored run {self.path} is closed.")
            return self._database.select(sql, parameters)

    def look(self) -> bool:
        """Read what was written since the last look; return False if nothing was."""
        with self._lock:
            seen = self._select("PRAGMA data_version")
            if seen == self._data_version:
                return False
            self._data_version, self._last_change = seen, time.monotonic()
            self.metadata = {str(key): fact_of(value) for key, value in self._select("SELECT key, value FROM run")}
            streams = [*self._opened.values()]
        for stream in streams:
            stream.look()
            stream.read_facts(self.metadata)
        if self.ended is not None:
            self._finish(str(self.metadata.get("farewell", RUN_ENDED)))
        return True

    def _open_again(self) -> bool:
        """Read the file that its writer has made again, if the former one was removed."""
        with self._lock:
            if self._database is None or not self._database.is_replaced():
                return False
            again = connect(self.path)
            again.complete()
            self._end_database()
            self._database, self._end_database = again, weakref.finalize(self, again.close)
            self._data_version = None
        return self.look()

    def _check_writer(self) -> None:
        """Mark the run as ended if its process is gone."""
        if self._open_again():
            return
        how = self._end_of_writer()
        if how and not self.look():
            self._finish(f"its process {how} without closing the file. {self.lacks}".removesuffix(". "))
            return
        age = time.time() - (self._written() or 0)
        if self.lacks and (how is None or age > LIVENESS_CHECK_AFTER_SECONDS):  # a writer has a log soon
            self._finish(f"it is not complete. {self.lacks}")
        elif how is None and age > REMOTE_DEAD_AFTER_SECONDS and not self.look():
            self._finish("nothing was written for an hour, and its process is not of this machine")

    def _end_of_writer(self) -> str | None:
        """Return how the writing process ended, empty while it writes; None if unknown."""
        try:
            process = Process(*msgspec.convert(self.metadata["process"], built(_ProcessRow)))
        except (KeyError, TypeError, ValueError):
            return None
        end = msgspec.structs.replace(process, program=str(self.metadata.get("program", ""))).end()
        announced = self.metadata.get("announced")
        if end == "" and announced:  # an exec ends a run, and not its process
            end = "ended" * (self.metadata.get("id") in {run.id for run in ended(Path(str(announced)))})
        return "was killed, or ended" if end and end != REPLACED else end

    def _written(self) -> float | None:
        """Return when the file or its log was last written."""
        found = [self.path, self.path.with_name(self.path.name + "-wal")]
        return max((one.stat().st_mtime for one in found if one.exists()), default=None)

    def _follow(self) -> bool:
        """Look once; return False if nothing more will come."""
        if not self.look() and time.monotonic() - self._last_change > LIVENESS_CHECK_AFTER_SECONDS:
            self._check_writer()
            self._last_change = time.monotonic()
        return self.state == LIVE

    def _finish(self, reason: str) -> None:
        with self._lock:
            if self.state != LIVE:
                return
            self.state, self.reason = ENDED, reason
            streams = [*self._opened.values()]
        for stream in streams:
            stream.feed.finish(ENDED, reason)

    def close(self) -> None:
        """Close the file; values already read stay, and streams stop yielding."""
        self._finish("closed")
        with self._lock:
            self._database = None
            self._end_database()

    def __enter__(self) -> StoredRun:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def _watch(held: weakref.ref[StoredRun]) -> None:
    """Look repeatedly until the run has ended or is no longer referenced."""
    while True:
        run = held()
        try:
            if run is None or not run._follow():
                return
        except StoreError as error:  # it was closed meanwhile, or the file is gone
            if run is not None:
                run._finish(str(error))
            return
        del run
        time.sleep(POLL_INTERVAL_SECONDS)
