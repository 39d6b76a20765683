"""The controls of a window without a toolkit: knobs, keys, names, the pointer."""

from __future__ import annotations

import csv
import io
import threading

import numpy as np
import pytest
from waiting import soon

pytest.importorskip("matplotlib", reason="WINDOWS ARE NOT TESTED: they need matplotlib (pip install 'looptap[window]')")
from matplotlib import pyplot
from matplotlib.backend_bases import KeyEvent, MouseEvent, ResizeEvent

import looptap
from looptap.testing import pair
from looptap.visualizers.plot import Plot
from looptap.visualizers.surfaces.window import ChartWindow


class Echo:
    factor = looptap.Control(int, default=2, minimum=1, maximum=17, unit="times", doc="how often a batch is used")
    rate = looptap.Control(float, default=0.01, minimum=1e-5, maximum=1.0)
    mode = looptap.Control(str, default="a", choices=("a", "b"))
    free = looptap.Control(float, default=1.0)


@pytest.fixture
def window(monkeypatch, tmp_path):
    """Return a function that opens hidden windows, which close at the end."""
    monkeypatch.chdir(tmp_path)
    before = pyplot.get_backend()
    pyplot.switch_backend("agg")
    yield lambda *streams, say=str, **how: ChartWindow(Plot(*streams, **how), say=say)
    pyplot.close("all")
    pyplot.switch_backend(before)


@pytest.fixture
def job():
    """Run a loop with knobs in a thread; return its object and a client."""
    agent, run = pair("digits")
    echo = Echo()
    agent.expose(echo=echo)
    agent.trigger("evaluate", lambda: 3)
    over, step = threading.Event(), 0

    def loop():
        nonlocal step
        while not over.wait(0.002):
            agent.emit("batch", step=step, loss=1.0)
            step += 1

    thread = threading.Thread(target=loop)
    thread.start()
    yield echo, run
    over.set()
    thread.join()
    agent.close()


def turned(shown, condition):
    """Wait until a condition holds, turning the window meanwhile."""
    soon(lambda: shown.turn() or condition(), 60)


def press(shown, key):
    shown.canvas.callbacks.process("key_press_event", KeyEvent("key_press_event", shown.canvas, key))
    shown.turn()


def at(shown, what, x, y, **how):
    """Do something with the mouse at a pixel."""
    shown.canvas.callbacks.process(what, MouseEvent(what, shown.canvas, x, y, **how))


def mouse(shown, what, axes, across=0.5, down=0.5, **how):
    """Do something with the mouse at a part of some axes."""
    box = axes.bbox
    at(shown, what, box.x0 + across * box.width, box.y0 + down * box.height, **how)


def click(shown, axes, across=0.5, **how):
    mouse(shown, "button_press_event", axes, across, button=1, **how)
    mouse(shown, "button_release_event", axes, across, button=1)


def texts(shown):
    return " ".join(text.get_text() for text in shown.panel.figure.texts)


@pytest.mark.long
def test_a_window_shows_the_knobs_of_the_job_and_turns_them(window, job):
    echo, run = job
    shown = window(run.stream("step, loss", on="batch"))
    shown.figure.set_size_inches(8, 8)
    turned(shown, lambda: shown.panel is not None and len(shown.panel.rows) == 7)
    assert "1 to 17 · how often a batch is used" in texts(shown)
    rows = shown.panel.rows
    rows["echo.factor"].widget.ax.figure.canvas.draw()
    click(shown, rows["echo.factor"].widget.ax, across=0.25)
    soon(lambda: echo.factor == 5)
    turned(shown, lambda: "set echo.factor: 2 → 5" in texts(shown))
    click(shown, rows["echo.mode"].widget.ax)
    soon(lambda: echo.mode == "b")
    click(shown, rows["trigger evaluate"].widget.ax)
    turned(shown, lambda: "evaluate: 3" in texts(shown))
    run.set("echo.factor", 9, expected=None)  # another client
    turned(shown, lambda: shown.panel.rows["echo.factor"].widget.val == 9)
    shown.figure.set_size_inches(8, 3)
    shown.canvas.callbacks.process("resize_event", ResizeEvent("resize_event", shown.canvas))
    shown.turn()
    assert shown.panel.hidden
    mouse(shown, "scroll_event", shown.panel.rows["echo.rate"].widget.ax, step=-1)
    turned(shown, lambda: "echo.rate" in shown.panel.rows and "echo.factor" not in shown.panel.rows)
    run.set("echo.rate", 0.1, expected=None)
    turned(shown, lambda: shown.panel.rows["echo.rate"].widget.val == pytest.approx(-1))


@pytest.mark.long
def test_a_window_asks_before_a_large_change_and_takes_it_back(window, job):
    echo, run = job
    shown = window(run.stream("step, loss", on="batch"))
    shown.figure.set_size_inches(8, 8)
    turned(shown, lambda: shown.panel is not None and "undo" in shown.panel.rows)

    def ask():
        field = shown.panel.rows["echo.free"].widget
        shown.canvas.draw()
        click(shown, field.ax)
        field.set_val("500")
        shown.canvas.callbacks.process("key_press_event", KeyEvent("key_press_event", shown.canvas, "enter"))
        turned(shown, lambda: "by a factor of 500. Set it?" in texts(shown))
        yes, no = (button.ax for button in shown.panel.rows["echo.free"].answers)
        return field, yes, no

    field, yes, no = ask()
    assert not field.ax.get_visible()
    click(shown, no)
    turned(shown, lambda: "Nothing was done." in texts(shown) and field.text == "1.0")
    assert echo.free == 1.0
    assert field.ax.get_visible()
    field, yes, no = ask()
    click(shown, yes)
    soon(lambda: echo.free == 500.0)
    turned(shown, lambda: field.ax.get_visible() and shown.panel.rows["undo"].knob.doc.endswith("1.0 → 500.0"))
    click(shown, shown.panel.rows["undo"].widget.ax)
    soon(lambda: echo.free == 1.0)
    click(shown, shown.panel.rows["stop"].widget.ax)
    turned(shown, lambda: "Stop digits at its" in texts(shown))
    assert [record["what"] for record in run.commands] == ["set", "undo"]


def test_a_field_is_written_into_and_its_keys_mean_nothing_else(window, job):
    echo, run = job
    shown = window(run.stream("step, loss", on="batch"))
    turned(shown, lambda: shown.panel is not None and "echo.free" in shown.panel.rows)
    field = shown.panel.rows["echo.free"].widget
    shown.canvas.draw()
    click(shown, field.ax)
    assert shown.panel.typing
    field.set_val("2.5")
    shown.canvas.callbacks.process("key_press_event", KeyEvent("key_press_event", shown.canvas, "enter"))
    soon(lambda: echo.free == 2.5)
    field.begin_typing()
    field.set_val("")
    press(shown, "l")
    assert not shown.view.log
    field.stop_typing()


def test_the_panel_comes_and_goes_by_a_key_and_says_when_the_run_is_over(window, job):
    _, run = job
    shown = window(run.stream("step, loss", on="batch"))
    turned(shown, lambda: shown.panel is not None)
    press(shown, "k")
    assert shown.panel is None
    press(shown, "k")
    assert shown.panel is not None
    run.close()
    turned(shown, lambda: "The run is ended" in texts(shown))
    assert not any(row.widget.active for row in shown.panel.rows.values())


def test_keys_and_buttons_change_how_all_charts_are_looked_at(window):
    values = [(step, 1.0 + (step % 7)) for step in range(300)]
    shown = window(*(looptap.stream_of(values, name=name, fields=("step", name)) for name in ("a", "b")), chart="line")
    parts = shown.parts
    press(shown, "l")
    assert [part.picture.y.log for part in parts] == [True, True]
    press(shown, "l")
    assert [part.picture.y.log for part in parts] == [False, False]
    press(shown, "e")
    assert [len(part.picture.marks) for part in parts] == [2, 2]
    press(shown, "x")
    assert [chart.x for chart in (part.cell.chart for part in parts)] == ["step", "step"]
    press(shown, "c")
    assert shown.view.clip
    press(shown, "r")
    assert not shown.view.clip
    assert [len(part.picture.marks) for part in parts] == [1, 1]
    press(shown, "k")  # a panel without knobs: that of the view
    press(shown, "e")
    assert shown.panel.smoothing.val == 0.6
    click(shown, shown.panel.buttons["log"][0].ax)
    shown.turn()
    assert [part.picture.y.log for part in shown.parts] == [True, True]
    assert shown.panel.buttons["log"][0].label.get_text() == "log: on (l)"


def test_a_dark_window_has_light_axes(window):
    shown = window(looptap.stream_of([1.0, 2.0], name="loss"))
    shown.canvas.draw()
    light = np.asarray(shown.canvas.buffer_rgba())[5, 5, :3].tolist()
    press(shown, "t")
    shown.canvas.draw()
    dark = np.asarray(shown.canvas.buffer_rgba())[5, 5, :3].tolist()
    assert sum(dark) < 100 < 700 < sum(light)
    assert max(shown.parts[0].drawing.views[0].axes.xaxis.label.get_color()[1:3]) > "c"


def test_the_pointer_shows_all_values_and_a_line_on_all_charts(window):
    rows = [{"train": step + 0.5, "val": 2 * step + 0.5} for step in range(100)]
    shown = window(looptap.stream_of(rows, name="a"), looptap.stream_of([row["val"] for row in rows], name="b"))
    shown.canvas.draw()
    axes = shown.parts[0].drawing.views[0].axes
    mouse(shown, "motion_notify_event", axes)
    shown.turn()
    said = shown.pointer.artists[-1].get_text()
    x = round(float(said.split("\n")[0].split()[-1]))
    assert f"train  {x - 0.5}" in said
    assert f"val  {2 * x - 1.5}" in said
    assert len(shown.pointer.artists) == 3  # the box, and a line on each chart
    at(shown, "motion_notify_event", 1, 1)
    shown.turn()
    assert shown.pointer.artists == []


def test_a_click_on_a_name_hides_its_line_and_a_double_click_shows_it_alone(window):
    rows = [{"train": step + 0.5, "val": 100.5 - step, "test": 5.0} for step in range(100)]
    shown = window(looptap.stream_of(rows, name="a"), chart="line")
    shown.canvas.draw()

    def name(text, **how):
        legend = shown.parts[0].drawing.views[0].legend
        (entry,) = [one for one in legend.get_texts() if one.get_text() == text]
        box = entry.get_window_extent()
        at(shown, "button_press_event", box.x0 + 2, (box.y0 + box.y1) / 2, button=1, **how)
        shown.turn()
        shown.canvas.draw()
        return [mark.name for mark in shown.parts[0].picture.marks if np.isfinite(mark.y).any()]

    assert name("val") == ["train", "test"]
    assert name("val") == ["train", "val", "test"]
    name("test")
    assert name("test", dblclick=True) == ["test"]
    assert name("test", dblclick=True) == ["train", "val", "test"]


def test_a_key_writes_all_kept_numbers_as_csv(window, tmp_path):
    values = [(step, float(step % 7)) for step in range(5000)]
    shown = window(looptap.stream_of(values, name="loss", fields=("step", "loss")))
    press(shown, "d")
    (path,) = tmp_path.glob("*.csv")
    rows = list(csv.reader(io.StringIO(path.read_text())))
    assert rows[0] == ["step", "loss"]
    assert [(int(x), float(y)) for x, y in rows[1:]] == values  # more than are drawn
    assert len(shown.parts[0].picture.marks[0].x) < len(values)


def test_keys_write_svg_and_copy_the_queries(window, tmp_path):
    streams = [looptap.stream_of([1.0, 2.0], name=name) for name in ("loss", "error")]
    streams[0].text = "step, loss"
    said = []
    shown = window(*streams, say=said.append)
    press(shown, "g")
    (path,) = tmp_path.glob("*.svg")
    assert "<svg" in path.read_text()[:1000]
    for key in ("y", "ctrl+c"):
        press(shown, key)
        assert said[-1] == "step, loss\nerror"


def test_the_numbers_of_a_confusion_matrix_are_over_its_cells(window):
    counts = looptap.stream_of([np.eye(10, dtype=int)] * 3, name="counts")
    shown = window(counts)
    shown.canvas.draw()
    shown.turn()
    drawn = np.array(shown.canvas.buffer_rgba())
    for text in shown.parts[0].drawing.views[0].numbers:
        text.set_visible(False)
    shown.canvas.draw()
    assert (drawn != np.asarray(shown.canvas.buffer_rgba())).any()
    assert not shown.parts[0].drawing.views[0].cells.get_animated()


def test_a_key_sorts_the_names(window):
    rows = [{"layer 10": 5.0, "layer 2": 9.0, "bias": step + 1.0} for step in range(4)]
    shown = window(looptap.stream_of(rows, name="norms"), chart="line")

    def names():
        return [text.get_text() for text in shown.parts[0].drawing.views[0].legend.get_texts()]

    first = names()
    press(shown, "n")
    assert sorted(names()) == sorted(first)
    assert [mark.name for mark in shown.parts[0].picture.marks] == ["bias", "layer 2", "layer 10"]
    press(shown, "n")
    assert [mark.name for mark in shown.parts[0].picture.marks] == ["layer 2", "layer 10", "bias"]
    press(shown, "k")
    assert shown.panel.buttons["order"][0].label.get_text() == "names: value (n)"
    press(shown, "r")
    assert [mark.name for mark in shown.parts[0].picture.marks] == ["layer 10", "layer 2", "bias"]


def test_the_pointer_shows_the_sample_of_a_point(window):
    images = [np.full((8, 8, 3), 16 * i, np.uint8) for i in range(16)]
    points = np.array([(i % 4, i // 4) for i in range(16)], float)
    rows = {"points": points, "labels": ["a"] * 16, "images": images}
    shown = window(looptap.stream_of([rows], name="embedding"))
    shown.canvas.draw()
    view = shown.parts[0].drawing.views[0]
    x, y = view.axes.transData.transform((1, 1))
    at(shown, "motion_notify_event", x + 2, y + 2)
    shown.turn()
    box, sample = shown.pointer.artists[-2:]
    assert "(1, 1)" in box.get_text()
    assert (np.asarray(sample.get_array()) == 16 * 5).all()
    at(shown, "motion_notify_event", x + 60, y + 60)
    shown.turn()
    assert sample not in shown.pointer.artists


def test_values_over_two_axes_say_the_x_of_each(window):
    losses = looptap.stream_of([(step, 1.0) for step in range(100)], name="loss", fields=("step", "loss"))
    epochs = looptap.stream_of([(epoch, 2.0) for epoch in range(1, 6)], name="val", fields=("epoch", "val"))
    shown = window((losses, epochs))
    shown.canvas.draw()
    mouse(shown, "motion_notify_event", shown.parts[0].drawing.views[0].axes)
    shown.turn()
    said = shown.pointer.artists[-1].get_text().split("\n")
    assert said[0].startswith("step (loss) 5") or said[0].startswith("step (loss) 4")
    assert said[1] == "loss  1"
    assert said[2] == "val  2 at epoch (val) 3"
