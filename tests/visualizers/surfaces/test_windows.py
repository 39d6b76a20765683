"""`looptap plot` in a process of its own on a virtual display, checked by pixels."""

from __future__ import annotations

import base64
import io
import os
import shutil
import signal
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest
import warm
from displays import display, pixels, screenshot
from waiting import soon

import looptap

pytest.importorskip("matplotlib", reason="WINDOWS ARE NOT TESTED: they need matplotlib (pip install 'looptap[window]')")
import matplotlib
from PIL import Image

from looptap.visualizers.plot import Plot
from looptap.visualizers.surfaces import capabilities, page, terminal
from looptap.visualizers.surfaces.capabilities import choose_place

BLUE = "#066299"
JOB = """
import sys, threading, looptap
agent = looptap.Agent("small")
agent.stream("loss", "step, (-1) ** (step // 100)")
over, step = threading.Event(), 0
threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
while not over.wait(0.002):
    agent.emit("batch", step=step, image=[[step % 7, 1], [2, 3]])
    step += 1
agent.close("all epochs are done")
"""


@pytest.fixture
def job(processes, directory):
    """Run a job in a process of its own."""
    process = warm.Popen([sys.executable, "-c", JOB], stdin=subprocess.PIPE)
    soon(lambda: any(run.pid == process.pid for run in looptap.runs()))
    yield process
    process.kill()
    process.communicate()


@pytest.fixture(scope="module")
def screen(processes):
    with display() as name:
        yield name


@pytest.fixture
def plot(screen):
    """Return a function that starts `looptap plot` on the display."""
    begun = []

    def start(*arguments, **environment):
        command = [sys.executable, "-m", "looptap.cli", "plot", *arguments]
        settings = {name: value for name, value in os.environ.items() if name != "MPLBACKEND"}
        process = warm.Popen(
            command, env={**settings, "DISPLAY": screen, **environment}, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        begun.append(process)
        return process

    yield start
    for process in begun:
        process.kill()
        process.communicate()


def line(screen):
    """Return the pixels of the line, without the legend in the upper right corner."""
    found = pixels(screenshot(screen), BLUE)
    if not len(found):
        return found
    top, right = found[:, 0].min(), found[:, 1].max()
    return found[(found[:, 0] > top + 30) | (found[:, 1] < right - 150)]


def appears(process, screen):
    """Wait for the line in the window."""

    def drawn():
        assert process.poll() is None, process.communicate()[1]
        return len(line(screen)) > 300

    soon(drawn, 60)


NEEDS = {"tk": ("tkinter", "python3-tk"), "qt": ("PySide6", "libxcb-cursor0 libxcb-icccm4 libxcb-keysyms1")}


def needed(toolkit, screen):
    """Skip if the machine lacks the toolkit; one that is there must work."""
    module, packages = NEEDS[toolkit]
    if find_spec(module) is None:
        pytest.skip(f"WINDOWS OF {toolkit.upper()} ARE NOT TESTED: no {module} (Debian: apt install {packages})")
    if toolkit == "qt":
        tried = subprocess.run(
            [sys.executable, "-c", capabilities.QT_PROBE],
            env={**os.environ, "DISPLAY": screen},
            capture_output=True,
            text=True,
        )
        if "could not load" in tried.stderr.lower():
            pytest.skip(f"WINDOWS OF QT ARE NOT TESTED: its libraries are missing (Debian: apt install {packages})")


@pytest.mark.parametrize("toolkit", ["tk", "qt"])
def test_a_window_shows_a_line_that_moves_and_ctrl_c_ends_it_quietly(job, plot, screen, toolkit):
    needed(toolkit, screen)
    process = plot("small", "loss", "--in", toolkit)
    appears(process, screen)
    before = line(screen)
    assert np.ptp(before[:, 0]) > 150, "the line goes up and down"
    soon(lambda: not np.array_equal(line(screen), before))
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=300)
    assert (process.returncode, out) == (0, "")
    assert "Traceback" not in err
    assert f"in a window ({toolkit.title()})" in err
    soon(lambda: not len(pixels(screenshot(screen), BLUE)))


@pytest.mark.promise("window")
def test_a_window_that_is_killed_leaves_the_job_alone(job, plot, screen):
    needed("tk", screen)
    process = plot("small", "loss", "--in", "tk")
    appears(process, screen)
    process.kill()
    process.communicate()
    with looptap.attach("small") as run:
        events = run.stats()["events"]["batch"]
        soon(lambda: run.stats()["events"]["batch"] > events + 100)
        soon(lambda: len(run.stats()["clients"]) == 1)
    assert job.poll() is None


# ---------------------------------------------------------------- where there is no window


@pytest.fixture
def bare(monkeypatch):
    """Remove the display; return a function that runs `looptap plot` in this process."""
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "MPLBACKEND"):
        monkeypatch.delenv(name, raising=False)
    pyplot = pytest.importorskip("matplotlib.pyplot")
    before = pyplot.get_backend()
    matplotlib.rcParams._set("backend", matplotlib.rcsetup._auto_backend_sentinel)
    yield
    matplotlib.rcParams._set("backend", before)


def test_without_a_display_charts_are_in_the_terminal_and_a_line_says_why(job, here, bare, monkeypatch):
    monkeypatch.setattr(terminal, "GATHER_SECONDS", 0.5)
    code, out, err = here("plot", "small", "loss")
    assert code == 0
    assert "in the terminal, because there is no display (DISPLAY is not set" in err
    assert out.startswith("small-")
    assert "┌──" in out
    assert "\x1b" not in out
    code, _, err = here("plot", "small", "loss", "--in", "tk")
    assert code == 1
    assert "cannot be shown in a window (Tk): there is no display" in err
    code, _, err = here("plot", "small", "loss", "--in", "paper")
    assert "'paper' must be one of tk, qt, browser, terminal." in err


def test_a_toolkit_that_fails_is_passed_over_with_its_own_words(bare, monkeypatch, screen):
    monkeypatch.setenv("DISPLAY", screen)
    monkeypatch.setenv("QT_QPA_PLATFORM", "nothing")
    monkeypatch.setitem(sys.modules, "tkinter", None)
    monkeypatch.setattr("webbrowser.get", lambda: None)
    found = choose_place()
    assert found.name == "browser"
    assert "this Python has no tkinter" in str(found)
    assert "Qt does not start: " in str(found)
    monkeypatch.setattr(capabilities, "find_spec", lambda name: None if name == "matplotlib" else find_spec(name))
    assert str(choose_place()).startswith("the terminal, because matplotlib is not installed (pip install")


def test_settings_of_matplotlib_come_first(bare, monkeypatch, screen):
    matplotlib.rcParams._set("backend", "svg")
    assert str(choose_place()).startswith("the terminal, because matplotlib is set to use svg; there is no display")
    matplotlib.rcParams._set("backend", "gtk3agg")
    monkeypatch.setenv("DISPLAY", screen)
    assert str(choose_place()) == "a window (gtk3agg, the backend given to matplotlib)"


def test_a_page_shows_the_charts_without_scripts_and_escaped(tmp_path):
    stream = looptap.stream_of([(1, 0.5), (2, 0.25)], fields=("step", "<script>alert(1)</script>"), name="<b>loss</b>")
    opened = []
    path = page.show_page(Plot(stream), "<i>small</i>", lambda: "ended: <u>", open_page=opened.append)
    text = path.read_text()
    shutil.rmtree(path.parent)
    assert opened == [path.as_uri()]
    assert "<title>&lt;i&gt;small&lt;/i&gt; – ended: &lt;u&gt;</title>" in text
    assert not any(mark in text for mark in ("<script", "<b>", "<i>", "<u>", "refresh"))
    assert "refresh" in page.Page(Plot(stream), path).html("small", again=2.0)
    picture = base64.b64decode(text.split("base64,")[1].split('"')[0])
    shot = np.asarray(Image.open(io.BytesIO(picture)).convert("RGB"))
    assert len(pixels(shot, BLUE)) > 300


def test_a_page_moves_its_charts_and_ends_with_a_new_picture(tmp_path):
    values = [(step, 1 / (step + 1), step**2) for step in range(40)]

    class Growing:
        shape = (1, 2)
        pulled = 0

        def pictures(self):
            streams = [
                looptap.stream_of(values[: self.pulled], fields=("step", name, "y"), name=name) for name in ("a", "b")
            ]
            plot = Plot(*streams, rows=1)
            plot.pull()
            return plot.pictures()

    growing, shots = Growing(), []
    shown = page.Page(growing, tmp_path / "page.html")
    for growing.pulled in (2, 20, 40):
        shots.append(shown.html("loss", 2.0).split("base64,")[1])
    assert len(set(shots)) == 3
    assert shown.html("loss") == page.Page(growing, tmp_path / "new.html").html("loss")


# ---------------------------------------------------------------- what is plotted


def test_charts_are_saved_without_a_window(job, here, bare, tmp_path):
    path = tmp_path / "charts.png"
    code, out, _ = here("plot", "small", "loss", "step ** 2", "--rows", "1", "--save", str(path), "--after", "0.3")
    assert code == 0
    assert out.endswith(f"drawn; saved: {path}\n")
    shot = np.asarray(Image.open(path).convert("RGB"))
    assert len(pixels(shot, BLUE)) > 300
    assert len(pixels(shot, "#af4d03")) > 300
    code, _, err = here("plot", "small", "loss", "--save", str(tmp_path / "a.docx"), "--after", "0.1")
    assert code == 2
    assert ".docx" in err
    code, _, err = here("plot", "small", "loss", "--on", "never", "--save", str(path), "--after", "0.1")
    assert code == 1
    code, _, err = here("plot", "small", "step", "--on", "never", "--save", str(path), "--after", "0.1")
    assert code == 1
    assert "No value of 'step' came within 0.1 s" in err
    code, out, err = here("plot", "small", "loss", "step ** 2", "--save", str(path), "--count", "3")
    assert (code, err) == (0, "")
    assert int(out.split()[0].replace(",", "")) >= 6
    code, _, err = here("plot", "small", "step", "--save", str(path), "--count", "1000000", "--after", "0.1")
    assert code == 1
    assert "of 1,000,000 values of 'step' came within 0.1 s." in err
    code, _, err = here("plot", "small", "step", "--count", "3")
    assert (code, "--count has an effect only with --save." in err) == (2, True)
    code, _, err = here("plot", "small", "loss", "--chart", "pizza", "--save", str(path))
    assert code == 2
    assert "pizza" in err


def test_stored_runs_are_plotted(here, bare, tmp_path, directory):
    store = tmp_path / "store.looptap"
    with looptap.Agent("stored", store=store) as agent:
        agent.stream("loss", "step, 1 / (step + 1)", keep=True)
        agent.stream("rate", "step, step", keep=True)
        for step in range(50):
            agent.emit("batch", step=step)
    path = tmp_path / "charts.png"
    for arguments in ([], ["loss"], ["loss", "rate", "--together"]):
        code, out, err = here("plot", str(store), *arguments, "--save", str(path))
        assert code == 0, err
        assert out.endswith(f"drawn; saved: {path}\n")
    code, _, err = here("plot", str(store), "los", "--save", str(path))
    assert "Did you mean 'loss'?" in err
    code, _, err = here("plot", str(store), "loss", "--window", "10", "--save", str(path))
    assert "--window: " in err
    assert code == 1


def test_a_run_without_streams_says_what_to_write(here, bare, directory):
    with looptap.Agent("silent"):
        code, _, err = here("plot", "silent")
    assert code == 1
    assert "looptap plot silent 'step, loss'" in err


# ---------------------------------------------------------------- from a script


SCRIPT = """
import sys, looptap
from looptap.visualizers.surfaces.showing import show
run = looptap.attach("small")
plot = looptap.plot(run.stream("loss"))
if sys.argv[1] == "block":
    plot.show()
    print("closed")
else:
    from matplotlib import pyplot
    window = plot.show(block=False)
    while not window.closed:
        pyplot.pause(0.05)
        if window.frames > 5:
            window.close()
    print("closed", window.frames > 5)
"""


KEYS = """
import sys, matplotlib
matplotlib.use(sys.argv[1])
import looptap
from matplotlib import pyplot
from matplotlib.backend_bases import KeyEvent
from looptap.visualizers.plot import Plot
from looptap.visualizers.surfaces.window import ChartWindow
stream = looptap.stream_of([(1, 0.5), (2, 0.25)], name="loss", fields=("step", "loss"))
stream.text = "step, loss"
window = ChartWindow(Plot(stream), title="keys")
pyplot.pause(0.2)
for key in "lecnydg":
    window.canvas.callbacks.process("key_press_event", KeyEvent("key_press_event", window.canvas, key))
    pyplot.pause(0.05)
if sys.argv[1] == "TkAgg":
    text = window.canvas.get_tk_widget().clipboard_get()
else:
    from matplotlib.backends.qt_compat import QtWidgets
    text = QtWidgets.QApplication.clipboard().text()
print(text, window.view.log, window.view.smoothing, window.view.clip, window.view.order)
"""


@pytest.mark.parametrize("toolkit", ["tk", "qt"])
def test_keys_work_in_a_window_and_the_query_is_on_its_clipboard(screen, toolkit, tmp_path):
    needed(toolkit, screen)
    settings = {name: value for name, value in os.environ.items() if name != "MPLBACKEND"}
    process = warm.Popen(
        [sys.executable, "-c", KEYS, {"tk": "TkAgg", "qt": "QtAgg"}[toolkit]], env={**settings, "DISPLAY": screen},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
    )  # fmt: skip
    out, err = process.communicate(timeout=300)
    assert out == "step, loss True 0.6 True name\n", err
    assert {path.suffix for path in tmp_path.iterdir()} == {".csv", ".svg"}


@pytest.mark.parametrize("how", ["block", "pause"])
def test_a_script_shows_a_window_and_waits_or_does_not(job, screen, how):
    needed("tk", screen)
    settings = {name: value for name, value in os.environ.items() if name != "MPLBACKEND"}
    process = warm.Popen(
        [sys.executable, "-c", SCRIPT, how], env={**settings, "DISPLAY": screen},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    if how == "block":
        appears(process, screen)
        process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=300)
    if how == "block":
        assert err.rstrip().endswith("KeyboardInterrupt")
        assert process.returncode != 0
    else:
        assert (out, process.returncode) == ("closed True\n", 0), err
    assert job.poll() is None
