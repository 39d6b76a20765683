"""Programs that some tests need: finding them, or skipping the test."""

import os
import shutil

import pytest

UNTESTED = "NOT TESTED"
"""Stands in the reason of each skip that the summary repeats."""


def need(program: str, what: str) -> str:
    """Return the path of ``program``; without it skip the test, with a summary line."""
    found = shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")
    if found is None:
        pytest.skip(f"{what} {UNTESTED}: there is no {program} (`make browsers` installs it, where that is allowed)")
    return found
