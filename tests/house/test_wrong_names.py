"""A slip in a name is reported at once, with the likeliest way out."""

from __future__ import annotations

import re

import pytest

import looptap
from looptap.agent.agent import name_events
from looptap.testing import pair, parts_of


@pytest.fixture
def job():
    """Return an agent and a run, after twelve batches and two epochs."""
    agent, run = pair("slips", history=True)
    for step in range(12):
        agent.emit("batch", step=step, loss=0.5, x=[1])
    for epoch in range(2):
        agent.emit("epoch", epoch=epoch, error=0.1)
    yield agent, run
    agent.close()


@pytest.mark.parametrize(
    "query",
    ["error", "step, error", "e.error", "mean(e.error for e in events)", "max(e.step for e in events if e.error < 1)"],
)
def test_a_field_of_another_type_of_event_names_that_type(job, query):
    _, run = job
    with pytest.raises(looptap.QueryError, match="'epoch' events have it: on='epoch'"):
        run.stream(query, on="batch")
    run.stream(query.replace("step", "epoch"), on="epoch")


def test_the_condition_of_a_flight_recorder_is_checked_as_well(job):
    _, run = job
    with pytest.raises(looptap.QueryError, match="on='epoch'"):
        run.stream("step, loss", on="batch", when="isnan(error)", before=5)


@pytest.mark.parametrize("query", ["los", "step, lsos", "mean(e.los for e in events)", "e['losss']"])
def test_a_typo_is_refused_at_the_attach(job, query):
    _, run = job
    with pytest.raises(looptap.QueryError, match="Did you mean 'loss'"):
        run.stream(query, on="batch")


@pytest.mark.parametrize("query", ["modle.weight", "norm(modle.weight.grad)", "mdoel"])
def test_a_typo_of_what_the_job_exposes_is_refused_at_the_attach(job, query):
    agent, run = job
    agent.expose(model=3)
    with pytest.raises(looptap.QueryError, match="Did you mean 'model'"):
        run.stream(query, on="batch")


def test_a_name_that_may_still_come_is_not_refused(job):
    agent, run = job
    late = [run.stream(name, on="batch") for name in ("gradient_norm", "loss_validation", "x, y")]
    agent.emit("batch", step=12, loss=0.5, x=[1], y=3, gradient_norm=1.0, loss_validation=2.0)
    assert [stream.latest for stream in late] == [1.0, 2.0, ([1], 3)]


def test_names_of_functions_exposed_objects_and_readings_are_no_observables(job):
    agent, run = job
    agent.expose(lss=3)
    assert run.stream("lss, len(x), rank, event_number, e.loss", on="batch").state == "live"


def test_few_events_are_not_enough_to_call_a_name_a_typo():
    agent, run = pair("young", history=True)
    agent.emit("batch", d_loss=0.5)
    generator = run.stream("g_loss", on="batch")
    agent.emit("batch", d_loss=0.5, g_loss=0.25)
    assert generator.latest == 0.25
    agent.close()


def test_a_function_that_reads_a_field_of_another_event_hears_of_that_event(job):
    agent, run = job
    stream = run.stream(lambda e: e.error)
    agent.emit("batch", step=12, loss=0.5, x=[1])
    assert "'epoch' events have it: on='epoch'" in stream.traceback


def test_an_event_that_has_a_second_name_is_meant_by_it():
    agent, run = pair("second", history=True)
    name_events(agent, "batch", "step")
    for _ in range(12):
        agent.emit("step", loss=0.5)
    assert run.stream("loss", on="batch").on == "step"
    with pytest.raises(looptap.QueryError, match="no 'step' event has had an observable 'los'"):
        run.stream("los", on="batch")
    agent.close()


def test_a_missing_type_of_event_is_reported_with_those_that_exist(job):
    _, run = job
    assert "no 'train' event so far, only batch, epoch." in run.stream("loss", on="train").notes
    assert any(note.endswith("Did you mean 'batch'?") for note in run.stream("loss", on="bacth").notes)


@pytest.mark.parametrize("statement", ["import os", "x = 1", "del step", "optimizer.lr = 3"])
def test_a_statement_is_refused_with_the_function_to_write(job, statement):
    _, run = job
    with pytest.raises(looptap.QueryError, match="def f\\(e\\): ") as refused:
        run.call(statement)
    assert f"def f(e): {statement}; return 1" in str(refused.value)


def test_what_the_error_proposes_for_a_statement_runs():
    agent, run = pair("statement")
    with pytest.raises(looptap.QueryError) as refused:
        run.call("import os")
    proposed = str(refused.value).rpartition("e.loss: ")[2]
    with pytest.raises(looptap.CommandPending) as pending:
        run.call(proposed, timeout=0)
    agent.emit("batch", loss=0.5)
    assert run.call(proposed, id=pending.value.id) == 1
    agent.close()


TYPOS = (
    "los", "step, lsos", "mean(los)", "mean(e.los for e in events)", "max(e.step for e in events if e.losss < 1)",
    "sorted(e.los for e in events)", "e['lass']", "norm(modle.weight)", lambda e: e.los,
)  # fmt: skip


@pytest.mark.parametrize("history", [True, False])
@pytest.mark.parametrize("query", TYPOS)
def test_a_typo_ends_the_stream_at_the_first_event(query, history):
    agent, run = pair("early", history=history)
    agent.expose(model=3)
    stream = run.stream(query, on="batch")
    agent.emit("batch", step=0, loss=0.5)
    assert stream.state == "failed"
    assert re.search("Did you mean '(loss|model)'", stream.reason)
    agent.emit("batch", step=1, loss=0.5)
    assert stream.values == []
    agent.close()


@pytest.mark.parametrize("window", [None, 5, looptap.sliding(3)])
def test_a_typo_ends_a_declared_stream_at_the_first_event(window):
    agent, run = pair("declared")
    agent.stream("mean", "mean(los)", window=window)
    agent.emit("batch", loss=0.5)
    [info] = run.streams
    assert (info.state, info.errors) == ("failed", 1)
    assert "Did you mean 'loss'" in info.reason
    agent.close()


def test_a_typo_ends_its_stream_and_no_other_where_events_are_evaluated_in_batches():
    job = pair("batches", manual=True)
    agent, run = job
    right, wrong = (run.stream(f"mean(e.{name} for e in events)", on="batch") for name in ("loss", "lsos"))
    for evaluator in (parts_of(agent).sources.evaluator, parts_of(agent).sources.unobserved):
        evaluator.max_pending = 50
    for _ in range(50):
        agent.emit("batch", loss=0.5)
    agent.emit("epoch")
    job.deliver()
    assert (right.state, right.values, wrong.state, wrong.values) == ("live", [0.5], "failed", [])
    assert "Did you mean 'loss'" in wrong.reason
    agent.close()


@pytest.mark.parametrize(
    ("name", "near"),
    [("g_loss", "d_loss"), ("rmse", "mse"), ("grads", "grad"), ("top1", "top5"), ("loss_ab", "loss_ba")],
)
def test_a_name_of_its_own_waits_for_its_first_event(name, near):
    agent, run = pair("waiting", history=True)
    mapped = run.stream(name, on="batch")
    mean = run.stream(f"mean(e.{name} for e in events)", on="batch", window=1)
    agent.emit("batch", **{near: 1.0})
    agent.emit("batch", **{near: 1.0, name: 2.0})
    assert (mapped.state, mapped.latest, mean.state, mean.latest) == ("live", 2.0, "live", 2.0)
    agent.close()


def test_a_name_that_only_some_events_have_is_no_typo_of_another():
    agent, run = pair("some", history=True)
    agent.emit("batch", clas=1, **{"class": 2})
    stream = run.stream("clas", on="batch")
    agent.emit("batch", **{"class": 2})
    agent.emit("batch", clas=3, **{"class": 2})
    assert (stream.state, stream.error_count, stream.latest) == ("live", 1, 3)
    agent.close()


def test_a_module_that_a_query_asks_for_is_to_be_exposed():
    agent, run = pair()
    stream = run.stream("os.getpid()", on="batch")
    agent.emit("batch", step=1, loss=0.5)
    assert stream.traceback.endswith("rank. A module is there once the job has exposed it: agent.expose(os=os).")


def test_the_error_of_a_job_without_controls_says_what_to_expose():
    _agent, run = pair()
    with pytest.raises(looptap.ControlError, match="'lr'; the job has none: expose an optimizer or Control"):
        run.set("lr", 0.1)
