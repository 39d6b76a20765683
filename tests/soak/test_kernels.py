"""Charts and controls beside a busy cell, on older kernels than installed."""

import subprocess
import sys

import pytest
from lab import ATTACH, BUSY, PATIENCE, beside_a_job, busy, enough, laboratory
from programs import need
from waiting import soon

import looptap
from looptap.visualizers.surfaces.notebook.kernels import WAITS

pytestmark = [pytest.mark.soak, pytest.mark.browser, pytest.mark.timeout(600)]


@pytest.mark.parametrize(
    ("version", "aside"), [("6.31.0", False), ("7.2.0", True), ("7.3.0", True)], ids=lambda value: str(value)
)
def test_charts_work_while_a_cell_runs(version, aside, tmp_path):
    chromium = need("chromium", "NOTEBOOKS ARE")
    kernel, root, runs = (tmp_path / name for name in ("kernel", "lab", "runs"))
    for folder in (root, runs):
        folder.mkdir()
    install = [sys.executable, "-m", "pip", "install", "-qq", "--no-deps", "--target", str(kernel)]
    subprocess.run([*install, f"ipykernel=={version}"], check=True)
    with beside_a_job(runs), laboratory(root, chromium, extra=[str(kernel)]) as lab, looptap.attach("job") as job:
        book = lab.open(
            "kernel.ipynb",
            ATTACH + "\nimport ipykernel\nprint(ipykernel.__version__)",
            "run.stream('step, loss')",
            "shown = looptap.panel(run)\nshown",
            BUSY,
        )
        book.run(0)
        assert version in book.outputs(0)[0]["text"]
        book.run(1)
        book.charts(1)
        book.run(2)
        slider = book.page.locator(".widget-slider [role=slider], .widget-slider .noUi-handle").first
        slider.wait_for(timeout=PATIENCE)
        busy(lab, book, 3)
        for _ in range(3):
            book.grows()
        before = job.controls["echo.factor"].value
        slider.focus()
        slider.press("ArrowRight")
        if aside:
            soon(lambda: job.controls["echo.factor"].value == before + 1)
        else:
            assert WAITS in book.page.content()
            book.grows(by=50)
            assert job.controls["echo.factor"].value == before
        enough(lab)
        soon(lambda: job.controls["echo.factor"].value == before + 1)
        book.grows()
        book.shot(f"kernel-{version}")
        book.close()
