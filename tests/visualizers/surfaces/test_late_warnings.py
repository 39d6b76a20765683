"""A change that the job undoes later is reported in each panel."""

from __future__ import annotations

import pytest
from own_rate_job import own_rate
from waiting import soon

import looptap
from looptap.visualizers.surfaces.panels.run_controls import RunControls
from looptap.visualizers.surfaces.web.run_facts import RunFacts

RATE = "optimizer.lr"
WARNING = "it did not last: the job's own code set it to 0.001 by step"


@pytest.fixture
def run(processes, place, tmp_path):
    """Return a client of a script that writes its learning rate at each step."""
    with own_rate(tmp_path, "step"), looptap.attach("own") as run:
        soon(lambda: RATE in run.controls)
        yield run


def test_a_panel_shows_what_became_of_its_own_change_until_the_next(run):
    controls = RunControls(run)
    controls.refresh()
    knob = controls.knobs[RATE]
    controls.ask(knob, 0.005)
    soon(lambda: not knob.busy)
    assert knob.outcome.startswith("set optimizer.lr: 0.001 → 0.005")
    soon(lambda: controls.refresh() or WARNING in knob.remark)
    soon(lambda: controls.refresh() or knob.warns)
    controls.ask(knob, -1.0)
    soon(lambda: knob.failed)
    assert not knob.warns
    assert "must be" in knob.remark


def test_a_panel_shows_the_change_that_came_after_its_own(run):
    controls = RunControls(run)
    controls.refresh()
    knob = controls.knobs[RATE]
    run.set(RATE, 0.004)
    controls.refresh()
    assert "0.004" not in knob.outcome, "only what became of a change made here"
    controls.ask(knob, 0.005)
    soon(lambda: not knob.busy)
    run.set(RATE, 0.006, expected=None)
    soon(lambda: controls.refresh() or "→ 0.006" in knob.outcome)


def test_a_panel_compares_the_next_change_with_its_own_last_one(run):
    controls = RunControls(run)
    controls.refresh()
    knob = controls.knobs[RATE]
    controls.ask(knob, 0.05)
    assert "0.001 → 0.05 is a change by a factor of 50" in knob.question
    controls.answer(knob, yes=True)
    soon(lambda: not knob.busy)
    controls.ask(knob, 0.04)  # before the panel has read the controls again
    assert not knob.question
    soon(lambda: not knob.busy)
    assert knob.outcome.startswith("set optimizer.lr")


def test_a_notebooks_panel_shows_a_warning_in_place_of_the_new_value(run):
    pytest.importorskip("ipywidgets", reason="notebooks are not tested: pip install 'looptap[notebook]'")
    from looptap.visualizers.surfaces.notebook.overview import overview
    from looptap.visualizers.surfaces.notebook.panel import panel

    shown, whole = panel(run), overview(run)
    row = shown.rows[RATE]
    with looptap.attach("own") as other:
        other.set(RATE, 0.005)
    soon(lambda: WARNING in row.outcome.value.replace("&#x27;", "'"))
    assert "b00020" in row.outcome.value
    shown.step(0.0)
    assert "it did not last" in row.outcome.value
    soon(lambda: "it did not last" in str([one.value for one in texts(whole)]))
    shown.close()
    whole.close()


def texts(box):
    """Return the widgets with a text in a box."""
    for child in box.children:
        yield from texts(child) if hasattr(child, "children") else [child] if hasattr(child, "value") else []


def test_a_page_shows_a_warning_beside_the_control_and_with_the_command(run):
    facts = RunFacts(run)
    facts.look()
    assert facts.turn(RATE, 0.005) == ""

    def knob():
        return next(one for one in facts.look()["knobs"] if one["name"] == RATE)

    soon(lambda: WARNING in knob()["outcome"])
    soon(lambda: knob()["failed"])
    soon(lambda: facts.look()["commands"][0][-1].startswith(WARNING))
    facts.close()


def test_a_window_shows_a_warning_under_the_control(run):
    pyplot = pytest.importorskip("matplotlib.pyplot", reason="windows are not tested: pip install 'looptap[window]'")
    from looptap.visualizers.plot import Plot
    from looptap.visualizers.surfaces.window import ChartWindow

    before = pyplot.get_backend()
    pyplot.switch_backend("agg")
    try:
        shown = ChartWindow(Plot(run.stream("loss", on="step")), say=str)
        shown.figure.set_size_inches(8, 8)
        soon(lambda: shown.turn() or (shown.panel is not None and RATE in shown.panel.rows))
        run.set(RATE, 0.005, expected=None)
        row = shown.panel.rows[RATE]
        soon(lambda: shown.turn() or row.outcome.get_text().startswith("it did not last"))
        assert row.outcome.get_color() == shown.panel.theme.warning
    finally:
        pyplot.close("all")
        pyplot.switch_backend(before)


def test_the_list_of_commands_has_the_warning(run, capsys):
    from looptap.cli import main

    run.set(RATE, 0.005)
    soon(lambda: WARNING in str(run.commands))
    with pytest.raises(SystemExit):
        main(["commands", "own"])
    assert WARNING in capsys.readouterr().out
