"""Ranks under commands from clients that are killed at random (S23)."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise

import pytest
from agreeing import ended, job, visit
from places import SUPPORT

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]
CLIENTS = SUPPORT / "killed_clients.py"


@pytest.mark.parametrize(("ranks", "steps"), [(2, 2000), (4, 1000)])
def test_clients_that_come_go_and_die_in_between_change_no_loss(directory, ranks, steps):
    with job(directory, ranks, steps, PAUSE=0.01, PATIENCE=0.2) as (children, run):
        killed = visit(run, steps)
        found = ended(directory, children)
    assert killed > 5
    for one in found:
        assert one["losses"] == one["bare"]
        assert one["events"] == steps


@pytest.mark.parametrize(("ranks", "kills"), [(2, 200), (4, 100)])
def test_a_client_killed_at_any_moment_leaves_all_ranks_at_the_same_rate_at_every_event(
    directory, ranks, kills, capsys
):
    with job(directory, ranks, PAUSE=0.002, PATIENCE=0.5) as (children, run):
        done = subprocess.run([sys.executable, str(CLIENTS), str(kills)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        run.stop(timeout=60)
        found = ended(directory, children)
    changes = sum(one != other for one, other in pairwise(found[0]["rates"]))
    with capsys.disabled():
        print(f"\n{ranks} ranks: {done.stdout.strip()} clients killed, {changes} changes, {found[0]['events']} events")
    assert all(one["rates"] == found[0]["rates"] for one in found)
    assert changes >= kills
