"""The charts of a saved page in a real browser: each control, light and dark."""

import csv
import io
import itertools
import math
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from lab import INK

import looptap
from looptap.visualizers.data.colors import DARK, LIGHT
from looptap.visualizers.data.smoothing import inliers, smoothed
from looptap.visualizers.data.ticks import tick_labels
from looptap.visualizers.plot import Plot

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]
MAX_PAGE_BYTES = 300_000
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
COUNT = 400
STEPS = np.arange(COUNT)
LOSS = 2.0 * np.exp(-STEPS / 40) + 1e-4
NOISE = 1 + 0.2 * np.random.default_rng(0).normal(size=COUNT)
BUSY = 120_000
SVG = "{http://www.w3.org/2000/svg}"
WORDS = """() => {
  const { prototype } = CanvasRenderingContext2D, { fillText } = prototype, found = [];
  prototype.fillText = function (text, x, y) {
    const { width, actualBoundingBoxAscent: up } = this.measureText(text);
    const left = this.textAlign === "center" ? x - width / 2 : x;
    if (/^(epoch |norm|step)/.test(text))
      found.push([left, y - up, left + width, y, this.canvas.width, this.canvas.height]);
    fillText.call(this, text, x, y);
  };
  const { view } = document.querySelector(".looptap");
  for (const panel of view.panels) panel.uplot ? panel.uplot.redraw() : view.draw();
  return new Promise((resolve) => requestAnimationFrame(() => resolve(found)));
}"""
"""Draws a chart again; where its notes and titles are, and the size of its canvas."""


@pytest.fixture
def opened(browser, tmp_path):
    """Return a function that saves a plot and opens it; no script may fail."""
    errors, contexts = [], []

    def open(plot, scheme="light", width=900):
        plot.save(tmp_path / "page.html")
        contexts.append(browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 1000}))
        page = contexts[-1].new_page()
        page.set_default_timeout(BUSY)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("dialog", lambda dialog: (errors.append(dialog.message), dialog.dismiss()))
        page.goto((tmp_path / "page.html").as_uri())
        page.wait_for_function("document.querySelectorAll('.looptap canvas, .looptap table, .looptap pre').length > 0")
        return page

    yield open
    for context in contexts:
        context.close()
    assert errors == []


def line(values=LOSS, name="loss", **how):
    """Return a plot of one line over the step."""
    pairs = list(zip(STEPS.tolist(), values.tolist(), strict=True))
    return Plot(looptap.stream_of(pairs, name=name, fields=("step", name)), chart="line", **how)


def inked(page, color, chart=0):
    """Return how many pixels of a chart have about this colour, #rrggbb."""
    return page.evaluate(INK, [chart, [int(color[i : i + 2], 16) for i in (1, 3, 5)]])


def view(page, about, chart=0):
    """Return something of the view of a chart."""
    return page.evaluate(
        f"(i) => {{ const view = document.querySelectorAll('.looptap')[i].view; return {about} }}", chart
    )


def point(page, across, down=0.5, chart=0):
    """Move the pointer to a part of the plot."""
    box = page.locator(".looptap .u-over").nth(chart).bounding_box()
    page.mouse.move(box["x"] + across * box["width"], box["y"] + down * box["height"])


def menu(page, chart=0):
    """Open the menu of a chart."""
    page.locator(".looptap").nth(chart).get_by_role("button", name="⋯").click()
    return page.locator(".looptap .sheet").nth(chart)


def saved(page, kind):
    """Return what the button of a file saves."""
    with page.expect_download() as download:
        page.locator(".looptap .sheet").get_by_role("button", name=kind).click()
    with open(download.value.path(), "rb") as file:
        return file.read()


@pytest.mark.promise("charts")
def test_a_page_with_one_line_is_small_and_follows_the_theme(opened, tmp_path):
    page = opened(line(name="loss" + HOSTILE[:20]))
    assert (tmp_path / "page.html").stat().st_size < MAX_PAGE_BYTES
    for theme in (LIGHT, DARK, LIGHT):
        page.emulate_media(color_scheme="dark" if theme.dark else "light")
        page.wait_for_function(f"document.querySelector('.looptap').view.theme.ground === '{theme.ground}'")
        assert inked(page, theme.colors[0]) > 100
        ink = view(page, "getComputedStyle(view.el).color.match(/\\d+/g).map(Number)")
        assert inked(page, "#" + "".join(f"{part:02x}" for part in ink)) > 50  # the axes
    assert "<script>" not in page.locator(".looptap .legend").inner_html()


def test_a_chart_that_has_left_the_page_can_be_drawn(opened):
    page = opened(line())
    assert view(page, "(view.el.remove(), view.draw(), true)")


@pytest.mark.promise("S9")
def test_a_hostile_name_is_a_text(opened):
    page = opened(line(name=HOSTILE))
    assert page.locator(".looptap .legend span").first.inner_text().startswith(HOSTILE[:30])
    assert page.locator(".looptap img, .looptap script").count() == 0


def test_an_axis_is_logarithmic_where_a_positive_line_spans_decades_and_on_request(opened):
    page = opened(line())
    log = page.get_by_role("button", name="log")
    assert view(page, "view.panels[0].uplot.scales.y.distr") == 3
    log.click()
    assert view(page, "view.panels[0].uplot.scales.y.distr") == 1
    page.locator(".looptap .u-over").click()
    page.keyboard.press("l")
    assert view(page, "view.panels[0].uplot.scales.y.distr") == 3
    page.keyboard.press("r")
    assert view(page, "view.options") == {}
    page = opened(line(NOISE - 1.0))
    assert view(page, "view.panels[0].uplot.scales.y.distr") == 1
    assert page.locator(".looptap .badge").count() == 0
    page.get_by_role("button", name="log").click()
    assert "not positive" in page.locator(".looptap .badge").inner_text()


def test_smoothing_draws_the_average_over_the_faint_line(opened):
    page = opened(line(NOISE, smooth=0.9))
    average = view(page, "[...view.store.smoothed(view.store.layout.panels[0].marks[0].y, 0.9)]")
    assert np.allclose(average, smoothed(NOISE, 0.9), rtol=1e-12)
    solid = inked(page, LIGHT.colors[0])
    slider = menu(page).locator("input[type=range]")
    assert slider.input_value() == "0.9"
    slider.fill("0")
    assert inked(page, LIGHT.colors[0]) > 1.5 * solid  # the noise is no longer faint
    holed = np.where(STEPS % 7 == 3, np.nan, NOISE)
    page = opened(line(holed, smooth=0.5))
    average = view(page, "[...view.store.smoothed(view.store.layout.panels[0].marks[0].y, 0.5)]")
    average = np.array([math.nan if value is None else value for value in average])
    assert np.allclose(average, smoothed(holed, 0.5), rtol=1e-12, equal_nan=True)


def test_a_line_without_a_finite_number_hides_no_other(opened):
    rows = [(step, math.nan, 1 + noise) for step, noise in enumerate(NOISE.tolist())]
    page = opened(Plot(looptap.stream_of(rows, name="run", fields=("step", "a", "b")), chart="line"))
    low, high = view(page, "(({min, max}) => [min, max])(view.panels[0].uplot.scales.y)")
    assert 0 <= low < 2 < high < 3
    page.locator(".looptap .legend b").get_by_text("NaN").first.wait_for()
    assert inked(page, LIGHT.colors[1]) > 100


def test_a_logarithmic_axis_has_numbers_however_many_decades_it_spans(opened):
    spans = ((0.002, 1), (0.2, 2e-20), (0.5, 3), (1.2, 1), (4, 1), (22, 1), (200, 1), (60, 1e-45))
    for decades, start in spans:
        page = opened(line(start * 10 ** (decades * STEPS / COUNT), log="y"))
        written = view(page, "view.panels[0].uplot.axes[1]._values.filter((text) => text)")
        assert 2 <= len(written) <= 12, decades
        assert len(set(written)) == len(written)


def test_a_chart_stays_as_it_is_while_it_has_no_width(opened):
    page = opened(line())
    drawn = inked(page, LIGHT.colors[0])
    seen = view(page, "(view.el.style.display = 'none', view.resize(), view.wide)")
    assert view(page, "(view.el.style.display = '', view.resize(), view.wide)") == seen > 600
    assert inked(page, LIGHT.colors[0]) == drawn


def test_the_values_in_a_legend_stay_when_it_is_made_again(opened):
    page = opened(line())
    newest = "view.legend.names.get('loss').textContent"
    assert view(page, f"(view.tell(), {newest})") == view(page, f"(view.count(), {newest})") != ""


def test_a_line_that_is_never_positive_hides_no_other_on_a_logarithmic_axis(opened):
    rows = [(step, -1.0, loss) for step, loss in enumerate(LOSS.tolist())]
    page = opened(Plot(looptap.stream_of(rows, name="run", fields=("step", "a", "b")), chart="line", log="y"))
    assert 1.5 < view(page, "view.panels[0].uplot.scales.y.max") < 3
    assert inked(page, LIGHT.colors[1]) > 100


def test_outliers_and_limits_are_left_out_and_come_back(opened):
    values = NOISE.copy()
    values[200] = 900.0
    page = opened(line(values))
    top = "view.panels[0].uplot.scales.y.max"
    assert view(page, top) > 900
    sheet = menu(page)
    sheet.locator("input[type=checkbox]").check()
    assert view(page, top) < 2
    assert np.allclose(page.evaluate("(values) => looptap.inliers(values)", values.tolist()), inliers(values))
    low, high = sheet.locator("input.end").all()
    low.fill("0.5")
    low.press("Tab")
    high.fill("1.5")
    high.press("Tab")
    assert view(page, "[view.panels[0].uplot.scales.y.min, view.panels[0].uplot.scales.y.max]") == [0.5, 1.5]
    sheet.get_by_role("button", name="Reset").click()
    assert view(page, top) > 900


def test_dragging_zooms_and_a_double_click_shows_all(opened):
    page = opened(line())
    point(page, 0.25)
    page.mouse.down()
    point(page, 0.5)
    page.mouse.up()
    low, high = view(page, "[view.panels[0].uplot.scales.x.min, view.panels[0].uplot.scales.x.max]")
    assert 80 < low < 120
    assert 180 < high < 220
    page.locator(".looptap .u-over").dblclick()
    assert view(page, "view.panels[0].uplot.scales.x.max") > COUNT - 2


def test_the_pointer_shows_all_values_at_its_x_on_all_charts(opened):
    values = [{"train": float(v), "val": float(2 * v)} for v in NOISE]
    plot = Plot(looptap.stream_of(values, name="a"), looptap.stream_of(NOISE.tolist(), name="b"), rows=1)
    page = opened(plot, width=1300)
    point(page, 0.3331)
    tip = page.locator(".looptap .tip").first
    x = round(view(page, "view.panels[0].cursor"))
    text = tip.inner_text()
    assert f"event {x}" in text
    for name, value in (("train", NOISE[x - 1]), ("val", 2 * NOISE[x - 1])):
        assert name in text
        assert f"{value:.5g}" in text
    assert round(view(page, "view.panels[0].cursor", chart=1)) == x
    assert page.locator(".looptap .tip:visible").count() == 1
    point(page, -0.2)
    page.wait_for_function(
        "[...document.querySelectorAll('.looptap')].every((el) => el.view.panels[0].cursor === null)"
    )


def test_a_legend_toggles_isolates_sorts_and_keeps_to_its_quarter(opened):
    values = [{f"layer {i}": float((i * 7) % 20) for i in range(20)}] * 5
    page = opened(Plot(looptap.stream_of(values, name="norms"), chart="line"), width=500)
    names = page.locator(".looptap .legend span")
    shown = "view.panels[0].marks.filter((mark) => mark.name).length"
    assert names.count() == 20
    page.get_by_role("button", name="+").click()
    legend = page.locator(".looptap .legend").bounding_box()["height"]
    assert legend <= 0.25 * view(page, "view.height") + 1
    names.nth(0).click()
    assert view(page, shown) == 19
    page.wait_for_timeout(500)  # else it is a double click
    names.nth(1).dblclick()
    assert view(page, shown) == 1
    names.nth(1).dblclick()
    assert view(page, shown) == 20
    menu(page).locator("select").last.select_option("value")
    own = "all => all.map((entry) => [...entry.childNodes].find((node) => node.nodeType === 3).textContent.trim())"
    assert names.evaluate_all(own)[:2] == ["layer 17", "layer 14"]  # without their newest values, which come later


def test_the_legend_counts_the_names_that_it_does_not_show_at_any_width(opened):
    many = {f"a long name of layer {i}": 1.0 + i for i in range(6)}
    page = opened(Plot(looptap.stream_of([many] * 9, name="norms"), chart="line"))
    right = """(width) => {
      const { legend: { row, more }, room } = document.querySelector(".looptap").view;
      const hidden = [...row.children].filter((one) => one.offsetTop > row.offsetTop + 12).length;
      const right = hidden ? !more.hidden && more.textContent === `+${hidden}` : more.hidden;
      return 0.8 * width < room && room <= width && right;
    }"""
    for width in (900, 400, 1600, 700, 2400):
        page.set_viewport_size({"width": width, "height": 1000})
        page.wait_for_function(right, arg=width)


def test_the_nearest_point_says_what_it_is(opened):
    points = np.array([(x, y) for x in range(5) for y in range(5)], float)
    page = opened(Plot(looptap.stream_of([points], name="embedding")))
    left, top = view(page, "(({ uplot }) => [uplot.valToPos(3, 'x'), uplot.valToPos(1, 'y')])(view.panels[0])")
    box = page.locator(".looptap .u-over").bounding_box()
    page.mouse.move(box["x"] + left + 3, box["y"] + top - 3)
    assert "(3, 1)" in page.locator(".looptap .tip").inner_text()


def test_a_chart_is_saved_as_png_svg_and_csv_and_its_query_copied(opened):
    stream = looptap.stream_of(
        list(zip(STEPS.tolist(), LOSS.tolist(), strict=True)), name="a <b>", fields=("step", "a <b>")
    )
    stream.text = "step, loss"
    page = opened(Plot(stream, chart="line"))
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    sheet = menu(page)
    assert saved(page, "PNG").startswith(b"\x89PNG")
    rows = list(csv.reader(io.StringIO(saved(page, "CSV").decode())))
    assert rows[0] == ["step", "a <b>"]
    assert [float(row[1]) for row in rows[1:]] == LOSS.tolist()
    picture = ElementTree.fromstring(saved(page, "SVG").decode())
    paths = [path for path in picture.iter("{http://www.w3.org/2000/svg}path") if path.get("stroke") == LIGHT.colors[0]]
    assert max(len(path.get("d")) for path in paths) > 2000
    texts = {text.text for text in picture.iter("{http://www.w3.org/2000/svg}text")}
    assert {"a <b>", "step", "200", "0.001"} <= texts
    sheet.get_by_role("button", name="Query").click()
    page.wait_for_function("navigator.clipboard.readText().then((text) => text === 'step, loss')")


def test_words_of_commands_stand_over_the_plot(opened):
    plot = line(NOISE)
    plot.marks(
        [{"name": "lr", "old": 0.1, "new": 0.01, "outcome": "applied", "number": number} for number in (100, 300)]
    )
    page = opened(plot)
    top = view(page, "view.panels[0].uplot.bbox.top")
    menu(page)
    texts = ElementTree.fromstring(saved(page, "SVG").decode()).iter("{http://www.w3.org/2000/svg}text")
    words = [float(text.get("y")) for text in texts if "lr" in text.text]
    assert len(words) == 2
    assert max(words) < top


def test_a_grid_of_nine_charts_fits_and_its_panels_align(opened):
    many = {f"a long name of layer {i}": 1.0 for i in range(12)}
    streams = [looptap.stream_of([many] * 3 if i % 2 else NOISE.tolist(), name=f"chart {i}") for i in range(9)]
    page = opened(Plot(*streams, rows=3), width=1300)
    plots = [box.bounding_box() for box in page.locator(".looptap .u-over").all()]
    assert page.evaluate("document.documentElement.scrollHeight") <= 1000
    for row in range(3):
        cells = plots[3 * row : 3 * row + 3]
        assert max(cell["y"] for cell in cells) - min(cell["y"] for cell in cells) < 1
        assert max(cell["height"] for cell in cells) - min(cell["height"] for cell in cells) < 1


def test_numbers_at_ticks_are_written_as_in_python(opened):
    page = opened(line())
    random = np.random.default_rng(1)
    steps, starts = (1e-7, 2.5e-4, 0.001, 0.05, 1.0, 20.0, 5e3, 1e5, 2e9, 1e16), (-3, 0, 7, 990)
    axes = [(step * (start + np.arange(6))).tolist() for step in steps for start in starts]
    axes += [[0.0], [], [None, 0.5, None], (10.0 ** random.integers(-9, 16, 8)).tolist()]
    for log in (False, True):
        written = page.evaluate("([axes, log]) => axes.map((axis) => looptap.tickLabels(axis, log))", [axes, log])
        assert written == [tick_labels(axis, log) for axis in axes]


def test_a_histogram_and_a_line_are_read_from_axes_of_their_own(opened):
    weights = np.random.default_rng(0).normal(size=5000)
    plot = Plot((line(NOISE).cells[0].streams[0], looptap.stream_of([weights], name="weights")))
    page = opened(plot)
    scales = view(page, "Object.entries(view.panels[0].uplot.scales).map(([key, { min, max }]) => [key, min, max])")
    found = {key: (low, high) for key, low, high in scales}
    assert found["x"] == (0, COUNT - 1)
    assert found["top"][0] == pytest.approx(weights.min())
    assert found["top"][1] == pytest.approx(weights.max())
    assert found["y"][1] < 3
    assert found["right"][1] > 100
    assert inked(page, LIGHT.colors[0]) > 100  # the line is drawn over the bars
    point(page, 0.5, 0.2)
    tip = page.locator(".looptap .tip").inner_text()
    assert "step (loss) 200" in tip or "step (loss) 199" in tip
    assert "weights" in tip
    menu(page)
    one, other = saved(page, "CSV").decode().split("\r\n\r\n")
    assert one.startswith("step (loss),loss\r\n")
    assert other.startswith("weights,weights\r\n")
    texts = {text.text for text in ElementTree.fromstring(saved(page, "SVG").decode()).iter(f"{SVG}text")}
    assert {"step (loss)", "count (weights)", "weights"} <= texts
    box = page.locator(".looptap .u-over").bounding_box()
    page.mouse.move(box["x"] + 0.25 * box["width"], box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 50)
    page.mouse.up()
    low, high = view(page, "[view.panels[0].uplot.scales.top.min, view.panels[0].uplot.scales.top.max]")
    assert weights.min() < low < high < weights.max()


def test_steps_and_epochs_of_one_chart_have_an_axis_each(opened):
    epochs = looptap.stream_of([(i, 1.0 / i) for i in range(1, 9)], name="val", fields=("epoch", "val"))
    page = opened(Plot((line().cells[0].streams[0], epochs)))
    point(page, 0.999)
    tip = page.locator(".looptap .tip").inner_text()
    assert f"step (loss) {COUNT - 1}" in tip
    assert "at epoch (val) 8" in tip


def test_x_is_switched_on_a_page_without_a_job(opened, tmp_path):
    page = opened(line(NOISE))
    assert (tmp_path / "page.html").stat().st_size < MAX_PAGE_BYTES
    reach = "[view.store.layout.x.title, view.panels[0].uplot.scales.x.min, view.panels[0].uplot.scales.x.max]"
    assert view(page, reach) == ["step", 0, COUNT - 1]
    choice = menu(page).locator("select").first
    choice.select_option("event")
    assert view(page, reach) == ["event", 1, COUNT]
    choice.select_option("time")
    assert view(page, reach)[0] == "seconds"
    page.get_by_role("button", name="Reset").click()
    assert view(page, reach) == ["step", 0, COUNT - 1]
    assert inked(page, LIGHT.colors[0]) > 100


def test_dates_are_written_year_first_and_with_24_hours(opened):
    values = [(f"2026-03-01T15:{minute:02d}:00", 1.0 / (1 + minute)) for minute in range(30)]
    page = opened(Plot(looptap.stream_of(values, name="loss", fields=("when", "loss"))))
    menu(page)
    picture = ElementTree.fromstring(saved(page, "SVG").decode())
    texts = {text.text for text in picture.iter(f"{SVG}text")}
    assert {"15:10", "15:20", "2026-03-01", "when"} <= texts
    point(page, 0.5)
    assert "2026-03-01 15:1" in page.locator(".looptap .tip").inner_text()


def test_the_ticks_of_epochs_are_whole(opened):
    values = [(20 + i, 1.0 / (1 + i)) for i in range(12)]
    page = opened(Plot(looptap.stream_of(values, name="error", fields=("epoch", "error"))))
    menu(page)
    texts = {text.text for text in ElementTree.fromstring(saved(page, "SVG").decode()).iter(f"{SVG}text")}
    assert {"20", "25", "30"} <= texts or {"20", "22", "24", "26", "28", "30"} <= texts
    assert not texts & {"22.5", "27.5", "20.0", "25.0"}


def test_notes_in_space_are_drawn(opened):
    turns = np.linspace(0, 8, 60)
    values = [
        (float(np.cos(at)), float(np.sin(at)), float(at), f"note {i}" * (i % 20 == 0)) for i, at in enumerate(turns)
    ]
    page = opened(Plot(looptap.stream_of(values, name="turns")))
    assert inked(page, LIGHT.colors[0]) > 100


def test_no_word_in_space_or_beside_a_line_leaves_the_picture_or_lies_on_another(opened):
    rows = [(step, math.sin(step), float(step), f"epoch {step}") for step in range(0, 400, 9)]
    fields = ("step", "loss", "norm(model[8].weight.grad)", "note")
    space = Plot(looptap.stream_of(rows, name="turns", fields=fields))
    flat = Plot(looptap.stream_of([(row[0], row[1], row[3]) for row in rows], fields=("step", "loss", "note")))
    for plot in (space, flat):
        boxes = opened(plot, width=420).evaluate(WORDS)
        assert len(boxes) > 8
        for left, top, right, bottom, width, height in boxes:
            assert left >= -1
            assert top >= -1
            assert right <= width + 1
            assert bottom <= height + 1
        for one, other in itertools.combinations(boxes, 2):
            assert one[2] <= other[0] + 1 or other[2] <= one[0] + 1 or one[3] <= other[1] + 1 or other[3] <= one[1] + 1


def test_bars_behind_a_line_have_an_outline_in_their_colour(opened):
    counts = np.histogram(NOISE, 20)
    plot = Plot((looptap.stream_of(list(zip(STEPS.tolist(), LOSS.tolist(), strict=True)), name="loss"),
                 looptap.stream_of([counts], name="weights")))  # fmt: skip
    for scheme, theme in (("light", LIGHT), ("dark", DARK)):
        page = opened(plot, scheme)
        color = next(mark.color for mark in plot.pictures()[0].marks if getattr(mark, "edges", None) is not None)
        assert inked(page, theme.of(color)) > 50


def test_the_sample_of_a_point_is_shown_at_the_pointer(opened):
    images = np.zeros((16, 8, 8, 3), np.uint8)
    images[:] = np.arange(16, dtype=np.uint8)[:, None, None, None] * 16
    images[5] = (255, 0, 255)
    points = np.array([(i % 4, i // 4) for i in range(16)], float)
    rows = {"points": points, "labels": [f"class {i % 2}" for i in range(16)], "images": list(images)}
    page = opened(Plot(looptap.stream_of([rows], name="embedding"), chart="scatter"))
    left, top = view(page, "(({ uplot }) => [uplot.valToPos(1, 'x'), uplot.valToPos(1, 'y')])(view.panels[0])")
    box = page.locator(".looptap .u-over").bounding_box()
    page.mouse.move(box["x"] + left + 2, box["y"] + top + 2)
    tip = page.locator(".looptap .tip")
    assert "class 1" in tip.inner_text()
    assert "(1, 1)" in tip.inner_text()
    shown = tip.locator("canvas")
    assert shown.bounding_box()["width"] > 60
    pixel = shown.evaluate("(canvas) => [...canvas.getContext('2d').getImageData(3, 3, 1, 1).data]")
    assert pixel == [255, 0, 255, 255]
    page.mouse.move(box["x"] + left + 60, box["y"] + top + 40)
    assert not tip.is_visible()


def test_the_layers_of_a_ridgeline_are_named_at_their_ridges(opened):
    layers = {"fc.weight": np.random.default_rng(0).normal(size=900), "out.bias": np.zeros(10)}
    page = opened(Plot(looptap.stream_of([layers], name="weights")))
    menu(page)
    picture = ElementTree.fromstring(saved(page, "SVG").decode())
    texts = [text.text for text in picture.iter(f"{SVG}text")]
    assert {"fc.weight", "out.bias", "0 ± 0"} <= set(texts)
    assert "layer" not in texts
    table = saved(page, "CSV").decode()
    assert table.startswith("value,fc.weight,out.bias\r\n")
