"""Reads NVIDIA devices by the driver's management library, NVML.

It is a part of the driver: there is nothing to install. No call creates a CUDA context, takes memory of a device, or
holds the interpreter lock.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

from looptap.protocol.statistics import DeviceReading

LIBRARY = "nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1"
_MAX_TEXT_BYTES = 96
_TEMPERATURE_OF_CHIP = ctypes.c_uint(0)


class NoDevices(Exception):
    """The machine has no NVIDIA device that can be read; the message says why."""


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class Nvml:
    """The library, initialized. Blocks while the driver starts; raises NoDevices."""

    def __init__(self, library: Any = None) -> None:
        if library is None:
            try:
                library = ctypes.CDLL(LIBRARY)
                library.nvmlErrorString.restype = ctypes.c_char_p
            except OSError:
                raise NoDevices(
                    f"there is no NVIDIA driver ({LIBRARY} is not found). In a container, start it with "
                    "NVIDIA_DRIVER_CAPABILITIES=compute,utility"
                ) from None
        self._library = library
        count = ctypes.c_uint()
        for problem in (library.nvmlInit_v2(), library.nvmlDeviceGetCount_v2(ctypes.byref(count))):
            if problem:
                words = library.nvmlErrorString(problem).decode(errors="replace")
                raise NoDevices(f"the NVIDIA driver reports: {words}")
        self._handles: list[ctypes.c_void_p | None] = []
        for index in range(count.value):
            handle = ctypes.c_void_p()
            failed = library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle))
            self._handles.append(None if failed else handle)
        if not any(self._handles):
            raise NoDevices("the NVIDIA driver lists no device that this process may use")

    def names(self) -> list[str]:
        """Return the UUID of each device, as CUDA_VISIBLE_DEVICES may name it."""
        return [self._text("nvmlDeviceGetUUID", handle) for handle in self._handles]

    def read(self, index: int) -> DeviceReading:
        """Read one device; None for each reading that it does not report."""
        handle = self._handles[index]
        busy, memory, degrees = _Utilization(), _Memory(), ctypes.c_uint()
        known = handle is not None
        used = known and not self._library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory))
        util = known and not self._library.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(busy))
        warm = known and not self._library.nvmlDeviceGetTemperature(handle, _TEMPERATURE_OF_CHIP, ctypes.byref(degrees))
        return DeviceReading(
            index=index,
            name=self._text("nvmlDeviceGetName", handle),
            util=float(busy.gpu) if util else None,
            memory=memory.used if used else None,
            memory_total=memory.total if used else None,
            temperature=float(degrees.value) if warm else None,
        )

    def close(self) -> None:
        """Release the library."""
        self._library.nvmlShutdown()

    def _text(self, function: str, handle: ctypes.c_void_p | None) -> str:
        text = ctypes.create_string_buffer(_MAX_TEXT_BYTES)
        if handle is None or getattr(self._library, function)(handle, text, ctypes.c_uint(_MAX_TEXT_BYTES)):
            return ""
        return text.value.decode(errors="replace")
