"""Screens without a query open with the curves of what events carry."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import textwrap
import time

import pytest
import torch
import warm
from training_loop import training
from waiting import soon

import looptap
from looptap.cli.options import query_arguments
from looptap.cli.sources import streams_of
from looptap.testing import Clock, pair
from looptap.visualizers.first_curves import GRADIENT_NORM, Curve, first_curves

JOB = """
    import time, torch, looptap
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    agent = looptap.Agent("plain")
    agent.expose(model=model, optimizer=optimizer)
    for step in range(10**9):
        if step % 100 == 0:
            loss = ((model(torch.ones(8, 4)) - 1) ** 2).mean() + 1 / (step + 1)
            optimizer.zero_grad(); loss.backward(); optimizer.step()
        agent.emit("batch", step=step, loss=loss, accuracy=1 - 1 / (step + 1))
        if step == 8000:
            print("there", flush=True)
        if step >= 8000:
            time.sleep(0.002)
"""
"""A job of which nothing is declared."""


@pytest.fixture
def job(processes, directory):
    """Yield such a job, 8,000 steps after its start."""
    with warm.Popen([sys.executable, "-c", textwrap.dedent(JOB)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "there\n"
        yield process
        process.kill()


def test_the_loss_comes_first_then_accuracy_rate_norm_speed_and_the_rest():
    clock = Clock()
    job = pair(history=True, clock=clock)
    for step in range(3):
        clock.advance(1.0)
        job.agent.emit(
            "batch", step=step, momentum=0.9, grad_norm=2.0, lr=0.1, acc=0.5, train_loss=2.5, **{"val/loss": 3.0}
        )
        job.parts.sources.by_name["batch"].mark()
    curves = first_curves(job.run.scalars)
    assert [one.name for one in curves] == ["train_loss", "val/loss", "acc", "lr", "grad_norm", "events per second"]
    assert [one.query for one in curves[:2]] == ["step, train_loss", "step, val/loss"]
    for curve in first_curves(job.run.scalars):
        stream = job.run.stream(curve.query, on=curve.on, history=True)
        assert len(stream.values) >= 2, curve
        assert stream.history is not None


def test_a_flag_is_no_curve():
    agent, run = pair(history=True)
    for _ in range(3):
        agent.emit("evaluation", val_loss=0.5, guess=True)
    assert [one.name for one in first_curves(run.scalars) if one.name != "events per second"] == ["val_loss"]


def test_what_the_job_declares_is_not_drawn_twice_and_counting_alone_is_no_curve():
    agent, run = pair(history=True)
    agent.emit("batch", step=1, loss=0.5)
    agent.stream("curve", "step, loss")
    assert first_curves(run.scalars, run.streams) == []
    agent.emit("epoch", epoch=1, error=0.5)
    assert first_curves(run.scalars, run.streams) == [Curve("epoch, error", "epoch", "error")]


def test_the_norm_of_all_gradients_can_be_asked_for():
    agent, run = pair(history=True)
    model = torch.nn.Linear(2, 1)
    model(torch.ones(1, 2)).sum().backward()
    agent.expose(model=model)
    norm = run.stream(GRADIENT_NORM, on="batch")
    agent.emit("batch", loss=1.0)
    assert norm.values == [pytest.approx(3**0.5)]


def test_plot_without_a_query_draws_the_curves_from_the_first_event(job, here, tmp_path):
    picture = tmp_path / "curves.svg"
    code, out, err = here("plot", "plain", "--save", picture, "--after", "0.5")
    assert (code, err) == (0, "")
    assert "drawn" in out
    text = picture.read_text()
    for name in ("loss", "accuracy", "optimizer.lr"):
        assert name in text


def test_a_query_of_plain_names_on_a_named_event_is_drawn_from_the_first_event_too(job):
    with looptap.attach("plain") as run:
        (loss,) = streams_of(run, ["step, loss"], query_arguments("batch", None, 1, None))
        assert (loss.records[0].event, loss.records[0].history) == (1, True)
        assert "live ones follow event" in loss.notes[0]


def test_plot_of_a_job_that_has_raised_no_event_says_what_to_do(directory, here):
    with looptap.Agent("silent"):
        code, _, err = here("plot", "silent")
    assert code == 1
    assert "carry no number so far" in err


@pytest.mark.promise("scalars")
def test_top_without_a_query_opens_with_the_curves_from_the_first_event(job):
    pytest.importorskip("textual")
    from looptap.cli.top.app_screen import StreamView, Top

    async def play():
        with looptap.attach("plain") as run:
            app = Top(run)
            async with app.run_test(size=(120, 40)) as pilot:
                deadline = time.monotonic() + 60
                while len(app.query(StreamView)) < 4:
                    assert time.monotonic() < deadline
                    await pilot.pause(0.02)
                views = [view.shown.stream for view in app.query(StreamView)]
                assert [stream.name for stream in views] == [
                    "loss", "accuracy", "optimizer.lr", "events per second"
                ]  # fmt: skip
                assert (views[0].records[0].event, views[0].values[0].step) == (1, 0)
                await pilot.press("g")
                while len(app.query(StreamView)) < 5:
                    assert time.monotonic() < deadline
                    await pilot.pause(0.02)
                norm = app.query(StreamView).last().shown.stream
                while not norm.arrived:
                    assert time.monotonic() < deadline
                    await pilot.pause(0.02)

    asyncio.run(play())


@pytest.fixture
def still(directory):
    """Yield the agent of a job that has raised one event and then stands still."""
    with looptap.Agent("still") as agent:
        agent.emit("batch", step=1, loss=0.5)
        yield agent


def test_an_overview_has_the_loss_of_a_job_that_raises_no_further_event_once_it_is_made(still):
    pytest.importorskip("ipywidgets")
    from looptap.visualizers.surfaces.notebook.overview import overview

    with looptap.attach("still") as run:
        shown = overview(run)
        try:
            assert [(one.name, one.values) for one in run.attached] == [("loss", [(1, 0.5)])]
            assert any(getattr(part, "children", ()) for part in shown.children)
        finally:
            shown.close()


def test_a_saved_picture_with_an_empty_chart_says_why_it_is_empty(directory, here, tmp_path):
    with looptap.Agent("some") as agent, training(agent, loss=0.5):
        _, out, err = here("plot", "some", "loss", "loss / 0", "--save", tmp_path / "some.svg", "--after", "0.5")
    assert "drawn; saved: " in out
    assert err.startswith("looptap: No value of 'loss / 0' came, so its chart is empty. ")
    assert "division by zero" in err


def test_plot_has_the_loss_of_a_job_that_raises_no_further_event_at_once(still, here, tmp_path):
    code, out, err = here("plot", "still", "--save", tmp_path / "loss.svg", "--after", "0")
    assert (code, out.startswith("1 value drawn"), err) == (0, True, "")


def top_with(name, seen, meanwhile=lambda: None):
    """Open `looptap top`, call ``meanwhile``, and wait until ``seen`` is true."""
    pytest.importorskip("textual")
    from looptap.cli.top.app_screen import StreamView, Top

    async def play():
        with looptap.attach(name) as run:
            app = Top(run)
            async with app.run_test(size=(120, 40)) as pilot:
                while not app.seen.host:  # the first round of requests has been shown
                    await pilot.pause(0.02)
                meanwhile()
                deadline = time.monotonic() + 60
                while not seen([(view.shown.stream.name, view.shown.stream.values) for view in app.query(StreamView)]):
                    assert time.monotonic() < deadline
                    await pilot.pause(0.02)

    asyncio.run(play())


def test_top_has_the_loss_of_a_job_that_raises_no_further_event(still):
    top_with("still", lambda streams: streams == [("loss", [(1, 0.5)])])


def test_screens_that_were_opened_before_the_first_event_get_its_curves_when_it_comes(directory):
    pytest.importorskip("ipywidgets")
    from looptap.visualizers.surfaces.notebook.overview import overview

    with looptap.Agent("early") as agent, looptap.attach("early") as run:
        shown = overview(run)
        try:
            assert run.attached == []
            top_with("early", lambda streams: streams, lambda: agent.emit("batch", step=1, loss=0.5))
            soon(lambda: [one.values for one in run.attached] == [[(1, 0.5)]])
        finally:
            shown.close()


def test_top_prints_the_scalars_as_json(job, here):
    code, out, _ = here("top", "plain", "--json")
    found = {one["name"]: one for one in json.loads(out)["scalars"]}
    assert code == 0
    assert (found["loss"]["first"], found["optimizer.lr"]["value"]) == (1, 0.1)


def test_an_overview_opens_with_the_curves_and_asks_for_the_norm_at_one_click(job):
    ipywidgets = pytest.importorskip("ipywidgets")
    from looptap.visualizers.surfaces.notebook.overview import overview

    with looptap.attach("plain") as run:
        shown = overview(run)
        try:
            soon(lambda: {"loss", "accuracy"} <= {stream.name for stream in run.attached})
            loss = next(stream for stream in run.attached if stream.name == "loss")
            assert loss.records[0].event == 1
            (button,) = [part for part in shown.children if isinstance(part, ipywidgets.Button)]
            assert button.layout.display != "none"
            button.click()
            soon(lambda: any(stream.name == "gradient norm" and stream.arrived for stream in run.attached))
            assert button.layout.display == "none"
        finally:
            shown.close()
