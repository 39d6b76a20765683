"""Under torch.compile an event leaves no trace: no break, no guard, no recompilation, attached or not."""

from __future__ import annotations

import warnings

import pytest
import torch

from looptap.testing import pair

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what Dynamo's own imports warn of is not ours
    import torch._dynamo


@pytest.mark.parametrize("attached", [False, True])
def test_emit_adds_nothing_to_a_compiled_graph(attached):
    agent, run = pair("compiled")
    streams = [run.stream("y.sum()", on="batch")] if attached else []

    def step(x):
        y = x.sin()
        agent.emit("batch", y=y)
        return y.cos()

    def counters(function):
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        compiled = torch.compile(function, backend="eager", fullgraph=True)
        for _ in range(3):
            compiled(torch.ones(3))
        return {name: dict(count) for name, count in torch._dynamo.utils.counters.items() if count}

    assert counters(step) == counters(lambda x: x.sin().cos())
    assert not any(stream.arrived for stream in streams)
    assert all("torch.compile" in str(stream.notes) for stream in streams)
    agent.emit("batch", y=torch.ones(1))  # outside of the compiled part it is heard
    assert all(stream.arrived for stream in streams)
    agent.close()
