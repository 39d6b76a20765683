"""Measures charts in a real browser and in windows: `make bench-charts`.

Writes the charts of docs/costs.md. The kernel feeds a stream whose x is the wall clock, so that a page knows the age of
what it has just drawn. Beside it are plotly's FigureWidget, used as its documentation shows, on the same points, and
TensorBoard's own page.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "support"))

import live_windows  # noqa: E402 - once the path is known
import peer_tensorboard  # noqa: E402 - once the path is known
import web_page  # noqa: E402 - once the path is known
from harness import put_section  # noqa: E402 - once the path is known
from lab import ATTACH, BUSY, PATIENCE, SHOTS, beside_a_job, busy, enough, laboratory  # noqa: E402 - once the path is known

import looptap  # noqa: E402 - once the path is known

SECONDS = float(os.environ.get("SECONDS", "10"))
MOVES = 11
FEED = """
import threading, time
from array import array
import numpy as np
import looptap
from looptap.streams.stream.buffer import Batch
from looptap.streams.stream.stream import Stream

class Fed(Stream):
    def run(self, rate, every):
        then, number = time.time(), 1
        while True:
            time.sleep(every)
            now = time.time()
            count = max(1, round((now - then) * rate))
            x = np.linspace(then, now, count + 1)[1:]
            rows = list(zip(x.tolist(), np.random.normal(size=count).tolist()))
            events = array("q", range(number, number + count))
            self.publish(Batch(number, events, array("d", bytes(8 * count)), rows))
            then, number = now, number + count

def fed(name, rate, every):
    stream = Fed(name, fields=("clock", "loss"))
    threading.Thread(target=stream.run, args=(rate, every), daemon=True).start()
    return stream
"""
FIGURE = """
import plotly.graph_objects as go
figure, stream = go.FigureWidget(go.Scattergl(x=[], y=[])), fed("points", 100_000, 0.005)
def update():
    while True:
        rows = stream.values
        figure.update_traces(x=[row[0] for row in rows], y=[row[1] for row in rows])
threading.Thread(target=update, daemon=True).start()
figure
"""
CPU = "import psutil\nprocess = psutil.Process()\nbefore = sum(process.cpu_times()[:2]), time.time()"
USED = "print((sum(process.cpu_times()[:2]) - before[0]) / (time.time() - before[1]))"
WATCH = """() => {
  const store = document.querySelector('.looptap').looptap, draw = store.draw.bind(store);
  window.ages = [];
  store.draw = () => { draw(); ages.push(Date.now() / 1000 - [...store.columns.values()][0].view.at(-1)); };
}"""
WATCH_FIGURE = """() => {
  const graph = document.querySelector('.js-plotly-plot');
  window.ages = [];
  graph.on('plotly_afterplot', () => ages.push(Date.now() / 1000 - graph.data[0].x.at(-1)));
}"""


def ages(book):
    """Return frames per second, and median and 99th percentile of the newest age."""
    book.page.evaluate("window.ages.length = 0")
    begun = time.monotonic()
    time.sleep(SECONDS)
    found = sorted(book.page.evaluate("window.ages"))
    spent = time.monotonic() - begun
    if not found:
        return 0.0, float("inf"), float("inf")
    return len(found) / spent, statistics.median(found), found[int(0.99 * len(found))]


def used(book, first):
    """Return the share of a core that the kernel takes."""
    book.run(first)
    time.sleep(SECONDS)
    book.run(first + 1)
    return float(book.outputs(first + 1)[0]["text"])


def painted(book, cell, drawn):
    """Return the seconds from running a cell to its first picture."""
    begun = time.monotonic()
    book.start(cell)
    book.wait(drawn)
    return time.monotonic() - begun


def measure(lab):
    """Yield the rows of the table: what, figure, promise."""
    drawn = "[...document.querySelectorAll('.looptap')].some((el) => el.looptap.draws)"
    book = lab.open("line.ipynb", FEED, "s = fed('points', 100_000, 0.005)\ns", CPU, USED)
    book.run(0)
    first = painted(book, 1, drawn)
    book.wait("[...document.querySelector('.looptap').looptap.columns.values()][0]?.view.length > 150000")
    book.page.evaluate(WATCH)
    frames, median, worst = ages(book)
    share = used(book, 2)
    points = book.page.evaluate("[...document.querySelector('.looptap').looptap.columns.values()][0].view.length")
    book.shot("bench-line")
    book.close()
    yield "first paint of a line", f"{first:.2f} s", "≤ 1.5 s"
    yield f"100,000 points/s into a line of {points:,}: frames/s", f"{frames:.0f}", "≥ 50"
    yield "— age of the newest point when it is drawn: median, p99", f"{median:.3f} s, {worst:.3f} s", "≤ 0.1 s"
    yield "— kernel, which also feeds the stream", f"{share:.0%} of a core", ""

    book = lab.open("figure.ipynb", FEED, FIGURE)
    book.run(0)
    first = painted(book, 1, "document.querySelector('.js-plotly-plot .main-svg')")
    book.page.evaluate(WATCH_FIGURE)
    frames, median, worst = ages(book)
    book.close()
    yield "plotly's FigureWidget, the same points: first paint", f"{first:.2f} s", ""
    yield "— frames/s", f"{frames:.1f}", ""
    yield "— age of the newest point when it is drawn: median, p99", f"{median:.1f} s, {worst:.1f} s", ""

    ten = "from looptap.visualizers.plot import Plot\nPlot(*(fed(f'chart {i}', 10, 0.1) for i in range(10)), rows=5)"
    book = lab.open("ten.ipynb", FEED, ten, CPU, USED)
    book.page.set_viewport_size({"width": 1300, "height": 2600})
    book.run(0)
    book.run(1)
    book.charts(10)
    share = used(book, 2)
    book.shot("bench-ten")
    book.close()
    yield "ten charts at 10 values/s each: kernel", f"{share:.0%} of a core", "< 50%"


def moved(lab):
    """Yield rows on the time from a slider's move to its effect while a cell runs."""
    book = lab.open("slider.ipynb", ATTACH, "from looptap import panel\nshown = panel(run)\nshown", BUSY)
    book.run(0)
    book.run(1)
    slider = book.page.locator(".widget-slider [role=slider], .widget-slider .noUi-handle").first
    slider.wait_for(timeout=PATIENCE)
    busy(lab, book, 2)
    took = []
    with looptap.attach("job") as job:
        commands = job.stream("commands")
        slider.focus()
        for move in range(MOVES):
            pressed = time.time()
            slider.press("ArrowRight" if move % 2 else "ArrowLeft")
            commands.wait(move + 1, timeout=60)
            took.append(commands.records[-1].wall - pressed)
            time.sleep(0.5)
    enough(lab)
    book.close()
    median = f"{statistics.median(took):.2f} s"
    yield f"a slider moved while a cell runs: time until the job executes it, median of {MOVES}", median, ""
    yield "— longest", f"{max(took):.2f} s", "≤ 1 s"


def everything(lab):
    """Yield all rows; the slider's first, as its job ends after three minutes."""
    SHOTS.mkdir(exist_ok=True)
    slider = list(moved(lab))
    yield from measure(lab)
    yield from slider
    yield from web_page.measured(lab.browser, SECONDS)
    yield from peer_tensorboard.measured(lab.browser, lab.root, SHOTS / "bench-tensorboard.png")
    yield from live_windows.measured(SECONDS)


def main():
    """Measure, print, write."""
    chromium = shutil.which("chromium") or sys.exit("looptap: there is no chromium: make browsers")
    with contextlib.ExitStack() as stack:
        runs, folder = (Path(stack.enter_context(tempfile.TemporaryDirectory())) for _ in range(2))
        stack.enter_context(beside_a_job(runs))
        lab = stack.enter_context(laboratory(folder, chromium))
        rows, loads = [], [os.getloadavg()[0]]
        for what, figure, promise in everything(lab):
            print(f"{what:70} {figure:20} {promise}", flush=True)
            rows.append(f"| {what} | {figure} | {promise} |")
            loads.append(os.getloadavg()[0])
    where = f"{os.cpu_count()} cores, no GPU, headless Chromium, Python {platform.python_version()}"
    text = [
        f"Measured by `make bench-charts` on {where}, {SECONDS:g} s a row. The machine's load was {min(loads):.1f} to",
        f"{max(loads):.1f}, including the benchmark itself. Promises are for a machine that does nothing else.", "",
        "| what | here | promise |", "|---|---|---|", *rows,
    ]  # fmt: skip
    put_section(ROOT / "docs" / "costs.md", "Charts", "\n".join(text))


if __name__ == "__main__":
    main()
