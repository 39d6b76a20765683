"""`history=True`: what begins with a history, and what is refused."""

from __future__ import annotations

import pytest
import torch
from waiting import soon

from looptap.streams.errors import QueryError
from looptap.testing import pair


@pytest.fixture
def run():
    agent, run = pair(history=True)
    agent.expose(optimizer=torch.optim.SGD([torch.ones(1)], lr=0.5))
    agent.stream("smooth loss", "mean(e.loss for e in events)", window=2)
    for step in range(4):
        agent.emit("batch", step=step, loss=step / 2, phase="warm", **{"train/loss": step / 4})
    return run


@pytest.mark.parametrize(
    ("query", "how", "way_out"),
    [
        ("loss * 2", {}, "run.stream('loss').query('v * 2')"),
        ("e.loss + 1", {"on": "batch"}, "run.stream('loss').query('v + 1')"),
        ("step * loss", {}, "run.stream('step, loss').query('step * loss')"),
        ("mean(e.loss for e in events)", {"window": 2}, "run.stream('loss').query('mean(values)', window=100)"),
        ("loss * 2", {"ranks": "all"}, "run.stream('loss').query('v * 2')"),
        (lambda e: e.loss, {}, "this one is a function"),
        ("loss", {"when": "loss > 1"}, "when= sends values around events to come"),
        ("loss", {"ranks": "all", "combine": "mean"}, "begins with the history of each rank"),
    ],
)
def test_what_has_no_history_is_refused_with_the_way_to_get_it(run, query, how, way_out):
    before = len(run.attached)
    with pytest.raises(QueryError) as refused:
        run.stream(query, history=True, **how)
    assert way_out in str(refused.value)
    assert len(run.attached) == before


def test_the_way_out_gives_the_values_of_the_history():
    agent, run = pair(history=True)
    for step in range(4):
        agent.emit("batch", step=step, loss=step / 2)
    doubled, products = run.stream("loss").query("v * 2"), run.stream("step, loss").query("step * loss")
    agent.emit("batch", step=4, loss=2.0)
    soon(lambda: doubled.arrived == products.arrived == 5)
    assert (doubled.values, products.values) == ([0, 1, 2, 3, 4], [0, 0.5, 2, 4.5, 8])


def test_names_as_expressions_read_them_have_their_history(run):
    for text in ("e['train/loss']", 'e["train/loss"]', "train/loss"):
        assert run.stream(text, history=True, on="batch").values == [step / 4 for step in range(4)]
    for text in ("step, e['train/loss']", '(step, e["train/loss"])', "step, train/loss"):
        assert run.stream(text).values == [(step, step / 4) for step in range(4)]
    twice = run.stream("loss, loss")
    assert (twice.fields, twice.values[-1]) == (("loss", "loss_1"), (1.5, 1.5))
    assert run.stream("loss,").values == []  # a query for a tuple
    for one in run.scalars:  # optimizer.param_groups[0]['lr'] and the like
        assert run.stream(one.query, on=one.on, history=True).values[-1] == one.value


def test_a_declared_stream_of_any_name_has_its_history(run):
    assert run.stream("smooth loss", history=True).values == [0.25, 1.25]


def test_a_name_without_a_history_says_so(run):
    for name in ("phase", "later"):
        assert "no history is kept" in run.stream(name, history=True).notes[-1]
    assert run.stream("phase").notes == run.stream("loss * 2").notes == []
