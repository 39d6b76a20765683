"""How commands end: pipes that close, Ctrl-C, nothing found, and files."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import warm
from training_loop import training
from waiting import soon

import looptap
from looptap.cli import completion
from looptap.client.sinks.metric_sinks import PrometheusSink
from looptap.client.transport.tunnel.running_command import RunningCommand
from looptap.protocol.files import command_file

WAIT = 300.0
"""Seconds until a test gives up on a condition."""


@pytest.fixture
def job(directory, monkeypatch):
    """Return the agent of a job that has a declared stream, and no model."""
    monkeypatch.chdir(directory)
    with looptap.Agent("small", config={"lr": 0.1}, may_pause=20.0) as agent:
        agent.expose(settings={"rate": 0.5})
        agent.stream("loss", "step, loss", keep=True)
        with training(agent, loss=0.5):
                yield agent


@pytest.fixture
def stored(job, directory):
    """Return the name of a stored run with some values."""
    with looptap.attach("small") as run:
        soon(lambda: run.stats()["store"]["commits"], detail="values are stored")
    return "small"


def start(*arguments, **options):
    """Start `looptap` in a process of its own."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
    return warm.Popen([sys.executable, "-m", "looptap.cli", *arguments], **pipes)


# ---------------------------------------------------------------- pipes


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("words", ["--version", "--help", "ls --help", "ls", "ls --json", "streams small", "compare"])
def test_a_command_ends_well_when_its_pipe_is_closed(stored, words):
    reader, writer = os.pipe()
    os.close(reader)
    process = start(*words.split(), stdout=writer)
    os.close(writer)
    _, err = process.communicate(timeout=WAIT)
    assert (process.returncode, err) == (0, "")


@pytest.mark.usefixtures("processes")
def test_a_stored_stream_goes_as_csv_to_stdout(stored):
    process = start("export", "small", "loss", "-o", "-")
    out, err = process.communicate(timeout=WAIT)
    assert (process.returncode, err) == (0, "")
    assert out.startswith("number,event,rank,time,wall,step,loss\n1,1,0,")


@pytest.mark.usefixtures("processes")
def test_csv_is_appended_to_what_the_shell_opened_for_that(stored, directory):
    file = directory / "all.csv"
    file.write_text("kept\n")
    with file.open("ab") as appended:
        assert start("export", "small", "loss", "-o", "-", stdout=appended).communicate(timeout=WAIT)[1] == ""
    assert file.read_text().startswith("kept\nnumber,event,")


def test_the_ending_of_the_file_says_the_format(stored, here, directory):
    pytest.importorskip("pyarrow")
    assert here("export", "small", "loss", "-o", "loss.parquet")[0] == 0
    assert (directory / "loss.parquet").read_bytes().startswith(b"PAR1")
    assert here("export", "small", "loss", "-o", "loss.PARQUET")[0] == 0
    assert (directory / "loss.PARQUET").read_bytes().startswith(b"PAR1")
    code, _, err = here("export", "small", "loss", "-o", "-", "--to", "parquet")
    assert (code, err) == (2, "looptap: --output - is for CSV; parquet needs a file. See: looptap export --help\n")


@pytest.mark.parametrize("name", ["loss.jsonl", "loss.csv.gz"])
def test_no_csv_is_written_to_a_file_of_another_format_unless_that_is_asked_for(stored, here, directory, name):
    code, _, err = here("export", "small", "loss", "-o", name)
    assert code == 2
    assert err.startswith(f"looptap: --output {name}: {Path(name).suffix} is the ending of none of csv, parquet,")
    assert not (directory / name).exists()
    assert here("export", "small", "loss", "-o", name, "--to", "csv")[0] == 0
    assert (directory / name).read_bytes().startswith(b"number,event,")


def test_a_picture_of_a_query_whose_group_does_not_end_says_what_to_add(job, here):
    pytest.importorskip("matplotlib")
    code, _, err = here("plot", "small", "len(events)", "--on", "nothing", "--save", "loss.png", "--after", "0.2s")
    assert code == 1
    assert err.startswith("looptap: No value of 'len(events)' came within 0.2 s, and nothing was saved. ")
    assert "window=100 ends one in 100 events" in err


# ---------------------------------------------------------------- Ctrl-C


@pytest.mark.usefixtures("processes")
def test_a_picture_that_ctrl_c_ends_is_not_written_and_that_is_said(job, directory):
    pytest.importorskip("matplotlib")
    process = start("plot", "small", "loss", "--save", "loss.png", "--after", "1h")
    with looptap.attach("small") as run:
        soon(lambda: any(one.readers for one in run.streams), detail="the plot reads the stream")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=WAIT)
    assert (process.returncode, err) == (130, "looptap: Interrupted, and nothing was saved.\n")
    assert not (directory / "loss.png").exists()


@pytest.mark.parametrize(
    ("file", "code", "says"),
    [("loss.jpg", 2, "'loss.jpg' does not say what to write"), ("gone/a.png", 1, "The directory gone does not exist")],
)
def test_a_picture_that_cannot_be_written_is_refused_before_values_are_collected(job, here, file, code, says):
    found, _, err = here("plot", "small", "loss", "--save", file, "--after", "1h")
    assert found == code
    assert says in err


@pytest.mark.usefixtures("processes")
@pytest.mark.skipif(not hasattr(os, "openpty"), reason="there are no terminals here")
def test_ctrl_c_at_a_question_says_that_nothing_was_done(job):
    ours, theirs = os.openpty()
    process = start("set", "small", "settings['rate']", "500", stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    said = b""
    while b"[y/N]" not in said:
        said += os.read(ours, 4096)
    process.send_signal(signal.SIGINT)
    while b"looptap: Nothing was done." not in said:  # read first: a terminal loses what it holds at its end
        said += os.read(ours, 4096)
    assert process.wait(WAIT) == 130
    os.close(ours)


# ---------------------------------------------------------------- nothing found


def test_a_list_without_entries_is_no_failure(job, here):
    code, out, err = here("modules", "small")
    assert (code, out, err) == (
        0, "This job has no modules. It has them once it calls agent.expose(model=model).\n", ""
    )  # fmt: skip
    assert here("modules", "small", "encoder")[0] == 1


def test_a_condition_that_no_run_meets_is_named(stored, here):
    code, out, _ = here("compare", "small", "--where", "lr > 1")
    assert code == 0
    assert re.fullmatch(r"None of \d+ runs? has lr > 1\.\n", out)


def test_a_folder_without_stored_runs_says_how_there_would_be_one(directory, here):
    code, out, _ = here("open", directory)
    assert code == 0
    assert out.startswith(f"No run is stored in {directory}.")


def test_a_guard_that_ends_at_once_says_that_no_run_matches(directory, here):
    rules = directory / "rules.yaml"
    rules.write_text("rules:\n- query: isnan(loss)\n  actions: [log]\n")
    code, _, err = here("guard", rules, "other", "--once")
    assert (code, err) == (0, "looptap: no run matches 'other', and nothing was judged.\n")


def test_the_progress_of_a_job_that_has_none_is_explained_wherever_its_query_fails(job, here):
    code, _, err = here("progress", "small", "--count", "1")
    assert code == 1
    assert "shows no progress as 'progress' (no observable 'progress'" in err
    assert "The end can be guessed from max_steps or epochs in its config, from a tqdm bar" in err


# ---------------------------------------------------------------- what is sent elsewhere


def test_a_live_export_of_a_wrong_query_fails(job, here):
    pytest.importorskip("prometheus_client")
    code, out, err = here("export", "--live", "small", "step, lss", "--to", "prometheus", "-o", "0")
    assert (code, out) == (1, "")
    assert "no 'batch' event has had an observable 'lss'" in err
    assert "Did you mean 'loss'?" in err
    assert "sent" not in err


@pytest.mark.parametrize("address", ["port", "localhost:port", "99999", ""])
def test_what_is_no_address_is_said_to_be_none(address):
    pytest.importorskip("prometheus_client")
    with pytest.raises(ValueError, match=r"is not an address for prometheus: a port such as 9464, or host:port\."):
        PrometheusSink(address)


# ---------------------------------------------------------------- files


def test_the_commands_of_a_run_that_was_paused_and_resumed_are_replayed(job, here, directory):
    assert here("set", "small", "settings['rate']", "0.6")[0] == 0
    assert here("resume", "small")[0] == 0
    file = directory / "commands.yaml"
    file.write_text(here("commands", "small", "--yaml")[1])
    assert [entry["what"] for entry in command_file.load_commands(file)] == ["set"]


def test_a_file_of_something_else_is_not_to_be_closed_like_keys(directory, here):
    file = directory / "notes.json"
    file.write_text("these are notes")
    file.chmod(0o644)
    code, _, err = here("ls", file)
    assert (code, err) == (1, f"looptap: {file} is not a connection file.\n")


def test_a_file_in_the_place_of_the_directory_cannot_be_created(directory, here, monkeypatch):
    file = directory / "taken"
    file.touch()
    monkeypatch.setenv("LOOPTAP_DIR", str(file))
    assert here("ls")[2] == f"looptap: LOOPTAP_DIR names {file}, which is not a directory. Name another.\n"


@pytest.mark.usefixtures("processes")
def test_what_a_command_said_ends_its_sentence():
    command = RunningCommand([sys.executable, "-c", "import sys; sys.exit('no route to host')"], "reader")
    soon(lambda: command.exit_code() is not None and command.quoted_stderr(), detail="the command ends")
    command.close_stdin()
    command.stdout.close()
    assert command.quoted_stderr() == " It said: no route to host."


def test_the_names_of_events_are_listed(job, here):
    code, out, err = here("names", "small")
    assert (code, err) == (0, "")
    assert "loss          float, the event" in out.splitlines()
    assert "settings      dict, exposed" in out.splitlines()
    rows = json.loads(here("names", "small", "--json")[1])
    assert {"name": "step", "kind": "int", "shape": None, "dtype": "", "source": "the event"} in rows


# ---------------------------------------------------------------- completion


def test_the_names_of_streams_are_completed(job):
    asked = type("Context", (), {"params": {"run": "small"}})
    assert completion.query_words(asked, "lo") == ["loss"]
    assert completion.stream_names(asked, "") == ["loss"]


def test_the_names_of_the_next_event_are_completed(job):
    asked = type("Context", (), {"params": {"run": "small"}})
    assert completion.query_words(asked, "step, lo") == ["step, loss"]
    assert {"loss", "step", "event_number"} <= set(completion.query_words(asked, ""))
    assert completion.query_words(asked, "loss.") == completion.query_words(asked, "model('lo") == []


def test_completion_is_silent_where_there_is_nothing_to_complete(monkeypatch, tmp_path):
    monkeypatch.setenv("LOOPTAP_DIR", str(tmp_path / "missing"))
    assert completion.run_names("") == []
