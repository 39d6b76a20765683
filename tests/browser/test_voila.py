"""An overview and a panel as a page of their own, served by Voilà."""

import contextlib
import os
import socket
import subprocess
import sys

import pytest
from lab import ATTACH, FLAGS, PATIENCE, SHOTS, SOURCE, Lab, beside_a_job
from playwright.sync_api import sync_playwright
from programs import need
from rank_jobs import free_port
from waiting import soon

pytestmark = [pytest.mark.browser, pytest.mark.timeout(1200)]


def test_voila_serves_an_overview_whose_charts_and_controls_live(tmp_path):
    chromium = need("chromium", "NOTEBOOKS ARE")
    runs = tmp_path / "runs"
    runs.mkdir()
    Lab(tmp_path, "", "", None).write("overview.ipynb", ATTACH, "looptap.overview(run)", "looptap.panel(run)")
    port = free_port()
    with beside_a_job(runs):
        environment = {**os.environ, "PYTHONPATH": SOURCE, "IPYTHONDIR": str(tmp_path / "ipython")}
        command = [sys.executable, "-m", "voila", "overview.ipynb", "--no-browser", f"--port={port}"]
        with open(tmp_path / "voila.log", "w") as log:
            server = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=log, stderr=log)
        try:
            soon(lambda: answers(server, port, tmp_path / "voila.log"), PATIENCE / 1000)
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
                page = browser.new_page(viewport={"width": 1300, "height": 1300})
                page.goto(f"http://127.0.0.1:{port}/", timeout=2 * PATIENCE)
                page.wait_for_function("document.querySelector('.looptap')?.looptap.draws > 2", timeout=2 * PATIENCE)
                page.get_by_role("button", name="trigger evaluate").click()
                page.wait_for_function("document.body.textContent.includes('trigger evaluate: 0.75')", timeout=PATIENCE)
                page.wait_for_function("document.body.textContent.includes('Last commands')", timeout=PATIENCE)
                SHOTS.mkdir(parents=True, exist_ok=True)
                page.screenshot(path=SHOTS / "voila.png")
                browser.close()
        finally:
            server.terminate()
            server.wait()


def answers(server, port, log):
    assert server.poll() is None, log.read_text()
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False
