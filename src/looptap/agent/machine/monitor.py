"""Reads the machine while a query or a client asks for it."""

from __future__ import annotations

import time
from collections import namedtuple
from typing import Any

from msgspec.structs import astuple

from looptap.agent.loop.event_sources import EventSources
from looptap.agent.machine.devices import DeviceMeter, together
from looptap.agent.machine.host import HostMeter
from looptap.protocol.statistics import DeviceReading, HostReading, MachineReport, ThreadReading

REPORTED_SECONDS = 5.0
"""Seconds for which a client's question is remembered: one that shows the machine asks each second."""
UNAVAILABLE = "is not available on this machine"

# What queries read: as tuples with names, which become rows, are collected, and are drawn under these names.
_as_host: Any = namedtuple("_as_host", HostReading.__struct_fields__)  # type: ignore[misc]  # the fields stand in the reply
_as_thread: Any = namedtuple("_as_thread", ThreadReading.__struct_fields__)  # type: ignore[misc]
_as_device: Any = namedtuple("_as_device", DeviceReading.__struct_fields__)  # type: ignore[misc]


class MachineMonitor:
    """The readings of host and devices, once a heartbeat. I/O thread only.

    They go to ``sources.machine``, where events find them: readings that do not change, each replaced as a whole, or a
    text that says why there is none. A name is there from its first complete reading on, and gone when no query asks.
    """

    def __init__(self, sources: EventSources) -> None:
        self._sources = sources
        self._host: HostMeter | None = None
        self._devices: DeviceMeter | None = None
        self._newest: HostReading | None = None
        self._problem = ""
        self._reported_until = 0.0

    def update(self) -> None:
        """Take the requested readings. Does not block, and never raises."""
        asked, reported = self._asked(), time.monotonic() < self._reported_until
        values = self._sources.machine
        for name in set(values) - asked:
            del values[name]
        if reported or "host" in asked:
            self._read_host()
            if "host" in asked and self._problem:
                values["host"] = self._problem
            elif "host" in asked and self._newest is not None:
                *host, thread = astuple(self._newest)
                values["host"] = _as_host._make([*host, None if thread is None else _as_thread._make(astuple(thread))])
        else:
            self._host = self._newest = None
        names = asked & {"device", "devices"}
        if reported or names:
            self._read_devices(names)
        else:
            self._devices = None  # its thread ends by itself

    def report(self) -> MachineReport:
        """Return the newest readings; those of the host need a second question."""
        self._reported_until = time.monotonic() + REPORTED_SECONDS
        self.update()
        devices = None if self._devices is None else self._devices.ask()
        return MachineReport(
            host=self._newest,
            devices=list(devices) if isinstance(devices, tuple) else [],
            problem=devices if isinstance(devices, str) else "",
        )

    def _asked(self) -> set[str]:
        """Return the names that queries mention and that the job has not taken."""
        queries = [query for _, source in self._sources.types() for query in source.queries]
        return set().union(*(query.awaits for query in queries)) - self._sources.exposed.keys()

    def _read_host(self) -> None:
        try:
            if self._host is None:
                self._host = HostMeter(self._training_thread())  # what rates refer to
            elif (reading := self._host.read(self._training_thread())) is not None:
                self._newest, self._problem = reading, ""
        except Exception as error:
            self._problem = f"host {UNAVAILABLE}: {type(error).__name__}: {error}."

    def _training_thread(self) -> int:
        """Return the thread of the commonest events; 0 or less if none is known."""
        sources = [source for _, source in self._sources.types()]
        return max(sources, key=lambda source: source.number).thread if sources else 0

    def _read_devices(self, names: set[str]) -> None:
        if self._devices is None or self._devices.over:
            self._devices = DeviceMeter()
        found, values = self._devices.ask(), self._sources.machine
        for name in names:
            if isinstance(found, str):
                values[name] = f"{name} {UNAVAILABLE}: {found}."
            elif found is not None:
                rows = tuple(_as_device(*astuple(device)) for device in found)
                values[name] = rows if name == "devices" else _as_device(*astuple(together(found)))
