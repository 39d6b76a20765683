"""Device values: snapshots stay the same, no query synchronizes (S19).

Each test is run on a fake device, made of host memory that is filled at the first wait for it, and on a CUDA
device if there is one; the name of the test says which.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

import looptap
from looptap.streams.values import memory, snapshots
from looptap.streams.values.device_transfer import DeviceCopy
from looptap.testing import pair, parts_of

NEEDS_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")
FORMS = {
    "mapped": ("x", {}),
    "a row": ("step, loss, x", {}),
    "nested": ("{'a': [x, (loss,)]}", {}),
    "a function": (lambda e: (e.x, e.loss), {}),
    "every": ("x", {"every": 2}),
    "throttled": ("x", {"throttle": 1000.0}),
    "a flight recorder": ("x", {"when": "step == 3", "before": 2}),
    "reduced": ("sum(e.loss for e in events), mean(e.loss for e in events)", {}),
    "extremes": ("min(e.loss for e in events), max(e.loss for e in events)", {}),
    "the last": ("last(e.x for e in events)", {}),
    "listed": ("list(e.x for e in events)", {}),
    "sliding": ("max(e.loss for e in events)", {"window": looptap.sliding(3)}),
    "a window": ("mean(e.loss for e in events)", {"window": 2}),
    "counted": ("len(events)", {}),
    "folded": ("reduce(lambda a, e: a + e.loss, events, 0)", {}),
    "recent": ("mean(e.loss for e in recent(3))", {}),
    "latest": ("latest('batch').x", {"on": "epoch"}),
    "norms": ("layer_norms(model, 'weight')", {}),
    "histograms": ("layer_histograms(model, 'weight')", {}),
    "activations": ("activation_stats(x)", {}),
    "the largest": ("batch_topk(2, by=each, x=x)", {}),
    "confusion": ("confusion(target, x, 4)", {}),
    "not a number": ("isnan(x), isfinite([x, loss]), norm(x), mean_abs(x)", {}),
    "a thumbnail": ("thumbnail(x)", {}),
}


def pretended(monkeypatch):
    """Make a device of host memory, whose copies arrive at the first wait for them."""

    def copy(tensor):
        clone, host = tensor.detach().clone(), torch.full_like(tensor.detach(), 77)
        return DeviceCopy(host, lambda: host.copy_(clone))

    monkeypatch.setattr(snapshots, "on_device", lambda tensor: True)
    monkeypatch.setattr(snapshots, "copy_to_host", copy)
    return "cpu"


@pytest.fixture(params=["pretended", pytest.param("cuda", marks=NEEDS_CUDA)])
def device(request, monkeypatch):
    return pretended(monkeypatch) if request.param == "pretended" else "cuda"


def delayed(agent):
    """Hold flushes back until `deliver` empties the returned list."""
    parts_of(agent).connection.manual = True

    def deliver():
        parts_of(agent).connection.manual = False
        parts_of(agent).connection.deliver()

    return deliver


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("x", lambda n: [[n] * 3]),
        ("step, loss, {'a': [x]}", lambda n: (n, 3.0 * n, {"a": [[[n] * 3]]})),
        (lambda e: (e.x, e.loss), lambda n: ([[n] * 3], 3.0 * n)),
    ],
    ids=["mapped", "nested", "a function"],
)
@pytest.mark.parametrize("how", [{}, {"when": "step >= 0", "after": 10}], ids=["sent", "recorded"])
def test_a_value_does_not_change_with_a_later_update_in_place(query, expected, how, device):
    agent, run = pair("delayed")
    stream = run.stream(query, on="batch", **how)
    deliver = delayed(agent)
    x = torch.zeros(1, 3, device=device)
    loss = torch.zeros((), device=device)
    for step in range(4):
        x.fill_(step)
        loss.copy_(x.sum())
        agent.emit("batch", step=step, x=x, loss=loss)
        x.fill_(-1)  # long before anybody has waited for the copy
        loss.fill_(-1)
    deliver()
    assert [plain(value) for value in stream.values] == [expected(n) for n in range(4)]
    agent.close()


def plain(value):
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return [*map(plain, value)] if isinstance(value, list) else tuple(map(plain, value))
    return value


@NEEDS_CUDA
@pytest.mark.parametrize("form", FORMS)
def test_no_form_of_query_makes_the_loop_wait_for_cuda(form):
    query, how = FORMS[form]
    agent, run = pair("asynchronous")
    model = nn.Linear(4, 4, device="cuda")
    agent.expose(model=model)
    stream = run.stream(query, **{"on": "batch", **how})
    deliver = delayed(agent)
    events = []
    for step in range(6):
        x = torch.rand(4, 4, device="cuda")
        each = x.sum(1)
        events.append({"step": step, "x": x, "each": each, "loss": each.mean(), "target": each.argsort() % 4})
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for event in events:
            agent.emit("batch", **event)
        agent.emit("epoch")
        agent.emit("epoch")
    finally:
        torch.cuda.set_sync_debug_mode("default")
    deliver()
    assert stream.error_count == 0, stream.traceback
    assert stream.arrived
    agent.close()


@NEEDS_CUDA
def test_an_event_inside_a_captured_graph_is_only_counted():
    agent, run = pair("captured")
    stream = run.stream("x.sum()", on="batch")
    x = torch.ones(3, device="cuda")
    agent.emit("batch", x=x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x * 2
        agent.emit("batch", x=y)
    graph.replay()
    agent.emit("batch", x=y)
    assert stream.values == [3.0, 6.0]
    assert agent.stats()["events"]["batch"] == 3
    agent.close()


@NEEDS_CUDA
def test_memory_of_a_device_is_that_of_its_tensors():
    held = torch.ones(1 << 20, device="cuda")
    assert memory.cuda_memory() == torch.cuda.memory_allocated() >= held.nbytes
    assert memory.cuda_peak("cuda:0") == torch.cuda.max_memory_allocated()


@NEEDS_CUDA
def test_a_model_on_a_device_is_probed_without_changing_its_random_numbers():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.5)).cuda()
    x = torch.randn(8, 4, device="cuda")
    state, mean = torch.cuda.get_rng_state(), model[1].running_mean.clone()
    answer = looptap.probe(model, x)
    assert torch.equal(torch.cuda.get_rng_state(), state)
    assert torch.equal(model[1].running_mean, mean)
    assert torch.equal(answer, model.eval()(x))
    with pytest.raises(looptap.QueryError, match="model is on cuda:0 and its input on cpu"):
        looptap.probe(model, x.cpu())
