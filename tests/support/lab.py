"""A JupyterLab in a browser, for tests of notebooks as users see them."""

import contextlib
import json
import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest
import warm
from playwright.sync_api import sync_playwright
from waiting import soon

import looptap

FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
SHOTS = Path(os.environ.get("LOOPTAP_SCREENSHOTS", Path(__file__).resolve().parents[2] / "screenshots"))
"""Where screenshots are kept; git ignores it."""
PATIENCE = 180_000
ATTACH = "import looptap, os, time\nrun = looptap.attach('job')"
BUSY = """
open('busy', 'w').close()
while not os.path.exists('enough'):
    time.sleep(0.01)
open('over', 'w').close()
"""
"""A cell that keeps the kernel busy until the test has seen enough."""
KERNEL = "window.jupyterapp?.shell.currentWidget?.context?.sessionContext?.session?.kernel"
CLOSE = """async () => {
  const widget = jupyterapp.shell.currentWidget, id = widget.context.sessionContext.session?.id;
  widget.dispose();
  if (id) await jupyterapp.serviceManager.sessions.shutdown(id);
}"""
"""Closes a notebook before its kernel goes, so that none of its charts still writes to it."""
SOURCE = str(Path(__file__).resolve().parents[2] / "src")


@contextlib.contextmanager
def laboratory(root, chromium, *, python=sys.executable, extra=None):
    """Start a private server in the folder ``root`` and a browser; yield a `Lab`."""
    private = {f"JUPYTER_{name}_DIR": str(root / ".jupyter" / name) for name in ("CONFIG", "RUNTIME", "DATA")}
    private |= {f"JUPYTERLAB_{name}_DIR": str(root / ".jupyter" / name) for name in ("SETTINGS", "WORKSPACES")}
    paths = os.pathsep.join(filter(None, [*(extra or []), SOURCE, os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, **private, "PYTHONPATH": paths, "IPYTHONDIR": str(root / ".ipython")}
    token = secrets.token_hex(16)
    command = [
        python, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ServerApp.port=0",
        f"--ServerApp.root_dir={root}", f"--IdentityProvider.token={token}",
        "--LabApp.expose_app_in_browser=True", "--LabApp.news_url=None",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate", "--LabApp.extension_manager=readonly",
    ]  # fmt: skip
    with open(root / "server.log", "w") as log:
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=root)
    try:
        about = _address(Path(private["JUPYTER_RUNTIME_DIR"]), server, root / "server.log")
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
            try:
                yield Lab(root, about, token, browser)
            finally:
                browser.close()
    finally:
        server.terminate()
        try:
            server.wait(300)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _address(runtime, server, log):
    """Return where the server listens, once it prints that."""
    found = []

    def reported():
        assert server.poll() is None, log.read_text()
        for file in runtime.glob("jpserver-*.json"):
            with contextlib.suppress(ValueError):  # it is still being written
                found.append(json.loads(file.read_text())["port"])
        return found

    soon(reported, PATIENCE / 1000)
    return f"http://127.0.0.1:{found[0]}"


@contextlib.contextmanager
def beside_a_job(runs):
    """Run `steered_job`, announced in ``runs`` to processes started meanwhile."""
    runs.chmod(0o700)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOOPTAP_DIR", str(runs))
        job = warm.Popen([sys.executable, str(Path(__file__).with_name("controlled_job.py")), "job"])
        try:
            soon(looptap.runs, 60)
            yield
        finally:
            job.kill()
            job.wait()


def busy(lab, book, index):
    """Run a cell that continues until the test calls `enough`."""
    book.start(index)
    soon((lab.root / "busy").exists, 60)


def enough(lab):
    """End the busy cell, after checking that it has run until now."""
    assert not (lab.root / "over").exists()
    (lab.root / "enough").touch()


class Lab:
    def __init__(self, root, url, token, browser):
        self.root, self.url, self.token, self.browser, self.page = root, url, token, browser, None

    def write(self, name, *cells):
        import nbformat

        book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
        book.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
        nbformat.write(book, self.root / name)

    def open(self, name, *cells):
        """Open a notebook, with these cells if there are any, on a page of its own."""
        if cells:
            self.write(name, *cells)
        return Notebook(self, name, self._new_page())

    def open_tab(self, name, *cells):
        """Open a notebook on a page shared by all: loading JupyterLab takes seconds."""
        if cells:
            self.write(name, *cells)
        if self.page is None:
            self.page = self._new_page()
            self.page.goto(f"{self.url}/lab?reset&token={self.token}", timeout=PATIENCE)
            launcher = "window.jupyterapp?.shell.currentWidget"  # the last that comes, and it would cover a notebook
            self.page.wait_for_function(launcher, timeout=PATIENCE)
        return Notebook(self, name, self.page)

    def _new_page(self):
        return self.browser.new_context(viewport={"width": 1300, "height": 1000}).new_page()


class Notebook:
    def __init__(self, lab, name, page):
        self.lab, self.name, self.page = lab, name, page
        self.errors, self.dialogs = [], []
        self._listeners = {
            "pageerror": lambda error: self.errors.append(str(error)),
            "dialog": lambda dialog: (self.dialogs.append(dialog.message), dialog.accept()),
        }
        for event, listener in self._listeners.items():
            page.on(event, listener)
        if page is lab.page:
            page.evaluate(f"async () => {{ await jupyterapp.commands.execute('docmanager:open', {{path: '{name}'}}) }}")
            self.wait(KERNEL)
        else:
            self.load()

    def load(self):
        """Reload the page with this notebook."""
        self.page.goto(f"{self.lab.url}/lab/tree/{self.name}?reset&token={self.lab.token}", timeout=PATIENCE)
        self.wait(KERNEL)

    def close(self):
        """Shut its kernel down and leave the page, or leave the shared page to others."""
        self.page.evaluate(CLOSE)
        for event, listener in self._listeners.items():
            self.page.remove_listener(event, listener)
        if self.page is not self.lab.page:
            self.page.context.close()

    def run_all(self):
        """Run all cells, with a long timeout."""
        self.page.evaluate("() => { jupyterapp.commands.execute('notebook:run-all-cells') }")

    def run(self, index):
        """Run one cell, and wait until it is done."""
        self.start(index)
        self.wait(f"{self.cell(index)}.executionCount !== null && {self.cell(index)}.executionState === 'idle'")

    def start(self, index):
        """Run one cell and do not wait."""
        self.page.evaluate(
            f"() => {{ const book = jupyterapp.shell.currentWidget.content; book.activeCellIndex = {index}; "
            "book.deselectAll(); jupyterapp.commands.execute('notebook:run-cell') }"
        )

    def show(self, index):
        """Scroll to a cell; JupyterLab draws no others."""
        self.page.evaluate(f"jupyterapp.shell.currentWidget.content.scrollToItem({index}, 'start')")

    def cell(self, index):
        return f"jupyterapp.shell.currentWidget.content.model.cells.get({index})"

    def outputs(self, index):
        """Return the outputs of a cell in the notebook."""
        return self.page.evaluate(f"{self.cell(index)}.outputs.toJSON()")

    def wait(self, condition, timeout=PATIENCE):
        self.page.wait_for_function(condition, timeout=timeout)

    # ------------------------------------------------------------ charts

    def charts(self, count=1):
        """Wait until ``count`` charts have been drawn."""
        self.wait(f"[...document.querySelectorAll('.looptap')].filter((el) => el.looptap.draws).length === {count}")

    def last(self, chart=0):
        """Return the last x of the first column of a chart, or null."""
        return self.page.evaluate(LAST, chart)

    def grows(self, chart=0, by=1):
        """Wait until the last x of a chart has grown."""
        self.wait(f"({LAST})({chart}) !== null")
        before = self.last(chart)
        self.page.wait_for_function(f"([chart, x]) => ({LAST})(chart) > x", arg=[chart, before + by], timeout=PATIENCE)

    def inked(self, color, chart=0):
        """Return how many pixels of a chart's canvases have about this colour, [r, g, b]."""
        return self.page.evaluate(INK, [chart, color])

    def texts(self, selector):
        """Return the texts of all elements that match."""
        return self.page.evaluate("(s) => [...document.querySelectorAll(s)].map((el) => el.textContent)", selector)

    def shot(self, name):
        """Save a screenshot."""
        SHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=SHOTS / f"{name}.png")


LAST = "(i) => [...document.querySelectorAll('.looptap')[i].looptap.columns.values()][0]?.view.at(-1) ?? null"
INK = """([i, [r, g, b]]) => {
  let found = 0;
  for (const canvas of document.querySelectorAll('.looptap')[i].querySelectorAll('canvas')) {
    const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
    for (let p = 0; p < data.length; p += 4)
      if (data[p + 3] > 127 && [r, g, b].every((c, k) => Math.abs(data[p + k] - c) < 20)) found++;
  }
  return found;
}"""
