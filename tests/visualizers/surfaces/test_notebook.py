"""Notebook charts without a browser: frames, messages, requests of a panel."""

import re
import sys
import threading
import time

import numpy as np
import pytest
from training_loop import training
from waiting import soon

import looptap
from looptap.client.run import Run
from looptap.streams.stream.stream import Gap, Stream, stream_of
from looptap.testing import pair
from looptap.visualizers.drawing.picture import Images, Line, Picture, Text
from looptap.visualizers.plot import Plot
from looptap.visualizers.surfaces.live.browser_pages import (
    ACKNOWLEDGE_INTERVAL_SECONDS,
    GONE_AFTER_SECONDS,
    MAX_ACKNOWLEDGE_FRAMES,
    MIN_ACKNOWLEDGE_FRAMES,
    PROMPT_REPLY_SECONDS,
    BrowserPages,
)
from looptap.visualizers.surfaces.live.driver import Driver
from looptap.visualizers.surfaces.live.growing import growing
from looptap.visualizers.surfaces.live.live_chart import Live
from looptap.visualizers.surfaces.notebook import kernels
from looptap.visualizers.surfaces.notebook.canvas import Canvas
from looptap.visualizers.surfaces.notebook.overview import html_table, overview
from looptap.visualizers.surfaces.notebook.panel import panel
from looptap.visualizers.surfaces.notebook.stills import png_of_pictures
from looptap.visualizers.surfaces.pages.frames import Column, Growing, SentFrame, frame_of

# ------------------------------------------------------------ pages


def test_a_page_that_is_slow_gets_no_further_frame_until_it_has_drawn():
    pages = BrowserPages()
    pages.heard("a", 0, now=0.0)
    asked = []
    for frame in range(1, 2 * MIN_ACKNOWLEDGE_FRAMES + 2):
        assert pages.ready(frame - 1)
        if pages.sent(frame, now=0.1):
            asked.append(frame)
    assert asked == [2, 4]
    assert not pages.ready(5)
    pages.heard("a", 2, now=0.2)
    assert pages.ready(5)


def test_the_slower_of_two_pages_sets_the_pace_until_it_closes():
    pages = BrowserPages()
    pages.heard("quick", 0, now=0.0)
    pages.heard("slow", 0, now=0.0)
    asked = [frame for frame in range(1, 11) if pages.sent(frame, now=0.0)]
    pages.heard("quick", 10, now=0.1)
    assert asked == [2, 4, 6, 8, 10]
    assert not pages.ready(10)
    assert pages.there(10, now=GONE_AFTER_SECONDS + 1)
    assert pages.ready(10)


def test_a_responsive_page_is_polled_rarely_and_a_slow_one_often():
    pages = BrowserPages()
    pages.heard("a", 0, now=0.0)
    frame, asked, now = 0, [], 0.0
    for late in [0.01] * 8 + [2 * PROMPT_REPLY_SECONDS] * 8:
        while not pages.sent(frame := frame + 1, now):
            assert pages.ready(frame)
        asked.append(frame)
        pages.heard("a", frame, now + late)
        assert pages.ready(frame)
    apart = np.diff(asked).tolist()
    assert apart == [4, 8, 16, *[MAX_ACKNOWLEDGE_FRAMES] * 5, 16, 8, 4, *[MIN_ACKNOWLEDGE_FRAMES] * 4]
    assert pages.sent(frame + 1, now + ACKNOWLEDGE_INTERVAL_SECONDS)


def test_a_page_that_has_drawn_everything_stays_connected_while_idle():
    pages = BrowserPages()
    pages.heard("a", 3, now=0.0)
    assert pages.there(3, now=1e6)
    pages.sent(4, now=1e6)
    assert pages.there(4, now=1e6 + GONE_AFTER_SECONDS / 2)
    assert not pages.there(4, now=1e6 + GONE_AFTER_SECONDS + 0.1)


def test_a_chart_scrolled_away_on_all_pages_is_not_drawn():
    pages = BrowserPages()
    pages.heard("a", 0, now=0.0, hidden=True)
    assert pages.hidden
    pages.heard("b", 0, now=0.0)
    assert not pages.hidden
    pages.left("b")
    assert pages.hidden


# ------------------------------------------------------------ frames


def received(held, message, buffers):
    """Return the columns that a page makes of a message."""
    for (key, fresh, most, pixels), buffer in zip(message["data"], buffers, strict=True):
        new = np.frombuffer(buffer, np.uint8 if pixels else np.float64)
        held[key] = (new if fresh else np.concatenate([held[key], new]))[-most:]
    return held


def test_a_sliding_window_is_sent_once_and_arrives_whole():
    plot = Plot(source := Stream("loss"), chart="line")
    held, sent, bytes_sent = {}, SentFrame(), []
    rng = np.random.default_rng(0)
    whole = []
    for round_ in range(20):
        new = rng.normal(size=50).tolist()
        whole += new
        push(source, new)
        plot.pull()
        cell = plot.cells[0]
        frame = frame_of(cell.draw(), growing(cell.chart, cell.draw()))
        message, buffers = sent.update(frame, full=round_ == 0)
        bytes_sent.append(sum(map(len, buffers)))
        assert ("layout" in message) == (round_ == 0)
        held = received(held, message, buffers)
    x, y = held.values()
    np.testing.assert_array_equal(y, whole)
    np.testing.assert_array_equal(x, np.arange(1, 1001))
    assert set(bytes_sent) == {2 * 50 * 8}


def push(stream, values):
    from array import array

    from looptap.streams.stream.buffer import Batch

    first = stream.arrived + 1
    events = array("q", range(first, first + len(values)))
    stream.publish(Batch(first, events, array("d", [0.0] * len(values)), values))


def test_a_full_frame_says_everything_and_a_coarse_one_little():
    x = np.arange(100_000.0)
    line = Picture((Line(x[:2], x[:2], name="a", color="#1f77b4"),))
    frame = frame_of(line, {0: Growing("k", Column(x, len(x), 200_000), Column(x, len(x), 200_000))})
    sent = SentFrame()
    whole, buffers = sent.update(frame, full=True)
    assert whole["full"]
    assert [len(buffer) for buffer in buffers] == [800_000, 800_000]
    _, buffers = sent.update(frame, full=False)
    assert [len(buffer) for buffer in buffers] == [0, 0]
    _, buffers = sent.update(frame, full=True, coarse=True)
    assert max(map(len, buffers)) <= 50_000
    after, buffers = sent.update(frame, full=False)
    assert "layout" in after
    assert [len(buffer) for buffer in buffers] == [800_000, 800_000]


def test_pixels_are_sent_as_bytes():
    image = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
    frame = frame_of(Picture((Images((image,), ("a caption",)),)))
    message, buffers = SentFrame().update(frame, full=True)
    assert frame.layout["panels"][0]["marks"][0]["images"] == [(4, 4, 3)]
    (held,) = received({}, message, buffers).values()
    np.testing.assert_array_equal(held, image.ravel())


def test_a_stream_with_another_run_in_it_is_sent_as_it_is_drawn():
    plot = Plot(stream_of([(1.0, 2.0), (2.0, 3.0)], fields=("step", "loss"), name="a"))
    plot.pull()
    cell = plot.cells[0]
    assert list(growing(cell.chart, cell.draw())) == [0]
    cell.streams[0].feed.add_seam("old", "new", after=1)
    assert growing(cell.chart, cell.draw()) == {}
    cell.streams[0].feed.seams.clear()
    cell.streams[0].feed.gaps.append(Gap(1, 3))
    assert growing(cell.chart, cell.draw()) == {}


def test_a_still_is_a_small_png_that_says_its_name_at_the_start():
    line = Picture((Line(np.arange(9.0), np.arange(9.0), name="a"),))
    made = png_of_pictures([line, Picture((Text(("waiting",)),))], 1, "looptap-x")
    assert made.startswith(b"\x89PNG")
    assert b"looptap-x" in made[:300]
    assert len(made) < 60_000


# ------------------------------------------------------------ the thread


class Counting:
    def __init__(self, most, fails=False):
        self.most, self.fails, self.times = most, fails, []

    def step(self, now):
        self.times.append(now)
        if self.fails:
            raise RuntimeError("a chart of the user's own")
        return 0.001 if len(self.times) < self.most else None


def test_one_chart_that_fails_leaves_the_others_moving(caplog):
    driver = Driver("looptap-test")
    good, bad = Counting(50), Counting(50, fails=True)
    driver.add(bad)
    driver.add(good)
    soon(lambda: len(good.times) == 50)
    assert len(bad.times) == 1  # and again some seconds later
    assert "retries every few seconds" in caplog.text


def test_a_kernel_that_takes_messages_only_between_cells_says_so(monkeypatch):
    monkeypatch.setattr(kernels, "pulse", kernels.KernelPulse())
    monkeypatch.setattr(kernels, "shell", lambda: Shell(able=False))
    assert "when the running cell ends" in kernels.waiting_note()
    monkeypatch.setattr(kernels, "shell", lambda: Shell(able=True))
    assert kernels.waiting_note() == ""
    kernels.pulse.hear()  # on the thread of the cells, in spite of it
    assert "when the running cell ends" in kernels.waiting_note()
    threading_hear = threading.Thread(target=kernels.pulse.hear)
    threading_hear.start()
    threading_hear.join()
    assert kernels.waiting_note() == ""


class Shell:
    def __init__(self, able):
        self.kernel = self
        self._supports_kernel_subshells = able


def test_a_heartbeat_without_an_answer_means_a_busy_kernel(monkeypatch):
    calls = []

    class Busy(Shell):
        io_loop = type("Loop", (), {"add_callback": staticmethod(calls.append)})

    monkeypatch.setattr(kernels, "shell", lambda: Busy(True))
    pulse = kernels.KernelPulse()
    now = time.monotonic()
    pulse.beat(now)
    assert not pulse.deaf(now + 0.1)
    assert pulse.deaf(now + 0.5)
    calls[0]()
    assert not pulse.deaf(now + 0.5)


# ------------------------------------------------------------ panel and overview


class Echo:
    factor = looptap.Control(int, default=2, minimum=1, maximum=16, unit="times", doc="how often")
    rate = looptap.Control(float, default=0.01, minimum=1e-5, maximum=1.0)
    mode = looptap.Control(str, default="a", choices=("a", "b"))
    on = looptap.Control(bool, default=True)
    free = looptap.Control(float, default=1.0)


@pytest.fixture
def controlled():
    agent, run = pair("<b>run", may_pause=1.0)
    echo = Echo()
    agent.expose(echo=echo)
    agent.trigger("evaluate", lambda: 3)
    with training(agent, 0.002, loss=1.0):
        yield echo, run
    agent.close()


def test_each_control_gets_the_widget_that_admits_what_it_admits(controlled):
    shown = panel(controlled[1])
    kinds = {name: type(row.widget).__name__ for name, row in shown.rows.items()}
    shown.close()
    assert kinds == {
        "echo.factor": "IntSlider", "echo.rate": "FloatLogSlider", "echo.mode": "Dropdown", "echo.on": "Checkbox",
        "echo.free": "FloatText", "trigger evaluate": "Button", "pause": "Button", "resume": "Button", "undo": "Button",
        "stop": "Button",
    }  # fmt: skip
    slider = shown.rows["echo.factor"].widget
    assert (slider.min, slider.max, slider.tooltip) == (1, 16, "how often")
    assert "1 to 16 · how often" in shown.rows["echo.factor"].meaning.value
    assert "1e-05 to 1" in shown.rows["echo.rate"].meaning.value


def test_a_panel_sets_controls_shows_outcomes_and_follows_other_clients(controlled):
    echo, run = controlled
    shown = panel(run)
    row = shown.rows["echo.factor"]
    row.widget.value = 5
    soon(lambda: "2 → 5" in row.outcome.value)
    assert echo.factor == 5
    shown.rows["trigger evaluate"].widget.click()
    soon(lambda: "evaluate: 3" in shown.rows["trigger evaluate"].outcome.value)
    run.set("echo.factor", 9, expected=None)
    soon(lambda: row.widget.value == 9)
    assert echo.factor == 9
    shown.close()


def test_a_refused_change_is_reported_and_the_control_shows_the_real_value(controlled):
    echo, run = controlled
    shown = panel(run)
    row = shown.rows["echo.free"]
    echo.__class__.free.maximum = 2.0
    try:
        row.widget.value = 9.0
        soon(lambda: "b00020" in row.outcome.value)
        assert echo.free == 1.0
        soon(lambda: row.widget.value == 1.0)
    finally:
        echo.__class__.free.maximum = None
        shown.close()


def test_a_panel_asks_before_a_large_change_and_a_stop_and_takes_changes_back(controlled):
    echo, run = controlled
    shown = panel(run)
    free, undo, stop = (shown.rows[name] for name in ("echo.free", "undo", "stop"))
    assert "undo the last change of a control" in undo.meaning.value
    free.widget.value = 500.0
    assert "by a factor of 500. Set it?" in free.outcome.value
    assert free.answers.layout.display == ""
    free.no.click()
    assert (free.outcome.value.count("Nothing was done."), free.answers.layout.display) == (1, "none")
    soon(lambda: free.widget.value == 1.0)  # what it is
    free.widget.value = 500.0
    free.yes.click()
    soon(lambda: echo.free == 500.0)
    soon(lambda: "undo echo.free 1.0 → 500.0" in undo.meaning.value)
    undo.widget.click()
    soon(lambda: echo.free == 1.0)
    soon(lambda: free.widget.value == 1.0)
    soon(lambda: "undo echo.free 500.0 → 1.0" in undo.meaning.value)
    undo.widget.click()
    assert "Undo the undo?" in undo.outcome.value
    undo.no.click()
    stop.widget.click()
    assert "at its next event?" in stop.outcome.value
    stop.no.click()
    assert [record["what"] for record in run.commands] == ["set", "undo"]
    stop.widget.click()
    stop.yes.click()
    soon(lambda: run.commands[-1]["what"] == "stop")
    shown.close()


def test_a_viewer_sees_a_disabled_panel_with_the_reason(controlled, monkeypatch):
    shown = panel(controlled[1])
    monkeypatch.setattr(controlled[1].session, "role", "viewer")
    soon(lambda: all(row.widget.disabled for row in shown.rows.values()))
    assert "only an operator" in shown._head.value
    shown.close()


def test_a_run_that_is_over_says_so_on_its_panel(controlled):
    shown = panel(controlled[1])
    controlled[1].close()
    soon(lambda: "ended" in shown._head.value)
    assert all(row.widget.disabled for row in shown.rows.values())


def test_an_overview_shows_rates_cost_and_commands_and_escapes_texts_of_the_job(controlled):
    run: Run = controlled[1]
    run.set("echo.factor", 4)
    run.stream("commands").wait()
    shown = overview(run)
    text = "".join(getattr(part, "value", "") for part in shown.children)
    shown.close()
    assert "&lt;b&gt;run" in text
    assert "<b>run" not in text
    for part in ("Events", "per second", "What looptap costs", "Last commands", "2 → 4", "rank 0 of 1"):
        assert part in text
    assert "Declared streams" not in text  # the commands are one, and have a table of their own


@pytest.mark.usefixtures("processes")
def test_an_overview_has_a_table_of_the_settings_and_one_of_the_start():
    agent, run = pair("set", config={"lr": 0.1, "model": {"width": 8}, "<i>odd": "<script>"})
    agent.emit("batch", loss=0.5)
    shown = overview(run)
    text = "".join(getattr(part, "value", "") for part in shown.children)
    shown.close()
    config, _, start = text.partition("<b>Started with</b>")
    assert "<b>Config</b>" in config
    rows = re.findall(r"<tr><td[^>]*>(.*?)</td><td[^>]*>(.*?)</td></tr>", config)
    assert rows == [("lr", "0.1"), ("model.width", "8"), ("&lt;i&gt;odd", "&lt;script&gt;")]
    for part in ("command", "directory", "versions", "python"):
        assert part in start
    agent.close()


@pytest.mark.usefixtures("processes")
def test_a_viewer_sees_an_overview_without_the_settings(directory):
    with looptap.Agent("set", config={"secret": 17}) as agent, looptap.attach("set") as run:
        agent.stream("shown", "loss")
        agent.emit("batch", loss=0.5)
        run.export("shown")
        with looptap.attach(run.share(path=directory / "viewer.json").path) as viewer:
            shown = overview(viewer)
            text = "".join(getattr(part, "value", "") for part in shown.children)
            shown.close()
    assert "secret" not in text
    assert "may not" not in text
    assert "A viewer sees only exported streams" in text
    assert "shown" in text


def test_a_table_escapes_its_cells():
    assert "<script>" not in html_table("t", ("a",), [("<script>",)])


def test_a_cell_is_pulled_and_drawn_by_others_while_its_live_chart_is_shown():
    stream = Stream("loss", fields=("step", "loss"))
    plot = Plot(stream)
    live, failed = Live(plot.cells[0], Canvas), []

    def shows():
        try:
            for _ in range(300):
                live._pull()
                live._show()
        except BaseException as error:
            failed.append(error)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        shower = threading.Thread(target=shows, daemon=True)
        shower.start()
        for number in range(1, 301):
            push(stream, [(number, 1 / number)])
            plot.pull()
            plot.cells[0].draw()
        shower.join(300)
    finally:
        sys.setswitchinterval(before)
        live.close()
    assert (shower.is_alive(), failed) == (False, [])
