"""Query helpers: memory used by the job's process, on the host and CUDA device."""

from __future__ import annotations

import os
import sys

_STATM = "/proc/self/statm"
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 0


def rss() -> int:
    """Return the bytes of host memory that this process uses now.

    Raises OSError where the system has no /proc.

    >>> rss() > 1_000_000
    True
    """
    try:
        place = os.open(_STATM, os.O_RDONLY)  # not kept open: in a forked child it would be the parent's
    except FileNotFoundError:
        raise OSError("rss() reads /proc, which this system does not have. peak_rss() works here, too.") from None
    try:
        return int(os.read(place, 100).split()[1]) * _PAGE
    finally:
        os.close(place)


def peak_rss() -> int:
    """Return the peak bytes of host memory that this process has used.

    Raises ImportError where the system does not count them (Windows).
    """
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def cuda_memory(device: object = None) -> int:
    """Return the bytes of tensors on a CUDA device (the current one); 0 without CUDA.

    >>> cuda_memory() <= cuda_peak()
    True
    """
    return _allocated(device, "current")


def cuda_peak(device: object = None) -> int:
    """Return the peak bytes of tensors on a CUDA device; 0 without CUDA.

    It counts from the start, or from what the job has reset (`torch.cuda.reset_peak_memory_stats`).
    """
    return _allocated(device, "peak")


def _allocated(device: object, which: str) -> int:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return 0
    # Nested: flattening them, as torch.cuda.memory_allocated does, takes longer than the query.
    stats = torch.cuda.memory_stats_as_nested_dict(device)
    return int(stats["allocated_bytes"]["all"][which])
