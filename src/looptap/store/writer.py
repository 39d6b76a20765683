"""`Writer`: writes a run's file on its own thread; its caller never waits.

The thread is separate because a commit may take seconds (a slow disk, a network file system), and the I/O thread of an
agent must answer meanwhile. The queue is bounded in bytes; above the bound new batches are dropped and counted. When
the disk is full or fails, the queue is retried every half second. A commit comes at most `FLUSH_INTERVAL_SECONDS`
seconds after the first value in the queue: that is what a killed process loses.

Values of one type a field are written in columns, many in one statement: each statement releases and takes the
interpreter lock, which is expensive beside a loop of pure Python on another thread (benchmarks/bench_store.py).
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from looptap.protocol.file_names import as_text
from looptap.protocol.statistics import RecordedStreamStats, RecordingStats
from looptap.store.environment import about
from looptap.store.errors import StoreError
from looptap.store.layout.columns import fact
from looptap.store.layout.page_writer import PageWriter
from looptap.store.layout.scalar_columns import ScalarRow
from looptap.store.layout.written_file import Renewal, WrittenFile
from looptap.store.queue import Job, QueuedCommand, QueuedItems, QueuedStatement, items_and_bytes
from looptap.streams.columns.value_columns import ValueColumns
from looptap.streams.stream.buffer import Batch
from looptap.streams.values.sizing import size_of

FLUSH_INTERVAL_SECONDS, FLUSH_EVERY_ITEMS = 0.2, 8192
"""Seconds, and items, after which the queue is written."""
MAX_PENDING_BYTES = 67_108_864
"""Approximate bound of the queue."""
RETRY_DELAY_SECONDS = 0.5
"""Seconds between tries when the disk is full or fails."""

_ITEMS_PER_TRANSACTION = 20_000  # items of one commit
_ITEM_BYTES, _COLUMNS_ITEM_BYTES = 64, 17  # that an item in the queue counts as, beside its value
_CLOSING_TRIES_COUNT = 3  # to write a file again that has just been removed
_MAX_WARNINGS = 10  # about files that had to be made again
_INSERT_STREAM = "INSERT OR IGNORE INTO streams VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
_INSERT_COMMAND = "INSERT OR REPLACE INTO commands VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"

log = logging.getLogger("looptap")

_VALUES = (
    sqlite3.DataError,
    sqlite3.IntegrityError,
    sqlite3.InterfaceError,
    sqlite3.NotSupportedError,
    sqlite3.ProgrammingError,
    ArithmeticError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)
"""Errors of values that cannot be written."""
_DISK = (sqlite3.Error, OSError, StoreError)
"""Errors of a full or failing disk."""


class Writer:
    """The file of one run, created when something is first stored.

    ``facts`` describe the run (id, name, rank, ...). Only `close` waits for the disk; disk errors are not raised, but
    reported by `stats`. A stream, and its batches in order, come from one thread at a time. In a forked child nothing
    is written.
    """

    def __init__(self, path: Path, facts: dict[str, Any] | None = None, *, limit: int = MAX_PENDING_BYTES) -> None:
        self.limit = limit
        self.state = "waiting"
        """waiting (nothing to store yet), keeping, paused (resumes automatically) or closed."""
        self.renewals = 0
        """How often the file had to be made again."""
        self._reason = self._note = ""  # of a pause; what has become of former files
        self._file = WrittenFile(path, self._begin_file, self._renewed)
        self._facts: dict[str, Any] = {"started": time.time(), **(facts or {})}
        self._lock = threading.Lock()
        self._wakeup, self._full, self._closing = threading.Event(), threading.Event(), threading.Event()
        self._queue: deque[Job] = deque()
        self._pages = PageWriter()
        self._bytes = self._count = self._peak = 0
        self._streams: list[tuple[Any, ...]] = []
        self._kept: list[int] = []
        self._dropped: list[int] = []
        self._pauses = self._commits = self._commands = 0
        self._slowest = self.seconds = 0.0
        """Longest wait for the disk, and CPU time of the writing thread."""
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        self._complete = True

    @property
    def path(self) -> Path:
        """The path of the file; another one if something else took its place."""
        return self._file.path

    @property
    def reason(self) -> str:
        """Why nothing is written, and what was lost."""
        return "; ".join(filter(None, (self._reason, self._note)))

    @property
    def has_file(self) -> bool:
        """True once something is stored, or waits to be."""
        return self._thread is not None

    # ------------------------------------------------------------ input

    def stream(
        self,
        name: str,
        *,
        query: str = "",
        on: str = "",
        window: str = "",
        fields: Sequence[str] | None = None,
        unit: str = "",
        first: int = 1,
    ) -> int:
        """Declare a stream numbered from ``first``; return its id for `append`."""
        self._close_after_fork()
        named = None if fields is None else msgspec.json.encode(list(fields)).decode()
        with self._lock:
            number = len(self._streams) + 1
            row = (number, name, query, on, window, named, unit, first)
            self._streams.append(row)
            self._kept.append(0)
            self._dropped.append(0)
        self._put(QueuedStatement(_INSERT_STREAM, row))
        return number

    def append(self, stream: int, batch: Batch) -> bool:
        """Queue a batch, which must not change afterwards; return False if dropped."""
        self._close_after_fork()
        each = _COLUMNS_ITEM_BYTES if isinstance(batch.values, ValueColumns) else _ITEM_BYTES
        nbytes = (batch.nbytes or size_of(batch.values)) + each * len(batch.values)
        if self._put(QueuedItems(stream, batch, nbytes)):
            return True
        with self._lock:
            self._dropped[stream - 1] += len(batch.values)
        return False

    def command(self, command: QueuedCommand) -> None:
        """Store a command and its outcome, replacing any with the same id."""
        self._close_after_fork()
        row = (*command[:7], fact(command.old), fact(command.new), command.outcome, fact(command.asked))
        self._put(QueuedStatement(_INSERT_COMMAND, row))

    def scalars(self, table: ScalarRow) -> bool:
        """Store a table of scalars, replacing the one of the same events.

        Return False for a run without a file, or whose queue is long: a later table has what this one had.
        """
        self._close_after_fork()
        if self._thread is None or self._bytes > self.limit // 4:
            return False
        return self._put(QueuedStatement("INSERT OR REPLACE INTO scalars VALUES (?, ?, ?, ?, ?, ?, ?)", table))

    def create(self) -> None:
        """Create the file even if nothing but facts is stored."""
        self._close_after_fork()
        self._put(QueuedStatement("SELECT 1", ()))

    def describe(self, **facts: Any) -> None:
        """Store facts of the run, such as exposed names, replacing those of same names."""
        self._close_after_fork()
        with self._lock:
            self._facts.update(facts)
            if self._thread is None:  # nothing to store yet, and no file
                return
        for name, value in facts.items():
            self._put(QueuedStatement("INSERT OR REPLACE INTO run VALUES (?, ?)", (name, fact(value))))

    def _close_after_fork(self) -> None:
        """Close in a forked child, which lacks the thread and may have a held lock."""
        if os.getpid() != self._pid:
            self._pid, self._lock, self._closing = os.getpid(), threading.Lock(), threading.Event()
            self._closing.set()
            self._thread, self.state = None, "closed"

    def _put(self, job: Job) -> bool:
        if self._closing.is_set():
            return False
        count, nbytes = items_and_bytes(job)
        with self._lock:
            # Without its row a stream is lost, so statements may fill twice as much.
            limit = self.limit if count else 2 * self.limit
            if self._bytes + nbytes > limit and self._bytes:
                return False
            self._queue.append(job)
            self._bytes += nbytes
            self._count += count
            self._peak = max(self._peak, self._bytes)
            full = self._count >= FLUSH_EVERY_ITEMS
            if self._thread is None:
                self._start()
        if not self._wakeup.is_set():
            self._wakeup.set()
        if full and not self._full.is_set():
            self._full.set()
        return True

    def _start(self) -> None:
        """Start the thread; where that fails, the next job tries again."""
        thread = threading.Thread(target=self._run, name="looptap-store", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            self._pauses += self.state != "paused"
            self.state, self._reason = "paused", str(error)
        else:
            self._thread = thread

    # ------------------------------------------------------------ output

    def stats(self) -> RecordingStats:
        """Return state, reason, queue sizes, and the values kept and dropped."""
        self._close_after_fork()
        with self._lock:
            names = [str(row[1]) for row in self._streams]
            counted = zip(names, self._kept, self._dropped, strict=True)
            return RecordingStats(
                file=as_text(str(self.path)),
                path=as_text(str(self.path)),
                state=self.state,
                reason=self.reason,
                kept=sum(self._kept),
                dropped=sum(self._dropped),
                waiting_bytes=self._bytes,
                waiting_peak=self._peak,
                pauses=self._pauses,
                commits=self._commits,
                slowest_commit=self._slowest,
                seconds=self.seconds,
                streams=[RecordedStreamStats(name=name, kept=kept, dropped=lost) for name, kept, lost in counted],
            )

    def close(self, timeout: float = 1.0, **facts: Any) -> bool:
        """Write the queue and end the file; return False if that failed or timed out.

        Values that could not be written count as dropped. A writer that had nothing to store creates no file.
        """
        self._close_after_fork()
        if self._thread is not None:
            self.describe(**facts, ended=time.time())
        self._closing.set()
        self._wakeup.set()
        self._full.set()
        if self._thread is None:
            self._give_up([])
            return self._complete
        self._thread.join(timeout)
        return not self._thread.is_alive() and self._complete

    # ------------------------------------------------------------ the thread

    def _run(self) -> None:
        taken: list[Job] = []
        tries = _CLOSING_TRIES_COUNT
        while True:
            self._wakeup.wait()
            self._full.wait(FLUSH_INTERVAL_SECONDS)
            self._wakeup.clear()
            self._full.clear()
            closing = self._closing.is_set()  # read before the queue: nothing is queued after it is set
            while taken or (taken := self._take()):
                try:
                    self._write(self._ready(), taken)
                except _VALUES as error:
                    taken = self._drop_unwritable(taken, error)
                except _DISK as error:
                    self._pause(error)
                    if self._closing.is_set() and not (tries and self._is_adrift()):
                        self._give_up(taken)
                        return
                    tries -= self._closing.is_set()
                    self._closing.wait(RETRY_DELAY_SECONDS)
                else:
                    self._done(taken)
                    taken = []
            if closing:
                self._file.end()
                self.state = "closed"
                return

    def _take(self) -> list[Job]:
        """Dequeue the jobs of one commit, which still count as waiting."""
        with self._lock:
            found, items = [], 0
            while self._queue and items < _ITEMS_PER_TRANSACTION:
                found.append(self._queue.popleft())
                items += items_and_bytes(found[-1])[0]
            return found

    def _ready(self) -> sqlite3.Connection:
        """Return the connection to the file, which is made again if it is gone."""
        return self._file.ready(sum(self._kept))

    def _begin_file(self, connection: sqlite3.Connection) -> None:
        """Fill a new file with facts, and the streams that a former one had."""
        process = about()
        with self._lock:
            facts, streams = {**process, **self._facts}, self._streams[:] if self._commits else []
        connection.executemany("INSERT INTO run VALUES (?, ?)", [(name, fact(value)) for name, value in facts.items()])
        connection.executemany(_INSERT_STREAM, streams)

    def _renewed(self, renewal: Renewal) -> None:
        if renewal.lost:
            self._lose(f"{renewal.former} {renewal.what}", f"; later ones are in {self.path}")
        else:
            self._note = (
                f"{renewal.former} {renewal.what}; all that the run has stored was written again, to {self.path}"
            )
        self.renewals += 1
        if self.renewals <= _MAX_WARNINGS:
            log.warning("looptap: %s.", self._note)

    def _lose(self, what: str, rest: str = "") -> None:
        """Count what was written as dropped, because ``what`` has happened to the file."""
        self._pages.forget()
        with self._lock:
            values, commands = sum(self._kept), self._commands
            self._dropped = [lost + kept for lost, kept in zip(self._dropped, self._kept, strict=True)]
            self._kept, self._commands = [0] * len(self._kept), 0
            counts = f"{values:,} value{'s' * (values != 1)}"
            if commands:
                counts += f" and {commands:,} command{'s' * (commands != 1)}"
            self._note, self._complete = f"{what}; this lost {counts}{rest}", False

    def _write(self, connection: sqlite3.Connection, jobs: list[Job]) -> None:
        begun = time.monotonic()
        connection.execute("BEGIN IMMEDIATE")
        try:
            for job in jobs:
                if isinstance(job, QueuedStatement):
                    connection.execute(*job)
            self._pages.write(connection, [(job.stream, job.batch) for job in jobs if isinstance(job, QueuedItems)])
            connection.execute("COMMIT")
        except BaseException:
            self._pages.forget()
            with contextlib.suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            raise
        if any(isinstance(job, QueuedStatement) and job.sql == _INSERT_COMMAND for job in jobs):
            ((self._commands,),) = connection.execute("SELECT count(*) FROM commands")
        self._file.committed()
        self._slowest = max(self._slowest, time.monotonic() - begun)

    def _done(self, jobs: list[Job]) -> None:
        with self._lock:
            if self.state == "paused":
                self._reason = ""
            self.state = "keeping"
            self._commits += 1
            self.seconds = time.thread_time()
            self._uncount(jobs)
            for job in jobs:
                if isinstance(job, QueuedItems):
                    self._kept[job.stream - 1] += len(job.batch.values)

    def _uncount(self, jobs: list[Job]) -> None:
        for job in jobs:
            count, nbytes = items_and_bytes(job)
            self._count -= count
            self._bytes -= nbytes

    def _pause(self, error: Exception) -> None:
        """Record why nothing is stored."""
        with self._lock:
            self._pauses += self.state != "paused"
            self.state, self._reason = "paused", str(error) or type(error).__name__
        self._file.failed(error)

    def _drop_unwritable(self, jobs: list[Job], error: Exception) -> list[Job]:
        """Find what cannot be written by bisection; return what to try next."""
        half = len(jobs) // 2
        with self._lock:
            if half:
                self._queue.extendleft(reversed(jobs[half:]))
                return jobs[:half]
            self._uncount(jobs)
            self._count_dropped(jobs)
            self._reason, self._complete = f"some values cannot be kept: {type(error).__name__}: {error}", False
            return []

    def _give_up(self, jobs: list[Job]) -> None:
        """Count the jobs that will never be written as dropped; `reason` stays."""
        if self._is_adrift():
            self._lose(f"{self.path} was removed, moved or replaced")
        with self._lock:
            lost = [*jobs, *self._queue]
            self._uncount(lost)
            self._queue.clear()
            self._count_dropped(lost)
            self.state, self._complete = "closed", self._complete and not lost

    def _is_adrift(self) -> bool:
        try:
            return self._file.adrift()
        except OSError:
            return False

    def _count_dropped(self, jobs: list[Job]) -> None:
        for job in jobs:
            if isinstance(job, QueuedItems):
                self._dropped[job.stream - 1] += len(job.batch.values)
