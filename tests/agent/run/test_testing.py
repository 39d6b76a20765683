"""`looptap.testing`: a clock, queues, and delivery by hand, for users' tests."""

from __future__ import annotations

import inspect

import pytest

import looptap
from looptap.testing import Clock, pair, parts_of


def test_time_steps_as_the_test_says():
    clock = Clock(100.0)
    agent, run = pair(clock=clock)
    seen = run.stream("event_time, event_dt", on="batch")
    windows = run.stream("sum(1 for e in events)", on="batch", window=looptap.seconds(10))
    rare = run.stream("step", on="batch", throttle=5.0)
    for step in range(31):
        agent.emit("batch", step=step)
        agent.log(lr=0.1)
        clock.advance(1.0)
    assert [record.time for record in run.stream("lr").records[-2:]] == [129.0, 130.0]
    assert [tuple(value) for value in seen.values[:3]] == [(100.0, 0.0), (101.0, 1.0), (102.0, 1.0)]
    assert windows.values == [10, 10, 10]
    assert rare.values == [0, 5, 10, 15, 20, 25, 30]
    with pytest.raises(ValueError, match="never goes back"):
        clock.advance(-1)
    agent.close()


def test_nothing_arrives_before_it_is_delivered():
    job = pair(manual=True)
    agent, run = job
    held = []
    agent.control("lr", lambda: len(held), held.append, type=int)
    loss = run.stream("loss", on="batch")
    with pytest.raises(looptap.CommandPending):
        run.set("lr", 3, timeout=0)
    for loss_value in (0.5, 0.25):
        agent.emit("batch", loss=loss_value)
    assert (loss.values, held, job.queues.pending_bytes() > 0) == ([], [3], True)
    assert job.deliver() > 0
    assert (loss.values, job.queues.pending_bytes(), job.deliver()) == ([0.5, 0.25], 0, 0)
    agent.emit("batch", loss=0.1)
    agent.close()
    assert (loss.values, loss.state) == ([0.5, 0.25, 0.1], "ended")


def test_values_beyond_the_queues_are_dropped_and_counted():
    job = pair(manual=True, limits=looptap.Limits(outbox_bytes=20_000))
    agent, run = job
    loss = run.stream("step", on="batch")
    for step in range(2000):
        agent.emit("batch", step=step)
    assert job.queues.pending_bytes() <= 20_000
    job.deliver()
    job.beat()
    assert loss.dropped > 0
    assert len(loss.values) + loss.dropped == 2000
    agent.close()


def test_more_clients_attach_and_each_has_streams_of_its_own():
    job = pair()
    second = job.attach()
    mine, theirs = job.run.stream("step", on="batch"), second.stream("2 * step", on="batch")
    job.agent.emit("batch", step=3)
    assert (mine.values, theirs.values, len(job.agent.stats()["clients"])) == ([3], [6], 2)
    second.close()
    job.agent.emit("batch", step=4)
    assert (mine.values, len(job.agent.stats()["clients"])) == ([3, 4], 1)
    job.agent.close()


def test_the_parts_of_an_agent_are_those_that_it_works_with():
    job = pair(store=None)
    assert job.parts is parts_of(job.agent)
    assert job.parts.dispatcher.outbox is job.queues
    job.agent.emit("batch")
    assert job.parts.sources.counts() == {"batch": 1}
    assert not job.parts.inert
    job.agent.close()
    with looptap.Agent("off", enabled=False) as off:
        assert parts_of(off).inert


def test_an_argument_that_an_agent_would_refuse_is_refused():
    with pytest.raises(ValueError, match="may_pause"):
        pair(may_pause=-1.0)
    with pytest.raises(TypeError, match="budgets"):
        pair(budgets=0.1)
    with pytest.raises(ValueError, match="on_stop"):
        pair(on_stop=3)


@pytest.mark.parametrize(
    ("whole", "names"),
    [
        (looptap.Agent, "stream control trigger checkpoint state_dict load_state_dict close"),
        (
            looptap.Run,
            "stream skew set call trigger checkpoint stop pause resume outcome cancel export keep share revoke",
        ),
    ],
)
def test_a_method_that_a_part_carries_has_its_signature_and_docstring(whole, names):
    for name in names.split():
        method = getattr(whole, name)
        _, *parameters = inspect.signature(method).parameters.values()
        assert all(parameter.kind is not parameter.VAR_KEYWORD for parameter in parameters), name
        assert method.__name__ == name
        assert inspect.getdoc(method)
