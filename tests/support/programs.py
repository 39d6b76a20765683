"""Programs that some tests need and a machine may lack: how they are found, and what is said where they are not."""

import shutil

import pytest

PACKAGES = {"chromium": "chromium", "Xvfb": "xvfb", "tmux": "tmux", "script": "bsdutils"}
"""Debian's package for each."""
UNTESTED = "NOT TESTED"
"""Stands in the reason of each skip that the summary repeats."""


def need(program: str, what: str) -> str:
    """The path of ``program``; without it the test is skipped, which the summary says in one line."""
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"{what} {UNTESTED}: there is no {program} (make browsers, or apt-get install {PACKAGES[program]})")
    return found
