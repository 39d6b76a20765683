"""The machine of a run in words, as `looptap top` and `looptap.overview` show it."""

from __future__ import annotations

from looptap.protocol.statistics import DeviceReading, HostReading, MachineReport, ThreadReading

_MAX_DEVICES = 16
_UNITS = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3))


def machine_lines(report: MachineReport | None) -> list[str]:
    """Return a text for each device and for the host; empty if nothing was asked.

    >>> host = HostReading(cpu=37.4, memory=12_300_000_000, memory_total=64 * 10**9, disk_read=0.0, disk_written=4e6)
    >>> machine_lines(MachineReport(host=host, devices=[]))
    ['host: CPU 37%, 12.3 of 64 GB, disk 0 B/s read, 4 MB/s written']
    """
    if report is None:
        return []
    lines = [_device(device) for device in report.devices[:_MAX_DEVICES]]
    if more := report.devices[_MAX_DEVICES:]:
        lines.append(f"and {len(more)} more devices")
    if report.host is not None:
        lines.append(_host(report.host))
    return lines


def _device(device: DeviceReading) -> str:
    name = f"device {device.index}" if device.index is not None else device.name
    memory = _share(device.memory, device.memory_total)
    return f"{name}: {_joined(_number(device.util, '{:.0f}%'), memory, _number(device.temperature, '{:.0f} °C'))}"


def _host(host: HostReading) -> str:
    facts = _joined(
        _number(host.cpu, "CPU {:.0f}%"),
        _share(host.memory, host.memory_total),
        _rate(host.disk_read, "disk {} read"),
        _rate(host.disk_written, "{} written"),
        _rate(host.network_received, "network {} in"),
        _rate(host.network_sent, "{} out"),
        _thread(host.thread),
    )
    return f"host: {facts}"


def _thread(thread: ThreadReading | None) -> str:
    return "" if thread is None else f"loop: computes {thread.computed:.0f}%, waits for a CPU {thread.waited:.0f}%"


def _joined(*parts: str) -> str:
    return ", ".join(filter(None, parts)) or "not reported"


def _number(number: float | None, form: str) -> str:
    return "" if number is None else form.format(number)


def _rate(rate: float | None, form: str) -> str:
    return "" if rate is None else form.format(f"{_bytes(rate)}/s")


def _share(used: int | None, total: int | None) -> str:
    """Return two sizes in the unit of the larger one."""
    if used is None:
        return ""
    if not total:
        return _bytes(used)
    unit, factor = _unit(total)
    return f"{used / factor:.3g} of {total / factor:.3g} {unit}"


def _bytes(count: float) -> str:
    unit, factor = _unit(count)
    return f"{count / factor:.3g} {unit}"


def _unit(count: float) -> tuple[str, float]:
    return next(((unit, factor) for unit, factor in _UNITS if count >= factor), ("B", 1.0))
