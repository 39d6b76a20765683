"""A window without a toolkit: redraws, keys, frames, zooms, saving, closing."""

from __future__ import annotations

from array import array

import numpy as np
import pytest
from displays import pixels

pytest.importorskip("matplotlib", reason="WINDOWS ARE NOT TESTED: they need matplotlib (pip install 'looptap[window]')")
from matplotlib import pyplot
from matplotlib.backend_bases import KeyEvent, MouseEvent, NavigationToolbar2

from looptap.streams.stream.buffer import Batch
from looptap.streams.stream.stream import Stream
from looptap.visualizers.plot import Plot
from looptap.visualizers.surfaces.window import ChartWindow

BLUE, ORANGE = "#066299", "#af4d03"


class Fed(Stream):
    """A stream that a test feeds."""

    def add(self, *values):
        first = self.newest + 1
        events = array("q", range(first, first + len(values)))
        self.publish(Batch(first, events, array("d", map(float, events)), list(values)))


@pytest.fixture
def window(monkeypatch, tmp_path):
    """Return a function that opens hidden windows, which close at the end."""
    monkeypatch.chdir(tmp_path)
    before = pyplot.get_backend()
    pyplot.switch_backend("agg")
    yield lambda *streams, **how: ChartWindow(Plot(*streams), **how)
    pyplot.close("all")
    pyplot.switch_backend(before)


def buffer(window):
    return np.array(window.canvas.buffer_rgba())[:, :, :3]


def press(window, key):
    KeyEvent("key_press_event", window.canvas, key)._process()
    window.turn()


def test_while_limits_hold_only_the_lines_are_drawn_and_the_picture_is_the_same(window):
    loss, other = Fed("loss"), Fed("other")
    loss.add(*np.sin(np.arange(2000) / 50))
    other.add(1.0, 2.0)
    shown = window(loss, other)
    shown.canvas.draw()
    redrawn = shown.redrawn
    loss.add(0.5, -0.5, 0.25)
    shown.turn()
    shown.turn()
    assert (shown.frames, shown.redrawn) == (1, redrawn), "one frame, drawn over what stands"
    quick = buffer(shown)
    shown.canvas.draw()
    assert np.array_equal(buffer(shown), quick)
    loss.add(*range(100))
    shown.turn()
    assert shown.redrawn == redrawn + 1, "the limits moved"
    assert np.ptp(pixels(buffer(shown), BLUE)[:, 0]) > 100


def test_a_hundred_thousand_points_stay_quick(window):
    loss = Fed("loss")
    loss.add(*np.sin(np.arange(100_000) / 5000))
    shown = window(loss)
    shown.canvas.draw()
    for _ in range(20):
        loss.add(*np.sin(np.arange(100)))
        shown.turn()
    assert shown.frames == 20
    assert shown.redrawn <= 2
    assert all(len(line.get_xdata()) <= 4000 for line in shown.parts[0].drawing.figure.axes[0].lines)


def test_the_space_bar_freezes_the_pictures(window):
    loss = Fed("loss")
    loss.add(1.0, 2.0)
    shown = window(loss, title="small")
    press(shown, " ")
    assert "paused" in shown.shown_title
    stands = buffer(shown)
    loss.add(50.0)
    shown.turn()
    assert np.array_equal(buffer(shown), stands)
    press(shown, " ")
    assert not np.array_equal(buffer(shown), stands)
    assert shown.shown_title == "small"


def test_the_s_key_saves_all_visible_charts(window, tmp_path):
    said = []
    loss = Fed("loss")
    loss.add(*range(100))
    shown = window(loss, title="small/../\x1b[2J", say=said.append)
    shown.canvas.draw()
    press(shown, "s")
    (path,) = tmp_path.iterdir()
    assert path.name.startswith("small_.._2J-")
    assert said == [f"saved: {path.name}"]
    saved = (pyplot.imread(path)[:, :, :3] * 255).astype(int)
    assert len(pixels(saved, BLUE)) > 300
    shown.turn()
    loss.add(50.0)
    shown.turn()
    assert len(pixels(buffer(shown), BLUE)) > 300, "and continues"
    assert shown.save("no/such/folder/a.png") == ""
    assert "cannot be written" in said[-1]


def test_keys_and_the_bar_move_through_frames(window, monkeypatch):
    rows, late = Fed("rows"), Fed("late")
    for number in range(10):
        rows.add(np.full(8, float(number)))
    shown = window(rows, late)
    assert shown.bar is not None
    shown.canvas.draw()
    assert shown.parts[0].picture.frame == (9, 10)
    press(shown, "left")
    press(shown, "left")
    assert shown.parts[0].picture.frame == (7, 10)
    assert "2 before the newest" in shown.bar._words.get_text()
    rows.add(np.full(8, 10.0))
    shown.turn()
    assert shown.parts[0].picture.frame == (7, 11), "an earlier frame stays"
    x, y = shown.bar.axes.transData.transform((0.0, 0.5))
    for name in ("button_press_event", "button_release_event"):
        MouseEvent(name, shown.canvas, x, y, 1)._process()
    shown.turn()
    assert shown.parts[0].picture.frame == (0, 11)
    press(shown, "enter")
    for _ in range(12):
        shown._playing = shown._playing and 1e-9  # it is time
        shown.turn()
    assert shown.parts[0].picture.frame == (10, 11), "played to the end"
    rows.add(np.full(8, 11.0))
    shown.turn()
    assert shown.parts[0].picture.frame == (11, 12), "and follows the newest again"
    press(shown, "left")
    press(shown, "end")
    assert shown.parts[0].picture.frame == (11, 12)


def test_a_zoom_stays_until_the_user_resets_it(window):
    loss = Fed("loss")
    loss.add(*range(100))
    shown = window(loss)
    toolbar = NavigationToolbar2(shown.canvas)
    shown.canvas.draw()
    axes = shown.parts[0].drawing.figure.axes[0]
    toolbar.pan()
    (left, bottom), (right, top) = axes.transData.transform([(20, 20), (40, 40)])
    MouseEvent("button_press_event", shown.canvas, left, bottom, 1)._process()
    MouseEvent("motion_notify_event", shown.canvas, right, top, 1, buttons=[1])._process()
    MouseEvent("button_release_event", shown.canvas, right, top, 1)._process()
    held = axes.get_xlim()
    loss.add(*range(1000))
    shown.turn()
    assert axes.get_xlim() == held
    toolbar.home()
    shown.turn()
    axes = shown.parts[0].drawing.figure.axes[0]
    assert axes.get_xlim()[1] > 1000
    assert shown.parts[0].held == {}


def test_a_plot_may_change_while_its_window_is_open(window):
    first, second = Fed("first"), Fed("second")
    first.add(1.0, 2.0)
    shown = window(first)
    second.add(1.0, 2.0)
    shown.plot.add(second)
    shown.turn()
    assert len(shown.parts) == 2
    shown.figure.set_size_inches(4, 8)
    shown._resized(None)
    shown.canvas.draw()
    assert len(pixels(buffer(shown), ORANGE)) > 50
    shown.plot.remove(first)
    shown.turn()
    assert len(shown.parts) == 1


def test_a_closed_window_does_nothing_more(window):
    loss = Fed("loss")
    loss.add(1.0)
    shown = window(loss)
    shown.close()
    frames = shown.frames
    loss.add(2.0)
    shown.turn()
    assert shown._gone()
    assert shown.frames == frames


def test_hostile_names_and_values_are_drawn_or_reported(window):
    evil = Fed("$\\frac{<script>\x1b[2J", on="\n$")
    evil.add(1.0, float("nan"), float("inf"), -1e308, 10**400, "text", None)
    shown = window(evil, title="$\\frac{\x1b]0;title", status=lambda: "\x07 lost")
    shown.canvas.draw()
    evil.add(2.0)
    shown.turn()
    assert "\x1b" not in shown.manager.get_window_title() if shown.manager.get_window_title() else True
    assert shown.frames == 1
