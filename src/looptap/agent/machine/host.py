"""Reads the host: processors, memory, disks, network.

From /proc, where the system has it, which takes a tenth of a millisecond and needs no package; elsewhere by psutil.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from looptap.protocol.statistics import HostReading, ThreadReading

MIN_INTERVAL_SECONDS = 0.2
"""Minimum seconds over which a rate is measured: over less, one tick of the processors' clock is several percent."""

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


class ThreadTimes(NamedTuple):
    """For how long a thread has computed, and waited for a processor, in seconds."""

    number: int
    computed: float
    waited: float

    def since(self, before: ThreadTimes | None, seconds: float) -> ThreadReading | None:
        """Return what it did in the ``seconds`` since then; None if it was another."""
        if before is None or before.number != self.number:
            return None
        computed, waited = (100 * (now - then) / seconds for now, then in zip(self[1:], before[1:], strict=True))
        return ThreadReading(computed=computed, waited=waited, slept=max(0.0, 100 - computed - waited))


class HostMeter:
    """The rates of the host since the last reading. Raises ImportError, OSError."""

    def __init__(self, thread: int = 0) -> None:
        self._count: Callable[[], Counters] = from_proc if (_PROC / "stat").exists() else from_psutil
        self._at, self._before, self._thread = time.monotonic(), self._count(), thread_times(thread)

    def read(self, thread: int = 0) -> HostReading | None:
        """Return what the host does now; None if the last reading was just taken.

        ``thread`` is the number that the system has for the training thread.
        """
        seconds = time.monotonic() - self._at
        if seconds < MIN_INTERVAL_SECONDS:
            return None
        self._at += seconds
        before, self._before = self._before, (now := self._count())
        thread_before, self._thread = self._thread, (times := thread_times(thread))
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
            thread=None if times is None else times.since(thread_before, seconds),
        )


def thread_times(thread: int) -> ThreadTimes | None:
    """Return the scheduler's account of a thread of this process; None without one."""
    try:
        computed, waited, _ = (_PROC / f"self/task/{thread}/schedstat").read_text().split()
    except (OSError, ValueError):  # it is over, or another system
        return None
    return ThreadTimes(thread, int(computed) / 1e9, int(waited) / 1e9)


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
