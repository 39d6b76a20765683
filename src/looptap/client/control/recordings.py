"""Recordings of a few steps of the loop: torch's profiler, and memory."""

from __future__ import annotations

import os

import msgspec

from looptap.client.control.commands import ControlClient
from looptap.client.control.controls import Outcome
from looptap.protocol.statistics import MemoryReport
from looptap.protocol.types.built_types import built


class Recordings:
    """What a client has a job record, each by a command of the job."""

    def __init__(self, control: ControlClient) -> None:
        self._control = control

    def profile(
        self, path: str | os.PathLike[str], *, steps: int = 5, on: str = "", timeout: float = 300.0, rank: int = 0
    ) -> Outcome:
        """Have torch's profiler trace ``steps`` steps, for Perfetto. Raises ControlError.

        Args:
            path: A new file on the job's machine that ends in .json.gz; the job writes it.
            steps: Their number, 1 to 100.
            on: The type of events that are steps; by default that of the job's first group.
            timeout: Seconds to wait for the file.
            rank: The rank that is traced.
        """
        return self._control.command("profile", os.path.abspath(path), steps, on=on, timeout=timeout, ranks=rank)

    def memory(
        self, path: str | os.PathLike[str] = "", *, steps: int = 5, on: str = "", timeout: float = 300.0, rank: int = 0
    ) -> MemoryReport:
        """Return which lines and tensors hold memory. Raises ControlError.

        The job traces ``steps`` steps, with torch's memory history on CUDA, else with tracemalloc. Before that it times
        as many steps without tracing; the report has both times. Results of the job stay the same.

        Args:
            path: A new file on the job's machine that ends in .pickle, for the snapshot of torch (for
                https://pytorch.org/memory_viz) or of tracemalloc.
            steps: Their number, 1 to 100.
            on: The type of events that are steps; by default that of the job's first group.
            timeout: Seconds to wait for the report.
            rank: The rank that is asked.
        """
        name = os.path.abspath(path) if path else ""
        done = self._control.command("memory", name, steps, on=on, timeout=timeout, ranks=rank)
        return msgspec.convert(done.result, built(MemoryReport))
