"""Mean gradients from DDP's buckets: the same gradients to the bit, and no copy."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import warm
from rank_jobs import end, environment, free_port

from looptap.training.prioritized.distributed.reduced_gradients import ReducedGradients

JOB = Path(__file__).parent / "support" / "reducing_job.py"


@pytest.mark.parametrize("world", [1, 2, 3])
def test_gradients_are_those_of_plain_ddp_to_the_bit_and_what_is_taken_is_what_the_optimizer_sees(tmp_path, world):
    """On 3 ranks division and multiplication by a third differ in the last bit."""
    port = free_port()
    children = [
        warm.Popen(
            [sys.executable, str(JOB)], env=environment(tmp_path, rank, world, port), stdout=subprocess.PIPE, text=True
        )
        for rank in range(world)
    ]
    try:
        texts = [child.communicate(timeout=240)[0] for child in children]
        assert [child.poll() for child in children] == [0] * world
    finally:
        end(children)
    found = json.loads(texts[0].splitlines()[-1])
    assert [case for results in found for case, (equal, _) in results.items() if not equal] == []
    assert [case for results in found for case, (_, apart) in results.items() if apart] == []


def test_a_model_that_is_not_wrapped_is_named():
    with pytest.raises(TypeError, match=r"not Linear: .* under fully_shard, .*parameter\.grad"):
        ReducedGradients(torch.nn.Linear(2, 2))
