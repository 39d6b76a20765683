"""Runs the notebooks in notebooks/ and saves them with pictures (make notebooks).

python tests/support/tutorials.py [--into FOLDER] [--short] [NOTEBOOK ...]
Each has a clean kernel. Whatever they write, runs that announce themselves and settings of Jupyter included, goes to a
temporary folder. In its repository a notebook keeps texts and pictures, and no widget, which needs its kernel. The
picture of a cell with a tag such as "docs/echoing-turned.png" is written there, too.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import os
import re
import sys
import tempfile
import time
from base64 import b64decode, b64encode
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

if TYPE_CHECKING:
    from nbformat import NotebookNode

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
WIDGET = "application/vnd.jupyter.widget-view+json"
TEMPORARY = re.compile(re.escape(tempfile.gettempdir()) + r"/[^/\s]+/")
"""The folder in which a notebook has its job, in what the job prints."""
PATIENCE = 600
"""Seconds that one cell may take, on a busy machine."""

EMIT = 'agent.emit("batch", loss=loss)'
PAUSED = f"{EMIT}\n            __import__('time').sleep(0.004)"
SHORTER = {
    "assistant": {'"throttle": 0.1': '"throttle": 0.02', "time.sleep(0.005)": "time.sleep(0.015)"},
    "echo": {
        '"throttle": 0.1': '"throttle": 0.02', "STEPS = 10_000": "STEPS = 100_000", "Conv2d(1, 32": "Conv2d(1, 4",
        "Conv2d(32, 64": "Conv2d(4, 8", "Linear(1024,": "Linear(128,",
    },
    "first-look": {"error.wait(25": "error.wait(5", "window=200": "window=50", "mean.arrived + 40": "mean.arrived + 5"},
    "many-jobs": {"range(80)": "range(20)"},
    "prioritized": {
        "wait(5)": "wait(1)", "values=5)": "values=1)", "values=15": "values=3", ": 40": ": 10",
        "time.sleep(0.005)": "time.sleep(0.015)",
    },
    "turn-a-knob": {"error.wait(40": "error.wait(5", "error.arrived + 40": "error.arrived + 5", EMIT: PAUSED},
    "vanishing-gradients": {"error.wait(20": "error.wait(5", "error.arrived + 20": "error.arrived + 5", EMIT: PAUSED},
}  # fmt: skip
"""What tests replace in the cells of a notebook, so that it waits for fewer values, and its job computes less: what it
does is the same."""

DRAW = """
import gc, threading
from looptap.visualizers.charts.marks import settle
from looptap.visualizers.surfaces.notebook.display import PlotView
from looptap.visualizers.surfaces.notebook.stills import stills

class _Renewal:
    drawn = set()

    def __init__(self):
        self.views = [one for one in gc.get_objects() if isinstance(one, PlotView) and one.still.name not in self.drawn]
        self.drawn.update(view.still.name for view in self.views)
        self.done = threading.Event()

    def step(self, now):
        for view in self.views:
            view.plot.pull()
            settle(cell.chart.commands for cell in view.plot.cells if cell.chart is not None)
            view.plot.pull()
            view.still._last = b""  # published also if it has not changed: nbclient may have passed over the last one
            view.still.step(now)
        self.done.set()

_renewal = _Renewal()
if _renewal.views:
    stills.add(_renewal)
    assert _renewal.done.wait(PATIENCE)
""".replace("PATIENCE", str(PATIENCE))
"""Draws the pictures below the charts of the last cell, at once, on the thread that draws them."""


def privately(folder: Path) -> None:
    """Make this process, and what it starts, write to ``folder`` only."""
    for name in ("CONFIG", "RUNTIME", "DATA"):
        os.environ[f"JUPYTER_{name}_DIR"] = str(folder / "jupyter" / name)
    os.environ["IPYTHONDIR"] = str(folder / "ipython")
    os.environ["LOOPTAP_DIR"] = str(folder / "runs")
    (folder / "runs").mkdir(mode=0o700, exist_ok=True)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    os.environ.pop("LOOPTAP_STORE", None)  # the notebooks say themselves where their jobs keep things


def read(path: Path) -> NotebookNode:
    """Read the notebook in a file."""
    import nbformat  # here, and not above: it takes a second, and who collects tests imports this module

    return nbformat.read(path, as_version=4)


def shortened(path: Path) -> NotebookNode:
    """Read a notebook for a test: as it is, except that it waits for less."""
    book = read(path)
    for long, short in SHORTER.get(path.stem, {}).items():
        cells = [cell for cell in book.cells if long in cell.source]
        assert cells, f"{path.name} does not say {long!r} any more"
        for cell in cells:
            cell.source = cell.source.replace(long, short)
    return book


def executed(book: NotebookNode, folder: Path) -> NotebookNode:
    """Return the notebook with the outputs of a fresh run; raise what nbclient does.

    A cell keeps the pictures of when it ended, while its charts would show what came later.
    """
    import nbformat
    from nbclient import NotebookClient

    client = NotebookClient(
        book, timeout=PATIENCE, kernel_name="python3", store_widget_state=False, record_timing=False,
        resources={"metadata": {"path": str(folder)}},
    )  # fmt: skip
    cells = list(book.cells)
    draw = nbformat.v4.new_code_cell(DRAW)
    book.cells.append(draw)
    kept = {}

    async def run() -> None:
        async with client.async_setup_kernel():
            for index, cell in enumerate(cells):
                if cell.cell_type == "code":
                    await client.async_execute_cell(cell, index)
                    await client.async_execute_cell(draw, len(cells), store_history=False)
                    kept[index] = deepcopy(cell.outputs)

    asyncio.run(run())
    for index, outputs in kept.items():
        cells[index].outputs = outputs
    book.cells = cells
    return book


def saved(book: NotebookNode) -> None:
    """Remove what only a live kernel can show, and the paths of this machine.

    Makes its pictures small, too.
    """
    for cell in book.cells:
        if cell.cell_type != "code":
            continue
        cell.outputs = [output for output in cell.outputs if WIDGET not in output.get("data", {})]
        for output in cell.outputs:
            if "image/png" in output.get("data", {}):
                output.data["image/png"] = _small(output.data["image/png"])
            if "text" in output:
                output.text = TEMPORARY.sub("", output.text)
    book.metadata["language_info"] = {"name": "python"}
    book.metadata.pop("widgets", None)


def pictures(book: NotebookNode) -> dict[str, bytes]:
    """Return the pictures for the documentation: the newest PNG of each tagged cell."""
    found = {}
    for cell in book.cells:
        images = [one.data["image/png"] for one in cell.get("outputs", ()) if "image/png" in one.get("data", {})]
        for tag in cell.metadata.get("tags", ()) if images else ():
            if tag.endswith(".png"):
                found[tag] = b64decode(images[-1])
    return found


def _small(image: str) -> str:
    """Return the same PNG in 64 colours."""
    file = io.BytesIO()
    with Image.open(io.BytesIO(b64decode(image))) as full:
        few = full.convert("RGB").quantize(64, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
        few.save(file, "png", optimize=True)
    return b64encode(file.getvalue()).decode("ascii")


def main() -> None:
    """Run the notebooks; write them with ``--into`` there, else into the repository."""
    import nbformat

    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--into", type=Path)
    arguments.add_argument("--short", action="store_true", help="wait for fewer values, for a test")
    arguments.add_argument("notebooks", nargs="*", type=Path, default=NOTEBOOKS)
    options = arguments.parse_args()
    for path in options.notebooks:
        begun = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="looptap-", ignore_cleanup_errors=True) as folder:
            privately(Path(folder))
            book = executed(shortened(path) if options.short else read(path), Path(folder))
        if not options.into:
            saved(book)
            for name, content in pictures(book).items():
                (ROOT / name).write_bytes(content)
        target = (options.into or ROOT / "notebooks") / path.name
        nbformat.write(book, target)
        size = target.stat().st_size / 1000
        print(f"{path.name}: {time.monotonic() - begun:.1f} s, {size:.0f} kB", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
