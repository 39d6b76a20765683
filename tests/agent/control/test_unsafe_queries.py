"""Queries asked with `unsafe`: carried to the job, on record from attach to end."""

from __future__ import annotations

import math

import pytest
from training_loop import training
from waiting import soon

import looptap
from looptap.protocol import messages as m
from looptap.protocol.errors import LimitReached, NotAllowed
from looptap.streams.errors import QueryError
from looptap.testing import pair, parts_of


@pytest.fixture
def job(directory):
    with looptap.Agent("small", budget=math.inf) as agent, training(agent, step=1, loss=0.5):
        yield agent


def unsafe_queries(agent):
    """Return whether each attached query of the job is unsafe, by its text."""
    sources = parts_of(agent).sources.types()
    return {query.pipeline.text: query.pipeline.unsafe for _, source in sources for query in source.queries}


def on_record(run):
    return [(one.name, one.outcome) for one in run.command_records() if one.what == "unsafe"]


def test_an_unsafe_query_runs_and_is_on_record_from_its_attach_to_its_end(job):
    with looptap.attach("small") as run:
        stream = run.stream("step + 1", unsafe=True)
        soon(lambda: stream.latest == 2)
        (record,) = run.command_records()
        assert (record.what, record.name, record.value, record.outcome) == ("unsafe", "step + 1", "step + 1", "running")
        assert (record.client, record.event, record.on) == (run.session.client, "batch", "batch")
        assert unsafe_queries(job) == {"step + 1": True}
        stream.close()
        soon(lambda: on_record(run) == [("step + 1", "ended")])
        (ended,) = run.command_records()
        assert (ended.id, ended.time, ended.number) == (record.id, record.time, record.number)
        assert ended.error.startswith("after ")
        assert ended.error.endswith(": closed")


def test_the_file_has_it_after_the_end_of_the_run(job):
    with looptap.attach("small") as run:
        others = run.stream("step + 1", unsafe=True)
        stream = run.stream("loss * 2", unsafe=True)
        soon(lambda: stream.latest == 1.0)
        stream.close()
        soon(lambda: ("loss * 2", "ended") in on_record(run))
        path = parts_of(job).recorder.writer.path
        client = run.session.client
        job.close("that was all")
        soon(lambda: others.state == "ended")
    with looptap.open(path) as stored:
        first, second = stored.commands
    assert [(one.what, one.client) for one in (first, second)] == [
        ("unsafe step + 1", client), ("unsafe loss * 2", client)
    ]  # fmt: skip
    assert (first.outcome.startswith("ended: after "), first.outcome.endswith(": that was all")) == (True, True)
    assert (second.outcome.startswith("ended: after "), second.outcome.endswith(": closed")) == (True, True)


def test_a_query_without_it_is_not_on_record_and_makes_no_file(job):
    with looptap.attach("small") as run:
        stream = run.stream("step + 1")
        soon(lambda: stream.latest == 2)
        assert run.command_records() == []
        assert unsafe_queries(job) == {"step + 1": False}
    assert not parts_of(job).recorder.writer.path.exists()


def test_the_end_of_a_client_that_vanishes_ends_its_record(job):
    with looptap.attach("small") as watching:
        with looptap.attach("small") as run:
            stream = run.stream("step + 1", unsafe=True)
            assert stream.state == "live"
            assert on_record(watching) == [("step + 1", "running")]
        soon(lambda: on_record(watching) == [("step + 1", "ended")])


def test_one_that_fails_says_why_on_record(job):
    with looptap.attach("small") as run:
        stream = run.stream("1 / (step - 1)", unsafe=True)
        soon(lambda: on_record(run) == [("1 / (step - 1)", "ended")])
        assert stream.state == "failed"
        assert "ZeroDivisionError" in run.command_records()[0].error


def test_one_that_is_kept_stays_on_record_until_the_job_drops_it(job):
    with looptap.attach("small") as run:
        stream = run.stream("step + 1", unsafe=True, name="kept")
        run.keep(stream)
        stream.close()
        soon(lambda: not next(one for one in run.streams if one.name == "kept").readers)
        assert on_record(run) == [("step + 1", "running")]
        run.keep("kept", False)
        soon(lambda: on_record(run) == [("step + 1", "ended")])


def test_the_same_query_with_and_without_it_is_evaluated_apart(job):
    with looptap.attach("small") as one, looptap.attach("small") as other:
        streams = [one.stream("step + 1", unsafe=True), other.stream("step + 1"), other.stream("step + 1", unsafe=True)]
        soon(lambda: all(stream.latest == 2 for stream in streams))
        (source,) = [source for name, source in parts_of(job).sources.types() if name == "batch"]
        assert sorted(query.pipeline.unsafe for query in source.queries) == [False, True, True]


def test_it_holds_for_the_condition_of_a_flight_recorder_and_for_values_of_a_stream():
    agent, run = pair()
    agent.stream("declared", "step")
    streams = run.stream("step", when="loss > 1", unsafe=True), run.stream("v + 1", of="declared", unsafe=True)
    (recording,) = [one for _, source in parts_of(agent).sources.types() for one in source.queries if one.recorder]
    assert (recording.pipeline.unsafe, recording.recorder.condition.unsafe) == (True, True)
    (derived,) = parts_of(agent).dispatcher.queries.chained
    assert derived.pipeline.unsafe
    assert on_record(run) == [("step when loss > 1", "running"), ("v + 1", "running")]
    assert {stream.state for stream in streams} == {"live"}


def test_a_stream_of_the_host_may_be_unsafe_and_is_part_of_its_code():
    agent, run = pair()
    agent.stream("one", "step", unsafe=True)
    agent.stream("two", "v", of="one", unsafe=True)
    agent.stream("three", "step + 1")
    assert unsafe_queries(agent) == {"step": True, "step + 1": False}
    assert parts_of(agent).dispatcher.queries.chained[0].pipeline.unsafe
    assert on_record(run) == []


def test_a_viewer_is_refused_and_sees_the_values_of_an_exported_one(job, tmp_path):
    with looptap.attach("small") as run:
        stream = run.stream("step + 1", unsafe=True, name="shown")
        run.export(stream)
        share = run.share(path=tmp_path / "view.json")
        with looptap.attach(share.path) as viewer:
            for query in ("step + 1", "shown"):
                with pytest.raises(NotAllowed):
                    viewer.stream(query, unsafe=True)
            seen = viewer.stream("shown")
            soon(lambda: seen.latest == 2)
        assert len(on_record(run)) == 1


def test_a_client_that_follows_asks_the_next_run_for_it_too(directory):
    with looptap.Agent("followed"), looptap.attach("followed", follow=True) as run:
        stream = run.stream("step + 1", unsafe=True)
        with looptap.Agent("followed") as newer:
            soon(lambda: run.id == newer.run.id and on_record(run) == [("step + 1", "running")])
            newer.emit("batch", step=1)
            soon(lambda: stream.latest == 2)


def test_a_value_that_is_no_bool_is_refused():
    with pytest.raises(QueryError, match=r"unsafe='yes' must be True or False\."):
        pair()[1].stream("step", unsafe="yes")


def test_they_count_as_commands():
    _, run = pair(limits=looptap.Limits(commands_per_second=1))
    stream = run.stream("step", unsafe=True)
    with pytest.raises(LimitReached, match="commands_per_second"):
        run.stream("step", unsafe=True)
    assert run.attached == [stream]
    assert len(on_record(run)) == 1


def test_an_older_agent_is_not_asked_for_it(monkeypatch):
    agent, run = pair()
    monkeypatch.setattr(run.session, "_version", (2, 1))
    with pytest.raises(QueryError) as refused:
        run.stream("step", unsafe=True)
    assert str(refused.value) == (
        "this job's agent speaks protocol 2.1 and knows no unsafe=True, which came with 2.2: it would treat the query "
        "like any other.\nLeave unsafe=True out, or update looptap in the job."
    )
    assert not parts_of(agent).dispatcher.exporter.streams
    assert run.stream("step").state == "live"


def test_one_ends_where_an_agent_that_comes_back_is_an_older_one():
    agent, run = pair()
    stream = run.stream("step", unsafe=True)
    run.session.on_frame(m_welcome(agent, (2, 1)))
    assert (stream.state, "speaks protocol 2.1" in stream.reason) == ("failed", True)


def m_welcome(agent, version):
    """Return the greeting of an agent of that version which knows no stream."""
    from looptap.protocol.codec import encode

    return encode(m.Welcome(version, agent.run, "operator"))
