"""A job whose surroundings are broken runs as without looptap (S38)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from waiting import soon

import looptap

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="descriptors as Linux lists them"),
    pytest.mark.usefixtures("place"),
]
PYTHON = [sys.executable]
CLOSED = {"stdin": "<&-", "stdout": ">&-", "stderr": "2>&-", "output": ">&- 2>&-", "all": "<&- >&- 2>&-"}


def in_shell(command, redirections, **how):
    """Run a command with some standard streams closed."""
    script = f'exec "$@" {redirections}'
    return subprocess.run(["sh", "-c", script, "sh", *command], capture_output=True, text=True, timeout=300, **how)


def program(folder: Path, code: str) -> list[str]:
    file = folder / "job.py"
    file.write_text(textwrap.dedent(code))
    return [str(file)]


# ---------------------------------------------------------------- closed standard streams

SCRIPT = """
    import os, sys, torch
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        model(torch.ones(4, 2)).square().mean().backward()
        optimizer.step()
        print("step", step)
    with open("streams.txt", "w") as file:
        print(*(None if one is None else one.name for one in (sys.stdin, sys.stdout, sys.stderr)), file=file)
"""


@pytest.mark.parametrize("closed", CLOSED)
def test_a_script_under_looptap_run_finds_the_streams_closed_as_with_python(closed, tmp_path):
    script, found = program(tmp_path, SCRIPT), []
    for command in (script, ["-m", "looptap", "run", *script]):
        done = in_shell([*PYTHON, *command], CLOSED[closed], cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        found.append((done.stdout, (tmp_path / "streams.txt").read_text()))
        (tmp_path / "streams.txt").unlink()
    assert found[0] == found[1]


@pytest.mark.parametrize("words", [["ls"], ["streams", "no-such-run"], ["stop", "no-such-run"], ["open"], ["watch"]])
@pytest.mark.parametrize("closed", ["stdout", "stderr", "all"])
def test_a_command_ends_as_with_open_streams(closed, words):
    command = [*PYTHON, "-m", "looptap", *words]
    usual = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=300)
    done = in_shell(command, CLOSED[closed])
    assert done.returncode == usual.returncode
    assert done.stderr in ("", usual.stderr)
    assert done.stdout in ("", usual.stdout)


OURS = """
    import os, sys, looptap
    agent = looptap.Agent("closed")
    agent.emit("batch", loss=1.0)
    with looptap.attach("closed") as run:
        standard = {os.readlink(f"/proc/self/fd/{one}") for one in range(3) if os.path.exists(f"/proc/self/fd/{one}")}
        names = " ".join(sorted(name.partition(":")[0] for name in standard))
    agent.close()
    with open("standard.txt", "w") as file:
        file.write(names)
"""


def test_no_socket_of_looptap_becomes_a_standard_stream(tmp_path):
    done = in_shell([*PYTHON, *program(tmp_path, OURS)], CLOSED["all"], cwd=tmp_path)
    assert done.returncode == 0
    assert (tmp_path / "standard.txt").read_text() == "/dev/null"


# ---------------------------------------------------------------- threads that are not the system's

PATCHED = """
    {patch}
    import looptap
    agent = looptap.Agent("green")
    for step in range(5):
        agent.emit("batch", loss=1.0)
    print(agent)
    try:
        looptap.attach("real")
    except looptap.streams.errors.LooptapError as error:
        print(error)
    agent.close()
"""
LIBRARIES = {
    "gevent": "from gevent import monkey; monkey.patch_all()",
    "eventlet": "import eventlet; eventlet.monkey_patch()",
}


@pytest.mark.parametrize("library", LIBRARIES)
def test_under_patched_threads_the_job_goes_on_without_an_agent_and_says_why(library, tmp_path):
    pytest.importorskip(library)
    code = textwrap.dedent(PATCHED).format(patch=LIBRARIES[library])
    with looptap.Agent("real"):
        done = subprocess.run(
            [*PYTHON, "-W", "ignore", *program(tmp_path, code)], capture_output=True, text=True, timeout=300
        )
    assert done.returncode == 0, done.stderr
    assert "inert" in done.stdout
    sentence = f"The threads of this process are {library}'s"
    assert sentence in done.stdout, "attach says it too"
    assert sentence in done.stderr
    assert "thread=False" in done.stderr


def test_threads_that_a_debugger_starts_in_its_own_way_are_real(monkeypatch):
    import _thread

    start = _thread.start_new_thread
    monkeypatch.setattr(_thread, "start_new_thread", lambda *words: start(*words))
    with looptap.Agent("debugged") as agent, looptap.attach("debugged") as run:
        assert run.name == agent.name


# ---------------------------------------------------------------- the end by Ctrl-C and by `looptap stop`

STOPPED = """
    import time, looptap
    agent = looptap.Agent("stopped", on_stop=KeyboardInterrupt)
    while True:
        agent.emit("batch", loss=1.0)
        time.sleep(0.002)
"""


@pytest.mark.parametrize("how", ["stop", "Ctrl-C"])
def test_stop_ends_a_script_by_the_signal_of_ctrl_c(how, tmp_path):
    job = subprocess.Popen([*PYTHON, *program(tmp_path, STOPPED)], stderr=subprocess.PIPE, text=True)
    try:
        with soon(lambda: attached("stopped")) as run:
            if how == "stop":
                run.stop()
            else:
                os.kill(job.pid, signal.SIGINT)
        assert job.communicate(timeout=300)[1].rstrip().endswith("KeyboardInterrupt")
        assert job.returncode == -signal.SIGINT
    finally:
        job.kill()
        job.wait()


def attached(name):
    """Return a run, or None while there is none."""
    try:
        return looptap.attach(name)
    except looptap.streams.errors.LooptapError:
        return None
