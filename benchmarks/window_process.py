"""The processes of `live_windows.py`: `job`, `plot` and `naive`.

`plot` is `looptap plot` with its frames counted. The x of the line is the wall clock of the job, so that a window knows
the age of what it has just drawn.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

RATE = 10_000
VISIBLE = 100_000
"""The least points on the screen for a frame to count."""


def job() -> None:
    """Emit ten thousand events a second until the input is closed."""
    import looptap

    with looptap.Agent("points") as agent:
        agent.stream("line", "clock, value", history=VISIBLE)
        over = threading.Event()
        threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
        begun, number = time.perf_counter(), 0
        while not over.is_set():
            due = int((time.perf_counter() - begun) * RATE)
            for step in range(number, due):
                agent.emit("batch", clock=time.time(), value=(step % 997) * (step % 7 - 3) / 3000)
            number = max(number, due)
            time.sleep(0.001)


class Count:
    """Frames of one window, and the ages of their newest points; printed as JSON."""

    def __init__(self, seconds: float, close: Callable[[], Any]) -> None:
        self.seconds, self.close = seconds, close
        self.begun: float | None = None
        self.cpu = 0.0
        self.spent = {"drawing": 0.0, "taking in": 0.0}
        self.ages: list[float] = []
        self.over = False

    def frame(self, newest: float, points: int) -> None:
        """Count a frame on the screen, whose newest point is of the time ``newest``."""
        now = time.time()
        if self.over or points < VISIBLE:
            return
        if self.begun is None:
            self.begun, self.cpu = now, time.process_time()
            self.spent = dict.fromkeys(self.spent, 0.0)
            return
        self.ages.append(now - newest)
        if now - self.begun >= self.seconds:
            self.over = True
            lasted = now - self.begun
            report = {
                "frames": len(self.ages) / lasted, "ages": sorted(self.ages), "points": points,
                "cpu": (time.process_time() - self.cpu) / lasted,
                **{name: spent / lasted for name, spent in self.spent.items()},
            }  # fmt: skip
            print(json.dumps(report), flush=True)
            self.close()

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, with its CPU time on this thread added up."""

        def call(*args: Any, **how: Any) -> Any:
            begun = time.thread_time()
            try:
                return function(*args, **how)
            finally:
                self.spent[name] += time.thread_time() - begun

        return call


def plot(toolkit: str, seconds: float) -> None:
    """Run `looptap plot points line`, and count what its window draws."""
    from looptap.cli import main
    from looptap.visualizers.cells import Cell
    from looptap.visualizers.surfaces.window import ChartWindow

    windows: list[ChartWindow] = []
    count = Count(seconds, lambda: windows[0].close())
    paint = count.timed("drawing", ChartWindow._paint)

    def painted(window: ChartWindow, whole: bool) -> None:
        paint(window, whole)
        windows[:] = [window]
        chart, mark = window.parts[0].cell.chart, window.parts[0].picture.marks[0]
        if chart is not None:
            count.frame(float(mark.x[-1]), len(chart.series[0].data["ring"]))

    ChartWindow._paint = painted
    Cell.pull = count.timed("taking in", Cell.pull)
    sys.exit(main(["plot", "points", "line", "--in", toolkit]))


def naive(toolkit: str, seconds: float) -> None:
    """Run the same window by hand: matplotlib's animation sets all points."""
    import matplotlib

    matplotlib.use({"tk": "TkAgg", "qt": "QtAgg"}[toolkit])
    from matplotlib import pyplot
    from matplotlib.animation import FuncAnimation

    import looptap

    stream = looptap.attach("points").stream("line", buffer=VISIBLE)
    figure, axes = pyplot.subplots(figsize=(7, 4.4))
    (line,) = axes.plot([], [])
    count = Count(seconds, lambda: pyplot.close(figure))

    def update(number: int) -> None:
        clock, value = stream.to_numpy().T
        line.set_data(clock, value)
        axes.relim()
        axes.autoscale_view()

    def drawn(event: Any) -> None:
        clock = line.get_xdata()
        if len(clock):
            count.frame(float(clock[-1]), len(clock))

    stream.wait(1)
    figure.canvas.mpl_connect("draw_event", drawn)
    figure.canvas.draw = count.timed("drawing", figure.canvas.draw)
    kept = FuncAnimation(figure, count.timed("taking in", update), interval=33, cache_frame_data=False)
    pyplot.show()
    del kept


if __name__ == "__main__":
    what, *arguments = sys.argv[1:]
    if what == "job":
        job()
    else:
        {"plot": plot, "naive": naive}[what](arguments[0], float(arguments[1]))
