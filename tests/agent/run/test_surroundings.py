"""A job whose surroundings are broken runs as without looptap (S38)."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from slowness import LONG_SECONDS
from training_loop import training
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
    return subprocess.run(
        ["sh", "-c", script, "sh", *command], capture_output=True, text=True, timeout=LONG_SECONDS, **how
    )


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


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("closed", CLOSED)
def test_a_script_under_looptap_run_finds_the_streams_closed_as_with_python(closed, tmp_path):
    script, found = program(tmp_path, SCRIPT), []
    for command in (script, ["-m", "looptap", "run", *script]):
        done = in_shell([*PYTHON, *command], CLOSED[closed], cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        found.append((done.stdout, (tmp_path / "streams.txt").read_text()))
        (tmp_path / "streams.txt").unlink()
    assert found[0] == found[1]


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("words", [["ls"], ["streams", "no-such-run"], ["stop", "no-such-run"], ["open"], ["watch"]])
@pytest.mark.parametrize("closed", ["stdout", "stderr", "all"])
def test_a_command_ends_as_with_open_streams(closed, words, tmp_path, monkeypatch):
    monkeypatch.setenv("LOOPTAP_STORE", str(tmp_path))  # other tests add runs to the shared one meanwhile
    command = [*PYTHON, "-m", "looptap", *words]
    usual = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=LONG_SECONDS)
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


@pytest.mark.usefixtures("processes")
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
@pytest.mark.usefixtures("processes")
def test_under_patched_threads_the_job_continues_without_an_agent_and_says_why(library, tmp_path):
    if importlib.util.find_spec(library) is None:  # importing it here would patch what other tests use
        pytest.skip(f"{library} is not installed")
    code = textwrap.dedent(PATCHED).format(patch=LIBRARIES[library])
    with looptap.Agent("real"):
        done = subprocess.run(
            [*PYTHON, "-W", "ignore", *program(tmp_path, code)], capture_output=True, text=True, timeout=LONG_SECONDS
        )
    assert done.returncode == 0, done.stderr
    assert "inert" in done.stdout
    sentence = f"The threads of this process are {library}'s"
    assert sentence in done.stdout, "attach says it too"
    assert sentence in done.stderr
    assert "thread=False" in done.stderr


ALONGSIDE = """
    {patch}
    import os, sys, time, looptap
    agent, step = looptap.Agent("beside"), 0
    print("begins", flush=True)
    while not os.path.exists(sys.argv[1]):
        agent.emit("batch", step=step)
        step += 1
        time.sleep(0.01)
    agent.close()
"""


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.usefixtures("processes")
def test_where_only_threads_are_left_as_they_are_the_agent_works(library, tmp_path):
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    code = textwrap.dedent(ALONGSIDE).format(patch=LIBRARIES[library].replace("()", "(thread=False)"))
    ends = tmp_path / "ends"
    command = [*PYTHON, "-W", "ignore", *program(tmp_path, code), ends]
    job = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert job.stdout.readline() == "begins\n"
        with looptap.attach("beside", timeout=LONG_SECONDS) as run:
            assert len(run.stream("step").wait(3, timeout=LONG_SECONDS)) >= 3
    finally:
        ends.touch()
        _, stderr = job.communicate(timeout=LONG_SECONDS)
    assert (job.returncode, stderr) == (0, "")


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


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("how", ["stop", "Ctrl-C"])
def test_stop_ends_a_script_by_the_signal_of_ctrl_c(how, tmp_path):
    job = subprocess.Popen([*PYTHON, *program(tmp_path, STOPPED)], stderr=subprocess.PIPE, text=True)
    try:
        with soon(lambda: attached("stopped")) as run:
            if how == "stop":
                run.stop()
            else:
                os.kill(job.pid, signal.SIGINT)
        assert "KeyboardInterrupt" in job.communicate(timeout=LONG_SECONDS)[1].splitlines()
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


# ---------------------------------------------------------------- locale, directories, variables, exec

STORED = """
    import sys, looptap
    with looptap.Agent(sys.argv[1], strict=True) as agent:
        agent.stream("loss", "loss", keep=True)
        agent.emit("batch", loss=1.0)
    print(looptap.__name__)
"""
POSIX = {"LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}


def finished(command, folder, **variables):
    """Run Python to its end, in a folder; return its output as bytes."""
    environment = {**os.environ, "LOOPTAP_STORE": "", **variables}
    done = subprocess.run([*PYTHON, *command], capture_output=True, cwd=folder, env=environment, timeout=LONG_SECONDS)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout + done.stderr


@pytest.mark.usefixtures("processes")
def test_a_run_with_letters_is_stored_and_found_in_every_locale(tmp_path):
    folder = tmp_path / "größe"
    folder.mkdir()
    script = program(folder, STORED)
    assert b"looptap:" not in finished([*script, "modèle"], folder, **POSIX)
    (file,) = (folder / "looptap-runs").glob("modèle-*.looptap")
    with looptap.open(file) as stored:
        assert stored.name == "modèle"
        assert stored.stream("loss").values == [1.0]
        assert stored.metadata["directory"] == str(folder)
    for words in (["open"], ["open", "modèle"], ["compare"], ["compare", "modèle"]):
        found = finished(["-m", "looptap", *words], folder, **POSIX)
        assert b"mod" in found
        assert b"ended" in found


GONE = """
    import os, pathlib, looptap
    os.chdir("gone")
    os.rmdir(pathlib.Path.cwd())
    with looptap.Agent("gone", strict=True) as agent:
        agent.stream("loss", "loss", keep=True)
        agent.emit("batch", loss=1.0)
        print(agent)
"""


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("store", ["", "chosen"])
def test_in_a_working_directory_that_is_gone_there_is_an_agent_and_a_sentence(store, tmp_path):
    (tmp_path / "gone").mkdir()
    said = finished(program(tmp_path, GONE), tmp_path, LOOPTAP_STORE=store and str(tmp_path / store)).decode()
    assert "Agent 'gone', run gone-" in said
    if store:
        assert "not complete" not in said
        assert list((tmp_path / store).glob("gone-*.looptap"))
    else:
        assert "is not complete: the working directory has been removed; name a folder for runs: LOOPTAP_STORE" in said


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("command", ["open", "compare"])
def test_a_command_in_a_working_directory_that_is_gone_says_so(command, tmp_path):
    (tmp_path / "gone").mkdir()
    script = f'cd gone && rmdir ../gone && exec "$@" -m looptap {command}'
    environment = {**os.environ, "LOOPTAP_STORE": ""}
    done = subprocess.run(
        ["sh", "-c", script, "sh", *PYTHON], cwd=tmp_path, env=environment, timeout=LONG_SECONDS,
        capture_output=True, text=True,
    )  # fmt: skip
    said = done.stdout + done.stderr
    assert "No run can be found in looptap-runs: the working directory has been removed." in said
    assert "fault of looptap" not in said


@pytest.mark.parametrize(
    "left_over", [{"RANK": "1", "WORLD_SIZE": "2"}, {"RANK": "3", "WORLD_SIZE": "2", "MASTER_PORT": "1"}]
)
def test_ranks_left_over_in_the_environment_make_no_second_rank(left_over, monkeypatch):
    for name, value in left_over.items():
        monkeypatch.setenv(name, value)
    with looptap.Agent("alone") as agent, looptap.attach("alone") as run:
        agent.trigger("tick", lambda: 7)
        assert (agent.run.rank, agent.run.ranks) == (0, 1)
        with training(agent):
            assert run.trigger("tick").result == 7


def test_a_run_named_like_a_file_of_settings_is_found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LOOPTAP_STORE", raising=False)
    Path("config.json").write_text("{}")
    with looptap.Agent("config.json") as agent:
        agent.stream("loss", "loss", keep=True)
        agent.emit("batch", loss=1.0)
        with looptap.attach("config.json") as run:
            assert run.id == agent.run.id
    with looptap.open("config.json") as stored:
        assert stored.id == agent.run.id
    with pytest.raises(looptap.streams.errors.LooptapError, match=r"A run of that name has ended|has ended"):
        looptap.attach("config.json")


PURGED = """
    import sys, looptap
    first = looptap.Agent("purged")
    for name in [name for name in sys.modules if name.partition(".")[0] == "looptap"]:
        del sys.modules[name]
    import looptap
    second = looptap.Agent("purged")
    print(*(run.id for run in looptap.runs() if run.alive))
    assert second.run.id in {run.id for run in looptap.runs()}
"""


@pytest.mark.usefixtures("processes")
def test_an_agent_of_a_looptap_imported_again_replaces_the_one_before(tmp_path):
    said = finished(program(tmp_path, PURGED), tmp_path).decode()
    assert len(said.splitlines()[0].split()) == 1
    assert "replaces an older one" in said


EXECUTED = """
    import os, sys, time, looptap
    agent = looptap.Agent("again", store="kept")
    agent.stream("loss", "loss", keep=True)
    agent.emit("batch", loss=1.0)
    passes = int(sys.argv[1])
    if passes:
        while agent.stats()["store"]["kept"] < 1:
            time.sleep(0.01)
        os.execv(sys.executable, [sys.executable, sys.argv[0], str(passes - 1)])
    print(*(run.alive for run in looptap.runs()))
    print(looptap.attach("again").id == agent.run.id)
    import glob
    print(*sorted(looptap.open(file).alive for file in glob.glob("kept/*.looptap") if agent.run.id not in file))
"""


@pytest.mark.usefixtures("processes")
@pytest.mark.promise("S40")
def test_a_pass_before_an_exec_has_ended(tmp_path):
    assert finished([*program(tmp_path, EXECUTED), "2"], tmp_path).decode().splitlines() == [
        "True", "True", "False False",
    ]  # fmt: skip


BECAME = """
    import os, sys, time, looptap
    agent = looptap.Agent("gone", store="kept")
    agent.stream("loss", "loss", keep=True)
    agent.emit("batch", loss=1.0)
    while agent.stats()["store"]["kept"] < 1:
        time.sleep(0.01)
    print(os.getpid(), flush=True)
    os.execv("/bin/cat", ["cat"])
"""


@pytest.mark.usefixtures("processes")
def test_a_run_whose_process_has_become_a_program_without_an_agent_has_ended(tmp_path, here):
    with subprocess.Popen(
        [*PYTHON, *program(tmp_path, BECAME)], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        pid = int(process.stdout.readline())
        soon(lambda: Path(f"/proc/{pid}/cmdline").read_bytes() == b"cat\0")
        (run,) = looptap.runs()
        assert (run.name, run.pid, run.alive) == ("gone", pid, False)
        became = f"its process {pid} has become another program (exec)"
        with pytest.raises(looptap.RunEnded, match=re.escape(f"The run {run.id} has ended: {became}. It began ")):
            looptap.attach("gone")
        with pytest.raises(looptap.RunEnded, match=re.escape(became)):
            run.attach()
        assert f"; {became}; its connection file is still there: " in here("ls", "--all")[1]
        with looptap.open(next((tmp_path / "kept").glob("*.looptap"))) as stored:
            assert (stored.alive, stored.stream("loss").values) == (False, [1.0])
            assert stored.reason.startswith("its process has become another program (exec) without closing the file")
        process.communicate(b"")
        with pytest.raises(looptap.RunEnded, match=f"its process {pid} is gone"):
            looptap.attach("gone")


WATCHED = """
    import os, looptap
    with looptap.Agent("watched") as agent:
        print("ready", flush=True)
        input()
        os.execv("/bin/sleep", ["sleep", "600"])
"""


@pytest.mark.usefixtures("processes")
def test_a_client_learns_that_the_process_of_its_run_has_become_another_program(tmp_path):
    with subprocess.Popen(
        [*PYTHON, *program(tmp_path, WATCHED)], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        process.stdout.readline()
        with looptap.attach("watched") as run:
            process.stdin.write(b"\n")
            process.stdin.flush()
            soon(lambda: run.state == "failed", detail=lambda: run.state)
            assert run.reason == "The run's process has become another program (exec)."
            process.kill()


DAEMON = """
    import os, sys, looptap
    early = looptap.Agent("daemon") if sys.argv[1] == "early" else None
    if os.fork():
        os._exit(os.waitstatus_to_exitcode(os.wait()[1]))
    os.setsid()
    os.closerange(3, 4096)
    agent = early or looptap.Agent("daemon")
    for step in range(3):
        agent.emit("batch", step=step)
    print("inert" in repr(agent), *(run.alive for run in looptap.runs()))
    agent.close()
"""


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize(("when", "said"), [("early", "True True"), ("late", "False True")])
def test_a_daemon_may_close_all_descriptors_in_a_forked_child(tmp_path, when, said):
    assert finished([*program(tmp_path, DAEMON), when], tmp_path).decode().splitlines() == [said]


class Endless:
    """A loader that raises an error of its own for its length."""

    def __iter__(self):
        return iter(range(8))

    def __len__(self):
        raise NotImplementedError


def test_progress_takes_a_loader_whose_length_raises():
    from looptap.training.progress.progress import Progress

    progress = Progress(Endless(), epochs=2)
    for _ in range(2):
        assert sum(1 for _ in progress.train()) == 8
