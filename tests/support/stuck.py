"""Hooks by which a test that does not end fails once, and the run continues.

A test that is over its time-out is interrupted by a signal. Where that does not end it (what it called swallows the
interrupt, waits for it in a ``finally``, or keeps the interpreter), its process ends, with the stacks of all threads.
xdist would then run it again, sixteen times in all, or wait forever: it hands the files that a worker has finished to
another one, which never reports that it is done with nothing.
"""

from __future__ import annotations

import faulthandler
import os

import pytest
from xdist.scheduler import LoadFileScheduling

GRACE_SECONDS = 60.0
"""Seconds after its time-out that a test may take to fail."""
APART = "test_tutorials.py::test_a_notebook_runs"
"""Tests of half a minute, each of which any worker may run."""
_stderr = -1


class EachOnce(LoadFileScheduling):
    """Tests of a file go to one worker, but for `APART`; what it leaves, to another."""

    def _split_scope(self, nodeid):
        """Return what is not divided between workers: a file, or a test."""
        return nodeid if APART in nodeid else super()._split_scope(nodeid)

    def remove_node(self, node):
        """Forget a worker; return the test that it was inside."""
        files = self.assigned_work[node]
        ended = next((test for tests in files.values() for test, done in tests.items() if not done), None)
        left = {f: {t: False for t, done in tests.items() if not done and t != ended} for f, tests in files.items()}
        self.assigned_work[node] = {file: tests for file, tests in left.items() if tests}
        super().remove_node(node)
        return ended


def pytest_xdist_make_scheduler(config, log):
    """Return the scheduler for files."""
    return EachOnce(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_configure(config):
    """Keep the stderr that is not captured."""
    global _stderr
    with config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        _stderr = os.dup(2)


def pytest_timeout_set_timer(settings):
    """End the process if the test does not fail in time."""
    faulthandler.dump_traceback_later(settings.timeout + GRACE_SECONDS, exit=True, file=_stderr)


@pytest.hookimpl(trylast=True)
def pytest_exception_interact(node):
    """Bound the clean-up of a failed test: both bounds have just been taken back."""
    if isinstance(node, pytest.Item):
        faulthandler.dump_traceback_later(GRACE_SECONDS, exit=True, file=_stderr)


def pytest_timeout_cancel_timer():
    """Take the bound back: the test is over."""
    faulthandler.cancel_dump_traceback_later()
