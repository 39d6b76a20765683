"""Reads the host: processors, memory, disks, network.

From /proc, where the system has it, which takes a tenth of a millisecond and needs no package; elsewhere by psutil.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from looptap.protocol.statistics import HostReading

MIN_INTERVAL_SECONDS = 0.2
"""Seconds over which a rate is measured at least: over less, one tick of the processors' clock is several percent."""

_PROC, _DISKS = Path("/proc"), Path("/sys/block")
_SECTOR_BYTES = 512
_NO_DISKS = ("loop", "ram", "zram", "dm-", "md")  # what they read and write is counted below them, or nowhere

_Pair = tuple[int, int]


class Counters(NamedTuple):
    """What the system has counted since it started; None where it counts nothing."""

    busy: float
    idle: float
    """Of all processors together, in any unit."""
    memory: int
    memory_total: int
    """Bytes in use now, and all."""
    disk: _Pair | None
    """Bytes read and written."""
    network: _Pair | None
    """Bytes received and sent, without those that the host sends to itself."""


class HostMeter:
    """The rates of the host since the last reading. Raises ImportError, OSError."""

    def __init__(self) -> None:
        self._count: Callable[[], Counters] = from_proc if (_PROC / "stat").exists() else from_psutil
        self._at, self._before = time.monotonic(), self._count()

    def read(self) -> HostReading | None:
        """Return what the host does now; None if the last reading was just taken."""
        seconds = time.monotonic() - self._at
        if seconds < MIN_INTERVAL_SECONDS:
            return None
        self._at += seconds
        before, self._before = self._before, (now := self._count())
        busy, idle = now.busy - before.busy, now.idle - before.idle
        disk_read, disk_written = _rates(before.disk, now.disk, seconds)
        network_received, network_sent = _rates(before.network, now.network, seconds)
        return HostReading(
            cpu=min(100.0, max(0.0, 100 * busy / (busy + idle))) if busy + idle > 0 else None,
            memory=now.memory,
            memory_total=now.memory_total,
            disk_read=disk_read,
            disk_written=disk_written,
            network_received=network_received,
            network_sent=network_sent,
        )


def from_proc() -> Counters:
    """Read the counters of Linux."""
    user, nice, system, idle, *more = map(int, next(_rows("stat"))[1:9])  # without guests: they are in user and nice
    memory = {name: int(size) * 1024 for name, size, *_ in _rows("meminfo")}
    total = memory["MemTotal:"]
    disks = [(int(row[5]), int(row[9])) for row in _rows("diskstats") if _is_disk(row[2])]
    cards = [row for row in _rows("net/dev", ":") if row[0] != "lo" and row[1].isdecimal()]
    return Counters(
        busy=user + nice + system + sum(more[1:]),
        idle=idle + sum(more[:1]),
        memory=total - memory.get("MemAvailable:", memory.get("MemFree:", 0)),
        memory_total=total,
        disk=_summed(disks, _SECTOR_BYTES),
        network=_summed([(int(row[1]), int(row[9])) for row in cards]),
    )


def _rows(file: str, separator: str = " ") -> Iterator[list[str]]:
    for line in (_PROC / file).read_text().splitlines():
        yield line.replace(separator, " ").split()


def _is_disk(name: str) -> bool:
    return not name.startswith(_NO_DISKS) and (_DISKS / name.replace("/", "!")).exists()


def from_psutil() -> Counters:
    """Read the counters by psutil, whose own rates the job may be using."""
    try:
        import psutil
    except ImportError:
        raise ImportError("this system has no /proc; pip install 'looptap[machine]'") from None
    times, memory = psutil.cpu_times(), psutil.virtual_memory()
    idle = times.idle + getattr(times, "iowait", 0.0)
    guests = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)
    disk = psutil.disk_io_counters(nowrap=False)
    cards = [card for name, card in psutil.net_io_counters(pernic=True, nowrap=False).items() if name[:2] != "lo"]
    return Counters(
        busy=sum(times) - idle - guests,
        idle=idle,
        memory=memory.total - memory.available,
        memory_total=memory.total,
        disk=None if disk is None else (disk.read_bytes, disk.write_bytes),
        network=_summed([(card.bytes_recv, card.bytes_sent) for card in cards]),
    )


def _summed(pairs: list[_Pair], unit: int = 1) -> _Pair | None:
    return (unit * sum(a for a, _ in pairs), unit * sum(b for _, b in pairs)) if pairs else None


def _rates(before: _Pair | None, now: _Pair | None, seconds: float) -> tuple[float, float] | tuple[None, None]:
    """Return two counts per second: 0 where a disk or card was taken out."""
    if before is None or now is None:
        return None, None
    return max(0, now[0] - before[0]) / seconds, max(0, now[1] - before[1]) / seconds
