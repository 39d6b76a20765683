"""The age of what TensorBoard shows, on its real page in a browser.

An event file grows meanwhile. Each point is on disk at once, where a SummaryWriter that is left alone flushes every two
minutes. One page is as TensorBoard ships it; on the other *Reload data* is switched on, which may be every 30 s at the
soonest. The step of a point is the wall clock in ms, so that the newest in an answer tells its age; the page has drawn
it a moment later.
"""

from __future__ import annotations

import contextlib
import queue
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

RATE = 1_000  # points a second; SummaryWriter cannot write a hundred times as many
RELOADS = 2
_RELOAD = 30.0  # seconds, the least that the page accepts
_SLACK = 8.0
_WRITE = """
import sys, time
from torch.utils.tensorboard import SummaryWriter
writer, rate, number, begun = SummaryWriter(sys.argv[1]), int(sys.argv[2]), 0, time.time()
while True:
    due = int((time.time() - begun) * rate)
    for number in range(number + 1, due + 1):
        now = time.time()
        writer.add_scalar("loss", number % 977, int(now * 1000), walltime=now)
    writer.flush()
    time.sleep(0.05)
"""
_WATCH = """
window.shown = [];
const send = XMLHttpRequest.prototype.send, open = XMLHttpRequest.prototype.open;
XMLHttpRequest.prototype.open = function (method, url, ...more) {
  if (String(url).includes("timeSeries")) this.addEventListener("load", () => {
    const text = typeof this.response === "string" ? this.response : JSON.stringify(this.response);
    const steps = [...text.matchAll(/"step": ?(\\d+)/g)].map((found) => +found[1]);
    requestAnimationFrame(() => requestAnimationFrame(() =>
      window.shown.push([Date.now() / 1000, steps.length ? Math.max(...steps) / 1000 : 0, steps.length])));
  });
  return open.call(this, method, url, ...more);
};
"""
_RELOADING = "localStorage.setItem('_tb_global_settings', JSON.stringify({ autoReload: true }));"


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """Run TensorBoard on a folder that a loop writes to; yield its address."""
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(folder), "--port", "0"]
    writer = subprocess.Popen([sys.executable, "-c", _WRITE, str(folder / "run"), str(RATE)])
    try:
        while not list(folder.rglob("*.tfevents.*")):
            if writer.poll() is not None:
                raise RuntimeError(f"the writer of event files ended with status {writer.returncode}")
            time.sleep(0.1)
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=folder) as server:
            try:
                yield _address(server)
            finally:
                server.terminate()
    finally:
        writer.kill()
        writer.wait()


def _address(server: subprocess.Popen[str]) -> str:
    """Return where it listens, once it says so; drain its other output."""
    said: queue.Queue[str] = queue.Queue()

    def listen() -> None:
        assert server.stderr is not None
        for line in server.stderr:
            if found := re.search(r"http://\S+", line):
                said.put(found[0])

    threading.Thread(target=listen, daemon=True).start()
    return said.get(timeout=60)


def _page(browser: Any, address: str, *scripts: str) -> Any:
    page = browser.new_context(viewport={"width": 1300, "height": 800}).new_page()
    for script in (_WATCH, *scripts):
        page.add_init_script(script)
    page.goto(f"{address}#timeseries", timeout=60_000)
    page.wait_for_function("window.shown.some(([at, newest, points]) => points > 0)", timeout=60_000)
    page.wait_for_selector("scalar-card svg, scalar-card canvas", timeout=60_000)
    return page


def measured(browser: Any, folder: Path, shot: Path | None = None) -> Iterator[tuple[str, str, str]]:
    """Yield the rows of the table: what, figure, promise (none)."""
    with served(folder) as address:
        shipped, reloading = _page(browser, address), _page(browser, address, _RELOADING)
        begun = time.time()
        reloading.wait_for_function(
            f"window.shown.filter(([at, newest, points]) => points).length >= {1 + RELOADS}",
            timeout=1000 * RELOADS * (_RELOAD + _SLACK),
        )
        now = time.time()
        newest = reloading.evaluate("window.shown.filter(([at, newest, points]) => points).at(-1)[1]")
        reloading.get_by_text(f"{1000 * newest:,.0f}").first.wait_for(timeout=10_000)  # shown in the card's table
        pictures, alone = (page.evaluate("window.shown.filter(([at, newest, points]) => points)")
                           for page in (reloading, shipped))  # fmt: skip
        if shot is not None:
            reloading.screenshot(path=shot)
    ages = [at - newest for at, newest, _ in pictures[1:]]
    before = [later[0] - newest for (_, newest, _), later in pairwise(pictures)]
    span = pictures[-1][0] - pictures[0][0]
    yield (
        f"TensorBoard's page, {RATE:,} points/s: reloads by itself in {now - begun:.0f} s, as shipped",
        str(len(alone) - 1), "",
    )  # fmt: skip
    yield "— age of the newest point on it at the end", f"{now - alone[-1][1]:.0f} s", ""
    yield "TensorBoard with Reload data on, at the shortest period: frames/s", f"{(len(pictures) - 1) / span:.2f}", ""
    yield (
        "— age of the newest point: when it is drawn, and until the next is (worst)",
        f"{max(ages):.1f} s, {max(before):.0f} s", "",
    )  # fmt: skip
    yield "— points of the line that it shows", f"{pictures[-1][2]:,}", ""
