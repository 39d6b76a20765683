"""The machine beside the loop: observables that are read only while asked."""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import subprocess
import sys
import textwrap
import threading

import pytest
import warm
from rank_jobs import ranks, started
from waiting import soon

import looptap
from looptap.agent.machine.devices import DeviceMeter, used
from looptap.agent.machine.host import ThreadTimes, from_proc, from_psutil, thread_times
from looptap.agent.machine.nvml import LIBRARY, NoDevices, Nvml
from looptap.cli.top.model import measured
from looptap.cli.top.views import vitals
from looptap.client.machine import machine_lines
from looptap.protocol.statistics import DeviceReading, HostReading, MachineReport, ThreadReading
from looptap.testing import pair, parts_of


def has_driver() -> bool:
    with contextlib.suppress(OSError):
        return bool(ctypes.CDLL(LIBRARY))
    return False


without_driver = pytest.mark.skipif(has_driver(), reason="this machine has an NVIDIA driver")

JOB = """
import sys, threading, time
import looptap
from looptap.agent.machine import host, monitor

readers = set()
counters = host.from_proc
host.from_proc = lambda: (readers.add(threading.current_thread().name), counters())[1]
limits = looptap.Limits(heartbeat=0.25)
over, step = threading.Event(), 0
threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
with looptap.Agent("machine", limits=limits) as agent:
    while not over.wait(0.002):
        agent.emit("batch", step=step, loss=1.0 / (step + 1), readers=sorted(readers))
        step += 1
"""


@contextlib.contextmanager
def job(code=JOB):
    """Run a job in a process of its own; yield a client of it."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL}
    with warm.Popen([sys.executable, "-c", textwrap.dedent(code)], **pipes) as child:
        try:
            with looptap.attach("machine", wait=300) as run:
                yield run
        finally:
            child.kill()


@pytest.fixture
def run(processes, directory):
    with job() as found:
        yield found


@pytest.mark.promise("S14", "S19")
def test_the_host_is_read_by_the_io_thread_and_only_once_a_query_asks(run):
    before = run.stream("readers", on="batch", every=10)
    before.wait(1, 60)
    assert before.latest == []
    rows = run.stream("host", on="batch", every=10)
    rows.wait(3, 60)
    row = rows.latest
    assert 0 <= row.cpu <= 100
    assert 0 < row.memory < row.memory_total
    assert min(row.network_received or 0, row.network_sent or 0, row.disk_read or 0, row.disk_written or 0) >= 0
    soon(lambda: before.latest == ["looptap-io"])


def test_a_query_of_the_host_begins_with_its_first_reading_and_accounts_for_the_events_before(run):
    load = run.stream("step, host.cpu", on="batch", buffer=100_000)
    load.wait(50, 60)
    assert all(0 <= value.cpu <= 100 for value in load.values)
    assert not load.error_count
    assert load.filtered > 0
    mean = run.stream("mean(e.host.cpu for e in events)", on="batch", window=20)
    mean.wait(2, 60)
    assert all(0 <= value <= 100 for value in mean.values)
    collected = run.stream("statistics.fmean(e.host.cpu for e in events)", on="batch", window=20)
    recorded = run.stream("step", on="batch", when="host.cpu >= 0", before=1)
    function = run.stream(lambda e: e.host.memory / e.host.memory_total, on="batch")
    for stream, values in ((collected, 2), (recorded, 1), (function, 2)):
        stream.wait(values, 60)
        assert not stream.error_count, stream.traceback


@pytest.mark.skipif(not os.path.exists("/proc/thread-self/schedstat"), reason="this system keeps no such account")
def test_the_time_of_the_training_thread_is_what_it_computed_waited_and_slept(run):
    asked = run.stream("host.thread", on="batch", every=10)
    reading = soon(lambda: asked.latest)
    assert reading.computed > 0
    assert reading.computed + reading.waited + reading.slept == pytest.approx(100, abs=1)
    assert "loop: computes" in machine_lines(MachineReport(host=HostReading(thread=ThreadReading(
        computed=reading.computed, waited=reading.waited, slept=reading.slept
    )), devices=[]))[-1]  # fmt: skip


def test_a_thread_that_is_over_or_another_one_has_no_account():
    before, now = ThreadTimes(7, 1.0, 2.0), ThreadTimes(7, 1.5, 2.25)
    assert now.since(before, 1.0) == ThreadReading(computed=50.0, waited=25.0, slept=25.0)
    assert now.since(ThreadTimes(8, 1.0, 2.0), 1.0) is None
    assert thread_times(-1) is None


def test_readings_end_with_the_last_query_that_asks(directory):
    with looptap.Agent("ends", limits=looptap.Limits(heartbeat=0.1)) as agent, looptap.attach("ends") as run:
        machine = parts_of(agent).sources.machine
        stream = run.stream("host.memory", on="batch")
        soon(lambda: agent.emit("batch") or "host" in machine)
        stream.close()
        soon(lambda: agent.emit("batch") or not machine)


def test_a_stream_that_the_job_declares_has_readings_too(directory):
    with looptap.Agent("declares", limits=looptap.Limits(heartbeat=0.1)) as agent, looptap.attach("declares") as run:
        agent.stream("cpu", "host.cpu", unit="%", keep=True)
        cpu = run.stream("cpu")
        soon(lambda: agent.emit("batch") or cpu.arrived)
        assert not cpu.error_count
        file = soon(lambda: run.stats()["store"]["path"])
        soon(lambda: run.stats()["store"]["kept"])
    assert 0 <= looptap.open(file).stream("cpu").values[0] <= 100


def test_an_observable_of_the_job_hides_the_reading():
    agent, run = pair()
    agent.expose(host="mine")
    mine = run.stream("device, host")
    agent.emit("batch", device="cuda:1")
    assert [tuple(value) for value in mine.values] == [("cuda:1", "mine")]
    agent.close()


@without_driver
def test_without_a_driver_the_stream_says_so_and_the_way_out(directory):
    with looptap.Agent("none", limits=looptap.Limits(heartbeat=0.1)) as agent, looptap.attach("none") as run:
        stream = run.stream("device.util", on="batch")
        soon(lambda: agent.emit("batch") or stream.error_count)
        assert "device is not available on this machine: there is no NVIDIA driver" in stream.traceback
        assert "NVIDIA_DRIVER_CAPABILITIES" in stream.traceback


def test_a_reading_is_proven_harmless():
    agent, run = pair()
    texts = "host.cpu", "loss, host.memory / 1e9", "mean(e.host.cpu for e in events)"
    reading, both, mean = (run.stream(text, on="batch") for text in texts)
    sources = parts_of(agent).sources
    soon(lambda: parts_of(agent).dispatcher.machine.update() or "host" in sources.machine)
    agent.emit("batch", loss=0.5)
    agent.emit("epoch")
    assert 0 <= reading.latest <= 100
    assert 0 <= mean.latest <= 100
    assert both.latest[0] == 0.5
    assert both.latest[1] > 0
    agent.close()


@pytest.mark.usefixtures("processes")
def test_ranks_are_merged_as_any_stream_is(directory):
    with ranks(directory, 2):
        started(directory, 2)
        with looptap.attach("many") as run:
            both = run.stream("mean(e.host.cpu for e in events)", ranks="all", combine="merge", window=10)
            most = run.stream("host.memory", ranks="all", combine="max")
            both.wait(2, 120)
            most.wait(2, 120)
            assert all(0 <= value <= 100 for value in both.values)
            assert all(value > 0 for value in most.values)


def test_top_and_overview_have_a_line_about_the_machine(run):
    seen = soon(lambda: (found := measured(run)).machine.host and found)
    (line,) = [text.plain for text in vitals(seen) if text.plain.startswith("machine")]
    assert "host: CPU" in line
    assert " GB" in line or " MB" in line
    overview = pytest.importorskip("looptap.visualizers.surfaces.notebook.overview", reason="needs ipywidgets")
    shown = overview.overview(run)
    try:
        soon(lambda: "host: CPU" in shown._facts.value)
    finally:
        shown.close()


def test_statistics_have_no_readings_unless_asked():
    agent, run = pair()
    assert run.agent_stats().machine is None
    assert "machine" not in run.stats()
    agent.close()


def test_the_words_of_a_machine():
    gpus = [
        DeviceReading(
            index=3, name="H200", util=93.0, memory=41_200_000_000, memory_total=80_000_000_000, temperature=64.0
        ),
        DeviceReading(index=4, name="H200"),
    ]
    assert machine_lines(MachineReport(host=HostReading(memory=5, memory_total=1_000), devices=gpus)) == [
        "device 3: 93%, 41.2 of 80 GB, 64 °C", "device 4: not reported", "host: 0.005 of 1 kB",
    ]  # fmt: skip
    hostile = HostReading(cpu=math.inf, memory=1 << 62, memory_total=1, disk_read=math.nan)
    assert len(machine_lines(MachineReport(host=hostile, devices=gpus[1:] * 1000))) == 18


# ---------------------------------------------------------------- devices, without a driver


class Library:
    """What NVML's functions do, for two devices of which the second reports no use."""

    def __init__(self, devices=2, problem=0):
        self.devices, self.problem, self.closed, self.threads = devices, problem, 0, set()

    def nvmlErrorString(self, problem):  # noqa: N802 - NVML's own names
        return b"Driver Not Loaded"

    def nvmlInit_v2(self):  # noqa: N802
        return self.problem

    def nvmlShutdown(self):  # noqa: N802
        self.closed += 1

    def nvmlDeviceGetCount_v2(self, count):  # noqa: N802
        count._obj.value = self.devices
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index, handle):  # noqa: N802
        handle._obj.value = 100 + index.value
        return 0

    def nvmlDeviceGetName(self, handle, text, size):  # noqa: N802
        text.value = b"H200"
        return 0

    def nvmlDeviceGetUUID(self, handle, text, size):  # noqa: N802
        text.value = b"GPU-%d" % handle.value
        return 0

    def nvmlDeviceGetMemoryInfo(self, handle, memory):  # noqa: N802
        self.threads.add(threading.current_thread().name)
        memory._obj.total, memory._obj.used = 1000, handle.value
        return 0

    def nvmlDeviceGetUtilizationRates(self, handle, busy):  # noqa: N802
        busy._obj.gpu = 90
        return 3 if handle.value == 101 else 0

    def nvmlDeviceGetTemperature(self, handle, kind, degrees):  # noqa: N802
        degrees._obj.value = handle.value - 50
        return 0


def test_devices_are_read_on_a_thread_of_their_own_while_asked(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("looptap.agent.machine.devices.UNASKED_SECONDS", 0.5)
    monkeypatch.setattr("looptap.agent.machine.devices.READ_INTERVAL_SECONDS", 0.05)
    library = Library()
    monkeypatch.setattr("looptap.agent.machine.monitor.DeviceMeter", lambda: DeviceMeter(lambda: Nvml(library)))
    agent, run = pair()
    machine, monitor = parts_of(agent).sources.machine, parts_of(agent).dispatcher.machine
    one, each = run.stream("device"), run.stream("devices[1].util, devices[0].util")
    soon(lambda: monitor.update() or {"device", "devices"} <= set(machine))
    agent.emit("batch")
    assert tuple(one.latest) == (None, "2 devices", 90.0, 201, 2000, 51.0)
    assert tuple(each.latest) == (None, 90.0)
    assert library.threads == {"looptap-devices"}
    assert [d.index for d in soon(lambda: monitor.report().devices)] == [0, 1]
    agent.close()
    soon(lambda: library.closed)


def test_a_driver_that_fails_hangs_or_stops_answering_is_said(monkeypatch):
    with pytest.raises(NoDevices, match="Driver Not Loaded"):
        Nvml(Library(problem=9))
    with pytest.raises(NoDevices, match="lists no device"):
        Nvml(Library(devices=0))
    hangs = threading.Event()
    monkeypatch.setattr("looptap.agent.machine.devices.START_SECONDS", 0.05)
    monkeypatch.setattr("looptap.agent.machine.devices.STALE_SECONDS", 0.05)
    meter = DeviceMeter(lambda: hangs.wait(300) and Nvml(Library(devices=1)))
    assert "has not answered" in soon(meter.ask)
    hangs.set()
    found = soon(lambda: isinstance(answer := meter.ask(), tuple) and answer)
    assert (found[0].index, found[0].name) == (0, "H200")
    soon(lambda: meter.ask()[0].memory is None)  # the next reading comes a second later


class Cuda:
    """What is asked of torch.cuda, once it is in use."""

    def __init__(self, held, uuids):
        self.held, self.uuids = held, uuids

    def is_initialized(self):
        return True

    def memory_stats_as_nested_dict(self, place):
        return {"reserved_bytes": {"all": {"current": self.held[place]}}}

    def get_device_properties(self, place):
        return type("Properties", (), {"uuid": self.uuids[place]})


@pytest.mark.parametrize(("visible", "held", "expected"), [
    (None, None, [0, 1, 2]), ("2,1", None, [2, 1]), ("GPU-b", None, [1]), ("1,9,0", None, [1]), ("", None, []),
    (None, [0, 5, 0], [1]), ("2,1", [7, 0], [2]), ("2,1", [0, 0], [2, 1]), (None, [1, 0, 1], [0, 2]),
])  # fmt: skip
def test_the_devices_of_a_process_are_those_that_it_uses_else_those_that_it_sees(monkeypatch, visible, held, expected):
    names = ["GPU-a", "GPU-b", "GPU-c"]
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    order = [names[int(one)] for one in visible.split(",")] if visible and held else names
    cuda = Cuda(held, [name.removeprefix("GPU-") for name in order]) if held else None
    monkeypatch.setitem(sys.modules, "torch", type("torch", (), {"cuda": cuda}))
    assert used(names) == expected


@pytest.mark.promise("S14")
@pytest.mark.usefixtures("processes")
def test_reading_creates_no_cuda_context():
    code = """
        import torch
        from looptap.agent.machine.devices import used
        used(["GPU-a", "GPU-b"])
        assert not torch.cuda.is_initialized()
    """
    warm.run([sys.executable, "-c", textwrap.dedent(code)], env={**os.environ}, check=True, timeout=300)


def test_proc_says_what_psutil_says():
    ours, theirs = from_proc(), from_psutil()
    assert ours.memory_total == theirs.memory_total
    assert ours.memory == pytest.approx(theirs.memory, rel=0.2)
    assert ours.busy / (ours.busy + ours.idle) == pytest.approx(theirs.busy / (theirs.busy + theirs.idle), abs=0.01)
    if ours.network and theirs.network:
        assert ours.network[0] <= theirs.network[0]
