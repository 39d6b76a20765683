"""Tests that start processes say so, which decides when they are run."""

import re
import subprocess
import sys

import pytest
from places import SUPPORT

STARTS = """
import contextlib, multiprocessing, os, subprocess, sys, threading
import pytest

PROGRAM = [sys.executable, "-c", ""]

def nothing(): pass

@pytest.fixture
def job(processes):
    subprocess.run(PROGRAM)

@pytest.mark.parametrize("start", [
    lambda: subprocess.run(PROGRAM), lambda: os.system(""), lambda: os.posix_spawn(PROGRAM[0], PROGRAM, {}), os.fork,
    multiprocessing.get_context("spawn").Process(target=nothing).start,
])
def test_unsaid(start): start()
def test_unsaid_and_swallowed():
    with contextlib.suppress(BaseException):
        subprocess.run(PROGRAM)
def test_unsaid_in_a_thread():
    thread = threading.Thread(target=subprocess.run, args=[PROGRAM])
    thread.start()
    thread.join()
@pytest.mark.usefixtures("processes")
def test_said(): subprocess.run(PROGRAM)
def test_said_by_its_fixture(job): subprocess.run(PROGRAM)
@pytest.mark.promise("S1")
def test_said_and_promised(job): pass
def test_that_starts_none(): pass
"""


def run(folder, *arguments):
    (folder / "conftest.py").write_text(
        f"import sys\nsys.path.insert(0, {str(SUPPORT)!r})\npytest_plugins = ('processes',)\n"
    )
    (folder / "test_starts.py").write_text(STARTS)
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "-W", "ignore", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300).stdout


@pytest.mark.usefixtures("processes")
def test_a_test_fails_that_starts_a_process_and_does_not_say_so(tmp_path):
    out = run(tmp_path)
    assert "5 failed, 6 passed, 7 errors" in out, out  # those whose error was lost fail at their end
    assert len(re.findall(r"^FAILED test_starts.py::test_unsaid\[", out, re.MULTILINE)) == 5
    for name in ("test_unsaid_and_swallowed", "test_unsaid_in_a_thread"):
        assert f"ERROR test_starts.py::{name} " in out


@pytest.mark.usefixtures("processes")
def test_the_tier_of_a_test_follows_from_what_it_starts_and_promises(tmp_path):
    first, second = (run(tmp_path, "-m", tier, "--collect-only") for tier in ("tier1", "tier2"))
    assert "test_said_and_promised" in first
    assert "test_that_starts_none" in first
    assert re.findall(r"::(test_said\w*)", second) == ["test_said", "test_said_by_its_fixture"]
