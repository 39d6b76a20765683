"""A query that names an exposed object draws the charts that its class declares."""

from __future__ import annotations

import pytest
from selecting import COUNT, Pictures, trained

import looptap
from looptap.testing import Clock, pair
from looptap.training.echoing import Echo
from looptap.training.progress import Progress


class Meter:
    """An observable object of the host, with a panel in three lines."""

    __looptap_panel__ = (
        ("speed", "self.speed"),
        ("each", "{'a': self.speed, 'self': 2}", "bars", 0.0),
        ("odd", "self.speed", "no such kind"),
    )
    speed = 1.5

    def __repr__(self):
        return f"<Meter at {self.speed}>"


class Bare:
    pass


def shown(name, thing, **how):
    """Return an agent, the stream of the name of an exposed object, and its plot."""
    agent, run = pair(clock=Clock())
    agent.expose(**{name: thing})
    stream = run.stream(name)
    return agent, stream, looptap.plot(stream, **how)


def charts(plot):
    plot.pull()
    return {cell.title: cell.chart and cell.chart.kind for cell in plot.cells}


def test_the_name_of_an_object_with_a_panel_draws_its_charts_and_reads_as_its_repr():
    agent, stream, plot = shown("meter", Meter())
    agent.emit("batch")
    assert charts(plot) == {"speed": "line", "each": "bars", "odd": "line"}
    assert [cell.streams[0].values for cell in plot.cells] == [[1.5], [{"a": 1.5, "self": 2}], [1.5]]
    agent.emit("batch")
    assert stream.values == ["<Meter at 1.5>"], "one line in half a second: the panel shows more"
    assert len(looptap.plot(stream).cells) == 3
    assert len(stream.run.attached) == 4, "drawn again, it needs no further queries"
    agent.close()


def test_a_panel_can_be_added_to_a_plot_and_other_ways_to_draw_the_object_stay():
    agent, stream, _ = shown("meter", Meter())
    loss = stream.run.stream("step, loss")
    plot = looptap.plot(loss)
    plot.add(stream)
    agent.emit("batch", step=1, loss=0.5)
    assert charts(plot) == {"step, loss": "line", "speed": "line", "each": "bars", "odd": "line"}
    assert charts(looptap.plot(stream, chart="text")) == {"meter": "text"}
    assert charts(looptap.plot([stream])) == {"meter": "text"}
    agent.close()


def test_an_object_without_a_panel_says_why_it_is_not_drawn():
    agent, stream, plot = shown("thing", Bare())
    agent.emit("batch")
    agent.emit("epoch")
    assert charts(plot) == {"thing": None}
    assert "cannot leave the job" in stream.traceback
    agent.close()


@pytest.mark.parametrize("hint", [3, (1, 2), (("title",),), (("title", 5),), (("a", "self.a", "line", "often"),)])
def test_a_panel_that_is_wrong_is_left_out_and_said(hint):
    wrong = type("Wrong", (), {"__looptap_panel__": hint})()
    agent, stream, plot = shown("wrong", wrong)
    agent.emit("batch")
    assert len(plot.cells) == 1
    assert any("__looptap_panel__ that cannot be drawn" in note for note in stream.notes)
    agent.close()


def test_selection_echo_and_progress_have_panels_that_are_drawn(tmp_path):
    echo = Echo([[1, 2], [3, 4]], factor=2, mode="batch")
    progress = Progress(echo, max_steps=100)
    pictures = Pictures("tensor")
    selection = trained(pictures, samples=pictures)
    agent, run = pair()
    agent.expose(echo=echo, progress=progress, assistant=selection)
    plot = looptap.plot(*map(run.stream, ("echo", "progress", "assistant")))
    for _ in progress.train():
        agent.emit("batch")
    found = charts(plot)
    assert not [note for cell in plot.cells for note in (cell.streams[0].traceback,) if note]
    kinds = (
        ["line"] * 2 + ["band", "line", "line"] + ["line"] * 4 + ["bars", "histogram", "histogram", "images", "images"]
    )
    waiting = found.pop("share of the time waiting for data")
    assert waiting in (None, "line"), "it is known once the loop has waited"
    assert list(found.values()) == kinds
    plot.save(tmp_path / "panel.txt")
    looptap.plot(run.attached[1]).save(tmp_path / "panel.png")
    text = (tmp_path / "panel.txt").read_text()
    assert all(title in text for title in found)
    agent.close()


def test_a_panel_of_a_selection_without_a_data_set_says_what_is_missing():
    agent, _, plot = shown("assistant", trained(COUNT))
    agent.emit("batch")
    plot.pull()
    text = str(plot.pictures()[-1])
    assert "pass it instead of its length" in text
    agent.close()
