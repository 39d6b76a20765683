"""Measures the page of `looptap web` in a browser, beside an empty page.

`make bench-charts` has its rows; `python benchmarks/web_page.py` prints them alone.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import quote_plus

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "support"))

import psutil  # noqa: E402 - once the path is known
from lab import FLAGS, PATIENCE  # noqa: E402 - once the path is known
from playwright.sync_api import sync_playwright  # noqa: E402 - once the path is known
from programs import need  # noqa: E402 - once the path is known
from web_pages import until  # noqa: E402 - once the path is known

HERE = Path(__file__).parent
POINTS_PER_SECOND = 100_000
TURNS_COUNT = 3
"""Measurements of each page, in turns."""
EMPTY = """(seconds) => new Promise((done) => {
  let count = 0;
  const begun = performance.now(), look = () => {
    count += 1;
    const spent = (performance.now() - begun) / 1000;
    if (spent < seconds) requestAnimationFrame(look);
    else done(count / spent);
  };
  requestAnimationFrame(look);
})"""
"""Counts the frames of the screen."""
DRAWS = """(seconds) => new Promise((done) => {
  const stores = [...document.querySelectorAll('.looptap')].map((el) => el.looptap);
  const before = stores.map((store) => store.draws), begun = performance.now();
  for (const store of stores) store.lags.length = 0;
  setTimeout(() => {
    const spent = (performance.now() - begun) / 1000;
    done([stores.map((store, i) => (store.draws - before[i]) / spent), stores.flatMap((store) => store.lags)]);
  }, 1000 * seconds);
})"""
"""Counts the pictures of each chart, with their ages when they were drawn."""
JOB = """
import looptap, math, time
with looptap.Agent("job") as agent:
    step = 0
    while True:
        for _ in range(20):
            agent.emit("batch", step=step, loss=math.exp(-step / 1e5), error=math.sin(step / 1e3))
            step += 1
        time.sleep(0.02)
"""
QUERIES = ("step, loss", "step, error", "step, 2 * loss", "step, loss + error")


@contextlib.contextmanager
def _running(*command, **environment):
    process = subprocess.Popen(
        [sys.executable, *command], stdout=subprocess.PIPE, text=True, env={**os.environ, **environment}
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def _opened(browser, url, count):
    page = browser.new_context(viewport={"width": 1280, "height": 800}).new_page()
    page.set_default_timeout(PATIENCE)
    begun = time.monotonic()
    page.goto(url)
    until(
        page,
        "(count) => [...document.querySelectorAll('.looptap')].filter((el) => el.looptap.draws).length === count",
        arg=count,
    )
    return page, time.monotonic() - begun


def measured(browser, seconds):
    """Yield rows: what, figure, promise."""
    with _running(str(HERE / "web_feed.py"), str(POINTS_PER_SECOND)) as server:
        url, process = server.stdout.readline().strip(), psutil.Process(server.pid)
        first, empty, drawn, ages, shares = [], [], [], [], []
        for _ in range(TURNS_COUNT):  # one page at a time: a browser draws those behind others less often
            blank = browser.new_context().new_page()
            empty.append(blank.evaluate(EMPTY, seconds / TURNS_COUNT))
            blank.context.close()
            page, painted = _opened(browser, url, 1)
            until(page, "[...document.querySelector('.looptap').looptap.columns.values()][0]?.view.length > 150000")
            before, begun = sum(process.cpu_times()[:2]), time.monotonic()
            (rate,), lags = page.evaluate(DRAWS, seconds / TURNS_COUNT)
            shares.append((sum(process.cpu_times()[:2]) - before) / (time.monotonic() - begun))
            page.context.close()
            first.append(painted)
            drawn.append(rate)
            ages += lags
    ages.sort()
    yield "`looptap web`: first paint of a line", f"{statistics.median(first):.2f} s", "≤ 2 s"
    yield (
        f"`looptap web`, {POINTS_PER_SECOND:,} points/s into a line of 200,000: frames/s",
        f"{statistics.mean(drawn):.0f}",
        "≥ 50",
    )
    yield "— an empty page beside it, in turns: frames/s", f"{statistics.mean(empty):.0f}", ""
    worst = ages[int(0.99 * len(ages))]
    yield (
        "— age of a picture when it is drawn: median, p99",
        f"{statistics.median(ages):.3f} s, {worst:.3f} s",
        "≤ 0.1 s",
    )
    yield "— server, the stream that is fed included", f"{statistics.mean(shares):.0%} of a core", ""
    with tempfile.TemporaryDirectory() as runs:
        charts = "&".join(f"c={quote_plus(query)}" for query in QUERIES)
        command = ("-m", "looptap.cli", "web", "--no-open", "--port", "0", "--operate")
        with _running("-c", JOB, LOOPTAP_DIR=runs), _running(*command, LOOPTAP_DIR=runs) as server:
            url = server.stdout.readline().split(" at ")[1].strip()
            page, _ = _opened(browser, f"{url}#{charts}", len(QUERIES))
            rates, lags = page.evaluate(DRAWS, seconds)
            page.context.close()
    lags.sort()
    yield (
        "`looptap web`, a job of 1,000 events/s and four charts: frames/s of each",
        f"{statistics.mean(rates):.0f}",
        "",
    )
    yield "— age of a picture when it is drawn: median", f"{statistics.median(lags):.3f} s", ""


def main():
    """Print the rows."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=need("chromium", "PAGES ARE"), args=FLAGS)
        for what, figure, promise in measured(browser, float(os.environ.get("SECONDS", "10"))):
            print(f"{what:75} {figure:20} {promise}", flush=True)
        browser.close()


if __name__ == "__main__":
    main()
