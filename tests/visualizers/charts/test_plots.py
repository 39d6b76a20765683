"""Plots: cells that wait for a value, several runs on one chart, summary tables."""

from __future__ import annotations

import math
import re
import threading
from array import array

import pytest
from places import ROOT
from waiting import soon

import looptap
from looptap.streams.stream.buffer import Batch
from looptap.streams.stream.stream import Stream, stream_of
from looptap.testing import pair
from looptap.visualizers.charts.chart import IncompatibleStreams
from looptap.visualizers.drawing.picture import Bars, Line, Text
from looptap.visualizers.plot import Plot


def test_a_cell_waits_for_the_first_value_and_says_what_is_known():
    agent, run = pair("plotted")
    loss = run.stream("step, loss", on="batch")
    plot = Plot(loss)
    plot.pull()
    (picture,) = plot.pictures()
    (mark,) = picture.marks
    assert isinstance(mark, Text)
    assert mark.lines[0] == "waiting for the first value of 'step, loss'"
    assert "The run has raised no 'batch' event yet" in mark.lines[1]
    agent.emit("batch", step=3, loss=0.5)
    assert plot.pull()
    (line,) = plot.pictures()[0].marks
    assert (line.x.tolist(), line.y.tolist()) == ([3], [0.5])
    assert not plot.pull()
    agent.close()


def test_a_stream_that_ended_without_a_value_says_so():
    assert Plot(stream_of([], name="loss")).pictures()[0].marks[0].lines[0] == "'loss' has ended without a value"


def test_each_stream_has_a_cell_and_a_tuple_of_them_shares_one():
    a, b, c = (stream_of([n, n + 1], name=name) for n, name in enumerate("abc"))
    plot = Plot(a, (b, c), rows=2)
    plot.pull()
    assert [len(picture.marks) for picture in plot.pictures()] == [1, 2]
    assert plot.shape == (2, 1)
    assert [cell.title for cell in plot.cells] == ["a", "b, c"]
    plot.add(stream_of([5.0], name="d"), to=0, axis="right")
    plot.add(stream_of(["text"], name="e"))
    plot.remove(b, c)
    plot.pull()
    assert [picture.title for picture in plot.pictures()] == ["a, d", "e"]
    assert [[getattr(mark, "name", "") for mark in picture.marks] for picture in plot.pictures()] == [["a", "d"], [""]]


@pytest.mark.parametrize(("count", "shape"), [(1, (1, 1)), (2, (1, 2)), (3, (2, 2)), (5, (2, 3)), (10, (4, 3))])
def test_charts_stand_about_square(count, shape):
    assert Plot(*(stream_of([1.0]) for _ in range(count))).shape == shape


def test_an_object_that_cannot_be_plotted_is_an_error_at_once():
    with pytest.raises(ValueError, match="no chart 'pi'"):
        looptap.plot(Stream("later"), chart="pi")
    with pytest.raises(TypeError, match="draws streams, not float"):
        looptap.plot(0.5)
    with pytest.raises(IncompatibleStreams, match="'a' and 'b'"):
        looptap.plot([stream_of([1.0], name="a"), stream_of(["x"], name="b")])


def test_a_stream_that_was_refused_is_not_on_the_plot():
    plot = looptap.plot(stream_of([1.0], name="a"))
    with pytest.raises(IncompatibleStreams):
        plot.add(stream_of(["x"], name="b"), to=0)
    waiting = looptap.plot([Stream("later")])
    waiting.add(stream_of([1.0], name="a"), to=0)
    with pytest.raises(IncompatibleStreams):
        waiting.add(stream_of(["x"], name="b"), to=0)
    assert [len(cell.streams) for cell in (*plot.cells, *waiting.cells)] == [1, 2]


def test_the_user_chooses_the_chart_and_what_is_drawn():
    stream = stream_of([(1, 2, 3), (2, 4, 5)], name="s", fields=("step", "loss", "lr"))
    plot = looptap.plot(stream, chart="line", x="step", y="lr", title="Rates")
    plot.pull()
    (picture,) = plot.pictures()
    assert [mark.y.tolist() for mark in picture.marks] == [[3, 5]]
    assert picture.title == "Rates"
    bars = looptap.plot(stream_of([1, 1, 2], name="n"), chart="histogram")
    bars.pull()
    assert isinstance(bars.pictures()[0].marks[0], Bars)


def test_pausing_before_and_after_the_first_value():
    stream = Stream("loss")
    plot = Plot(stream)
    plot.pause()
    stream.publish(Batch(1, array("q", [1]), array("d", [1.0]), [1.0]))
    plot.pull()
    assert plot.pictures()[0].marks == ()
    plot.resume()
    plot.pull()
    assert isinstance(plot.pictures()[0].marks[0], Line)


def test_the_commands_of_a_run_are_marked_by_default():
    agent, run = pair("commanded")
    settings = {"lr": 0.1}
    agent.control("lr", lambda: settings["lr"], lambda lr: settings.update(lr=lr))
    loss = run.stream("step, loss", on="batch")
    agent.emit("batch", step=1, loss=0.5)
    plot = Plot(loss)
    plot.pull()
    changed = threading.Thread(target=lambda: run.set("lr", 0.01))
    changed.start()
    steps = iter(range(2, 1_000_000))
    soon(lambda: agent.emit("batch", step=next(steps), loss=0.25) or settings["lr"] == 0.01)
    changed.join()
    soon(lambda: plot.pull() and plot.pictures()[0].rules)
    (rule,) = plot.pictures()[0].rules
    assert rule.text == "lr 0.1 → 0.01"
    assert rule.x in plot.pictures()[0].marks[0].x
    agent.close()


def test_an_unsafe_query_is_marked_on_the_charts_of_its_run():
    agent, run = pair("asked")
    plot = Plot(run.stream("step, loss", on="batch"))
    for step in range(3):
        agent.emit("batch", step=step, loss=0.5)
    stream = run.stream("step + 1", unsafe=True)
    agent.emit("batch", step=3, loss=0.5)

    def marked(text):
        plot.pull()
        return [(rule.x, rule.text) for rule in plot.pictures()[0].rules] == [(2, text)]

    soon(lambda: marked("unsafe step + 1 (running)"))
    stream.close()
    soon(lambda: marked("unsafe step + 1 (ended)"))
    agent.close()


def test_saving_commands_at_once_includes_all_given_so_far(tmp_path):
    agent, run = pair("saved")
    settings = {"lr": 0.1}
    agent.control("lr", lambda: settings["lr"], lambda lr: settings.update(lr=lr))
    loss = run.stream("step, loss", on="batch")

    def set_to(lr):
        changed = threading.Thread(target=lambda: run.set("lr", lr))
        changed.start()
        soon(lambda: agent.emit("batch", step=loss.newest + 1, loss=0.25) or settings["lr"] == lr)
        changed.join()

    agent.emit("batch", step=0, loss=0.5)
    set_to(0.01)
    plot = Plot(loss)
    plot.save(tmp_path / "loss.txt")
    assert [rule.text for rule in plot.pictures()[0].rules] == ["lr 0.1 → 0.01"]
    set_to(0.001)
    plot.save(tmp_path / "loss.txt")  # also what came after the last question
    assert [rule.text for rule in plot.pictures()[0].rules] == ["lr 0.1 → 0.01", "lr 0.01 → 0.001"]
    agent.close()
    plot.save(tmp_path / "loss.txt")
    assert len(plot.pictures()[0].rules) == 2


# ---------------------------------------------------------------- several runs


@pytest.fixture
def runs(tmp_path):
    """Return two stored runs of one name, with a command in the second."""
    files = []
    for number, rate in enumerate((0.5, 0.25)):
        agent, run = pair("digits", store=str(tmp_path / f"run-{number}.looptap"))
        settings = {"lr": 1.0}
        agent.control("lr", lambda settings=settings: settings["lr"], lambda lr, s=settings: s.update(lr=lr))
        agent.stream("loss", "step, loss", on="batch", keep=True)
        agent.stream("accuracy", "step, 1 - loss", on="batch", keep=True)
        for step in range(10):
            if number and step == 5:
                changed = threading.Thread(target=lambda run=run: run.set("lr", 0.1, on="epoch"))
                changed.start()
                soon(lambda agent=agent, s=settings: agent.emit("epoch") or s["lr"] == 0.1)
                changed.join()
            agent.emit("batch", step=step, loss=rate**step)
        agent.close()
        files.append(looptap.open(tmp_path / f"run-{number}.looptap"))
    yield files
    for file in files:
        file.close()


def test_stored_runs_are_compared_on_one_chart_with_a_legend_and_marks(runs):
    plot = looptap.compare(*runs, "loss", "accuracy", x="step")
    plot.pull()
    first, second = plot.pictures()
    one, two = first.marks
    assert (one.x.tolist(), two.y[1]) == (list(range(10)), 0.25)
    assert one.name != two.name
    assert all(name.startswith("digits ") for name in (one.name, two.name))
    assert (one.color != two.color, one.dash, two.dash) == (True, "solid", "dash")
    assert [mark.color for mark in second.marks] == [one.color, two.color]
    assert [rule.text for rule in first.rules] == ["lr 1.0 → 0.1"]
    assert first.x.title == "step"


def test_a_live_run_is_compared_with_a_stored_one_over_relative_time(runs):
    agent, run = pair("digits")
    agent.stream("loss", "step, loss", on="batch")
    agent.emit("batch", step=0, loss=0.75)
    plot = looptap.compare(runs[0], run, "loss", x="time")
    plot.pull()
    stored, live = plot.pictures()[0].marks
    assert (stored.x[0], live.x.tolist(), live.y.tolist()) == (0, [0], [0.75])
    agent.close()


def test_the_table_of_final_and_best_values(runs):
    table = looptap.compare(*runs, "loss", "accuracy").summary()
    assert [(row["stream"], row["values"], row["best_is"], row["at"]) for row in table] == [
        ("loss", 10, "min", 9), ("loss", 10, "min", 9), ("accuracy", 10, "max", 9), ("accuracy", 10, "max", 9),
    ]  # fmt: skip
    assert [row["final"] for row in table[:2]] == [0.5**9, 0.25**9]
    assert all(row["run"].startswith("digits ") for row in table)
    pandas = pytest.importorskip("pandas")
    assert list(pandas.DataFrame(table)["best"]) == list(table.to_pandas()["best"])
    assert table.__rich__().row_count == 4
    assert "accuracy" in repr(table)


def test_a_summary_escapes_what_comes_from_the_job():
    shown = Plot(stream_of([1.0], name="<script>")).summary()._repr_html_()
    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown


def test_a_summary_counts_no_value_where_a_row_of_a_join_has_none():
    train = stream_of([(step, 1.0 - step / 10) for step in range(6)], fields=("step", "loss"))
    val = stream_of([(0, 2.0), (3, math.nan), (4, 1.5)], fields=("step", "val_loss"))
    rows = Plot(looptap.join(train, val, how="outer")).summary()
    found = [(row["values"], row["final"], row["best"], row["at"]) for row in rows]
    assert found == [(6, 0.5, 0.5, 5), (3, 1.5, 1.5, 4)]
    (dicts,) = Plot(stream_of([{"a": 1.0}, None, {"b": 2.0}, {"a": 3.0}])).summary()
    assert (dicts["values"], dicts["final"]) == (2, 3.0)


def test_a_run_without_the_stream_is_left_out_and_named(runs, tmp_path):
    agent, _ = pair("other", store=str(tmp_path / "other.looptap"))
    agent.stream("lr", "lr", keep=True)
    agent.emit("batch", lr=1.0)
    agent.close()
    with looptap.open(tmp_path / "other.looptap") as other:
        plot = looptap.compare(runs[0], other, "loss")
        plot.pull()
        (badge,) = plot.pictures()[0].badges
        assert "other is left out: There is no stream 'loss'" in badge
        with pytest.raises(looptap.StoreError, match="no stream 'speed'"):
            looptap.compare(runs[0], other, "speed")
    with pytest.raises(TypeError, match="takes runs, names of their streams, and streams, not int"):
        looptap.compare(1, "loss")
    with pytest.raises(ValueError, match="runs and names"):
        looptap.compare(runs[0])


# ---------------------------------------------------------------- the documentation


def test_the_custom_chart_in_the_documentation_works():
    page = (ROOT / "docs/charts.md").read_text()
    (code,) = [block for block in re.findall(r"```python\n(.*?)```", page, re.S) if "@register" in block]
    assert len(code.splitlines()) <= 30
    names: dict[str, object] = {}
    exec(code, names)  # what the page shows
    plot = names["plot"]
    plot.pull()
    (picture,) = plot.pictures()
    assert [type(mark) for mark in picture.marks] == [Line, Line]
    assert picture.badges == ("speed: 1 value skipped: expected (low, high), got str",)


def test_the_documentation_names_every_chart():
    from looptap.visualizers.charts.registry import ALIASES, KINDS

    page = (ROOT / "docs/charts.md").read_text()
    own = {"range"}
    assert not [kind for kind in {*KINDS, *ALIASES} - own if f"`{kind}`" not in page]
