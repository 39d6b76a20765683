"""A test that does not end fails once, with the stacks, and the others are run."""

import os
import re
import secrets
import subprocess
import sys

import pytest
import warm
from places import SUPPORT

HOOKS = f"""
import signal, sys
import pytest
sys.path.insert(0, {str(SUPPORT)!r})
import stuck
from stuck import *
stuck.GRACE_SECONDS = 0.5

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logreport(report):
    if "late" in report.nodeid and report.when == "call" and signal.getsignal(signal.SIGALRM):  # in the worker
        signal.raise_signal(signal.SIGALRM)
"""
STUCK = """
import time
import types
import pytest

def endless():
    while True:
        try:
            time.sleep(60)
        except BaseException:
            pass

def fail():
    raise ValueError("at no line")

@pytest.fixture
def unclean():
    yield
    endless()

def test_before(): pass
@pytest.mark.timeout(1, func_only=True)
def test_endless(): endless()
@pytest.mark.timeout(60)
def test_unclean(unclean): assert False
@pytest.mark.timeout(60)
def test_late(): pass
@pytest.mark.timeout(60)
def test_without_a_line():
    nowhere = types.FunctionType(fail.__code__.replace(co_linetable=bytes([255] * 99)), globals())
    try:
        nowhere()
    except ValueError as error:
        assert error.__traceback__.tb_next.tb_lineno is None
        raise KeyError("around it") from error
def test_after(): pass
"""


@pytest.mark.usefixtures("processes")
def test_a_test_that_does_not_end_fails_once_and_all_others_are_run(tmp_path):
    (tmp_path / "conftest.py").write_text(HOOKS)
    (tmp_path / "test_stuck.py").write_text(STUCK)
    for name in "abcdef":
        (tmp_path / f"test_{name}.py").write_text("def test(): pass\n")
    arguments = ["-m", "pytest", "-n", "2", "--dist", "worksteal", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, *arguments, "-rN"], cwd=tmp_path, capture_output=True, text=True, timeout=100,
        env={**os.environ, "LOOPTAP_TEST_SLOWNESS": "1"},
    )  # fmt: skip
    assert " 4 failed, 9 passed" in done.stdout, done.stdout + done.stderr  # the unclean one for two reasons
    for name in ("endless", "unclean"):
        assert len(re.findall(rf"crashed while running 'test_stuck\.py::test_{name}'\n", done.stdout)) == 1
    assert done.stderr.count("Timeout (0:00:0") == 2
    assert done.stderr.count("in endless") == 2
    assert "INTERNALERROR" not in done.stdout + done.stderr
    assert "ValueError: at no line" in done.stdout
    assert "KeyError: 'around it'" in done.stdout


STARTS_THE_FIRST = """
import sys, torch, warm
warm.run([sys.executable, "-c", ""])
print("started", flush=True)
sys.stdin.read()
"""


@pytest.mark.usefixtures("processes")
def test_the_output_of_a_program_ends_with_it(monkeypatch):
    # it starts the server of warm programs that others use after it
    monkeypatch.setattr(warm, "_RUN", run := secrets.token_hex(8))
    monkeypatch.setattr(warm, "_servers", {})
    environment = {**os.environ, "PYTEST_XDIST_TESTRUNUID": run, "PYTHONPATH": str(SUPPORT)}
    command = [sys.executable, "-c", STARTS_THE_FIRST]
    with warm.Popen(command, stdin=warm.PIPE, stdout=warm.PIPE, text=True, env=environment) as program:
        assert program.stdout.readline() == "started\n"
        warm.run([sys.executable, "-c", ""])
        program.stdin.close()
        assert program.stdout.read() == ""
        assert program.wait() == 0
