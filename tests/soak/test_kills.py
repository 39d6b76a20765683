"""Processes that are killed while they record values: the full count."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from places import SUPPORT

KILLING = SUPPORT / "killing.py"


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_a_thousand_kills_lose_nothing_that_was_committed(tmp_path, capsys):
    command = [sys.executable, str(KILLING), str(tmp_path), "100", "1.5"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    with capsys.disabled():
        print(f"\n{seen}", flush=True)
    assert seen["killed"] == 1000
    assert seen["with_values"] > 500
    assert seen["longest"] < 10  # the flush interval is 0.2 s
