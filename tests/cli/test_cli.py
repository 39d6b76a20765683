"""The command line in separate processes: a real job, output and exit codes."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from array import array

import numpy as np
import pytest
import warm
from waiting import soon

import looptap
from looptap.cli import entry_point
from looptap.cli.commands.watching import ls
from looptap.cli.formats import json_of, value_text
from looptap.store.writer import Writer
from looptap.streams.stream.buffer import Batch
from looptap.visualizers.drawing.backends.blocks import bar, shaded, side_by_side, sparkline

JOB = """
import sys, threading, time, looptap
from looptap.testing import parts_of

agent = looptap.Agent(sys.argv[1], limits=looptap.Limits(outbox_values=300))
agent.expose(model=type("Model", (), {"scale": 2.0})())
threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
over, step = threading.Event(), 0
while not over.wait(0.004):
    agent.emit("batch", step=step, loss=1 / (step + 1))
    if step % 10 == 9:
        agent.emit("epoch", epoch=step // 10)
    if step % 50 == 49:
        held, go = threading.Event(), threading.Event()
        parts_of(agent).connection.post(lambda: (held.set(), go.wait(300)))  # so that it is too much for the I/O thread
        held.wait(300)
        for n in range(2000):
            agent.emit("burst", n=n)
        go.set()
    step += 1
agent.close("the job is done")
"""
WAIT = 300.0
"""Seconds until a test gives up on a condition."""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Return a private directory for connection files."""
    directory = tmp_path_factory.mktemp("runs")
    directory.chmod(0o700)
    return directory


@pytest.fixture(scope="module")
def environment(place):
    return {**os.environ, "LOOPTAP_DIR": str(place)}


@pytest.fixture(scope="module")
def start(place, environment):
    """Return a function that starts jobs, which run until their stdin is closed."""
    jobs = []

    def begin(name):
        job = warm.Popen([sys.executable, "-c", JOB, name], stdin=subprocess.PIPE, env=environment)
        jobs.append(job)
        soon(lambda: any(run.pid == job.pid for run in looptap.runs(place)), detail="the job announces itself")
        return job

    yield begin
    for job in jobs:
        job.kill()
        job.communicate()


@pytest.fixture(scope="module")
def job(processes, start):
    return start("small")


@pytest.fixture
def command(environment):
    """Return a function that starts `looptap` in a process of its own."""

    def begin(*arguments, **options):
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": environment, **options}
        return warm.Popen([sys.executable, "-m", "looptap.cli", *arguments], **pipes)

    return begin


@pytest.fixture
def run(command):
    """Return a function that runs `looptap`: exit code, stdout, stderr."""

    def finish(*arguments):
        process = command(*arguments)
        out, err = process.communicate(timeout=WAIT)
        assert "looptap/cli" not in err, err  # no traceback of looptap itself
        return process.returncode, out, err

    return finish


@pytest.fixture
def here(place, monkeypatch, here):
    """Return a function that runs `looptap` in this process, which is quicker."""
    monkeypatch.setenv("LOOPTAP_DIR", str(place))
    return here


def objects(out):
    return [json.loads(line) for line in out.splitlines()]


# ---------------------------------------------------------------- what a newcomer reads first


STEERING = ["controls", "set", "undo", "trigger", "checkpoint", "pause", "resume", "stop", "commands", "replay"]


@pytest.mark.parametrize(
    "name", ["", "ls", "watch", "plot", "top", "call", "open", "export", "compare", "demo", *STEERING]
)
def test_every_help_text_shows_a_command_to_follow(name, here):
    code, out, _ = here(*name.split(), "--help")
    assert code == 0
    assert f"    looptap {name}" in out


def test_the_list_of_commands_has_a_whole_sentence_for_each(here, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = here("--help")
    lines = [line for line in out.partition("Look:\n")[2].splitlines() if line.startswith("  ")]
    assert len(lines) >= 26
    assert not [line for line in lines if line.endswith("...") or not line.endswith(".") or len(line) > 80]


@pytest.mark.promise("S9")
@pytest.mark.parametrize(
    "arguments",
    [
        ["watch", "small", "chr(27) + '[2J' + chr(155)", "--count", "1"],
        ["watch", "small", "{chr(27) + '[2J': 1}", "--count", "1"],
        ["call", "small", "chr(27) + '[2J'"],
        ["call", "small", "int(chr(27) + '[2J')"],
        ["call", "small", "exec('raise ValueError(chr(27) + chr(91) + chr(50) + chr(74))')"],
    ],
)
def test_texts_of_a_job_do_not_control_the_terminal(job, here, arguments):
    _, out, err = here(*arguments)
    assert "\\x1b[2J" in out + err
    assert not {"\x1b", "\x9b"} & set(out + err)


@pytest.mark.usefixtures("processes")
def test_importing_the_command_line_loads_neither_typer_nor_rich_nor_sockets():
    code = "import sys, looptap.cli; print([m for m in ('typer', 'rich', 'zmq', 'numpy') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


NOT_NEEDED = ["numpy", "cloudpickle", "sqlite3", "looptap.streams.stream.stream", "looptap.client.streams.live"]
"""What a command that reads no values of a run must not wait for."""


@pytest.mark.parametrize(
    "arguments",
    [
        ["ls"], ["ls", "small"], ["ls", "--all", "--json"], ["streams", "small"], ["modules", "small"],
        ["stacks", "small"], ["controls", "small"], ["commands", "small"], ["memory", "small"],
        ["share", "small", "--list"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_command_that_reads_no_values_loads_neither_numpy_nor_streams(job, environment, arguments):
    code = (
        f"import sys; from looptap.cli.entry_point import exit_code; done = exit_code({arguments})\n"
        f"print(done, [name for name in {NOT_NEEDED} if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert found.stdout.splitlines()[-1] == "0 []", found.stdout + found.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["watch", "small"], 2, "Missing argument 'QUERY'. See: looptap watch --help"),
        (["watch", "small", "loss", "--bogus"], 2, "No such option: --bogus. See: looptap watch --help"),
        (["set", "small", "optimizer.lr", "-0.5"], 2, "Write -- before a value that begins with a minus: -- -0.5."),
        (["set", "small", "a", "1", "--id"], 2, "Option '--id' requires an argument. See: looptap set --help"),
        (["nonsense"], 2, "No such command 'nonsense'. See: looptap --help"),
        (["watch", "small", "loss", "--window", "soon"], 2, "a window is a number of events (100), a time (30s, 5m)"),
        (["watch", "small", "loss", "--window", "0"], 2, "'0': a window is a number of events (100)"),
        (["watch", "small", "loss", "--window", "sliding:0"], 2, "'sliding:0': a window is a number of"),
        (["keep", "small", "loss", "--window", "2000000"], 2, "at most 1,000,000 events"),
        (["watch", "small", "loss", "--budget", "-1"], 2, "'-1' must be a share of the loop's time above 0"),
        (["plot", "small", "loss", "--budget", "0"], 2, "'0' must be a share"),
        (["top", "small", "loss", "--budget", "nan"], 2, "'nan' must be a share of the loop's time above 0"),
        (["watch", "small", "loss", "--count", "x"], 2, "Invalid value for '--count': 'x' must be a whole number"),
        (["watch", "small", "loss", "--before", "-1"], 2, "'-1' must be a whole number, 0 or more."),
        (["memory", "small", "--steps", "101"], 2, "'101' must be a whole number from 1 to 100."),
        (["inject", "small"], 2, "'small' must be a whole number, 1 or more."),
        (["watch", "small", "loss", "--combine", "men"], 2, "'men' must be one of mean, sum, max, min, median, list,"),
        (["watch", "small", "loss", "--ranks", "some"], 2, "--ranks some: ranks are all, a list such as 0,3"),
        (["plot", "small", "loss", "--in", "browsr"], 2, "Did you mean 'browser'?"),
        (["plot", "small", "loss", "--log", "z"], 2, "'z' must be one of x, y, xy, none."),
        (["plot", "small", "loss", "--smooth", "1"], 2, "'1' must be at least 0 and less than 1, such as 0.9."),
        (["plot", "small", "loss", "--rows", "0"], 2, "'0' must be a whole number, 1 or more."),
        (["set", "small", "a", "1", "--schedule", "scal"], 2, "must be one of scale, freeze. Did you mean 'scale'?"),
        (["watch", "small", "loss", "--before", "3"], 2, "looptap: --before has an effect only with --when. See: "),
        (["plot", "small", "loss", "--after", "3s"], 2, "looptap: --after has an effect only with --save. See: "),
        (["plot", "small", "loss", "--count", "3"], 2, "looptap: --count has an effect only with --save. See: "),
        (["stacks", "small", "--short"], 2, "looptap: --short has an effect only with --ranks. See: "),
        (["compare", "--reverse"], 2, "looptap: --reverse has an effect only with --sort. See: "),
        (["export", "small", "loss", "--every", "2"], 2, "looptap: --every has an effect only with --live. See: "),
        (["export", "small", "loss", "--to", "otel"], 2, "--to otel sends the values of a live run: add --live."),
        (["export", "small", "loss", "--to", "cvs"], 2, "Did you mean 'csv'?"),
        (["export", "small", "loss", "--live"], 2, "--live needs --to, which is one of prometheus, otel, wandb,"),
        (["run", "--nme", "x", "train.py"], 2, "No such option: --nme. Did you mean '--name'?"),
        (["profile", "small", "--rank", "3"], 1, "There is no rank 3: the run has rank 0."),
        (["watch", "missing", "loss"], 1, "No run matches 'missing'. Alive: small-"),
        (["watch", "missing", "loss"], 1, "\nIf you have just started it, add --wait 1m: "),
        (["watch", "small", "foo(loss)"], 1, "unknown function 'foo'.\n    foo(loss)\n    ^\n"),
        (["watch", "small", "loss", "--every", "0"], 2, "'0' must be a whole number, 1 or more."),
        (["call", "small", "loss +"], 1, "this is not a Python expression"),
        (["call", "./no-such-file.json", "1"], 1, "There is no connection file no-such-file.json"),
    ],
)
def test_a_mistake_is_answered_by_one_sentence_on_stderr(job, here, arguments, code, says):
    found, out, err = here(*arguments)
    assert (found, out) == (code, "")
    assert err.startswith("looptap: ")
    assert says in err


def test_for_a_run_that_has_ended_the_wait_is_for_its_next_start(directory, here):
    with looptap.Agent("over") as agent:
        agent.emit("batch", loss=1.0)
    code, out, err = here("watch", "over", "loss")
    assert (code, out) == (1, "")
    assert re.search(r" and has ended\..*\nIf you have just started it again, add --wait 1m\.\n$", err), err


# ---------------------------------------------------------------- ls


def test_ls_lists_runs_with_their_hosts_queries_and_costs(job, place, run):
    with looptap.attach("small", directory=place) as mine:
        stream = mine.stream("step, loss")  # a dropped one is detached
        stream.wait(3)
        code, out, _ = run("ls", "--json")
        (report,) = [report for report in json.loads(out) if report["pid"] == job.pid]
    assert (code, report["name"], report["state"], report["clients"]) == (0, "small", "alive", 1)
    assert report["id"].startswith("small-")
    assert report["events"]["batch"] > 3
    (query,) = report["queries"]
    assert (query["name"], query["dropped"]) == ("step, loss", 0)
    assert query["nanoseconds_per_event"] > 0
    assert 0 < query["share_of_time"] < 1
    assert report["outbox_peak"] > 0


@pytest.mark.usefixtures("processes")
def test_ls_shows_a_killed_run_as_ended_and_its_file_until_it_is_removed(start, place, here, tmp_path, monkeypatch):
    dead = start("doomed")
    monkeypatch.setenv("LOOPTAP_STORE", str(tmp_path))
    (listed,) = [one for one in looptap.runs(place) if one.pid == dead.pid]
    writer = Writer(tmp_path / f"{listed.id}.looptap")
    now = time.monotonic()
    writer.append(writer.stream("n"), Batch(1, array("q", [1]), array("d", [now - 7200]), [1], time.time() - now))
    assert writer.close(WAIT)
    dead.kill()
    dead.communicate()
    assert "doomed" not in here("ls")[1]
    out = here("ls", "--all")[1]
    (line,) = [line for line in out.splitlines() if "doomed  ended  doomed-" in line]
    assert f"{listed.id}, started " in line
    assert f"stored in {writer.path}, the newest 2 h ago; " in line
    assert f"process {dead.pid} is gone; its connection file is still there: " in line
    assert line.endswith(", until looptap ls --clean")
    (report,) = [one for one in json.loads(here("ls", "--all", "--json")[1]) if one["id"] == listed.id]
    assert report["store"] == str(writer.path)
    assert 7200 <= report["newest"] < 7200 + WAIT
    assert "doomed" not in here("ls", "--clean", "--all")[1]


@pytest.mark.usefixtures("processes")
def test_ls_of_a_stopped_job_says_when_it_started_and_not_that_it_has_been_silent_for_so_long(start, here, monkeypatch):
    job = start("stopped")
    monkeypatch.setattr(ls, "REPLY_TIMEOUT_SECONDS", 0.5)
    os.kill(job.pid, signal.SIGSTOP)
    try:
        (line,) = [line for line in here("ls")[1].splitlines() if line.startswith("stopped")]
        assert line.startswith("stopped  silent, started ")
        assert f"pid {job.pid} on " in line
    finally:
        os.kill(job.pid, signal.SIGCONT)


def test_ls_of_an_empty_directory_says_how_to_get_a_run(here, directory):
    assert "looptap demo" in here("ls")[1]


# ---------------------------------------------------------------- watch


def test_watch_prints_a_line_for_each_value_and_a_summary(job, run):
    code, out, err = run("watch", "small", "step, loss", "--count", "5")
    steps = [line.split()[1] for line in out.splitlines()]
    first = int(steps[0].removeprefix("step="))
    assert (code, steps) == (0, [f"step={n}" for n in range(first, first + 5)])
    assert "step, loss: 5 values, 0 missing; " in err
    assert re.search(r"\d (ns|µs|ms) an event", err)


def test_watch_as_json_numbers_what_it_prints_and_writes_nan_as_text(job, run):
    code, out, err = run("watch", "small", "step, float('nan')", "--every", "2", "--count", "3", "--json")
    *items, end = objects(out)
    assert (code, err) == (0, "")
    assert [item["number"] for item in items] == [1, 2, 3]
    assert [item["event"] - items[0]["event"] for item in items] == [0, 2, 4]
    assert items[0]["value"]["v1"] == "NaN"
    assert abs(items[0]["time"] - time.time()) < 60
    assert [(item["error"], item["gap"]) for item in items] == [(None, 0)] * 3
    assert (end["state"], end["values"], end["missing"], end["errors"]) == ("ended", 3, 0, 0)


def test_watch_as_json_distinguishes_equal_queries_of_a_command(job, here):
    _, out, _ = here("watch", "small", "step", "step", "1 / 0", "--timeout", "1", "--json")
    items = objects(out)
    assert {(item["index"], item["query"]) for item in items} == {(0, "step"), (1, "step"), (2, "1 / 0")}
    assert [item["index"] for item in items if "state" in item] == [0, 1, 2]


def test_watch_reduces_over_the_window_that_is_named(job, here):
    _, out, _ = here("watch", "small", "len(events)", "--window", "7", "--count", "2", "--json")
    assert [item["value"] for item in objects(out)[:2]] == [7, 7]


def test_watch_sends_nothing_until_the_condition_comes_true(job, here):
    arguments = ["--when", "step % 20 == 0", "--before", "2", "--after", "1", "--count", "8", "--json"]
    items = objects(here("watch", "small", "step", *arguments)[1])[:8]
    _, second = [i for i, item in enumerate(items) if item.get("fired")]
    around = [item["value"] for item in items[second - 2 : second + 2]]
    assert [value - items[second]["value"] for value in around] == [-2, -1, 0, 1]


def test_watch_shows_how_many_values_were_lost_and_where(job, here):
    _, out, _ = here("watch", "small", "n", "--on", "burst", "--count", "350", "--json")
    *items, end = objects(out)
    gaps = [item["gap"] for item in items]
    numbers = [item["number"] for item in items]
    assert max(gaps) > 0
    assert numbers == [sum(gaps[: i + 1]) + i + 1 for i in range(len(items))]
    assert end["missing"] >= sum(gaps)


def test_watch_marks_the_losses_in_its_lines(job, here):
    _, out, _ = here("watch", "small", "n", "--on", "burst", "--count", "350")
    assert "values are missing here --" in out


def test_watch_continues_with_the_other_queries_when_one_fails(job, run):
    code, out, err = run("watch", "small", "1 / 0", "step", "--count", "150", "--json")
    ends = {item["query"]: item for item in objects(out) if "state" in item}
    assert code == 1
    assert (ends["1 / 0"]["state"], ends["1 / 0"]["errors"]) == ("failed", 100)
    assert ends["step"]["values"] == 150
    assert any("ZeroDivisionError" in (item.get("error") or "") for item in objects(out))
    assert "looptap: The stream '1 / 0' failed: 100 errors in a row, the first: ZeroDivisionError" in err


def test_watch_fails_in_a_sentence_when_nothing_comes_in_time(job, here):
    code, out, err = here("watch", "small", "loss", "--on", "never", "--timeout", "0.3")
    assert (code, out) == (1, "")
    assert "No value of 'loss' came within 0.3 s; the run has not raised 'never' yet, but 'batch', 'epoch'" in err


@pytest.mark.usefixtures("processes")
def test_watch_ends_well_when_the_run_ends(start, command):
    job = start("short")
    watching = command("watch", "short", "step")
    assert watching.stdout.readline()
    job.stdin.close()
    _, err = watching.communicate(timeout=WAIT)
    assert watching.returncode == 0
    assert "the job is done" in err


@pytest.mark.usefixtures("processes")
def test_watch_fails_when_the_run_is_killed(start, command):
    job = start("killed")
    watching = command("watch", "killed", "step")
    assert watching.stdout.readline()
    job.kill()
    _, err = watching.communicate(timeout=WAIT)
    assert watching.returncode == 1
    assert "looptap: The stream 'step' failed: " in err


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("as_json", [False, True], ids=["lines", "json"])
def test_watch_moves_on_to_the_next_run_of_the_name_and_says_where(start, command, place, as_json):
    name = f"series-{as_json}"
    job = start(name)
    watching = command("watch", name, "step", "--follow", *["--json"] * as_json)
    for _ in range(3):
        assert watching.stdout.readline()
    job.kill()
    job.wait()
    following = start(name)
    (found,) = [run.id for run in looptap.runs(place) if run.pid == following.pid]
    lines = []
    while not any(found in line for line in lines):
        lines.append(watching.stdout.readline())
        assert lines[-1], "it ended"
    for _ in range(3):
        assert watching.stdout.readline()
    watching.send_signal(signal.SIGINT)
    _, err = watching.communicate(timeout=WAIT)
    assert watching.returncode == 0
    if as_json:
        assert (json.loads(lines[-1])["gap"], json.loads(lines[-1])["run"]) == (None, found)
    else:
        assert lines[-2:] == ["-- an unknown number of values is missing here --\n", f"-- run {found} --\n"]
        assert f"Waiting for the next run named {name!r}" in err


@pytest.mark.usefixtures("processes")
def test_watch_waits_for_a_run_that_has_not_started_and_says_so(start, command, place):
    watching = command("watch", "comes-late", "step", "--follow", "--count", "3")
    said = watching.stderr.readline()
    assert said.startswith("looptap: No run matches 'comes-late'")
    assert said.endswith("Waiting for it to start; Ctrl-C ends that.\n")
    start("comes-late")
    out, err = watching.communicate(timeout=WAIT)
    assert (watching.returncode, len(out.splitlines())) == (0, 3), err


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("verb", [["watch", "to-watch", "step", "--count", "3"], ["top", "to-look", "--json"]])
def test_attach_waits_as_long_as_asked_without_following(start, command, run, verb):
    waiting = command(*verb, "--wait", "inf")
    said = waiting.stderr.readline()
    assert said.startswith("looptap: No run ")
    assert "Looked in " in said or "(/" in said
    assert said.endswith("Waiting for it to start; Ctrl-C ends that.\n")
    start(verb[1])
    out, err = waiting.communicate(timeout=WAIT)
    assert (waiting.returncode, bool(out)) == (0, True), err
    code, _, err = run("watch", "never", "step", "--wait", "0.1")
    assert (code, "for 0.1 s; Ctrl-C" in err) == (1, True)


@pytest.mark.usefixtures("processes")
def test_waiting_for_a_run_ends_at_ctrl_c_or_after_its_time(start, command, run):
    start("another")
    watching = command("watch", "never", "step", "--follow")
    assert "No run matches 'never'. Alive: " in watching.stderr.readline()
    watching.send_signal(signal.SIGINT)
    assert (watching.communicate(timeout=WAIT), watching.returncode) == (("", ""), 0)
    code, out, err = run("watch", "never", "step", "--follow", "--timeout", "0.3")
    assert (code, out) == (1, "")
    assert re.search(r"Waiting for it to start, for 0\.3 s; Ctrl-C.*\.\nlooptap: No run matches 'never'", err), err
    code, _, err = run("watch", "./never.json", "step", "--follow")  # a file is there or not
    assert (code, "Waiting" in err) == (1, False)


LATE = """
import sys, time, looptap
agent = looptap.Agent("declares")
time.sleep(0.5)
agent.stream("loss", "step, loss", on="batch")
for step in range(2000):
    agent.emit("batch", step=step, loss=0.5)
    time.sleep(0.002)
"""


@pytest.mark.usefixtures("processes")
def test_a_stream_declared_shortly_after_the_start_is_read_from_its_beginning(command, environment):
    watching = command("watch", "declares", "loss", "--follow", "--count", "2", "--json")
    assert "Waiting" in watching.stderr.readline()
    job = warm.Popen([sys.executable, "-c", LATE], env=environment)
    try:
        out, err = watching.communicate(timeout=WAIT)
    finally:
        job.kill()
        job.wait()
    assert [json.loads(line)["value"] for line in out.splitlines()[:2]] == [
        {"step": 0, "loss": 0.5}, {"step": 1, "loss": 0.5}
    ], err  # fmt: skip


def test_watch_ends_at_ctrl_c_with_its_summary_and_the_job_continues(job, command):
    watching = command("watch", "small", "step", "mean(e.loss for e in events)")
    assert watching.stdout.readline()
    watching.send_signal(signal.SIGINT)
    _, err = watching.communicate(timeout=WAIT)
    assert watching.returncode == 0
    assert "mean(e.loss for e in events): " in err
    assert "Traceback" not in err
    assert job.poll() is None


def test_watch_is_quiet_when_its_pipe_closes(job, command):
    watching = command("watch", "small", "step")
    assert watching.stdout.readline()
    watching.stdout.close()
    assert watching.stderr.read() == ""
    assert watching.wait(WAIT) == 0
    watching.stderr.close()


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="there are no terminals here")
def test_watch_draws_on_a_terminal(job, command, environment):
    ours, theirs = os.openpty()
    options = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
    environment = {**environment, "TERM": "xterm-256color", "COLUMNS": "80"}
    watching = command("watch", "small", "step, loss", "1 / 0", "--count", "120", env=environment, **options)
    os.close(theirs)
    drawn = b""
    while select.select([ours], [], [], WAIT)[0]:
        try:
            drawn += os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
    os.close(ours)
    text = drawn.decode()
    assert watching.wait(WAIT) == 1
    assert "120 values" in text
    assert "ZeroDivisionError" in text
    assert "█" in text


# ---------------------------------------------------------------- call


def test_call_prints_the_result_and_changes_the_job(job, run, here):
    assert run("call", "small", "setattr(model, 'scale', 3.5)") == (0, "", "")
    assert here("call", "small", "model.scale") == (0, "3.5\n", "")
    answer = json.loads(here("call", "small", "{'scale': model.scale}", "--on", "epoch", "--json")[1])
    assert answer == {"result": {"scale": 3.5}, "error": None, "traceback": ""}


def test_call_prints_the_traceback_of_the_command_and_fails(job, here):
    code, out, err = here("call", "small", "1 / 0")
    assert (code, out) == (1, "")
    assert "<query 1 / 0>" in err
    assert err.endswith("looptap: The command failed in the job: ZeroDivisionError: division by zero\n")
    code, out, err = here("call", "small", "1 / 0", "--json")
    assert (code, err) == (1, "")
    assert json.loads(out)["error"] == "ZeroDivisionError: division by zero"


def test_a_pending_call_prints_its_id(job, here):
    code, _, err = here("call", "small", "1", "--on", "never", "--timeout", "0.3")
    assert code == 1
    assert "it never runs twice" in err
    id = err.split(" --id ")[1][:32]
    assert "was not answered" in here("call", "small", "1", "--id", id, "--timeout", "0.3")[2]


# ---------------------------------------------------------------- text, JSON, drawings


def test_values_are_text_on_one_line():
    assert value_text(1 / 3) == "0.333333"
    assert value_text("two\nlines") == "two lines"
    assert value_text((1, [2.5, None], {"a": {3}})) == "(1, [2.5, None], {a: {3}})"
    assert value_text(np.arange(4.0)) == "[0, 1, 2, 3]"
    assert value_text(np.array([float("nan"), *range(11)])) == "float64 12: 0 to 10, mean 5, 1 not finite"
    assert value_text({"long": "x" * 100}, 20) == "long='xxxxxxxxxxxxx…"


def test_any_value_is_json():
    torch = pytest.importorskip("torch")
    value = {"t": torch.tensor([[1.0, float("inf")]], dtype=torch.bfloat16), 3: {True}, "b": b"ab", "c": 1 + 2j}
    assert json.loads(json_of(value)) == {"t": [[1.0, "Infinity"]], "3": [True], "b": "YWI=", "c": "(1+2j)"}


def test_drawings_take_what_is_not_finite():
    assert sparkline([1.0, float("nan"), 3.0]) == "▁×█"
    assert sparkline([]) == ""
    assert len(sparkline(range(1000), 50)) == 50
    gapped = [None if step % 300 == 0 else step for step in range(1000)]
    assert [len(part) for part in sparkline(gapped, 50).split(" ")] == [13, 13, 13, 4]
    many = sparkline([None if step % 2 else step for step in range(1000)], 40)
    assert len(many) <= 40
    assert many.count(" ") == 9
    assert (bar(float("inf"), 1.0), bar(0.0, 0.0), bar(5.0, 1.0, 3)) == ("×", "", "███")
    assert shaded([[-1.0, 2.0]]) == ["  ██"]
    assert side_by_side([]) == []


def test_an_interrupt_while_a_class_is_made_is_an_interrupt(monkeypatch):
    class Interrupting:
        def __set_name__(self, owner, name):
            raise KeyboardInterrupt

    monkeypatch.setattr("looptap.cli.app.command_line", lambda arguments: type("Made", (), {"one": Interrupting()}))
    assert entry_point.exit_code(["ls"]) == 130
