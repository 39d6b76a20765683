"""A script without a line of looptap that writes its own learning rate."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

from waiting import soon

import looptap

SCRIPT = Path(__file__).parents[1] / "trainers" / "scripts" / "own_rate.py"


@contextlib.contextmanager
def own_rate(folder, when):
    """Run it under `looptap run` as the run "own", which writes the rate ``when``."""
    end = folder / "end"
    command = [sys.executable, "-m", "looptap", "run", "--name", "own", str(SCRIPT), when, str(end)]
    with subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}) as script:
        try:
            soon(lambda: any(one.name == "own" for one in looptap.runs()) or script.poll() is not None)
            yield
        finally:
            end.touch()
    assert script.returncode == 0
