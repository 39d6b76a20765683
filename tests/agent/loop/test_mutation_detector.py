"""Queries that change an observable: the change is undone and reported (S19)."""

from __future__ import annotations

import threading
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from looptap.agent.loop.guard import reachable_walk
from looptap.agent.loop.guard.reachable_state import ReachableState
from looptap.testing import pair

CHANGES = {
    "an observable": ("x", lambda e: e.x.add_(1).sum()),
    "text": ("x", "x.zero_().sum()"),
    "out=": ("x", "torch.abs(x, out=x).sum()"),
    "a view": ("x", lambda e: e.x[0].fill_(2).item()),
    "one of a batch": ("batch[1]", lambda e: e.batch[1].mul_(2).sum()),
    "one by name": ("named['a']", lambda e: e.named["a"].mul_(2).sum()),
    "a parameter": ("model.0.weight", lambda e: nn.init.zeros_(e.model[0].weight).sum()),
    "a gradient": ("model.0.weight.grad", lambda e: e.model[0].weight.grad.zero_().sum()),
    "gradients that are gone": ("model.0.weight.grad", lambda e: e.model.zero_grad()),
    "a step of the optimizer": ("model.0.weight", lambda e: e.optimizer.step()),
    "a reduction": ("x", "sum(e.x.add_(1).sum().item() for e in events)"),
    "an error after it": ("x", lambda e: e.x.add_(1).nothing),
    "a host's function": ("x", "poke(x)"),
}
HARMLESS = {
    "a copy": lambda e: e.x.clone().add_(1),
    "a forward pass": lambda e: e.model(e.x),
    "text": "layer_norms(model), x.sum()",
    "modes": lambda e: torch.no_grad().__enter__(),
    "a gradient of its own": lambda e: torch.autograd.grad(e.model[0](e.x).sum(), e.model[0].weight)[0],
    "an error": "missing(x)",
    "numbers": lambda e: np.mean(e.x.numpy()),
}


def watched(query, **how):
    """Return the stream of ``query`` over a few events of a small job."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    model(torch.ones(5, 4)).sum().backward()
    agent, run = pair("watched")
    agent.expose(optimizer=torch.optim.SGD(model.parameters(), lr=0.1), model=model)
    agent.expose(poke=lambda x: x.add_(1).sum(), missing=lambda x: 1 / 0)
    stream = run.stream(query, on="batch", **how)
    for step in range(3):
        agent.emit("batch", step=step, x=torch.ones(5, 4), batch=(1, torch.ones(2)), named={"a": torch.ones(2)})
    agent.emit("epoch")
    agent.close()
    assert stream.arrived or stream.error_count
    return stream


def report(stream):
    return [note for note in stream.notes if "in place" in note]


@pytest.mark.parametrize("how", CHANGES)
def test_a_query_that_changes_what_it_sees_is_warned_once(how):
    name, query = CHANGES[how]
    (sentence,) = report(watched(query))
    assert sentence.startswith(f"{name} changed in place at event 1, ")
    assert "run.call" in sentence


@pytest.mark.parametrize("how", HARMLESS)
def test_a_query_that_changes_nothing_gets_no_warning(how):
    assert report(watched(HARMLESS[how])) == []


LAYOUTS = {
    "sparse": lambda: torch.eye(3).to_sparse(),
    "compressed rows": lambda: torch.eye(3).to_sparse_csr(),
    "blocks": lambda: torch.eye(4).to_sparse_bsr((2, 2)),
    "of the compiler of layers": lambda: torch.eye(3).to_mkldnn(),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "jagged": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
    "without memory": lambda: torch.empty(3, device="meta"),
}


class Holder:
    def __init__(self, held):
        self.held = held


@pytest.mark.filterwarnings("ignore")  # torch warns that some layouts may change
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_query_that_looks_past_a_tensor_of_any_layout_gets_no_warning(layout):
    agent, run = pair("watched")
    stream = run.stream(lambda e: (type(e.holder).__name__, e.holder.held.dtype.is_complex), on="batch")
    for _ in range(3):
        agent.emit("batch", holder=Holder(LAYOUTS[layout]()))
    agent.close()
    assert stream.values == [("Holder", False)] * 3
    assert report(stream) == []


def test_sparse_gradients_that_a_query_does_not_touch_are_not_said_to_have_changed():
    model = nn.Embedding(5, 2, sparse=True)
    model(torch.tensor([1, 1, 3])).sum().backward()
    agent, run = pair("watched")
    streams = [run.stream(query, on="batch") for query in ("model", lambda e: e.model.weight.grad.zero_() is None)]
    for _ in range(3):
        agent.emit("batch", model=model)
    agent.close()
    looked, changed = map(report, streams)
    assert looked == []
    assert changed[0].startswith("model.weight.grad changed in place")


class Undecided:
    """What raises when it is asked whether it is true, as a tensor of several does."""

    def __bool__(self):
        raise AssertionError("it was asked")


head = Undecided()


class Headed(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(2, 1)

    def forward(self, x):
        return self.head(x)


def test_a_global_of_the_job_is_not_asked_whether_it_is_true_if_a_method_has_its_name():
    agent, run = pair("watched")
    streams = [run.stream(query, on="batch") for query in ("model", lambda e: e.model.head.in_features)]
    agent.emit("batch", model=Headed())
    agent.close()
    assert [(stream.arrived, stream.error_count) for stream in streams] == [(1, 0)] * 2


def test_a_command_may_change_what_it_sees():
    agent, run = pair("watched")
    stream = run.stream(lambda e: e.x.sum(), on="batch")
    x = torch.ones(3)
    answer = []
    asking = threading.Thread(target=lambda: answer.append(run.call(lambda e: e.x.zero_().sum())))
    asking.start()
    while not answer:
        agent.emit("batch", x=x)
    asking.join()
    assert x.sum() == 0
    assert report(stream) == []
    agent.close()


class Loud(torch.Tensor):
    """A tensor that records each function that is called with it."""

    called: ClassVar[list[str]] = []

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        cls.called.append(str(function))
        return super().__torch_function__(function, types, args, kwargs or {})


def test_the_guard_is_bounded_and_runs_no_modes_or_subclasses_of_the_loop(monkeypatch):
    loud = torch.ones(2).as_subclass(Loud)
    quiet = torch.inference_mode()(torch.ones)(2)  # has no count of its changes
    many = [torch.ones(1) for _ in range(50)]
    Loud.called.clear()
    monkeypatch.setattr(reachable_walk, "MAX_VISITED_OBJECTS", 24)
    kept = ReachableState({"many"})
    kept.keep({"loud": loud, "quiet": quiet, "many": many, "text": "x", "module": nn})
    many[-1].add_(1)
    many[0].add_(1)
    assert [str(change.path) for change in kept.restore()] == ["many[0]"]
    assert Loud.called == []
    assert many[0].item() == 1
    assert many[-1].item() == 2
