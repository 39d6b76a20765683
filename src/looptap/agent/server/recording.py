"""Records a run on disk: the declared streams to be kept, and every command.

Runs on the I/O thread; the store's own thread writes the file, so the I/O thread never waits for a disk.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import time
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

from looptap.agent.handoff.ready_set import Ring
from looptap.agent.handoff.value_ring import Cursor
from looptap.agent.run.resume_lineage import RunHistory
from looptap.agent.scalars.scalar_history import ScalarHistory
from looptap.agent.scalars.scalar_table import ScalarTable
from looptap.agent.server.declared_streams import DeclaredStream
from looptap.agent.server.encoded_batches import finished
from looptap.protocol.errors import LinkError
from looptap.protocol.file_names import as_text
from looptap.protocol.files.connection import runtime_dir
from looptap.protocol.messages import RunInfo
from looptap.protocol.replies import CommandRecord
from looptap.store.layout.run_path import store_path
from looptap.store.layout.scalar_columns import ScalarRow, scalar_row
from looptap.store.queue import QueuedCommand
from looptap.store.writer import Writer
from looptap.streams.columns.value_columns import ValueColumns

CLOSE_TIMEOUT_SECONDS = 1.0
"""Seconds that the end of a run waits for the file."""
SCALARS_INTERVAL_SECONDS = 30.0
"""Seconds after which the history of scalars is written again, if it has changed; less in the first minute."""
_FIRST_SCALARS_INTERVAL_SECONDS = 0.5  # doubles each time
_MAX_BATCH_VALUES, _MAX_BATCH_BYTES = 2000, 4_000_000  # of one batch
_ERROR_COUNT_INTERVAL_SECONDS = 1.0  # seconds between two counts of errors in the file
_MAX_ERROR_CHARACTERS = 2000  # characters of an error there

log = logging.getLogger("looptap")


class RunRecorder:
    """The writer of kept streams and command records to the file of a run."""

    def __init__(self, run: RunInfo, where: Any) -> None:
        self._rank = run.rank
        self._place_is_chosen = bool(where or os.environ.get("LOOPTAP_STORE"))
        self.writer = Writer(store_path(run.id, where, run.rank), _facts(run))
        self._kept: dict[DeclaredStream, tuple[int, Cursor]] = {}
        self._by_ring: dict[Ring, DeclaredStream] = {}  # of those
        self._ready: dict[DeclaredStream, None] = {}  # those that have values to hand over
        self._errors: dict[str, tuple[int, str, str]] = {}
        self._withheld: dict[str, int] = {}
        self._last_error_count = -math.inf
        self._scalars_interval, self._scalars_due = _FIRST_SCALARS_INTERVAL_SECONDS, -math.inf
        self._stored_scalars: dict[str, tuple[int, float]] = {}  # columns and newest time of each table
        self._left_out_scalars = self._renewals = 0
        self._kept_facts: dict[str, Any] = {}
        self._before: weakref.WeakKeyDictionary[DeclaredStream, tuple[int, int]] = weakref.WeakKeyDictionary()

    @property
    def recording(self) -> bool:
        """True if a stream is being recorded."""
        return bool(self._kept)

    def start_recording(self, declared: DeclaredStream) -> None:
        """Record a declared stream, from its oldest value or where it was left off."""
        if declared in self._kept:
            return
        declared.kept = declared.query.recorded = True
        self._by_ring[declared.ring] = declared
        self._ready[declared] = None
        if declared in self._before:
            number, above = self._before[declared]
            self._kept[declared] = number, Cursor(declared.ring, above)
            return
        pipeline, reader = declared.query.pipeline, Cursor(declared.ring)
        number = self.writer.stream(
            declared.name,
            query="" if declared.logged else pipeline.text,
            on=declared.query.on,
            window=str(pipeline.window),
            fields=pipeline.fields,
            unit=declared.unit,
            first=reader.position + 1,
        )
        self._kept[declared] = number, reader

    def stop_recording(self, declared: DeclaredStream, run_history: RunHistory) -> None:
        """Stop recording a stream, after handing over its last values."""
        declared.kept = declared.query.recorded = False
        if declared in self._kept:
            self._ready[declared] = None
            self.hand_over(run_history)
            self._by_ring.pop(declared.ring)
            number, reader = self._kept.pop(declared)
            self._before[declared] = number, reader.position
            reader.leave()

    def record_command(self, command: QueuedCommand) -> None:
        """Record a command; say so if that makes a file that the host has not asked for."""
        if not (self._place_is_chosen or self.writer.has_file):
            log.warning(
                "looptap: the commands of clients are recorded in %s, the first is: %.100s. "
                "To use another directory, set Agent(store=…) or LOOPTAP_STORE.",
                self.writer.path,
                command.what,
            )
        self.writer.command(command)

    def mark_rings(self, rings: Sequence[Ring]) -> None:
        """Mark the streams whose values come from these rings for `hand_over`."""
        for ring in rings:
            if ring in self._by_ring:
                self._ready[self._by_ring[ring]] = None

    def mark_all(self) -> None:
        """Mark all streams for `hand_over`."""
        self._ready.update(dict.fromkeys(self._kept))

    def hand_over(self, run_history: RunHistory) -> None:
        """Pass new values to the file; values lost before show as a gap in numbers."""
        ready, self._ready = self._ready, {}
        for declared in ready:
            number, reader = self._kept[declared]
            on = declared.query.on
            while (batch := reader.peek(_MAX_BATCH_VALUES, _MAX_BATCH_BYTES)) is not None:
                values, flags = finished(batch)
                flags = run_history.flagged(on, batch, flags)
                nbytes = values.nbytes if isinstance(values, ValueColumns) else batch.nbytes
                clock = time.time() - time.monotonic()
                kept = batch._replace(values=values, clock=clock, flags=bytes(flags), rank=self._rank, nbytes=nbytes)
                self.writer.append(number, kept)
                reader.take(batch)
        self._record_errors(ready)

    def _record_errors(self, streams: Iterable[DeclaredStream]) -> None:
        """Record each query's first error, and its numbers of errors and skipped events.

        For ``streams`` a first error and the end of a query are recorded at once; for all of them, once a second.
        """
        now = time.monotonic()
        due = now > self._last_error_count + _ERROR_COUNT_INTERVAL_SECONDS
        if due:
            self._last_error_count, streams = now, self._kept
        errors = {
            str(number): (
                query.errors,
                query.traceback[-_MAX_ERROR_CHARACTERS:],
                query.reason[:_MAX_ERROR_CHARACTERS] * (query.state == "failed"),
            )
            for number, query in ((self._kept[declared][0], declared.query) for declared in streams)
            if query.errors
        }
        withheld = {str(self._kept[declared][0]): declared.query.limit.withheld for declared in streams}
        if due and any(count != self._withheld.get(name, 0) for name, count in withheld.items()):
            self._withheld |= withheld
            self.writer.describe(withheld=self._withheld)
        fresh = {name: report for name, report in errors.items() if self._errors.get(name) != report}
        first = any(name not in self._errors or self._errors[name][2] != report[2] for name, report in fresh.items())
        if fresh and (due or first):
            self._errors = {**self._errors, **fresh}
            self.writer.describe(errors=self._errors)

    def store_scalars(self, history: ScalarHistory, *, end: bool = False) -> None:
        """Write the tables of scalars that have changed, if it is time or the ``end``.

        A run without a file gets none for that.
        """
        now = time.monotonic()
        if not self.writer.has_file or (now < self._scalars_due and not end):
            return
        if self._renewals != self.writer.renewals:  # the file may lack what was stored in the former one
            self._renewals = self.writer.renewals
            self._stored_scalars.clear()
        self._scalars_due = now + self._scalars_interval
        self._scalars_interval = min(2 * self._scalars_interval, SCALARS_INTERVAL_SECONDS)
        for table in history.tables():
            state = len(table.columns), table.times[-1]
            if self._stored_scalars.get(table.on) != state and self.writer.scalars(_row(table)):
                self._stored_scalars[table.on] = state
        left_out = history.left_out
        if left_out != self._left_out_scalars:
            self._left_out_scalars = left_out
            self.writer.describe(scalars_left_out=left_out)

    def store_facts(self, facts: dict[str, Any]) -> None:
        """Store what exposed objects keep for later runs, if it has changed."""
        if self.writer.has_file and facts != self._kept_facts:
            self._kept_facts = facts
            self.writer.describe(kept=facts)

    def store_config(self, config: dict[str, Any]) -> None:
        """Put what the run was started with into its file, which begins with that."""
        self.writer.describe(config=config)
        self.writer.create()

    def close(self, reason: str) -> None:
        """End the file, with the last count of errors; warn if it is not complete."""
        self._last_error_count = -math.inf
        self._record_errors(())
        if not self.writer.close(CLOSE_TIMEOUT_SECONDS, farewell=reason):
            slow = f"the disk took longer than {CLOSE_TIMEOUT_SECONDS:g} s at the end of the run"
            log.warning("looptap: %s is not complete: %s.", self.writer.path, self.writer.reason or slow)


def _row(table: ScalarTable) -> ScalarRow:
    columns = table.columns
    names = [
        (name, one.query, one.kind.__name__, one.exposed, one.rests.tolist() if any(one.rests) else [])
        for name, one in columns.items()
    ]
    return scalar_row(
        table.on,
        time.time() - time.monotonic(),
        table.events,
        table.times,
        names,
        [one.values for one in columns.values()],
        [one.present for one in columns.values()],
    )


def kept_command(record: CommandRecord) -> QueuedCommand:
    """Return a command's record as it is stored, and as a value of its stream."""
    new = record.new if record.result is None else record.result
    return QueuedCommand(
        record.id,
        record.time + time.monotonic() - time.time(),
        record.time,
        record.event,
        record.number,
        record.client,
        f"{record.what} {record.name}".rstrip(),
        record.old,
        new,
        f"{record.outcome}: {record.error}" if record.error else record.outcome,
        {"value": record.value, "schedule": record.schedule, "checkpoint": record.checkpoint},
    )


def _facts(run: RunInfo) -> dict[str, Any]:
    """Return the facts of a run as plain data."""
    facts = {name: getattr(run, name) for name in run.__struct_fields__}
    with contextlib.suppress(LinkError, OSError):
        facts["announced"] = as_text(str(runtime_dir()))  # where a client finds it
    return facts
