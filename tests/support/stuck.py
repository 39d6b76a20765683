"""Hooks by which a test that does not end fails once, and the run continues.

A test that is over its time-out is interrupted by a signal, and by none while pytest itself is at work, which would end
the run. Where the interrupt does not end the test (what it called swallows it, waits for it in a ``finally``, or keeps
the interpreter), its process ends, with the stacks of all threads.
"""

from __future__ import annotations

import faulthandler
import os
import signal
from types import TracebackType

import pytest
import pytest_timeout
from slowness import SLOWNESS

GRACE_SECONDS = 60.0 * SLOWNESS
"""Seconds after its time-out that a test may take to fail."""
_stderr = -1
_in_test = False


def pytest_configure(config):
    """Keep the stderr that is not captured."""
    global _stderr
    with config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        _stderr = os.dup(2)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def _noted(item):
    """Note that pytest catches what is raised."""
    global _in_test
    _in_test = True
    try:
        return (yield)
    finally:
        _in_test = False


pytest_runtest_setup = pytest_runtest_call = pytest_runtest_teardown = _noted


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item, settings):
    """Interrupt a test that takes too long; end the process if that does not help."""
    settings = settings._replace(timeout=settings.timeout * SLOWNESS)
    faulthandler.dump_traceback_later(settings.timeout + GRACE_SECONDS, exit=True, file=_stderr)
    pytest_timeout.pytest_timeout_set_timer(item, settings)
    if settings.method == "signal":
        interrupt = signal.getsignal(signal.SIGALRM)

        def interrupt_in_test(number, frame):
            if _in_test:
                interrupt(number, frame)
            else:
                signal.setitimer(signal.ITIMER_REAL, 0.1)

        signal.signal(signal.SIGALRM, interrupt_in_test)
    return True


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item, call):
    """Give each line of a traceback a number: pytest cannot show one without."""
    error = call.excinfo and call.excinfo.value
    if error is not None:
        _number_lines(error)
        call.excinfo = pytest.ExceptionInfo.from_exception(error)
    return (yield)


def _number_lines(error, known=()):
    """Give each line of an exception a number, and of those that it came from.

    An interrupt may come at an instruction of no line.
    """
    if error is None or any(error is one for one in known):
        return
    error.__traceback__ = _numbered(error.__traceback__)
    for other in (error.__cause__, error.__context__, *getattr(error, "exceptions", ())):
        _number_lines(other, (*known, error))


def _numbered(traceback):
    """Return a traceback with a number for each line."""
    if traceback is None:
        return None
    frame = traceback.tb_frame
    line = frame.f_code.co_firstlineno if traceback.tb_lineno is None else traceback.tb_lineno
    return TracebackType(_numbered(traceback.tb_next), frame, traceback.tb_lasti, line)




@pytest.hookimpl(trylast=True)
def pytest_exception_interact(node):
    """Bound the clean-up of a failed test: both bounds have just been taken back."""
    if isinstance(node, pytest.Item):
        faulthandler.dump_traceback_later(GRACE_SECONDS, exit=True, file=_stderr)


def pytest_timeout_cancel_timer():
    """Take the bound back: the test is over."""
    faulthandler.cancel_dump_traceback_later()
