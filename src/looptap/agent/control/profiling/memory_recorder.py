"""Which lines and tensors hold memory, recorded over some steps of the loop.

As many steps are timed before, so that the report can say what the recording has cost. It ends by itself: with its
steps, after `MAX_SECONDS`, or when the tracer needs too much memory. Only the list of tensors is made on the training
thread; the snapshot is taken, and the report made, on a thread of their own.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec

from looptap.agent.control.profiling.live_tensors import live_tensors
from looptap.agent.control.profiling.memory_tracers import CudaTracer, PythonTracer, tracer
from looptap.agent.control.profiling.step_recorder import Done
from looptap.protocol.statistics import DeviceMemory, LiveTensors, MemoryReport
from looptap.streams.errors import ControlError
from looptap.streams.events import Event
from looptap.streams.values.memory import peak_rss, rss

MAX_SECONDS = 120.0
"""Seconds after which a recording ends, however many steps it has seen."""
POLL_INTERVAL_SECONDS = 0.05
"""Seconds between two checks of the memory that the tracer needs."""
LAST_EVENT_SECONDS = 2.0
"""Seconds that a recording waits at least for an event, to list the tensors there."""
MAX_ROWS = 100
"""Lines, and tensors, of a report."""


class MemoryRecorder:
    """A report on memory over ``steps`` steps; ``path`` is for the snapshot, if any."""

    def __init__(self, path: str, steps: int) -> None:
        self._path, self._steps = Path(path) if path else None, steps
        self._tracer: PythonTracer | CudaTracer | None = None
        self._times: list[float] = []
        self._abandoned = False
        self._stepped, self._taken, self._listed = threading.Event(), threading.Event(), threading.Event()
        self._lock = threading.Lock()  # so that a tracer is not started after the end
        self._tensors: list[LiveTensors] = []
        self._devices: dict[str, int] = {}
        self._stood = 0.0
        self._notes: list[str] = []

    # ------------------------------------------------------------ training thread

    def start(self, done: Done) -> None:
        """Begin with the steps that are only timed. Raises ControlError."""
        if self._path is not None:
            try:
                os.close(os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o600))
            except OSError as error:
                raise ControlError(f"{self._path}: {error.strerror or error}; nothing was written.") from None
        self._done, self._thread = done, threading.get_ident()
        self._times.append(time.monotonic())
        try:
            threading.Thread(target=self._work, name="looptap-memory", daemon=True).start()
        except RuntimeError as error:
            if self._path is not None:
                self._path.unlink(missing_ok=True)
            raise ControlError(f"memory cannot be recorded: {error}") from None

    def here(self) -> bool:
        """Return True on the thread that has started it."""
        return threading.get_ident() == self._thread

    def step(self, event: Event) -> bool:
        """Start the tracer after the first half of the steps; at the last list tensors."""
        if self._listed.is_set():
            return True
        if self._stepped.is_set():
            if self._taken.is_set():  # not before: what the list allocates would be traced, and each object takes 5 µs
                self._list_tensors(event)
            return self._listed.is_set()
        self._times.append(time.monotonic())
        if len(self._times) == self._steps + 1:
            with self._lock:
                if not self._abandoned:
                    chosen = tracer()
                    chosen.start()
                    self._tracer = chosen
            self._times[-1] = time.monotonic()
        elif len(self._times) == 2 * self._steps + 1:
            self._stepped.set()
        return False

    def _list_tensors(self, event: Event) -> None:
        began = time.monotonic()
        try:
            self._tensors, self._devices = live_tensors(event)
        except Exception as error:
            self._notes.append(f"the tensors could not be listed: {type(error).__name__}: {error}")
        self._stood = time.monotonic() - began
        self._listed.set()

    # ------------------------------------------------------------ the end

    def abandon(self) -> None:
        """Stop the tracer, and remove the file. Any thread."""
        self._abandoned = True
        self._stop()
        self._stepped.set()
        self._listed.set()
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()

    def after_fork(self) -> None:
        """Stop tracemalloc, which a forked child inherits and would never stop."""
        if isinstance(self._tracer, PythonTracer):
            self._tracer.stop()

    def _stop(self) -> None:
        with self._lock:
            chosen, self._tracer = self._tracer, None
            if chosen is not None:
                chosen.stop()

    # ------------------------------------------------------------ its own thread

    def _work(self) -> None:
        """Wait for the end of the steps, and report. Raises nothing."""
        problem, report = "", None
        try:
            deadline = time.monotonic() + MAX_SECONDS
            self._await_steps(deadline)
            report = self._report(deadline)
        except Exception as error:
            problem = f"memory was not recorded: {type(error).__name__}: {error}"
        finally:
            with contextlib.suppress(Exception):
                self._stop()
        if self._abandoned:
            return
        if problem and self._path is not None:
            self._path.unlink(missing_ok=True)
        self._done(None if report is None else msgspec.to_builtins(report), problem)

    def _await_steps(self, deadline: float) -> None:
        """Wait for the last step, or note why not."""
        while not self._stepped.wait(POLL_INTERVAL_SECONDS):
            chosen = self._tracer
            if chosen is not None and chosen.full():
                self._notes.append("the recording ended early: its tracer had to note too many allocations")
            elif time.monotonic() > deadline:
                self._notes.append(f"the recording ended after {MAX_SECONDS:g} s")
            else:
                continue
            self._stepped.set()

    def _report(self, deadline: float) -> MemoryReport:
        """Take the snapshot, and make the report of it."""
        with self._lock:
            chosen = self._tracer
            snapshot = None if chosen is None or self._abandoned else chosen.take()
        self._stop()
        self._taken.set()
        if not self._listed.wait(max(LAST_EVENT_SECONDS, deadline - time.monotonic())):
            self._notes.append("the loop raised no event at which tensors could be listed")
        lines = [] if snapshot is None or chosen is None else chosen.lines(snapshot)
        if chosen is not None and not chosen.own:
            self._notes.append("the job traces memory itself: the lines are of all that it has traced")
        size = 0
        if self._path is not None and snapshot is not None and chosen is not None:
            with self._path.open("wb") as file:
                chosen.save(snapshot, file)
            size = self._path.stat().st_size
        before, traced = self._times[: self._steps + 1], self._times[self._steps :]
        return MemoryReport(
            kind="" if chosen is None else chosen.kind,
            steps=max(0, len(traced) - 1),
            stood=self._stood,
            step_seconds=_median_step(traced),
            step_seconds_before=_median_step(before),
            held=sum(one.size for one in lines),
            peak=0 if chosen is None else chosen.peak,
            lines=lines[:MAX_ROWS],
            lines_left_out=max(0, len(lines) - MAX_ROWS),
            tensors=self._tensors[:MAX_ROWS],
            tensors_left_out=max(0, len(self._tensors) - MAX_ROWS),
            tensor_bytes=self._devices,
            tensor_count=sum(one.count for one in self._tensors),
            resident=_resident(),
            devices=_devices(),
            notes=self._notes,
            path="" if self._path is None else str(self._path),
            file_bytes=size,
        )


def _median_step(times: list[float]) -> float:
    """Return the seconds from one event to the next."""
    steps = [after - before for before, after in itertools.pairwise(times)]
    return statistics.median(steps) if steps else 0.0


def _devices() -> list[DeviceMemory]:
    """Return torch's memory on each CUDA device that this job uses."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return []
    cuda = torch.cuda
    found = [
        DeviceMemory(
            index=index,
            allocated=cuda.memory_allocated(index),
            reserved=cuda.memory_reserved(index),
            peak=cuda.max_memory_allocated(index),
        )
        for index in range(cuda.device_count())
    ]
    return [one for one in found if one.reserved]


def _resident() -> int:
    """Return the bytes of this process; the most so far where there is no /proc."""
    try:
        return rss()
    except OSError:
        return peak_rss()
