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
