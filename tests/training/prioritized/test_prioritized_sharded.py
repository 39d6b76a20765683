"""`Prioritized` with a model under `fully_shard`: what is refused, what works."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from looptap.streams.errors import ControlError
from looptap.training.prioritized import Prioritized, PriorityError

N = 40


@pytest.fixture(autouse=True)
def _one_rank(tmp_path):
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


def a_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def sharded(model):
    from torch.distributed.fsdp import fully_shard

    return fully_shard(model, mesh=torch.distributed.init_device_mesh("cpu", (1,)))


def trained(prioritized, model, epochs):
    """Train, and return the losses."""
    torch.manual_seed(1)
    x = torch.randn(N, 4)
    y, found = (x[:, 0] > 0).long(), []
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    for _ in range(epochs):
        for batch in prioritized:
            logits = model(x[batch])
            losses = functional.cross_entropy(logits, y[batch], reduction="none")
            optimizer.zero_grad()
            prioritized.backward(batch, losses)
            optimizer.step()
            prioritized.observe(batch, logits=logits, targets=y[batch])
            found.append(float(losses.detach().mean()))
    return found


@pytest.mark.parametrize("method", ["published", "repaired"])
def test_methods_with_priorities_are_refused_at_construction_and_at_runtime(method):
    model = sharded(a_model())
    with pytest.raises(ControlError, match=rf"{method}.*sharded over ranks.*'norm'"):
        Prioritized(N, model, 8, method)
    with pytest.raises(PriorityError, match=r"sharded over ranks"):
        Prioritized(N, model, 8, exact="ghost")
    prioritized = Prioritized(N, model, 8)
    with pytest.raises(ControlError, match=r"sharded over ranks"):
        prioritized.method = method
    assert prioritized.method == "norm"
    model(torch.randn(2, 4))  # parameters are whole until the backward pass
    with pytest.raises(ControlError, match=r"sharded over ranks"):
        prioritized.method = method


@pytest.mark.parametrize("method", ["norm", "loss", "uniform"])
def test_methods_without_priorities_train_as_they_do_without_shards(method):
    found = []
    for prepare in (sharded, lambda model: model):
        model = prepare(a_model())
        prioritized = Prioritized(N, model, 8, method, switch="on", seed=3)
        found.append(trained(prioritized, model, 4))
        assert not prioritized.note
    assert found[0] == pytest.approx(found[1], rel=1e-5)
    assert found[0][-1] < found[0][0]


def test_a_state_with_an_average_gradient_continues_by_a_method_without_one():
    model = a_model()
    before = Prioritized(N, model, 8, "published", k=0.1, r=0.1)
    trained(before, model, 4)
    before.method = "norm"
    state = before.state_dict()
    assert state["average"] is not None
    model = sharded(a_model())
    after = Prioritized(N, model, 8, k=0.1, r=0.1)
    after.load_state_dict(state)
    trained(after, model, 1)
    assert not after.note
    before.method = "published"
    with pytest.raises(ControlError, match=r"sharded over ranks"):
        after.load_state_dict(before.state_dict())


@pytest.mark.parametrize("method", ["published", "repaired"])
def test_a_model_that_is_sharded_later_continues_by_norm_with_a_note(method):
    model = a_model()
    prioritized = Prioritized(N, model, 8, method, k=0.1, r=0.1, switch="on")
    trained(prioritized, model, 3)
    sharded(model)
    with pytest.warns(RuntimeWarning, match=r"sharded over ranks.*drawn by 'norm' from here on"):
        losses = trained(prioritized, model, 3)
    assert prioritized.method == "norm"
    assert losses[-1] < losses[0]
