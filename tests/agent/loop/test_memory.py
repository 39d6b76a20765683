"""Memory: observables are freed when `emit` returns, whatever a query does (S19)."""

from __future__ import annotations

import ctypes
import gc
import os
import weakref

import pytest
import torch
from torch import nn

import looptap
from looptap.testing import pair

pytestmark = pytest.mark.pure

FORMS = {
    "mapped": ("x", {}),
    "mapped, many": ("x, loss, {'a': [out]}", {}),
    "a function": (lambda e: (e.x, e.loss), {}),
    "filtered": ("(e.x for e in events if e.loss > 0)", {}),
    "throttled": ("x", {"throttle": 1000.0}),
    "every": ("x", {"every": 3}),
    "reduced": ("sum(e.loss for e in events), max(e.loss for e in events)", {}),
    "folded": ("reduce(lambda a, e: a + e.x, events, 0)", {}),
    "running": ("accumulate((e.loss for e in events), lambda a, b: a + b)", {}),
    "averaged": ("ema((e.loss for e in events), 0.1)", {}),
    "the last": ("last(e.x for e in events), first(e.x for e in events)", {}),
    "listed": ("list(e.x for e in events)", {}),
    "collected": ("[b.x - a.x for a, b in itertools.pairwise(events)]", {}),
    "a function of events": (lambda events: sum(e.loss for e in events), {}),
    "the largest": ("nlargest(3, (e.loss for e in events))", {}),
    "sampled": ("sample((e.x for e in events), 2)", {}),
    "by key": ("group_by(((e.step % 3, e.loss) for e in events), mean)", {}),
    "counted": ("len(events)", {"window": 3}),
    "a window of events": ("mean(e.loss for e in events)", {"window": 3}),
    "a window of seconds": ("mean(e.loss for e in events)", {"window": looptap.seconds(1e-6)}),
    "sliding": ("max(e.loss for e in events)", {"window": looptap.sliding(4)}),
    "sliding, kept": ("list(e.x for e in events)", {"window": looptap.sliding(4)}),
    "sliding, collected": ("[e.x.sum() for i, e in enumerate(events)]", {"window": looptap.sliding(4)}),
    "recent": ("loss > 3 * mean(e.loss for e in recent(5))", {}),
    "recent events": ("len(recent(5))", {}),
    "latest": ("latest('batch').x", {"on": "epoch"}),
    "a flight recorder": ("x, loss", {"when": "loss < 0", "before": 5}),
    "a flight recorder of functions": (lambda e: e.x, {"when": "x.sum() > 1e9", "before": 5}),
    "an error": ("x.missing", {}),
    "an error with the event in it": (lambda e: e.model(e.out), {}),
    "an error in a reduction": ("sum(1 / (e.loss.item() - e.loss.item()) for e in events)", {}),
    "too large": ("x", {"max_bytes": 8}),
    "what cannot leave": ("model, x", {}),
    "hoarded events": ("hoard.append(e) or step", {"unsafe": True}),
    "a generator that is kept": (lambda e: e.hoard.append(y for y in [e]), {"unsafe": True}),
    "helpers": ("layer_norms(model), activation_stats(out), batch_topk(2, by=x.sum(1), x=x)", {}),
    "lazy": ("late", {}),
}


class Mark:
    """An object that lives as long as the graph node that holds it."""


@pytest.mark.parametrize("form", FORMS)
def test_tensors_and_graphs_are_dead_when_emit_returns(form):
    query, how = FORMS[form]
    agent, run = pair("memory")
    model = nn.Linear(4, 3)
    agent.expose(model=model, hoard=[])
    stream = run.stream(query, **{"on": "batch", **how})
    living = []
    gc.disable()  # nothing waits for the collector
    try:
        for step in range(12):
            x = torch.ones(5, 4, requires_grad=True) * 2
            out = model(x)
            loss = out.square().mean()
            loss.grad_fn.metadata["mark"] = mark = Mark()
            dead = [weakref.ref(thing) for thing in (x, out, loss, mark)]
            late = looptap.lazy(lambda out=out: out.sum())
            agent.emit("batch", step=step, x=x, out=out, loss=loss, late=late)
            del x, out, loss, mark, late
            living += [step for ref in dead if ref() is not None]
            if step % 4 == 3:
                agent.emit("epoch", epoch=step)
    finally:
        gc.enable()
    assert living == []
    assert agent.stats()["events"]["batch"] == 12
    assert stream.state == "live"
    assert stream.arrived or stream.error_count or "when" in how
    agent.close()


@pytest.fixture
def one_thread():
    """Run torch on one thread: on a busy machine several wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.long
@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="memory is read from /proc")
@pytest.mark.parametrize("steps", [200, pytest.param(2000, marks=pytest.mark.soak)])
def test_memory_is_flat_with_every_form_of_query(steps, one_thread):
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)

    def resident():
        gc.collect()
        if trim is not None:  # what is free, but still lies in the heap of earlier tests, does not count
            trim(0)
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")

    model, hoard, streams, agents = nn.Linear(4, 3), [], [], []
    for query, how in FORMS.values():  # an agent for each: in one process, a flush looks at all streams of an agent
        agent, run = pair("memory")
        agent.expose(model=model, hoard=hoard)
        agents.append(agent)
        streams.append(run.stream(query, **{"on": "batch", "buffer": 10, **how}))
    before = 0
    for step in range(100 + steps):
        x = torch.ones(5, 4, requires_grad=True) * 2
        out = model(x)
        ballast = torch.ones(250_000) * out.sum()  # of which nothing may stay: a hundred are 100 MB
        loss = out.square().mean() + 0 * ballast.sum()
        late = looptap.lazy(lambda out=out: out.sum())
        for agent in agents:
            agent.emit("batch", step=step, x=x, out=out, loss=loss, late=late)
            if step % 20 == 19:
                agent.emit("epoch", epoch=step)
        hoard.clear()
        if step == 100:
            before = resident()
    assert resident() - before < 16 << 20
    assert sum(stream.arrived for stream in streams) > steps * len(streams) / 3  # some yield at a window's end only
    for agent in agents:
        agent.close()
