"""Charts and controls in JupyterLab and Voilà, in a real browser."""

import json
import math

import pytest
from lab import ATTACH, BUSY, PATIENCE, SHOTS, beside_a_job, busy, enough, laboratory
from programs import need
from tutorials import NOTEBOOKS, WIDGET, read, shortened
from waiting import soon

import looptap

pytestmark = [pytest.mark.browser, pytest.mark.timeout(1200)]
BLUE, WHITE, BLACK = [6, 98, 153], [255, 255, 255], [0, 0, 0]
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>"

SAVED = """async () => {
  await jupyterapp.commands.execute('docmanager:save');
  return !jupyterapp.shell.currentWidget.context.model.dirty;
}"""
SHOWN = """() => {
  const store = Object.create(document.querySelector('.looptap').looptap), shown = [];
  Object.assign(store, { queue: [1, 2, 3, 4].map((n) => [n, []]), apply: (n) => shown.push(n), dirty: false });
  store.show();
  return [shown.length, store.queue.length];
}"""


@pytest.fixture(scope="module")
def lab(processes, tmp_path_factory):
    """Yield a JupyterLab, a browser, and a job that can be attached to."""
    chromium = need("chromium", "NOTEBOOKS ARE")
    with beside_a_job(tmp_path_factory.mktemp("runs")), laboratory(tmp_path_factory.mktemp("lab"), chromium) as lab:
        yield lab


@pytest.fixture
def job(lab):
    with looptap.attach("job") as run:
        yield run


@pytest.fixture
def opened(lab, request):
    """Return a function that opens notebooks; a failed test leaves a screenshot."""
    books = []

    def open(*cells):
        name = f"{request.node.name}.ipynb"
        books.append(lab.open_tab(name, *cells) if cells else lab.open(name))
        return books[-1]

    yield open
    for index, book in enumerate(books):
        book.shot(f"{request.node.name}-{index}" if index else request.node.name)
        book.close()
    for name in ("busy", "enough", "over"):
        (lab.root / name).unlink(missing_ok=True)


@pytest.mark.promise("S9")
def test_a_stream_at_the_end_of_a_cell_is_a_live_chart(lab, opened):
    book = opened(ATTACH, f"s = run.stream('step, loss', on='batch', name={HOSTILE!r})\ns", BUSY)
    book.run(0)
    book.run(1)
    book.charts(1)
    book.grows()
    soon(lambda: book.inked(BLUE) > 100)
    busy(lab, book, 2)
    for _ in range(3):
        book.grows()
    enough(lab)
    for theme, ink in (("Dark", WHITE), ("Light", BLACK)):  # axes follow the theme
        assert book.inked(ink) == 0
        book.page.evaluate(f"jupyterapp.commands.execute('apputils:change-theme', {{ theme: 'JupyterLab {theme}' }})")
        soon(lambda ink=ink: book.inked(ink) > 100)
        soon(lambda: book.page.locator("#jupyterlab-splash").count() == 0)  # two raise in JupyterLab
    assert book.page.evaluate(SHOWN) == [3, 1]  # at most one frame waits for the screen
    assert HOSTILE in book.texts(".looptap .legend span")[0]
    assert book.page.locator(".looptap script, .looptap img").count() == 0
    assert book.dialogs == book.errors == []


def test_a_control_reaches_the_job_while_a_cell_runs(lab, opened, job):
    book = opened(ATTACH, "from looptap import panel\nshown = panel(run)\nshown", BUSY)
    book.run(0)
    book.run(1)
    slider = book.page.locator(".widget-slider [role=slider], .widget-slider .noUi-handle").first
    slider.wait_for(timeout=PATIENCE)
    before = job.controls["echo.factor"].value
    busy(lab, book, 2)
    slider.focus()
    slider.press("ArrowRight")
    soon(lambda: job.controls["echo.factor"].value == before + 1)  # about 0.3 s on a quiet machine
    said = f"set echo.factor: {before} → {before + 1}"
    book.wait(f"document.body.textContent.includes({json.dumps(said)})")
    book.page.get_by_role("button", name="trigger evaluate").click()
    book.wait("document.body.textContent.includes('trigger evaluate: 0.75')")
    enough(lab)
    job.set("echo.factor", 9, expected=None)  # another client
    book.wait("document.querySelector('.widget-slider .widget-readout').textContent === '9'")
    job.set("echo.factor", 2, expected=None)


def test_streams_come_and_go_while_a_chart_lives(opened):
    book = opened(
        ATTACH + "\nfrom looptap.visualizers.plot import Plot",
        "a, b = run.stream('step, loss', name='a'), run.stream('step, 2 * loss', name='b')\nplot = Plot(a)\nplot",
        "plot.add(b, to=0)",
        "plot.add(run.stream('step, -loss', name='c'))",
        "plot.remove(a, b)",
    )
    book.run(0)
    book.run(1)
    book.charts(1)
    book.run(2)
    book.wait("document.querySelectorAll('.looptap .legend span').length === 2")
    soon(lambda: book.inked([175, 77, 3]) > 100)
    book.run(3)
    book.charts(2)
    book.run(4)
    book.charts(1)
    book.wait("document.querySelector('.looptap .title').textContent === 'c'")
    book.grows()
    assert book.errors == []


def test_what_a_chart_is_drawn_over_is_switched_live(opened):
    book = opened(ATTACH, "run.stream('step, loss', on='batch')")
    book.run(0)
    book.run(1)
    book.charts(1)
    book.page.get_by_role("button", name="⋯").click()
    choice = book.page.locator(".looptap .sheet select").first
    assert [text for text in choice.locator("option").all_inner_texts() if text != "as the values say"] == [
        "step", "event", "seconds", "time of day",
    ]  # fmt: skip
    for x, title in (("time", "seconds"), ("event", "batch"), ("wall", "time"), ("", "step")):
        choice.select_option(x)
        book.wait(f"document.querySelector('.looptap').looptap.layout.x.title === '{title}'")
        assert book.page.evaluate("document.querySelector('.looptap').looptap.columns.size") == 2  # x and y, no others
    book.grows()
    assert book.errors == []


def test_a_chart_comes_back_after_a_reload_and_on_a_second_page(lab, opened):
    book = opened(ATTACH, "run.stream('loss')", "1 + 1")
    book.run(0)
    book.run(1)
    book.charts(1)
    book.grows(by=50)
    before = book.last()
    soon(lambda: book.page.evaluate(SAVED))  # a still that is renewed makes it dirty again
    book.load()
    book.charts(1)
    assert book.last() >= before
    points = book.page.evaluate(
        "[...document.querySelector('.looptap').looptap.columns.values()].map((column) => column.view.length)"
    )
    assert min(points[:2]) > before  # its history is there too, not only what came since
    second = opened()
    second.charts(1)
    second.grows()
    book.grows()
    assert book.errors == second.errors == []


def test_a_query_that_fails_says_so_on_the_chart(opened):
    book = opened(ATTACH, "run.stream('step, 1 / 0 if step % 2 else loss', on='batch')")
    book.run(0)
    book.run(1)
    book.charts(1)
    book.wait("document.querySelector('.looptap .badge')?.textContent.includes('ZeroDivisionError')")


def test_a_saved_notebook_with_ten_charts_is_small_and_opens_with_the_last_pictures(lab, opened):
    book = opened(ATTACH, *[f"s = run.stream('step, loss + {i}', on='batch')\ns" for i in range(10)])
    book.run_all()
    pictures = "jupyterapp.shell.currentWidget.content.model.sharedModel.cells.filter((cell) => " \
        "cell.toJSON().outputs.some((output) => output.data?.['image/png'])).length === 10"  # fmt: skip
    book.wait(pictures, timeout=2 * PATIENCE)
    assert book.page.locator(".jp-OutputArea-output img:visible").count() == 0
    soon(lambda: book.page.evaluate(SAVED))  # a still that is renewed makes it dirty again
    size = (lab.root / book.name).stat().st_size
    assert size < 1_000_000
    book.page.evaluate("jupyterapp.shell.currentWidget.context.sessionContext.shutdown()")
    book.load()
    book.page.evaluate("document.querySelector('.jp-OutputArea-output img').scrollIntoView()")
    first = book.page.locator(".jp-OutputArea-output img").first
    first.wait_for(state="visible", timeout=PATIENCE)
    colored = book.page.evaluate(
        "(img) => { const canvas = document.createElement('canvas'); canvas.width = img.naturalWidth; "
        "canvas.height = img.naturalHeight; const ctx = canvas.getContext('2d'); ctx.drawImage(img, 0, 0); "
        "const { data } = ctx.getImageData(0, 0, canvas.width, canvas.height); let found = 0; "
        "for (let p = 0; p < data.length; p += 4) if (data[p + 2] - data[p] > 80) found++; return found }",
        first.element_handle(),
    )
    assert colored > 50  # the blue line


KINDS = """
import numpy as np
from looptap.visualizers.plot import Plot
grid = np.random.default_rng(0).random((6, 8))
shown = [
    ("space", looptap.stream_of([(np.cos(t), np.sin(t), t) for t in np.linspace(0, 9, 60)], name="helix")),
    ("grid", looptap.stream_of([grid, grid.T], name="matrix")),
    ("images", looptap.stream_of([np.full((8, 8, 3), 200, np.uint8)], name="picture")),
    ("plane", looptap.stream_of([("a", 3), ("b", 5)], name="bars")),
    ("plane", looptap.stream_of([np.random.default_rng(1).normal(size=999)], name="histogram")),
    ("text", looptap.stream_of(["one <b>line</b>", "two"], name="log")),
    ("table", looptap.stream_of([{"name": "x <i>", "value": [1]}], name="table")),
]
Plot(*(stream for _, stream in shown))
"""


def test_every_kind_of_picture_is_drawn(opened):
    book = opened("import looptap", KINDS)
    book.run(0)
    book.run(1)
    book.charts(7)
    kinds = book.page.evaluate(
        "[...document.querySelectorAll('.looptap .panel')].map((el) => el.className.split(' ')[1])"
    )
    assert kinds == ["space", "grid", "images", "plane", "plane", "text", "table"]
    assert book.inked(BLUE, chart=0) > 100
    assert book.inked([200, 200, 200], chart=2) == 64
    assert "one <b>line</b>" in book.texts(".looptap pre")[0]
    assert "x <i>" in "".join(book.texts(".looptap td"))
    slider = book.page.locator(".looptap .frames input[type=range]:visible").first
    slider.press("ArrowLeft")
    book.wait("[...document.querySelectorAll('.looptap .frames span')].some((el) => el.textContent === '1 / 2')")
    assert book.errors == []


def test_mouse_and_keys_set_the_factor_of_a_job_that_waits_for_data(opened):
    tutorial = read(next(path for path in NOTEBOOKS if path.stem == "echo"))
    cells = [cell.source for cell in tutorial.cells if cell.cell_type == "code"]
    assert any("STEPS = 10_000\n" in source for source in cells)
    # The job outlives a slow browser.
    cells = [source.replace("STEPS = 10_000\n", "STEPS = 10**9\n") for source in cells]
    start = next(index for index, source in enumerate(cells) if "looptap.attach" in source)
    book = opened(*cells[: start + 1], "looptap.panel(run)")
    for index in range(start + 2):
        book.run(index)
    row = book.page.locator(".widget-hbox", has_text="echo.factor").filter(has=book.page.locator(".noUi-handle"))
    handle, track = row.locator(".noUi-handle"), row.locator(".noUi-target")
    handle.wait_for(timeout=PATIENCE)
    book.show(start + 1)
    handle.scroll_into_view_if_needed()
    with looptap.attach("scans") as run:
        waiting = run.stream("echo.starved, echo.steps", on="batch", budget=math.inf)
        waiting.wait(30, timeout=60)
        before = waiting.latest[0]
        at, whole = handle.bounding_box(), track.bounding_box()
        x, y = at["x"] + at["width"] / 2, at["y"] + at["height"] / 2
        book.page.mouse.move(x, y)
        book.page.mouse.down()
        book.page.mouse.move(x + whole["width"] * 0.2, y, steps=5)
        book.page.mouse.up()
        book.wait("document.body.textContent.includes('by a factor of 1')")  # 12 to 15 times as much is asked about
        assert run.controls["echo.factor"].value == 1
        row.locator("button", has_text="yes").click()
        soon(lambda: run.controls["echo.factor"].value > 1)
        turned = run.controls["echo.factor"].value
        assert 11 < turned < 16  # a fifth of the way from 1 to 64
        assert turned % 0.5 == 0
        done = run.commands[-1]
        line = f"set echo.factor: 1.0 → {turned}, at batch {done['number']:,}"  # 1,024 on a slow machine
        book.wait(f"document.body.textContent.includes('{line}')")
        soon(lambda: waiting.latest[1] > done["number"] + 64 and waiting.latest[0] < before / 2)
        handle.press("ArrowLeft")
        soon(lambda: run.controls["echo.factor"].value == turned - 0.5)
        run.set("echo.factor", 5.7, expected=None)  # between two steps of the slider, which leaves it there
        book.wait("document.body.textContent.includes('now 5.7')")
        book.shot("echo-panel")
        assert [one["new"] for one in run.commands] == [turned, turned - 0.5, 5.7]
    assert before > 0.2
    assert book.errors == book.dialogs == []


def test_the_first_tutorial_runs_in_a_browser_with_pictures_and_ends_its_job(lab):
    path = next(path for path in NOTEBOOKS if path.stem == "first-look")
    tutorial = shortened(path)
    code = [index for index, cell in enumerate(tutorial.cells) if cell.cell_type == "code"]
    for index in code:
        tutorial.cells[index].update(outputs=[], execution_count=None)
    __import__("nbformat").write(tutorial, lab.root / path.name)
    book, charts = lab.open_tab(path.name), 0
    try:
        for index in code:
            book.run(index)
            assert not [one for one in book.outputs(index) if one["output_type"] == "error"], book.outputs(index)
            source = tutorial.cells[index].source
            if "display" in {one["output_type"].split("_")[0] for one in book.outputs(index)}:
                book.show(index)
                book.wait("[...document.querySelectorAll('.looptap')].some((el) => el.looptap.draws)")
            if "looptap.panel" not in source and any(WIDGET in one.get("data", {}) for one in book.outputs(index)):
                charts += 1
                soon(lambda index=index: "image/png" in {kind for one in book.outputs(index) for kind in one["data"]})
            if source.endswith("\nloss"):
                book.grows()
            if "looptap.panel" in source:
                book.show(index)
                book.page.get_by_text("optimizer.momentum").first.wait_for(timeout=PATIENCE)
                book.shot("tutorial-panel")
        assert charts >= 2
        assert book.errors == book.dialogs == []
        soon(lambda: "digits-cnn" not in [run.name for run in looptap.runs() if run.alive])
    finally:
        book.shot("tutorial")
        book.close()


def test_voila_serves_an_overview_whose_charts_and_controls_live(lab):
    lab.write("overview.ipynb", ATTACH, "looptap.overview(run)", "looptap.panel(run)")
    page = lab.browser.new_page(viewport={"width": 1300, "height": 1300})
    page.goto(f"{lab.url}/voila/render/overview.ipynb?token={lab.token}", timeout=2 * PATIENCE)
    page.wait_for_function("document.querySelector('.looptap')?.looptap.draws > 2", timeout=2 * PATIENCE)
    page.get_by_role("button", name="trigger evaluate").click()
    page.wait_for_function("document.body.textContent.includes('trigger evaluate: 0.75')", timeout=PATIENCE)
    page.wait_for_function("document.body.textContent.includes('Last commands')", timeout=PATIENCE)
    SHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SHOTS / "voila.png")
    page.context.close()
