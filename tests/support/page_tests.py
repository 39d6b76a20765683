"""Runs `page_runner` for a test, with a job on several ranks if need be."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import page_preludes
import rank_jobs
import warm
from documented import ROOT

SUPPORT = Path(__file__).parent
RANKS_COUNT = 4
TIMEOUT_SECONDS = 900
"""Of a page, on a busy machine."""


def run_page(page: Path, place: Path, folder: Path) -> None:
    """Run a page in an empty ``folder``; its jobs announce themselves in ``place``."""
    environment = {**os.environ, "LOOPTAP_DIR": str(place)}
    command = [sys.executable, str(SUPPORT / "page_runner.py"), str(page)]
    ranks = []
    if str(page.relative_to(ROOT)) in page_preludes.RANKS:
        port, job = rank_jobs.free_port(), [sys.executable, str(SUPPORT / "page_job.py")]
        ranks = [
            warm.Popen(
                job, env=rank_jobs.environment(place, rank, RANKS_COUNT, port), cwd=folder,
                stdout=warm.DEVNULL, stderr=warm.DEVNULL,
            )
            for rank in range(RANKS_COUNT)
        ]  # fmt: skip
    try:
        done = warm.run(command, env=environment, cwd=folder, capture_output=True, text=True)
    finally:
        rank_jobs.end(ranks)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-5000:]}"
