"""Records the moving picture of the README, in light and dark. `make recording`.

A real job, seeded, is asked a question on the page of `looptap web`; then its learning rate is turned. Every frame is a
screenshot of the page in Chromium; only the pointer is drawn, since screenshots have none.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from PIL import Image

import looptap

HERE = Path(__file__).parent
FRAME_MILLISECONDS = 100
SIZE = {"width": 880, "height": 640}
QUERY, WINDOW = "mean(e.loss for e in events)", "25"
RATES = 0.25, 0.03
"""The learning rate at the beginning, and the one that it is turned to."""
MAX_RATE = 0.3
STYLE = """
#machine, #where, #moving, nav .hint, #tick, #panel ~ *, details { display: none !important }
#pointer { position: fixed; z-index: 99; width: 14px; height: 14px; margin: -7px; border-radius: 50%;
           background: #e4572e; opacity: .85; pointer-events: none }
"""


def job() -> None:
    """Train a linear model; at a high rate its loss stays above the noise."""
    import torch

    torch.manual_seed(0)
    model, truth = torch.nn.Linear(64, 1), torch.randn(64) / 8
    optimizer = torch.optim.SGD(model.parameters(), lr=RATES[0])
    with looptap.Agent("regression", groups=("batch",)) as agent:
        agent.control(
            "lr",
            lambda: optimizer.param_groups[0]["lr"],
            lambda rate: optimizer.param_groups[0].update(lr=rate),
            minimum=0.0,
            maximum=MAX_RATE,
        )
        for step in range(100_000):
            x = torch.randn(32, 64)
            loss = (model(x)[:, 0] - x @ truth - torch.randn(32)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            agent.emit("batch", step=step, loss=loss)
            time.sleep(0.004)


def story(page: Any) -> Iterator[int]:
    """Act on the page in small steps; yield the number of frames to take."""
    page.click("#query")
    yield 4
    for letter in QUERY:
        page.keyboard.type(letter)
        yield 1
    page.keyboard.press("Escape")
    page.click("#window")
    page.keyboard.type(WINDOW)
    yield 3
    page.click("#ask button")
    yield 28
    knob = page.locator("input[type=range][id^=knob]").first
    box = knob.bounding_box()
    y, span = box["y"] + box["height"] / 2, box["width"] - 16
    start, end = (box["x"] + 8 + rate / MAX_RATE * span for rate in RATES)
    page.mouse.move(start, y)
    yield 4
    page.mouse.down()
    for i in range(1, 11):
        page.mouse.move(start + (end - start) * i / 10, y)
        yield 1
    page.mouse.up()
    yield 40


def record(url: str, theme: str) -> list[Image.Image]:
    """Return the frames of the story."""
    from playwright.sync_api import sync_playwright

    frames = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        page = browser.new_page(viewport=SIZE, color_scheme=theme, bypass_csp=True)
        page.goto(url)
        page.wait_for_selector("#charts article canvas")
        while page.query_selector("button.remove"):
            page.click("button.remove")
        page.add_style_tag(content=STYLE)
        page.evaluate(
            """() => {
                const pointer = document.body.appendChild(document.createElement("div"));
                pointer.id = "pointer";
                addEventListener("mousemove", e => {
                    Object.assign(pointer.style, {left: e.clientX + "px", top: e.clientY + "px"});
                });
            }"""
        )
        for count in story(page):
            for _ in range(count):
                began = time.monotonic()
                frames.append(Image.open(io.BytesIO(page.screenshot())).convert("RGB"))
                page.wait_for_timeout(max(1.0, FRAME_MILLISECONDS - 1000 * (time.monotonic() - began)))
        browser.close()
    return frames


def main() -> None:
    """Record both pictures, each of a new run."""
    for theme in ("light", "dark"):
        with tempfile.TemporaryDirectory(prefix="lt-") as place:
            here = dict(os.environ, LOOPTAP_DIR=place)
            training = subprocess.Popen([sys.executable, __file__, "job"], env=here, cwd=place)
            command = [sys.executable, "-m", "looptap.cli", "web", "--operate", "--port", "0"]
            web = subprocess.Popen(command, env=here, cwd=place, stdout=subprocess.PIPE, text=True)
            try:
                with_url = next(found for line in web.stdout or () if (found := re.search(r"http://\S+", line)))
                frames = record(with_url[0], theme)
            finally:
                web.terminate()
                training.terminate()
        picture = HERE / f"looptap-{theme}.webp"
        frames[0].save(
            picture,
            save_all=True,
            append_images=frames[1:],
            duration=FRAME_MILLISECONDS,
            loop=0,
            lossless=True,
            method=6,
        )
        print(f"{picture.name}: {len(frames)} frames, {picture.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    job() if sys.argv[1:] == ["job"] else main()
