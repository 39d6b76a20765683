"""What a reader waits for, measured: the advice of an echo, and `diagnose`."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from looptap.training.echoing import Echo, diagnose
from looptap.training.echoing.auto_factor import StageMeter
from looptap.training.echoing.diagnosis import advice, workers_that_feed
from looptap.training.echoing.worker_stages import Effort


class Waiting(Dataset):
    """Items that come late, from a disk or a network."""

    def __len__(self):
        return 400

    def __getitem__(self, i):
        time.sleep(0.004)
        return torch.full((8,), float(i)), i


class Computing(Waiting):
    """Items that take processor time."""

    def __getitem__(self, i):
        begun = time.process_time()
        while time.process_time() < begun + 0.004:
            pass
        return torch.full((8,), float(i)), i


class Late(IterableDataset):
    def __iter__(self):
        return map(Waiting().__getitem__, range(100))


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("workers", [0, 1])
def test_the_advice_says_what_the_reader_waits_for(workers):
    found = {}
    for data in (Waiting(), Late(), Computing()):
        echo = Echo(DataLoader(data, 4, num_workers=workers), 1)
        for _ in echo:
            if echo.steps > 20:
                break
        found[type(data)] = echo.advice
        assert "R = " in echo.advice
    for kind, state in ((Waiting, "latency-bound: it waits for data "), (Late, "latency-bound: it waits for data "),
                        (Computing, "processor-bound: it computes ")):  # fmt: skip
        assert state in found[kind] or "the machine is busy" in found[kind]  # the tests beside this one may be why
    if workers and "latency-bound" in found[Waiting]:
        assert "num_workers=" in found[Waiting]


def test_what_a_reader_that_waits_or_computes_needs(monkeypatch):
    monkeypatch.setattr("looptap.training.echoing.diagnosis.processors", lambda: 2)

    def advised(effort, workers=2):
        meter = StageMeter(workers)
        for _ in range(20):
            meter.arrived(0.05, 0.06, {"read": 0.12}, effort)
            meter.handed(0.01, 0.0, 0.05)
        return advice(meter, 1.0, "batch", augmented=False)[1]

    assert "num_workers=12" in advised(Effort(0.01, 0.0, 0.11))
    assert "latency-bound: it waits for data 92%" in advised(Effort(0.01, 0.0, 0.11))
    held = advised(Effort(0.11, 0.01, 0.0))
    assert "processor-bound: it computes 92% of its time, waits for a processor 8%" in held
    assert "Decoded data cached in memory, or faster decoding, helps more" in held
    assert workers_that_feed(2, 6.0, Effort(0.3, 0.1, 0.6), 2) == 5  # 5 × 0.4 of a processor
    busy = advised(Effort(0.0168, 0.0792, 0.024))
    assert "the machine is busy: the reader waits for a processor 66% of its time, waits for data 20%" in busy
    assert "processors, help most" in busy
    assert "num_workers" not in busy
    crowded = advised(Effort(0.03, 0.09, 0.0), workers=8)  # these eight make each other wait
    assert "processor-bound: it computes 25% of its time, waits for a processor 75%" in crowded


CROWDED = """
import os, subprocess, sys
from torch.utils.data import DataLoader
from looptap.training.echoing import diagnose
sys.path.insert(0, {tests!r})
from test_echoing_diagnosis import Computing

os.sched_setaffinity(0, {{sorted(os.sched_getaffinity(0))[0]}})
others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(8)]
try:
    diagnose(DataLoader(Computing(), 1, num_workers=1), seconds=4, workers=())
finally:
    for other in others:
        other.kill()
"""


@pytest.mark.usefixtures("processes")
@pytest.mark.skipif(not os.path.exists("/proc/thread-self/schedstat"), reason="the system does not say who waits")
def test_a_reader_that_others_keep_from_the_processor_is_not_said_to_wait_for_data():
    script = CROWDED.format(tests=os.path.dirname(__file__))
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "At num_workers=1 the machine is busy: the reader waits for a processor " in found.stdout
    assert "Fewer other processes, or more processors, help most." in found.stdout
    assert "latency-bound" not in found.stdout


@pytest.mark.usefixtures("processes")
def test_a_loader_is_measured_with_other_workers_and_left_as_it_was():
    order = torch.Generator().manual_seed(1)
    loader = DataLoader(Waiting(), 4, shuffle=True, generator=order, num_workers=1)
    before, states, shown = order.get_state().tolist(), torch.get_rng_state().tolist(), []
    drawn = str(np.random.get_state())
    found = diagnose(loader, 0.001, seconds=2, workers=(0, 4), show=shown.append)
    assert order.get_state().tolist() == before
    assert torch.get_rng_state().tolist() == states
    assert str(np.random.get_state()) == drawn
    assert shown == [str(found)]
    rows = {row.name: row for row in found.rows}
    assert list(rows) == ["num_workers=0", "num_workers=1", "num_workers=4", "decoded data in memory"]
    assert all(0.0 <= share <= 1.0 for share in rows["num_workers=4"].effort)
    assert rows["num_workers=0"].seconds >= 0.016
    assert rows["decoded data in memory"].seconds < rows["num_workers=0"].seconds
    assert "R" in shown[0].splitlines()[0]
    assert "MiB" in found.advice


def test_any_loader_is_measured_as_it_is_and_the_step_by_a_function():
    assert [row.name for row in diagnose([torch.zeros(4)] * 50, lambda batch: None, seconds=0.2, show=None).rows] == [
        "as it is"
    ]
    found = diagnose(DataLoader(Late(), 4), lambda batch: time.sleep(0.001),
                     seconds=0.4, workers=(0,), show=None)  # fmt: skip
    assert found.step_seconds >= 0.001
    assert not math.isnan(found.rows[0].seconds)
    empty = diagnose([], seconds=0.1, show=None)
    assert "nothing to measure" in empty.advice
    assert "arrives in time" in diagnose([torch.zeros(4)] * 50, 10.0, seconds=0.1, show=None).advice
