"""What traces allocations for a while: Python's tracemalloc, or torch's on CUDA.

A tracer that the job itself has switched on is read and left as it is.
"""

from __future__ import annotations

import linecache
import pickle
import sys
import tracemalloc
from collections.abc import Iterable
from typing import Any, BinaryIO

from looptap.agent.loop.sight.frames import HIDDEN, USER, kind_of_file
from looptap.protocol.statistics import MemoryLine

TRACED_FRAMES_COUNT = 8
"""Frames of an allocation that are noted: the innermost line of the job's own is found among them."""
MAX_TRACER_BYTES = 32 << 20
"""Memory of tracemalloc itself at which a recording ends early."""
MAX_CUDA_RECORDS = 100_000
"""Allocations and releases that torch notes; the oldest are overwritten."""
MAX_CODE_CHARACTERS = 100
"""Characters of a line of code."""


class PythonTracer:
    """Traces Python's memory, numpy's included, by tracemalloc."""

    kind = "python"

    def __init__(self) -> None:
        self.own = not tracemalloc.is_tracing()
        self.peak = 0

    def start(self) -> None:
        """Begin to trace."""
        if self.own:
            tracemalloc.start(TRACED_FRAMES_COUNT)

    def full(self) -> bool:
        """Return True at the bound of its own memory."""
        return self.own and tracemalloc.get_tracemalloc_memory() > MAX_TRACER_BYTES

    def take(self) -> Any:
        """Return a `tracemalloc.Snapshot`. Holds the interpreter while it is copied."""
        if not tracemalloc.is_tracing():
            return None
        self.peak = tracemalloc.get_traced_memory()[1]
        return tracemalloc.take_snapshot()

    def stop(self) -> None:
        """Stop tracing."""
        if self.own:
            tracemalloc.stop()

    @staticmethod
    def lines(snapshot: Any) -> list[MemoryLine]:
        """Return the bytes that each line of code holds."""
        found: dict[tuple[str, int], tuple[int, int]] = {}
        for one in snapshot.statistics("traceback") if snapshot is not None else ():
            place = _own_line([(frame.filename, frame.lineno) for frame in reversed(one.traceback)])
            count, size = found.get(place, (0, 0))
            found[place] = count + one.count, size + one.size
        return _listed(found)

    @staticmethod
    def save(snapshot: Any, file: BinaryIO) -> None:
        """Write the snapshot, for `tracemalloc.Snapshot.load`."""
        pickle.dump(snapshot, file, pickle.HIGHEST_PROTOCOL)


class CudaTracer:
    """Has torch note the memory of CUDA devices, with the Python line of each block."""

    kind = "cuda"

    def __init__(self) -> None:
        torch: Any = sys.modules["torch"]
        self._memory = torch.cuda.memory
        self.own = not getattr(torch._C, "_cuda_isHistoryEnabled", bool)()
        self.peak = 0

    def start(self) -> None:
        """Begin to note."""
        if self.own:
            self._memory._record_memory_history("all", stacks="python", max_entries=MAX_CUDA_RECORDS)

    def full(self) -> bool:
        """Return False: torch overwrites the oldest records."""
        return False

    def take(self) -> Any:
        """Return torch's snapshot: segments, blocks, and what was allocated and freed."""
        return self._memory._snapshot()

    def stop(self) -> None:
        """Stop noting."""
        if self.own:
            self._memory._record_memory_history(None)

    @staticmethod
    def lines(snapshot: Any) -> list[MemoryLine]:
        """Return the bytes that each line holds; earlier blocks have no line."""
        found: dict[tuple[str, int], tuple[int, int]] = {}
        blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
        for block in blocks:
            if str(block.get("state", "")).startswith("active"):
                frames = [(one["filename"], int(one["line"])) for one in block.get("frames") or ()]
                place = _own_line(frames) if frames else ("", 0)
                count, size = found.get(place, (0, 0))
                found[place] = count + 1, size + int(block.get("requested_size") or block["size"])
        return _listed(found)

    @staticmethod
    def save(snapshot: Any, file: BinaryIO) -> None:
        """Write the snapshot, for https://pytorch.org/memory_viz."""
        pickle.dump(snapshot, file)


def tracer() -> PythonTracer | CudaTracer:
    """Return the tracer of CUDA's memory if this job uses CUDA, else of Python's."""
    torch = sys.modules.get("torch")
    return CudaTracer() if torch is not None and torch.cuda.is_initialized() else PythonTracer()


def _own_line(frames: Iterable[tuple[str, int]]) -> tuple[str, int]:
    """Return the innermost line of the job's own, else of a library, else of all."""
    frames = list(frames)
    kinds = [kind_of_file(file) for file, _ in frames]
    if USER in kinds:
        return frames[kinds.index(USER)]
    return next((frame for frame, kind in zip(frames, kinds, strict=True) if kind != HIDDEN), frames[0])


def _listed(found: dict[tuple[str, int], tuple[int, int]]) -> list[MemoryLine]:
    lines = [
        MemoryLine(
            file=file,
            line=line,
            code=linecache.getline(file, line).strip()[:MAX_CODE_CHARACTERS] if file else "",
            count=count,
            size=size,
        )
        for (file, line), (count, size) in found.items()
    ]
    return sorted(lines, key=lambda one: (-one.size, one.file, one.line))
