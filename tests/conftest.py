"""Fixtures and options of all tests."""

import atexit
import gc
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

import hypothesis
import pytest
from programs import UNTESTED
from slowness import SLOWNESS
from waiting import soon

pytest_plugins = ("stuck", "processes")

# An example may take as long as it likes: on a busy machine any of them is held up at times.
hypothesis.settings.register_profile("looptap", deadline=None)
hypothesis.settings.load_profile("looptap")

# Also where the environment forbids it: without bytecode each worker compiles all tests, and each of hundreds of
# programs all of looptap.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A shell that starts a job in the background has it ignore Ctrl-C, and whatever that starts inherits it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests and their programs share few cores, and on a busy machine an operation on two threads waits for both at each
# step: torch gets one. OpenMP reads this when it is loaded.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A run answers a test when it can: no test fails because the machine stood still for five seconds.
os.environ.setdefault("LOOPTAP_TIMEOUT", f"{120 * SLOWNESS:.0f}")

# Keras chooses its backend when it is imported; looptap sees torch.
os.environ.setdefault("KERAS_BACKEND", "torch")

# Commands are kept in a file beside the job: those of the tests in a place that goes with them.
os.environ["LOOPTAP_STORE"] = tempfile.mkdtemp(prefix="looptap-store-")
atexit.register(shutil.rmtree, os.environ["LOOPTAP_STORE"], ignore_errors=True)


def pytest_collection_finish():
    """Freeze imported objects, a million of them, so that `gc.collect` is quick."""
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _wait_for_files():
    """Let a run end once its file is complete, also on a busy machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("looptap.agent.server.recording.CLOSE_TIMEOUT_SECONDS", 60.0)
        yield


@pytest.fixture(scope="module", autouse=True)
def _leave_out_what_other_files_leave():
    """Freeze what outlives the tests of a file; no agent and no watcher may."""
    yield
    gc.collect()
    gc.freeze()
    soon(
        lambda: all(one.name != "looptap-io" for one in threading.enumerate()), 10.0,
        detail="an agent is still open: close it, or the tests of other files see its thread",
    )  # fmt: skip
    for module, state in (("looptap.integrations.tee.start", "_tees"), ("looptap.integrations.auto.entry", "_placed")):
        assert not getattr(sys.modules.get(module), state, ()), f"{module} would also watch the tests of other files"


@pytest.fixture(autouse=True)
def _first_colors_first():
    """Forget which names of a session have which colours."""
    colors = sys.modules.get("looptap.visualizers.data.colors")
    if colors is not None:
        colors.SESSION.clear()


@pytest.fixture
def progress(capsys):
    """Return a function that prints the progress of a long count twice a minute."""
    reported = time.monotonic()

    def report(count, what):
        nonlocal reported
        if time.monotonic() - reported > 30:
            reported = time.monotonic()
            with capsys.disabled():
                print(f"\n{count:,} {what}", end="", flush=True)

    return report


@pytest.fixture
def directory(tmp_path, monkeypatch):
    """Return the directory in which the runs of this test announce themselves."""
    tmp_path.chmod(0o700)
    monkeypatch.setenv("LOOPTAP_DIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def place(monkeypatch):
    """Set LOOPTAP_DIR to a private directory with a path short enough for a socket."""
    path = Path(tempfile.mkdtemp(prefix="lt-", dir="/tmp"))
    monkeypatch.setenv("LOOPTAP_DIR", str(path))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def here(capsys):
    """Return a function that runs `looptap` here: exit code, stdout, stderr."""
    from looptap.cli import main

    def finish(*arguments):
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        return ended.value.code, *capsys.readouterr()

    return finish


def pytest_terminal_summary(terminalreporter):
    """Print a line for each program that is missing, so that tests were skipped."""
    reasons = {str(report.longrepr[2]) for report in terminalreporter.stats.get("skipped", ()) if report.longrepr}
    for reason in sorted(reason for reason in reasons if UNTESTED in reason):
        terminalreporter.write_line(reason.removeprefix("Skipped: "), red=True, bold=True)
