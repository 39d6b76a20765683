"""A test that does not end fails once, with the stacks, and the others are run."""

import re
import subprocess
import sys

from places import SUPPORT

HOOKS = f"""
import sys
sys.path.insert(0, {str(SUPPORT)!r})
import stuck
from stuck import *
stuck.GRACE_SECONDS = 0.5
"""
STUCK = """
import time
import pytest

def endless():
    while True:
        try:
            time.sleep(60)
        except BaseException:
            pass

@pytest.fixture
def unclean():
    yield
    endless()

def test_before(): pass
@pytest.mark.timeout(1, func_only=True)
def test_endless(): endless()
@pytest.mark.timeout(60)
def test_unclean(unclean): assert False
def test_after(): pass
"""


def test_a_test_that_does_not_end_fails_once_and_all_others_are_run(tmp_path):
    (tmp_path / "conftest.py").write_text(HOOKS)
    (tmp_path / "test_stuck.py").write_text(STUCK)
    for name in "abcdef":
        (tmp_path / f"test_{name}.py").write_text("def test(): pass\n")
    arguments = ["-m", "pytest", "-n", "2", "--dist", "loadfile", "--no-loadscope-reorder", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, *arguments, "-rN"], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert " 3 failed, 8 passed" in done.stdout, done.stdout + done.stderr  # the unclean one for two reasons
    for name in ("endless", "unclean"):
        assert len(re.findall(rf"crashed while running 'test_stuck\.py::test_{name}'\n", done.stdout)) == 1
    assert done.stderr.count("Timeout (0:00:0") == 2
    assert done.stderr.count("in endless") == 2
