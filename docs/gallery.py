"""Makes docs/gallery: each kind of chart on each surface. `make gallery`.

The charts show the digits job, which runs from its start; the plots attach to it as usual. Saved pages, and the live
charts of notebooks/gallery.ipynb in JupyterLab, are photographed by Chromium or Chrome where one is installed. What has
a ground is drawn on a light and on a dark one.
"""

from __future__ import annotations

import io
import json
import math
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

from PIL import Image

import looptap
from looptap.visualizers.data.colors import DARK, LIGHT, Theme
from looptap.visualizers.drawing.backends.with_matplotlib import draw_all as draw_on
from looptap.visualizers.drawing.backends.with_matplotlib import new_figure
from looptap.visualizers.drawing.backends.with_text import all_as_text
from looptap.visualizers.drawing.picture import Picture
from looptap.visualizers.plot import Plot
from looptap.visualizers.surfaces.saving import save_pictures

ROOT = Path(__file__).resolve().parent.parent
HERE = ROOT / "docs" / "gallery"
NOTEBOOK = ROOT / "notebooks" / "gallery.ipynb"
CHARTS = 21
"""The number of charts in the notebook."""
EPOCHS = 8
BATCHES = 24 * EPOCHS
_ROWS = 5
_BY_CLASS = "group_by(((int(t), l) for e in events for t, l in zip(e.target, e.losses.tolist())), mean)"
_LABELLED = "{f'digit {k}': float(v) for k, v in sorted(" + _BY_CLASS + ".items())}"
_SUMMED = "sum(confusion(e.target, e.output, 10) for e in events)"
_FIRST = "model[0].weight"
_FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]

WEB_QUERIES = (
    "step, loss", '{"q": "epoch, 1 - error", "on": "epoch"}', """{"q": "layer_norms(model, 'grad')", "every": 40}""",
    _SUMMED,
)  # fmt: skip
WEB_SHOTS = (
    ("web", 1280, 800, False), ("web-dark", 1280, 800, True),
    ("web-phone", 390, 844, False), ("web-phone-dark", 390, 844, True),
)  # fmt: skip
"""Pictures of the page: name, width, height, whether it is dark."""
COMPARE_SHOTS = (("web-compare", 1280, 900, False), ("web-compare-dark", 1280, 900, True))
"""Pictures of the page with the runs of a sweep."""
SWEEP = 20
"""Runs of the sweep."""

LINES: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    ("loss", "step, loss", {}, {}),
    ("test accuracy", "epoch, 1 - error", {"on": "epoch"}, {}),
    ("gradient of each layer", "layer_norms(model, 'grad')", {"every": 4}, {}),
    ("losses of the last 20 batches", "quantile((l for e in events for l in e.losses.tolist()), [0.1, 0.5, 0.9])",
     {"window": 20}, {}),
    ("loss and gradient over steps", "step, loss, norm(model[8].weight.grad)", {}, {}),
    ("losses of a batch, sorted", "losses.sort().values", {"every": 12}, {}),
    ("weights of a layer", "model[3].weight", {"every": 24}, {"chart": "histogram"}),
    ("gradients, layer by layer", "layer_histograms(model, 'grad')", {"every": 24}, {}),
    ("two outputs of each sample", "output[:, :2]", {"every": 12}, {}),
    ("three outputs of each sample", "output[:, :3]", {"every": 12}, {}),
    ("loss, with notes", "step, loss, 'epoch ' + str(step // 24) if step % 96 == 0 else ''", {}, {}),
    ("two outputs, by class", "embedding(output, labels=target, images=image)", {"every": 12}, {}),
    ("loss over the time of day", "loss", {"every": 2}, {"x": "wall"}),
    ("where a line turns in space", "math.sin(step / 9), math.cos(step / 9), step", {}, {}),
    ("loss and gradient, with notes",
     "step, loss, norm(model[8].weight.grad), 'epoch ' + str(step // 24) if step % 144 == 0 else ''", {}, {}),
]  # fmt: skip
OTHERS: list[tuple[str, str | tuple[tuple[str, dict[str, Any]], ...], dict[str, Any], dict[str, Any]]] = [
    ("confusion in an epoch", _SUMMED, {}, {}),
    ("worst digits of an epoch", "nlargest(6, (row for e in events for row in batch_topk(2, e.losses, image=e.image, "
     "target=e.target)), key=lambda row: row['by'])", {}, {}),
    ("weights of the last layer", "model[8].weight", {"every": 24}, {}),
    ("share of each unit in the gradient", "{f'unit {k}': v for k, v in "
     "enumerate(model[3].weight.grad.flatten(1).norm(dim=1).tolist()[:32])}", {"every": 4}, {}),
    ("gradient flow", "layer_norms(model, 'grad')", {"every": 12}, {"chart": "gradient flow"}),
    ("samples side by side",
     "[{'target': int(t), 'margin': float(o.max() - o.mean()), 'norm': float(o.norm()), 'loss': float(l)} "
     "for t, o, l in zip(target, output.detach(), losses.detach())]", {"every": 24}, {"chart": "parallel"}),
    ("loss of each digit", _LABELLED, {}, {"chart": "bars"}),
    ("which digits cost most", _LABELLED, {}, {"chart": "pie"}),
    ("what the job does", "{'step': step, 'loss': loss, 'rate': lr(optimizer), 'batch': shape(image)}", {},
     {"chart": "table"}),
    ("loss so far", "loss", {}, {"chart": "summary"}),
    ("a log", "f'step {step}: loss {loss:.3f}'", {"every": 8}, {}),
    ("first filters", f"{_FIRST}[:16, 0]", {"every": 24}, {"chart": "images"}),
    ("one digit", "image[0]", {"every": 24}, {}),
    ("loss and its gradients", (("step, loss", {}), ("histogram(model[8].weight.grad, 40)", {"every": 24})), {}, {}),
    ("training and test", (("step, loss", {}), ("epoch, error", {"on": "epoch"})), {}, {}),
]  # fmt: skip


def pictures() -> tuple[list[Picture], list[Picture]]:
    """Return the pictures of lines and their like, and all others, from a job."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", "looptap.examples.digits", "--epochs", "100000"]
    job = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    try:
        run = looptap.attach("digits-cnn", wait=120)
        plots = [[_plot(run, *entry) for entry in group] for group in (LINES, OTHERS)]
        first = plots[0][0].cells[0].streams[0]
        for part, rate in ((3, 0.05), (2, 0.02)):  # so that there are marks of commands
            first.wait(first.arrived + BATCHES // part // 2, timeout=300)
            run.set("optimizer.lr", rate)
        first.wait(first.arrived + BATCHES // 2, timeout=300)
        for plot in (one for group in plots for one in group):
            plot.cells[0].streams[0].wait(2, timeout=120)
            plot.pull()
        time.sleep(2)  # the commands were requested by the first pull
        for plot in (one for group in plots for one in group):
            plot.pull()
        found = [[plot.pictures()[0] for plot in group] for group in plots]
    finally:
        job.kill()
        job.wait()
    return found[0], found[1]


def _plot(run: Any, title: str, query: Any, how: dict[str, Any], look: dict[str, Any]) -> Plot:
    queries = ((query, how),) if isinstance(query, str) else query
    streams = [_stream(run, one, title if len(queries) == 1 else "", how) for one, how in queries]
    return Plot(streams, title=title, **look)


def _stream(run: Any, query: str, title: str, how: dict[str, Any]) -> Any:
    name = {"name": title} if title and len(query) > 40 else {}  # the name on axes and in remarks
    return run.stream(query, timeout=60, **{"on": "batch", "budget": math.inf, **name, **how})


def _small(path: Path, width: int = 1100) -> None:
    """Reduce pixels and colours, so that the repository stays small."""
    with Image.open(path) as image:
        size = width, round(width * image.height / image.width)
        small = image.convert("RGB").resize(size, Image.Resampling.LANCZOS)
    small.quantize(128, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE).save(path, optimize=True)


def _browser() -> str:
    """Return the installed browser; "" if there is none."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None) or ""


def _notebook() -> None:
    """Photograph the live charts of the notebook, in both themes."""
    sys.path.insert(0, str(ROOT / "tests" / "support"))
    from lab import laboratory

    with tempfile.TemporaryDirectory() as directory, laboratory(Path(directory), _browser()) as lab:
        cells = [cell["source"] for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]
        book = lab.open("gallery.ipynb", *map("".join, cells))
        book.page.set_viewport_size({"width": 1600, "height": 4200})
        book.run_all()
        book.charts(CHARTS)
        book.page.add_style_tag(content=".Toastify { display: none }")
        for theme, name in (("Light", "notebook"), ("Dark", "notebook-dark")):
            change = f"jupyterapp.commands.execute('apputils:change-theme', {{ theme: 'JupyterLab {theme}' }})"
            book.page.evaluate(change)
            book.page.wait_for_timeout(2000)
            boxes = book.page.locator(".jp-OutputArea-output .widget-gridbox").all()
            pieces = [Image.open(io.BytesIO(box.screenshot())).convert("RGB") for box in boxes]
            _stacked(pieces).save(HERE / f"{name}.png")
            _small(HERE / f"{name}.png")
        book.close()


def _web() -> None:
    """Photograph the page of `looptap web`, in both themes and on a phone."""
    sys.path.insert(0, str(ROOT / "tests" / "support"))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    job = subprocess.Popen([sys.executable, "-m", "looptap.examples.digits", "--epochs", "1500"], env=environment,
                           stdout=subprocess.DEVNULL)  # fmt: skip
    try:
        with looptap.attach("digits-cnn", wait=120) as run:
            run.stream("step, loss", on="batch").wait(300, timeout=120)
            run.set("optimizer.lr", 0.02)
        _shots((), "&".join(f"c={quote(query)}" for query in WEB_QUERIES), WEB_SHOTS, len(WEB_QUERIES))
    finally:
        job.kill()
        job.wait()
    with tempfile.TemporaryDirectory() as folder:
        runs = _sweep(Path(folder))
        wanted = {"where": "lr < 0.05 and best(acc) > .5", "sort": "best(acc)", "across": "1"}
        state = "&".join(f"{name}={quote(text)}" for name, text in [*(("run", run) for run in runs), *wanted.items()])
        _shots(tuple(map(str, sorted(Path(folder).iterdir()))), state, COMPARE_SHOTS, 3)


def _sweep(folder: Path) -> list[str]:
    """Store runs with settings and a loss; return their ids."""
    chance = random.Random(3)
    ids = []
    for seed in range(SWEEP):
        settings = {"lr": round(10 ** chance.uniform(-4, -1), 5), "model": {"width": chance.choice([32, 64, 128])}}
        with looptap.Agent(f"sweep-{seed:02}", store=folder, config=settings) as agent:
            agent.stream("loss", "step, loss", keep=True)
            agent.stream("acc", "step, acc", keep=True)
            for step in range(400):
                rest = math.exp(-step * settings["lr"]) + 12 * settings["lr"] / settings["model"]["width"]
                loss = 2.3 * rest + 0.05 * chance.random()
                agent.emit("batch", step=step, loss=loss, acc=1 - loss / 2.6)
        with looptap.open(next(folder.glob(f"sweep-{seed:02}*.looptap"))) as stored:
            ids.append(stored.id)
    return ids


def _shots(names: tuple[str, ...], state: str, shots: tuple[tuple[str, int, int, bool], ...], charts: int) -> None:
    """Photograph the page for runs of these ``names``, once its charts are drawn."""
    from playwright.sync_api import sync_playwright
    from web_pages import until

    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", "looptap.cli", "web", *names, "--no-open", "--port", "0", "--operate"]
    server = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        url = server.stdout.readline().split(" at ")[1].strip()
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=_browser(), args=_FLAGS)
            for name, width, height, dark in shots:
                page = browser.new_page(
                    viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light"
                )
                page.goto(f"{url}#{state}")
                # An address alone asks the runs nothing.
                page.get_by_role("button", name="Apply" if names else "Draw all").click()
                drawn = "(n) => [...document.querySelectorAll('.looptap')].filter((el) => el.looptap.draws).length >= n"
                until(page, drawn, charts)
                page.wait_for_timeout(12_000)
                page.screenshot(path=HERE / f"{name}.png")
                page.close()
                _small(HERE / f"{name}.png", min(width, 1280))
            browser.close()
    finally:
        server.terminate()
        server.wait()


def _stacked(pieces: list[Image.Image]) -> Image.Image:
    whole = Image.new("RGB", (max(piece.width for piece in pieces), sum(piece.height for piece in pieces)), "white")
    top = 0
    for piece in pieces:
        whole.paste(piece, (0, top))
        top += piece.height
    return whole


def _photograph(page: Path, path: Path, *, dark: bool) -> None:
    """Photograph a page by the installed browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=_browser(), args=_FLAGS)
        shown = browser.new_page(viewport={"width": 1500, "height": 900}, color_scheme="dark" if dark else "light")
        shown.goto(page.as_uri())
        shown.wait_for_function("document.querySelectorAll('.looptap canvas, .looptap table, .looptap pre').length > 0")
        shown.wait_for_timeout(1000)  # the values in the legends come a little later
        shown.screenshot(path=path, full_page=True)
        browser.close()


def _drawn(group: list[Picture], path: Path, theme: Theme) -> None:
    """Draw pictures with matplotlib, on a light or dark ground."""
    figure = new_figure(18, 3.8 * _ROWS)
    figure.set_facecolor(theme.ground)
    draw_on(group, figure, _ROWS)
    figure.savefig(path)


def main() -> None:
    """Write all files of docs/gallery; the jobs run in a private directory."""
    HERE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        os.environ["LOOPTAP_DIR"] = directory
        _web() if sys.argv[1:] == ["web"] else _write()
    for path in sorted(HERE.iterdir()):
        print(f"{path.name:>24} {path.stat().st_size / 1000:6.1f} kB")


def _write() -> None:
    for name, group in zip(("lines", "others"), pictures(), strict=True):
        text = all_as_text(group, 150, 20, color=False, rows=-(-len(group) // 2))
        (HERE / f"text-{name}.txt").write_text(text + "\n")
        for theme in (LIGHT, DARK):
            suffix = f"{name}{'-dark' * theme.dark}.png"
            _drawn(group, HERE / f"matplotlib-{suffix}", theme)
            _small(HERE / f"matplotlib-{suffix}")
            if not _browser():
                print(f"There is no Chromium or Chrome here: page-{suffix} stays as it is.")
                continue
            with tempfile.TemporaryDirectory() as directory:
                page = save_pictures(group, Path(directory) / "page.html", rows=_ROWS)
                _photograph(page, HERE / f"page-{suffix}", dark=theme.dark)
            _small(HERE / f"page-{suffix}")
    if _browser():
        _web()
        _notebook()


if __name__ == "__main__":
    main()
