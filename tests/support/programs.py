"""Programs that some tests need: finding them, or skipping the test."""

import shutil

import pytest

PACKAGES = {"chromium": "chromium", "Xvfb": "xvfb", "tmux": "tmux", "script": "bsdutils", "sshd": "openssh-server"}
"""Debian's package for each."""
UNTESTED = "NOT TESTED"
"""Stands in the reason of each skip that the summary repeats."""


def need(program: str, what: str) -> str:
    """Return the path of ``program``; without it skip the test, with a summary line."""
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"{what} {UNTESTED}: there is no {program} (make browsers, or apt-get install {PACKAGES[program]})")
    return found
