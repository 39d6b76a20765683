"""Background threads end before the interpreter does."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from looptap.visualizers.surfaces.live.driver import Driver

IN_CPP = """
import threading
import time
import numpy as np
from looptap.visualizers.surfaces.live.driver import driver

class Unique:
    def __init__(self):
        self.numbers, self.begun = np.random.default_rng(0).integers(0, 2**60, 30_000), threading.Event()

    def step(self, now):
        self.begun.set()
        for _ in range(5):
            np.unique(self.numbers)  # C++, which gives the lock of the interpreter away
        return 0.0

class Slow:
    def __del__(self):
        time.sleep(0.5)  # while the interpreter ends

slow, drawn = Slow(), Unique()
driver.add(drawn)
drawn.begun.wait()
time.sleep(0.3)
"""


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("attempt", range(3))
def test_a_process_that_ends_while_a_chart_is_drawn_does_not_abort(attempt):
    done = subprocess.run([sys.executable, "-c", IN_CPP], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_driver_that_ends_visits_no_more():
    driver = Driver("ending")

    class Endless:
        visits = 0

        def step(self, now):
            self.visits += 1
            return 0.001

    moved = Endless()
    driver.add(moved)
    while not moved.visits:
        time.sleep(0.001)
    driver.end()
    seen = moved.visits
    driver.add(moved)
    assert moved.visits <= seen + 1
