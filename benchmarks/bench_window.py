"""Frames per second of a window with 100,000 points of a growing stream.

The window is a Tk window (on Xvfb, without a GPU) with one line. looptap's frame is what the timer of `looptap plot`
calls: read new values, decimate, set the data, draw the line over the rest, and redraw everything only when limits
move. The baseline is written by hand and redraws everything: `set_data` with all points, `relim`, `autoscale_view`,
`canvas.draw()`. The frames follow one another as fast as possible; `looptap plot` stops at 30 a second. Each frame has
100 new points.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from array import array
from collections.abc import Iterator

import numpy as np
from harness import Row, interleave, main, rate

POINTS, NEW, FRAMES = 100_000, 100, 10


def rows() -> Iterator[Row]:
    if shutil.which("Xvfb") is None:
        yield Row("frames of a window at 100,000 points", "", "not measured: no Xvfb")
        return
    read, write = os.pipe()
    screen = ["-screen", "0", "1200x900x24", "-nolisten", "tcp", "-noreset"]
    server = subprocess.Popen(["Xvfb", "-displayfd", str(write), *screen], pass_fds=[write], stderr=subprocess.DEVNULL)
    os.close(write)
    try:
        with os.fdopen(read) as number:
            os.environ["DISPLAY"] = f":{number.readline().strip()}"
        yield measured()
    finally:
        server.terminate()
        server.wait()


def measured() -> Row:
    import matplotlib

    matplotlib.use("TkAgg")
    from matplotlib import pyplot

    from looptap.streams.stream.buffer import Batch
    from looptap.streams.stream.stream import Stream
    from looptap.visualizers.plot import Plot
    from looptap.visualizers.surfaces.window import ChartWindow

    stream = Stream("step, loss", fields=("step", "loss"), on="batch")
    count = 0

    def feed(new: int) -> None:
        nonlocal count
        steps = np.arange(count + 1, count + new + 1)
        values = list(zip(steps.tolist(), np.sin(steps / 5000).tolist(), strict=True))
        stream.publish(Batch(count + 1, array("q", steps.tolist()), array("d", steps.tolist()), values))
        count += new

    feed(POINTS)
    window = ChartWindow(Plot(stream), title="ours")
    window.timer.stop()
    window.canvas.draw()

    def ours() -> float:
        start = time.perf_counter()
        for _ in range(FRAMES):
            feed(NEW)
            window.turn()
            window.canvas.manager.window.update()
        return (time.perf_counter() - start) / FRAMES

    figure, axes = pyplot.subplots(figsize=window.figure.get_size_inches())
    (line,) = axes.plot([], [])
    seen = np.empty((2, 4 * POINTS))
    length = 0

    def append(new: int) -> None:
        nonlocal length
        steps = np.arange(length, length + new)
        seen[:, length : length + new] = steps, np.sin(steps / 5000)
        length += new

    append(POINTS)

    def naive() -> float:
        start = time.perf_counter()
        for _ in range(FRAMES):
            append(NEW)
            line.set_data(seen[:, :length])
            axes.relim()
            axes.autoscale_view()
            figure.canvas.draw()
            figure.canvas.manager.window.update()
        return (time.perf_counter() - start) / FRAMES

    found = interleave({"ours": ours, "naive": naive}, rounds=15)
    fast = 1 / found.median("ours")
    row = Row(
        "frames of a window (Tk) at 100,000 points, one after the other",
        rate(1 / found.median("naive")),
        rate(fast),
        str(found.ratio("naive", "ours")),
        "≥ 30/s",
        fast >= 30,
        figures={**found.seconds, "redrawn": window.redrawn, "frames": window.frames},
    )
    pyplot.close("all")
    return row


if __name__ == "__main__":
    main(rows, __doc__)
