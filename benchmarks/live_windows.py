"""Frames a second of a live window: `looptap plot`, and one by hand.

The job raises 10,000 events a second, and 100,000 points and more are on the screen (Xvfb, no GPU). Beside the command
is the same line drawn by matplotlib's FuncAnimation, which sets all points at each frame; both take turns.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from displays import display, pixels, screenshot
from waiting import soon
from window_process import RATE, VISIBLE

import looptap

PROCESS = str(Path(__file__).with_name("window_process.py"))
BLUE = "#066299"
TOOLKITS = {"tk": "Tk", "qt": "Qt"}


def measured(seconds: float) -> Iterator[tuple[str, str, str]]:
    """Yield the rows of the table: what, figure, promise."""
    with tempfile.TemporaryDirectory() as runs, display(1200, 900) as screen:
        here = {"LOOPTAP_DIR": runs, "DISPLAY": screen, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        os.environ["LOOPTAP_DIR"] = runs
        job = subprocess.Popen([sys.executable, PROCESS, "job"], stdin=subprocess.PIPE, env={**os.environ, **here})
        try:
            soon(looptap.runs, 60)
            for toolkit, title in TOOLKITS.items():
                yield from _rows(_reported("plot", toolkit, seconds, here), title)
            hand = _reported("naive", "tk", seconds, here)
        finally:
            job.communicate()
    yield "the same line by hand in Tk, with FuncAnimation: frames/s", f"{hand['frames']:.1f}", ""
    yield "— age of the newest point when it is drawn: median, p99", "{:.2f} s, {:.2f} s".format(*_ages(hand)), ""
    yield "— its process, of that drawing", f"{hand['cpu']:.0%} of a core, {hand['drawing']:.0%}", ""


def _rows(reported: dict[str, Any], title: str) -> Iterator[tuple[str, str, str]]:
    yield (
        f"`looptap plot` in {title}, {RATE:,} points/s, {VISIBLE:,} on screen and more: frames/s",
        f"{reported['frames']:.0f}", "≥ 30",
    )  # fmt: skip
    yield "— age of the newest point when it is drawn: median, p99", "{:.3f} s, {:.3f} s".format(*_ages(reported)), ""
    yield "— its process, of that drawing", f"{reported['cpu']:.0%} of a core, {reported['drawing']:.0%}", ""


def _ages(reported: dict[str, Any]) -> tuple[float, float]:
    ages = reported["ages"]
    return ages[len(ages) // 2], ages[int(0.99 * len(ages))]


def _reported(what: str, toolkit: str, seconds: float, here: dict[str, str]) -> dict[str, Any]:
    """Return the figures that a window reports, once its line is on the screen."""
    environment = {name: value for name, value in os.environ.items() if name != "MPLBACKEND"} | here
    command = [sys.executable, PROCESS, what, toolkit, str(seconds)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as window:
        try:
            soon(lambda: window.poll() is not None or len(pixels(screenshot(here["DISPLAY"]), BLUE)) > 1000, 60)
            said, _ = window.communicate(timeout=60 + 10 * seconds)
        finally:
            window.kill()
    found = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    if not found:
        raise RuntimeError(f"{' '.join(command)} ended with status {window.returncode} and counted no frames.")
    reported: dict[str, Any] = found[0]
    return reported


if __name__ == "__main__":
    for row in measured(float(os.environ.get("SECONDS", "10"))):
        print(*row, sep="  |  ", flush=True)
