"""Mean gradients from DDP's buckets: the same gradients to the bit, and no copy."""

from __future__ import annotations

import json
import sys
import textwrap

import pytest
import torch
import warm
from places import SUPPORT
from rank_jobs import end, environment, free_port, printed

from looptap.training.prioritized.distributed.reduced_gradients import ReducedGradients

JOB = SUPPORT / "reducing_job.py"


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("world", [1, 2, 3])
def test_gradients_are_those_of_plain_ddp_to_the_bit_and_what_is_taken_is_what_the_optimizer_sees(tmp_path, world):
    """On 3 ranks division and multiplication by a third differ in the last bit."""
    texts = printed(tmp_path, [sys.executable, str(JOB)], world)
    found = json.loads(texts[0].splitlines()[-1])
    assert [case for results in found for case, (equal, _) in results.items() if not equal] == []
    assert [case for results in found for case, (_, apart) in results.items() if apart] == []


SHARDED = """
    import sys, torch, torch.distributed as dist
    from torch.distributed.fsdp import fully_shard
    from looptap.training.prioritized.average_gradient import AverageGradient
    from looptap.training.prioritized.distributed import ReducedGradients

    def network():
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    plain = torch.nn.parallel.DistributedDataParallel(network())
    sharded = fully_shard(network(), mesh=dist.init_device_mesh("cpu", (2,)))
    reduced = ReducedGradients(plain)
    averages = [AverageGradient(model.parameters(), 0.5) for model in (plain, sharded)]
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(dist.get_rank()))
    for _ in range(2):
        for model in (plain, sharded):
            model.zero_grad()
            model(x).square().mean().backward()
        averages[0].update(reduced.taken())
        averages[1].update([one.grad for one in sharded.parameters()])
    for one, other in zip(*(average.tensors for average in averages)):
        torch.testing.assert_close(one, other.full_tensor())
    dist.barrier()
    dist.destroy_process_group()
"""


@pytest.mark.usefixtures("processes")
def test_under_fully_shard_the_gradients_of_parameters_give_each_rank_its_shard_of_the_average(tmp_path):
    port, command = free_port(), [sys.executable, "-c", textwrap.dedent(SHARDED)]
    children = [warm.Popen(command, env=environment(tmp_path, rank, 2, port)) for rank in range(2)]
    try:
        assert [child.wait(240) for child in children] == [0, 0]
    finally:
        end(children)


def test_a_model_that_is_not_wrapped_is_named():
    with pytest.raises(TypeError, match=r"not Linear: .* under fully_shard, .*parameter\.grad"):
        ReducedGradients(torch.nn.Linear(2, 2))
