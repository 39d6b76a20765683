"""`Prioritized` on several ranks: equal steps, one gbar, other numbers of ranks."""

from __future__ import annotations

import json
import sys

import pytest
from places import SUPPORT
from rank_jobs import printed

JOB = SUPPORT / "prioritized_ranks_job.py"


def outcome(folder, method, world, *words):
    """Run the job on ``world`` ranks; return what they print."""
    texts = printed(folder, [sys.executable, str(JOB), str(folder), method, *words], world)
    return [json.loads(text.splitlines()[-1]) for text in texts]


def one(found, name):
    """Return what is the same on all ranks."""
    assert all(rank[name] == found[0][name] for rank in found), [rank[name] for rank in found]
    return found[0][name]


@pytest.mark.usefixtures("processes")
@pytest.mark.promise("S23", "prioritized")
@pytest.mark.parametrize("method", ["norm", "published"])
def test_ranks_train_alike_and_continue_on_other_numbers_of_them(tmp_path, method):
    """2 ranks, then 3, then 1; 103 examples are no multiple of 2 or 3."""
    first = outcome(tmp_path, method, 2)
    assert len(one(first, "counts")) >= 2
    assert one(first, "start") == 0
    last = first
    for world in (3, 1):
        last_steps = one(last, "steps")
        found = outcome(tmp_path, method, world, "resume")
        assert one(found, "start") == last_steps
        assert one(found, "steps") == last_steps + sum(one(found, "counts"))
        assert [rank["known"] for rank in found] == [rank["shard"] for rank in found]
        assert [rank["note"] for rank in found] == [""] * world
        assert one(found, "weights")
        assert (one(found, "gbar") is None) == (method == "norm")
        assert all(rank["seconds"] > 0 and (rank["own"] > 0) == (world > 1) for rank in found)
        last = found
    assert one(last, "loss") < 0.5
