"""Windows as their user sees them: `looptap plot` in a process of its own on a display of its own, by its pixels."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from displays import display, pixels, screenshot
from waiting import soon

import looptap

pytest.importorskip("matplotlib", reason="WINDOWS ARE NOT TESTED: they need matplotlib (pip install 'looptap[window]')")

BLUE = "#1f77b4"
JOB = """
import sys, threading, looptap
agent = looptap.Agent("small")
agent.stream("loss", "step, (-1) ** (step // 100)")
over, step = threading.Event(), 0
threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
while not over.wait(0.002):
    agent.emit("batch", step=step, image=[[step % 7, 1], [2, 3]])
    step += 1
agent.close("all epochs are done")
"""


@pytest.fixture
def job(directory):
    """A run in a process of its own."""
    process = subprocess.Popen([sys.executable, "-c", JOB], stdin=subprocess.PIPE)
    soon(lambda: any(run.pid == process.pid for run in looptap.runs()))
    yield process
    process.kill()
    process.communicate()


@pytest.fixture(scope="module")
def screen():
    with display() as name:
        yield name


@pytest.fixture
def plot(screen):
    """Start `looptap plot` on the display."""
    begun = []

    def start(*arguments, **environment):
        command = [sys.executable, "-m", "looptap.cli", "plot", *arguments]
        settings = {name: value for name, value in os.environ.items() if name != "MPLBACKEND"}
        process = subprocess.Popen(
            command, env={**settings, "DISPLAY": screen, **environment}, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        begun.append(process)
        return process

    yield start
    for process in begun:
        process.kill()
        process.communicate()


def line(screen):
    """The pixels of the line: without those of the legend, which stands in the upper right corner."""
    found = pixels(screenshot(screen), BLUE)
    if not len(found):
        return found
    top, right = found[:, 0].min(), found[:, 1].max()
    return found[(found[:, 0] > top + 30) | (found[:, 1] < right - 150)]


def appears(process, screen):
    """Wait for the line in the window."""

    def drawn():
        assert process.poll() is None, process.communicate()[1]
        return len(line(screen)) > 300

    soon(drawn, 60)


@pytest.mark.parametrize("toolkit", ["tk", "qt"])
def test_a_window_shows_a_line_that_moves_and_ctrl_c_ends_it_quietly(job, plot, screen, toolkit):
    process = plot("small", "loss", "--in", toolkit)
    appears(process, screen)
    before = line(screen)
    assert np.ptp(before[:, 0]) > 150, "the line goes up and down"
    soon(lambda: not np.array_equal(line(screen), before))
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (0, "")
    assert "Traceback" not in err
    assert f"in a window ({toolkit.title()})" in err
    soon(lambda: not len(pixels(screenshot(screen), BLUE)))


def test_a_window_that_is_killed_leaves_the_job_alone(job, plot, screen):
    process = plot("small", "loss", "--in", "tk")
    appears(process, screen)
    process.kill()
    process.communicate()
    with looptap.attach("small") as run:
        events = run.stats()["events"]["batch"]
        soon(lambda: run.stats()["events"]["batch"] > events + 100)
        soon(lambda: len(run.stats()["clients"]) == 1)
    assert job.poll() is None
