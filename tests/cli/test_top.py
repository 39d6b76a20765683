"""`looptap top` with a real run: keys, and the contents of the screen."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from array import array
from dataclasses import replace

import pytest
import warm
from own_rate_job import own_rate
from programs import need
from relays import Proxy
from training_loop import training
from waiting import soon

import looptap
from looptap.client.run import Run
from looptap.client.transport.zmq_client import ZmqTransport
from looptap.protocol.files.connection import read_connection_file

pytest.importorskip("textual", reason="looptap top is not tested: it needs textual (pip install 'looptap[terminal]')")
from looptap.cli import main
from looptap.cli.top.app_screen import StreamView, Top
from looptap.cli.top.model import Facts
from looptap.cli.top.views import StreamSummary, newest_commands
from looptap.streams.stream.buffer import Batch
from looptap.streams.stream.stream import Stream

WAIT = 300.0
JOB = """
import threading, sys, looptap
agent = looptap.Agent("small")
agent.stream("loss", "1 / (step + 1)")
over, step = threading.Event(), 0
threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
while not over.wait(0.003):
    agent.emit("batch", step=step)
    step += 1
"""
PARTS = "▁▂▃▄▅▆▇█"
EVIL = "\x1b[2J[red]<script>"


def test_the_curve_of_a_stream_breaks_where_values_are_missing():
    stream = Stream("loss")
    stream.unit = ""
    seen = StreamSummary(stream)
    for first, values in ((1, [0.0, 1.0]), (7, [2.0, 3.0]), (9, [4.0, 5.0])):
        numbers = array("q", range(first, first + 2))
        stream.publish(Batch(first, numbers, array("d", map(float, numbers)), values))
        seen.look()
    _, curve, span = seen.draw(40, 3).plain.splitlines()
    assert [len(part) for part in curve.split(" ")] == [2, 4]
    assert set(curve) <= {*PARTS, " "}
    assert span == "the last 6: 0 to 5"


class Echo:
    factor = looptap.Control(int, default=2, minimum=1, maximum=16, doc="how often a batch is used", at="batch")


@pytest.fixture
def job(directory):
    """Run a loop with a real agent, reached by its socket."""
    with looptap.Agent("small", may_pause=20.0) as agent:
        agent.expose(echo=Echo())
        agent.stream("loss", "step, 1 / (step + 1)", unit="nats")
        with training(agent, evil=EVIL):
            yield agent


def shown(app):
    """Return the text on the screen."""
    return "\n".join("".join(segment.text for segment in line) for line in app.screen._compositor.render_strips())


async def until(pilot, condition, what):
    deadline = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < deadline, f"{what}; the screen:\n{shown(pilot.app)}"
        await pilot.pause(0.02)


def screen(scenario, size=(120, 40), queries=(), name="small"):
    """Play ``scenario(app, pilot)`` with the run on a terminal of this size."""

    async def play():
        with looptap.attach(name) as run:
            app = Top(run, [run.stream(query) for query in queries])
            async with app.run_test(size=size) as pilot:
                await scenario(app, pilot)
        return app

    return asyncio.run(play())


def test_the_screen_shows_a_run_with_rates_costs_streams_and_controls(job):
    async def scenario(app, pilot):
        await until(pilot, lambda: "/s)" in shown(app) and "nats" in shown(app), "rates and the declared stream")
        text = shown(app)
        assert job.run.id in text
        for part in (
            "live",
            "events   batch",
            "of the loop's time",
            "I/O thread",
            "loss  on batch",
            "echo.factor = 2",
            "none so far",
            "step * 2",
        ):
            assert part in text
        await until(pilot, lambda: "┌─" in shown(app) and "⣀" in shown(app), "charts")
        app.query(StreamView).last().focus()
        await pilot.press("enter")
        await until(pilot, lambda: "▁" in shown(app), "the other as a curve on one line")
        await until(pilot, lambda: app.query(StreamView).last().size.height > 20, "the other small")

    screen(scenario, queries=["step * 2"])


def test_a_control_is_set_by_keys_and_the_outcome_shown(job):
    async def scenario(app, pilot):
        await until(pilot, lambda: "echo.factor = 2" in shown(app), "the control")
        await pilot.press("e", "enter")
        await until(pilot, lambda: "new value" in shown(app), "the question")
        await pilot.press("backspace", "5", "enter")
        await until(pilot, lambda: "\n set echo.factor: 2 → 5, at batch" in shown(app), "the outcome")
        await until(pilot, lambda: "echo.factor = 5" in shown(app), "the control")
        await until(pilot, lambda: "│ echo.factor 2 → 5  batch" in shown(app), "the command")
        await until(pilot, lambda: "commands" in [one.name for one in app.seen.streams], "the stream of commands")
        assert [view.shown.stream.name for view in app.query(StreamView)] == ["loss"]  # they have a place of their own
        await pilot.press("e", "enter")
        await until(pilot, lambda: "new value" in shown(app), "the question")
        await pilot.press("9", "9", "enter")
        await until(pilot, lambda: "must be a whole number from 1 to 16" in shown(app), "the refusal")

    screen(scenario)


def test_the_new_value_of_a_command_is_seen_in_a_narrow_place():
    done = {"what": "set", "name": "optimizer.groups.decay.lr", "old": 0.05, "new": 0.0123456, "outcome": "done"}
    seen = replace(Facts("small", "", 0, 0, 1, "", "live", "", 0.0, 0.0), commands=(done,))
    assert newest_commands(seen, 3, 32).plain == "….groups.decay.lr 0.05 → 0.01235"
    assert newest_commands(seen, 3).plain.endswith("set optimizer.groups.decay.lr 0.05 → 0.0123456  done")


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


@pytest.mark.long
def test_a_query_is_added_unsafe_by_a_switch_that_is_off_at_first(job):
    async def scenario(app, pilot):
        for number, keys in enumerate((["tab", "tab", "space", "shift+tab"], []), 1):
            await pilot.press("a")
            await until(pilot, lambda: "unsafe: run it as it is, on record" in shown(app), "the question")
            await pilot.press(*f"step+{number}", *keys, "enter")
            await until(pilot, lambda text=f"Added: step+{number}": text in shown(app), "the query")
        await until(pilot, lambda: "unsafe step+1  running" in shown(app), "the record")
        assert [one["name"] for one in app.job.commands] == ["step+1"]

    screen(scenario)


def test_pause_resume_and_stop_only_after_a_yes(job):
    async def scenario(app, pilot):
        await pilot.press("s")
        await until(pilot, lambda: "to stop at its next event?" in shown(app), "the question")
        await pilot.press("n")
        await until(pilot, lambda: "Nothing was done" in shown(app), "no")
        await pilot.press("p", "y")
        await until(pilot, lambda: app.job.paused and "paused  for" in shown(app), "the pause")
        await pilot.press("p")
        await until(pilot, lambda: "Resume the job?" in shown(app), "the other question")
        await pilot.press("y")
        await until(pilot, lambda: "resume: " in shown(app), "the outcome")
        assert not job.stop_requested
        await pilot.press("s", "y")
        await until(pilot, lambda: job.stop_requested and "stop, at batch" in shown(app), "the stop")

    screen(scenario)


def test_a_large_change_is_asked_about_and_taken_back(job):
    async def scenario(app, pilot):
        async def set_factor(value):
            await until(pilot, lambda: "echo.factor = " in shown(app), "the controls")
            await pilot.press("e", "enter")
            await until(pilot, lambda: "new value" in shown(app), "the prompt")
            await pilot.press("ctrl+u", *str(value), "enter")

        await pilot.press("u")
        await until(pilot, lambda: "nothing to undo" in shown(app), "nothing")
        await set_factor(1)
        await until(pilot, lambda: "set echo.factor: 2 → 1" in shown(app), "a small change")
        await until(pilot, lambda: "echo.factor = 1" in shown(app), "its value")
        await set_factor(16)
        await until(pilot, lambda: "by a factor of 16. Set it?" in shown(app), "the question")
        await pilot.press("n")
        await until(pilot, lambda: "Nothing was done" in shown(app), "no")
        await pilot.press("u")
        await until(pilot, lambda: "echo.factor: 2 → 1 by" in shown(app), "what is taken back")
        await pilot.press("y")
        await until(pilot, lambda: "undo echo.factor: 1 → 2" in shown(app), "the undo")

    screen(scenario)


@pytest.mark.usefixtures("processes")
def test_a_change_that_the_job_undoes_later_is_named_on_the_screen(place, tmp_path):
    async def scenario(app, pilot):
        await until(pilot, lambda: "optimizer.lr = " in shown(app), "the controls")
        looptap.attach("own").set("optimizer.lr", 0.005)
        await until(pilot, lambda: "own code set it to 0.001 by step" in shown(app).splitlines()[-2], "the warning")
        await until(pilot, lambda: "optimizer.lr 0.001 → 0.005  it did not" in shown(app), "the command")

    with own_rate(tmp_path, "step"):
        screen(scenario, size=(150, 40), name="own")


@pytest.mark.parametrize("size", [(40, 8), (80, 24), (200, 60)])
def test_top_adapts_to_the_size_of_the_terminal(job, size):
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


@pytest.mark.usefixtures("processes")
def test_the_config_is_shown_at_a_key_as_text(directory):
    config = {"lr": 0.1, "model": {"width": 8}, "evil [blink]": EVIL}

    async def scenario(app, pilot):
        await pilot.press("c")
        await until(pilot, lambda: "model.width  8" in shown(app), "the settings")
        text = shown(app)
        for part in ("lr  0.1", "evil [blink]  \\x1b[2J[red]<script>", "command  ", "versions  python"):
            assert part in text
        assert "\x1b" not in text
        await pilot.press("escape")
        await until(pilot, lambda: "model.width" not in shown(app), "the screen behind it")
        assert "live" in shown(app)

    with looptap.Agent("small", config=config) as agent:
        agent.emit("batch", loss=0.5)
        screen(scenario)


def test_a_run_without_settings_has_the_facts_of_its_start_at_the_key(job):
    async def scenario(app, pilot):
        await pilot.press("c")
        await until(pilot, lambda: "versions  python" in shown(app), "the facts")
        await pilot.press("q")
        await until(pilot, lambda: "versions" not in shown(app), "the screen behind it")

    screen(scenario)


def test_a_lost_link_is_reported_and_restored(directory):
    with looptap.Agent("far", listen="tcp") as agent:
        agent.stream("loss", "step")
        (path,) = directory.glob("*.json")
        file = read_connection_file(path)

        async def play():
            with Proxy(file.endpoints[0]) as proxy:
                run = Run(ZmqTransport([proxy.endpoint], file.server_public.encode(), file.client), run=file.run)
                app = Top(run)
                async with app.run_test(size=(120, 30)) as pilot:
                    await until(pilot, lambda: "live" in shown(app), "the run")
                    proxy.shut = True
                    proxy.cut()
                    await until(pilot, lambda: "lost" in shown(app), "the loss")
                    proxy.shut = False
                    await until(pilot, lambda: "live" in shown(app).split("\n")[0], "the link")
                    agent.emit("batch", step=1)
                    await until(pilot, lambda: "batch 1" in shown(app), "what happened since")
                run.close()

        asyncio.run(play())


@pytest.mark.parametrize("key", ["q", "ctrl+c"])
def test_a_run_that_ends_is_reported_and_a_key_leaves_the_screen(job, key):
    async def scenario(app, pilot):
        await until(pilot, lambda: "live" in shown(app), "the run")
        job.close("all epochs are done")
        await until(pilot, lambda: "ended" in shown(app) and "all epochs are done" in shown(app), "the end")
        await pilot.press(key)

    app = screen(scenario)
    assert app.return_code == 0
    assert not app.is_running


# ---------------------------------------------------------------- in a real terminal, and in none


@pytest.mark.usefixtures("processes")
def test_in_tmux_it_starts_reports_a_killed_job_and_restores_the_terminal(directory, tmp_path):
    need("tmux", "LOOPTAP TOP IN A TERMINAL IS")
    job = warm.Popen([sys.executable, "-c", JOB], stdin=subprocess.PIPE)
    soon(lambda: any(run.pid == job.pid for run in looptap.runs()))
    tmux = ["tmux", "-S", str(tmp_path / "tmux"), "-f", "/dev/null"]

    def screen():
        return subprocess.run([*tmux, "capture-pane", "-p"], capture_output=True, text=True).stdout

    def sees(*texts):
        try:
            soon(lambda: all(text in screen() for text in texts))
        except AssertionError:
            raise AssertionError(f"not all of {texts} came:\n{screen()}") from None

    top = f"{sys.executable} -m looptap.cli top small"
    try:
        command = f"{top}; echo first $?; read x; {top}; echo second $?; read x"
        subprocess.run([*tmux, "new-session", "-d", "-x", "100", "-y", "30", "sh", "-c", command], check=True)
        sees("live", "loss  on batch", "Quit", "┌─")
        subprocess.run([*tmux, "send-keys", "C-c"], check=True)
        sees("first 0")
        assert "Quit" not in screen()
        subprocess.run([*tmux, "send-keys", "Enter"], check=True)
        sees("live", "loss  on batch")
        job.kill()
        job.communicate()
        sees("failed", "process is gone")
        subprocess.run([*tmux, "send-keys", "q"], check=True)
        sees("first 0", "second 0")
    finally:
        subprocess.run([*tmux, "kill-server"], capture_output=True)
        job.kill()
        job.communicate()


def test_without_a_terminal_top_prints_the_present_state(job, capsys):
    def printed(*arguments):
        with pytest.raises(SystemExit) as exit:
            main(["top", "small", *arguments])
        return exit.value.code, *capsys.readouterr()

    code, out, err = printed()
    assert code == 0
    assert out.startswith(f"{job.run.id}  live  pid {os.getpid()} on ")
    for part in ("events   batch ", "/s)", "stream   loss: ", "control  echo.factor = 2"):
        assert part in out
    assert "no terminal" in err
    code, out, _ = printed("--json")
    seen = json.loads(out)
    assert (code, seen["state"], seen["controls"][0]["name"], seen["streams"][0]["unit"]) == (
        0, "live", "echo.factor", "nats"
    )  # fmt: skip
    assert seen["events"][0]["rate"] > 1


def test_a_viewer_sees_exported_streams_and_why_nothing_else(job, directory, capsys):
    job.stream("hidden", "step")
    with looptap.attach("small") as run:
        run.export("loss")
        share = run.share(path=directory / "viewer.json")
    with pytest.raises(SystemExit, match="0"):
        main(["top", str(share.path)])
    out = capsys.readouterr().out
    assert "events   batch " in out
    assert "viewer: 1 exported stream; queries, costs, controls and commands are the operators'" in out
    assert "stream   loss: " in out
    assert "hidden" not in out
    assert "asked" not in out

    async def scenario(app, pilot):
        await until(pilot, lambda: "viewer: 1 exported stream" in shown(app) and "nats" in shown(app), "the stream")
        await pilot.press("a")
        await until(pilot, lambda: "A query, or the name" in shown(app), "the question")
        assert "unsafe" not in shown(app)

    screen(scenario, name=share.path)
