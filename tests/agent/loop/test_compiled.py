"""Events under torch.compile: no graph break, guard or recompilation."""

from __future__ import annotations

import warnings

import pytest
import torch

from looptap.testing import pair

pytestmark = pytest.mark.pure

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what Dynamo's own imports warn of is not ours
    import torch._dynamo


@pytest.mark.parametrize("attached", [False, True])
def test_emit_adds_nothing_to_a_compiled_graph(attached):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    agent, run = pair("compiled")
    streams = [run.stream("y.sum()", on="batch")] if attached else []
    assert not any("torch.compile" in str(stream.notes) for stream in streams)  # so far nothing is compiled

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
    if attached:
        torch.compile(step, backend="eager")(torch.ones(3))  # the comparison has forgotten it
        streams.append(run.stream("y", on="batch"))
        assert "torch.compile" in str(streams[1].notes)
    agent.emit("batch", y=torch.ones(1))  # outside of the compiled part it is heard
    assert all(stream.arrived for stream in streams)
    agent.close()


def test_the_note_is_given_only_where_compilation_is_the_likely_cause():
    agent, run = pair("compiled")

    def noted(event):
        return "torch.compile" in str(run.stream("y", on=event).notes)

    def helper(y):
        agent.emit("batch", y=y)
        return y

    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    agent.emit("epoch", y=1)
    assert not noted("batch")  # nothing is compiled
    torch.compile(lambda x: x.sin(), backend="eager")(torch.ones(3))
    assert not noted("epochs")  # a mistyped name is the likelier cause
    assert not noted("epoch")
    torch.compile(lambda x: helper(x.cos()), backend="eager")(torch.ones(3))
    assert noted("batch")
    agent.close()
