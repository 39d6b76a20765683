"""Chooses and reads the devices of this process, on a thread of its own.

The driver may take seconds to start, and hangs together with a broken device: neither the loop nor the I/O thread waits
for it.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

from looptap.agent.machine.nvml import NoDevices, Nvml
from looptap.protocol.statistics import DeviceReading

READ_INTERVAL_SECONDS = 1.0
"""Seconds between two readings."""
STALE_SECONDS = 5.0
"""Seconds without an answer of the driver after which its last one no longer counts."""
START_SECONDS = 30.0
"""Seconds for the driver to start: without its persistence mode, about two for each device."""
UNASKED_SECONDS = 5.0
"""Seconds after the last `ask` after which the thread ends."""


class DeviceMeter:
    """A reader of devices, which runs while it is asked; not thread-safe."""

    def __init__(self, make: Callable[[], Nvml] = Nvml) -> None:
        self._make = make
        self._asked = self._began = time.monotonic()
        self._newest: tuple[float, tuple[DeviceReading, ...]] | None = None
        self._problem = ""
        self._thread = threading.Thread(target=self._read, name="looptap-devices", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            self._problem = f"the NVIDIA driver cannot be asked: {error}"

    @property
    def over(self) -> bool:
        """True if the thread has ended because it was not asked."""
        return not self._thread.is_alive() and not self._problem

    def ask(self) -> tuple[DeviceReading, ...] | str | None:
        """Return the newest reading, or why there is none; None before the first.

        Does not block.
        """
        self._asked = now = time.monotonic()
        if self._problem:
            return self._problem
        if self._newest is None:
            late = now - self._began > START_SECONDS
            return f"the NVIDIA driver has not answered for {START_SECONDS:.0f} s" if late else None
        at, devices = self._newest
        return devices if now - at < STALE_SECONDS else tuple(map(_unknown, devices))

    def _read(self) -> None:
        try:
            nvml = self._make()
            names = nvml.names()
            while time.monotonic() - self._asked < UNASKED_SECONDS:
                if not (mine := used(names)):
                    raise NoDevices("CUDA_VISIBLE_DEVICES hides all devices from this process")
                self._newest = time.monotonic(), tuple(map(nvml.read, mine))
                time.sleep(READ_INTERVAL_SECONDS)
            nvml.close()
        except NoDevices as problem:
            self._problem = str(problem)
        except Exception as error:  # a driver that behaves like no other
            self._problem = f"the NVIDIA driver cannot be read: {type(error).__name__}: {error}"


def _unknown(device: DeviceReading) -> DeviceReading:
    return DeviceReading(index=device.index, name=device.name)


def used(names: Sequence[str]) -> list[int]:
    """Return the indices of this process's devices; ``names`` are the UUIDs of all.

    Those in which torch holds memory; before that, and without torch, those in CUDA_VISIBLE_DEVICES; without it all.
    """
    visible = _visible(names, os.environ.get("CUDA_VISIBLE_DEVICES"))
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not cuda.is_initialized():  # to ask anything else would create a context
        return visible
    held = [place for place in range(len(visible)) if _holds_memory(cuda, place)]
    return [_index(names, visible, cuda, place) for place in held] or visible


def _holds_memory(cuda: Any, place: int) -> bool:
    try:
        reserved = cuda.memory_stats_as_nested_dict(place)["reserved_bytes"]["all"]["current"]
    except Exception:  # a device that torch does not know, another allocator
        return False
    return bool(reserved)


def _index(names: Sequence[str], visible: Sequence[int], cuda: Any, place: int) -> int:
    """Return which device torch means by ``place``: CUDA may sort them by speed."""
    uuid = str(getattr(cuda.get_device_properties(place), "uuid", ""))
    matching = [index for index, name in enumerate(names) if uuid and name.endswith(uuid)]
    return matching[0] if matching else visible[place]


def _visible(names: Sequence[str], setting: str | None) -> list[int]:
    """Return the devices that CUDA shows to this process.

    >>> _visible(["GPU-aa", "GPU-bb", "GPU-cc"], "2,GPU-a"), _visible(["GPU-aa", "GPU-bb"], None)
    ([2, 0], [0, 1])
    """
    if setting is None:
        return list(range(len(names)))
    found: list[int] = []
    for word in map(str.strip, setting.split(",")):
        named = [index for index, name in enumerate(names) if word[:4] == "GPU-" and name.startswith(word)]
        if word.isdecimal() and int(word) < len(names):
            named = [int(word)]
        if not named:  # CUDA stops at the first that it does not know
            break
        found += [index for index in named[:1] if index not in found]
    return found


def together(devices: Sequence[DeviceReading]) -> DeviceReading:
    """Return the devices as one: mean use, memory in all, the highest temperature.

    >>> one, other = (DeviceReading(index=i, name="GPU", util=50.0 * i, memory=i, temperature=40.0) for i in (0, 1))
    >>> together((one, other)).util, together((one,)) == one
    (25.0, True)
    """
    if len(devices) == 1:
        return devices[0]
    util, memory, total, degrees = (
        [value for device in devices if (value := getattr(device, name)) is not None]
        for name in ("util", "memory", "memory_total", "temperature")
    )
    return DeviceReading(
        index=None,
        name=f"{len(devices)} devices",
        util=fmean(util) if util else None,
        memory=sum(memory) if memory else None,
        memory_total=sum(total) if total else None,
        temperature=max(degrees, default=None),
    )
