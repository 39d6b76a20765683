"""The machine of a run in words, as `looptap top` and `looptap.overview` show it."""

from __future__ import annotations

from collections.abc import Sequence

from looptap.protocol.statistics import DeviceReading, HostReading, MachineReport

_MAX_DEVICES = 16
_UNITS = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3))


def described(report: MachineReport | None) -> list[str]:
    """Return a text for each device and for the host; empty if nothing was asked.

    >>> host = HostReading(cpu=37.4, memory=12_300_000_000, memory_total=64 * 10**9, disk_read=0.0, disk_written=4e6)
    >>> described(MachineReport(host=host, devices=[]))
    ['host: CPU 37%, 12.3 of 64 GB, disk 0 B/s read, 4 MB/s written']
    """
    if report is None:
        return []
    devices = [_device(device) for device in report.devices[:_MAX_DEVICES]]
    more = len(report.devices) - len(devices)
    hosts = [] if report.host is None else [_host(report.host)]
    return [*devices, *([f"and {more} more devices"] if more else []), *hosts]


def _device(device: DeviceReading) -> str:
    name = f"device {device.index}" if device.index is not None else device.name
    parts = [
        _percent(device.util),
        _share(device.memory, device.memory_total),
        "" if device.temperature is None else f"{device.temperature:.0f} °C",
    ]
    return f"{name}: {_joined(parts)}"


def _host(host: HostReading) -> str:
    cpu = _percent(host.cpu)
    rates = ((host.disk_read, "disk {} read"), (host.disk_written, "{} written"),
             (host.network_received, "network {} in"), (host.network_sent, "{} out"))  # fmt: skip
    parts = [f"CPU {cpu}" if cpu else "", _share(host.memory, host.memory_total)]
    return f"host: {_joined([*parts, *(text.format(f'{_bytes(rate)}/s') for rate, text in rates if rate is not None)])}"


def _joined(parts: Sequence[str]) -> str:
    return ", ".join(filter(None, parts)) or "not reported"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0f}%"


def _share(used: int | None, total: int | None) -> str:
    """Return two sizes in the unit of the larger one."""
    if used is None or not total:
        return "" if used is None else _bytes(used)
    unit, factor = _unit(total)
    return f"{used / factor:.3g} of {total / factor:.3g} {unit}"


def _bytes(count: float) -> str:
    unit, factor = _unit(count)
    return f"{count / factor:.3g} {unit}"


def _unit(count: float) -> tuple[str, float]:
    return next(((unit, factor) for unit, factor in _UNITS if count >= factor), ("B", 1.0))
