"""`looptap top` as its user meets it: a real run, keys, what stands on the screen."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

import looptap

pytest.importorskip("textual", reason="looptap top is not tested: it needs textual (pip install 'looptap[terminal]')")
from looptap.cli.top_app import StreamView, Top

WAIT = 20.0
EVIL = "\x1b[2J[red]<script>"


class Echo:
    factor = looptap.Control(int, default=2, minimum=1, maximum=16, doc="how often a batch is used", at="batch")


@pytest.fixture
def job(directory):
    """A loop of a real agent, reached by its socket."""
    with looptap.Agent("small", may_pause=20.0) as agent:
        agent.expose(echo=Echo())
        agent.stream("loss", "step, 1 / (step + 1)", unit="nats")
        over = threading.Event()

        def train():
            step = 0
            while not over.wait(0.003):
                agent.emit("batch", step=step, evil=EVIL)
                step += 1

        thread = threading.Thread(target=train)
        thread.start()
        yield agent
        over.set()
        agent._service.steering.pause.resume()
        thread.join(10)


def shown(app):
    """What stands on the screen, as text."""
    return "\n".join(
        "".join(segment.text for segment in line) for line in app.screen._compositor.render_strips()
    )


async def until(pilot, condition, what):
    deadline = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < deadline, f"{what}; the screen:\n{shown(pilot.app)}"
        await pilot.pause(0.02)


def screen(scenario, size=(120, 40), queries=()):
    """Play ``scenario(app, pilot)`` against the run, as a user at a terminal of this size."""

    async def play():
        with looptap.attach("small") as run:
            app = Top(run, [run.stream(query) for query in queries])
            async with app.run_test(size=size) as pilot:
                await scenario(app, pilot)
        return app

    return asyncio.run(play())


def test_a_run_stands_on_the_screen_with_rates_costs_streams_and_controls(job):
    async def scenario(app, pilot):
        await until(pilot, lambda: "/s)" in shown(app) and "nats" in shown(app), "rates and the standing stream")
        text = shown(app)
        assert job.run.id in text
        for part in ("live", "events   batch", "of the loop's time", "I/O thread", "loss  on batch", "echo.factor = 2",
                     "none so far", "step * 2"):
            assert part in text
        await until(pilot, lambda: "▁" in shown(app), "a curve")

    screen(scenario, queries=["step * 2"])


def test_a_control_is_set_by_keys_and_the_outcome_shown(job):
    async def scenario(app, pilot):
        await until(pilot, lambda: "echo.factor = 2" in shown(app), "the control")
        await pilot.press("e", "enter")
        await until(pilot, lambda: "new value" in shown(app), "the question")
        await pilot.press("backspace", "5", "enter")
        await until(pilot, lambda: "set echo.factor: 2 → 5, at batch" in shown(app), "the outcome")
        await until(pilot, lambda: "echo.factor = 5" in shown(app) and "set echo.factor 2 → 5" in shown(app), "both")
        await pilot.press("e", "enter")
        await until(pilot, lambda: "new value" in shown(app), "the question")
        await pilot.press("9", "9", "enter")
        await until(pilot, lambda: "it is a whole number from 1 to 16" in shown(app), "the refusal")

    screen(scenario)


def test_queries_are_added_and_dropped_by_keys(job):
    async def scenario(app, pilot):
        await pilot.press("a")
        await until(pilot, lambda: "A query, or the name" in shown(app), "the question")
        await pilot.press(*"step ** 2".replace(" ", ""), "enter")
        await until(pilot, lambda: "Added: step**2" in shown(app), "the query")
        await until(pilot, lambda: len(app.query(StreamView)) == 2, "both streams")
        await pilot.press("a")
        await until(pilot, lambda: "A query, or the name" in shown(app), "the question")
        await pilot.press(*"foo(", "enter")
        await until(pilot, lambda: "not a Python expression" in shown(app), "the error")
        app.query(StreamView).last().focus()
        await pilot.press("d")
        await until(pilot, lambda: "Dropped: " in shown(app) and len(app.query(StreamView)) == 1, "one is gone")
        assert {query.state for query in app.job.attached} <= {"live", "ended"}

    screen(scenario)


def test_pause_resume_and_stop_only_after_a_yes(job):
    async def scenario(app, pilot):
        await pilot.press("s")
        await until(pilot, lambda: "to stop at its next event?" in shown(app), "the question")
        await pilot.press("n")
        await until(pilot, lambda: "Left as it is" in shown(app), "no")
        await pilot.press("p", "y")
        await until(pilot, lambda: app.job.paused and "paused  pid" in shown(app), "the pause")
        await pilot.press("p")
        await until(pilot, lambda: "Let the job go on?" in shown(app), "the other question")
        await pilot.press("y")
        await until(pilot, lambda: "resume: " in shown(app), "the outcome")
        assert not job.stop_requested
        await pilot.press("s", "y")
        await until(pilot, lambda: job.stop_requested and "stop, at batch" in shown(app), "the stop")

    screen(scenario)


@pytest.mark.parametrize("size", [(40, 8), (80, 24), (200, 60)])
def test_it_adapts_to_the_size_of_the_terminal(job, size):
    async def scenario(app, pilot):
        await until(pilot, lambda: "step * 2  on batch" in shown(app), "the stream")
        assert app.job.id[:20] in shown(app)
        await pilot.resize_terminal(60, 12)
        await until(pilot, lambda: "loss  on batch" in shown(app), "the stream")
        await pilot.resize_terminal(*size)
        await pilot.pause(0.5)

    screen(scenario, size=size, queries=["step * 2"])


def test_hostile_names_and_values_are_shown_as_text(job):
    job.stream("evil [blink]", "evil")

    async def scenario(app, pilot):
        await until(pilot, lambda: "\\x1b[2J[red]<script>" in shown(app), "the value, written out")
        assert "evil [blink]" in shown(app)
        assert "\x1b" not in shown(app)

    screen(scenario, queries=["[step, float('nan'), float('inf'), 10 ** 400]", "-1e308 if step % 2 else 1e308"])


@pytest.mark.parametrize("key", ["q", "ctrl+c"])
def test_a_run_that_ends_is_said_and_the_screen_left_by_a_key(job, key):
    async def scenario(app, pilot):
        await until(pilot, lambda: "live" in shown(app), "the run")
        job.close("all epochs are done")
        await until(pilot, lambda: "ended" in shown(app) and "all epochs are done" in shown(app), "the end")
        await pilot.press(key)

    app = screen(scenario)
    assert app.return_code == 0
    assert not app.is_running
