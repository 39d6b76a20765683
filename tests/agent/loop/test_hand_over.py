"""Queries that become declared streams: no lost value, kept, ended when unused."""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest
import warm
from waiting import soon

import looptap
from looptap.streams.errors import QueryError
from looptap.testing import pair, parts_of

pytestmark = pytest.mark.pure


@pytest.fixture
def stored(tmp_path, monkeypatch):
    """Return a function that opens the only stored run of this test."""
    monkeypatch.setenv("LOOPTAP_STORE", str(tmp_path / "stored"))
    return lambda: looptap.open(next((tmp_path / "stored").glob("*.looptap")))


QUERIES = {
    "evaluated after its events": ("step, loss", {}),
    "texts": ("step, text", {}),
    "evaluated at its events": ("step, len(items)", {}),
    "windows": ("(first(e.step for e in events), len(events))", {"window": 7}),
    "every third": ("step, loss", {"every": 3}),
}


@pytest.mark.long
@pytest.mark.parametrize("form", QUERIES)
def test_nothing_is_lost_or_made_twice_where_a_query_changes_hands_in_a_fast_loop(directory, stored, form):
    (query, how), chance, total = QUERIES[form], random.Random(form), 0
    with looptap.Agent("fast", budget=float("inf")) as agent, looptap.attach("fast") as run:
        going, handed = threading.Event(), threading.Event()

        def loop():
            nonlocal total
            while total < 8_000 or not (handed.is_set() or total > 100_000):  # as long as queries change hands
                agent.emit("batch", step=total, loss=0.5, text="x", items=[1])
                total += 1
                if not total % 100:
                    time.sleep(0.002 if total < 8_000 else 0.02)
                    going.set()

        streams, names = [run.stream(query, on="batch", **how) for _ in range(4)], ["s0", "s1", "s2", "s3"]
        loops = threading.Thread(target=loop)
        loops.start()
        soon(going.is_set)
        for n, stream in enumerate(streams):
            time.sleep(chance.random() * 0.04)
            while stream.declared is None:
                with contextlib.suppress(looptap.LimitReached):  # inside an event that takes long: ask again
                    run.keep(stream, name=names[n])
        readers = [run.stream(name) for name in names]
        handed.set()
        loops.join()
        expected = {"windows": total // 7, "every third": total // 3}.get(form, total)
        for stream, reader in zip(streams, readers, strict=True):
            soon(lambda stream=stream: stream.arrived == expected)
            soon(
                lambda reader=reader: reader.records and reader.records[-1].number == expected,
                detail=lambda reader=reader: (reader, reader.gaps, run, agent.stats()),
            )
            assert [r.number for r in stream.records] == list(range(1, expected + 1))
            assert (stream.gaps, stream.dropped, reader.gaps, reader.dropped) == ([], 0, [], 0)
            assert not any(r.partial for r in stream.records)
            begun = reader.records[0].number
            assert reader.values == stream.values[begun - 1 :]
        soon(lambda: agent.stats()["store"]["kept"] >= sum(len(reader) for reader in readers))
        file = stored()
        for name, stream, reader in zip(names, streams, readers, strict=True):
            kept = file.stream(name)
            soon(lambda kept=kept: kept.records[-1].number == expected)
            begun = kept.records[0].number  # a busy machine is slow to open the reader: its history may begin later
            assert begun <= reader.records[0].number
            assert (kept.values, kept.gaps) == (stream.values[begun - 1 :], [])


def test_a_client_at_the_end_of_its_credit_gets_the_last_values_of_a_loop_that_is_over(directory, stored, monkeypatch):
    limits = looptap.Limits(in_flight_bytes=1)  # the least that a client gets: 1 MiB
    with looptap.Agent("credit", budget=float("inf"), limits=limits) as agent, looptap.attach("credit") as run:
        confirm, total = run.session.values.confirm, 9_000
        mine = [run.stream("step, text", on="batch") for _ in range(4)]
        monkeypatch.setattr(run.session.values, "confirm", lambda: None)  # it takes values in, and does not say so
        for step in range(total):
            agent.emit("batch", step=step, text="a text")
            if step == 3000:
                for n, stream in enumerate(mine):
                    run.keep(stream, name=f"s{n}")
            if step == 4000:
                readers = [run.stream(f"s{n}") for n in range(4)]
            if not step % 100:
                time.sleep(0.002)
        (client,) = parts_of(agent).dispatcher.clients.values()
        window = parts_of(agent).dispatcher.exporter.window()
        soon(lambda: client.is_stalled(time.monotonic(), window(client)))
        assert any(stream.records[-1].number < total for stream in (*mine, *readers))
        monkeypatch.setattr(run.session.values, "confirm", confirm)
        confirm()
        for stream in (*mine, *readers):
            soon(lambda stream=stream: stream.records and stream.records[-1].number == total)
            assert (stream.gaps, stream.dropped) == ([], 0)


def test_a_handed_over_stream_outlives_its_client_while_it_is_used():
    agent, run = pair()
    run.export(run.stream("step, loss", on="batch"), name="loss")
    run.close()
    for step in range(3):
        agent.emit("batch", step=step, loss=0.5)
    (reported,) = agent.stats()["streams"]
    facts = [reported[name] for name in ("name", "values", "exported", "kept", "readers")]
    assert facts == ["loss", 3, True, False, 0]
    assert "pid" in reported["by"]
    assert parts_of(agent).dispatcher.access_grants.shares == {}


@pytest.mark.parametrize("ended", ["closed first", "hidden first"])
def test_a_handed_over_stream_ends_when_neither_exported_nor_kept_nor_read(ended):
    agent, run = pair()
    stream = run.stream("step", on="batch")
    assert run.export(stream, name="steps").exported
    agent.emit("batch", step=1)
    if ended == "closed first":
        stream.close()
        assert [s.name for s in run.streams] == ["steps"]
        run.export("steps", False)
    else:
        assert not run.export(stream, False).exported
        agent.emit("batch", step=2)
        assert stream.values == [1, 2]
        stream.close()
    assert run.streams == []
    assert parts_of(agent).sources.open("batch").queries == ()
    assert agent.stats()["history_bytes"] == 0


def test_the_host_takes_its_names_from_clients_and_nothing_is_raised_into_the_loop(caplog):
    agent, run = pair(limits=looptap.Limits(handed_streams=2, declared_streams=2))
    streams = [run.stream("step", on="batch"), run.stream("2 * step", on="batch")]
    for stream, name in zip(streams, ("loss", "lr"), strict=True):
        run.export(stream, name=name)
    agent.emit("batch", step=1, loss=0.5)
    agent.stream("loss", "loss")
    agent.log(lr=0.1)
    agent.emit("batch", step=2, loss=0.25)
    assert [stream.state for stream in streams] == ["ended", "ended"]
    assert "another stream of this name" in streams[0].reason
    assert (run.stream("loss").values, run.stream("lr").values) == ([0.25], [0.1])
    assert [s.by for s in run.streams] == ["", ""]
    assert caplog.records == []


def test_a_number_that_events_carry_is_exported_by_its_name_with_its_history():
    agent, run = pair(history=True)
    agent.emit("batch", step=0, loss=0.5)
    agent.emit("epoch", epoch=0, val_loss=0.75)
    agent.emit("batch", step=1, loss=0.25)
    shown = [run.export(name) for name in ("loss", "val_loss", "step, loss")]
    assert [(one.on, one.query, one.exported) for one in shown] == [
        ("batch", "loss", True), ("epoch", "val_loss", True), ("batch", "step, loss", True)
    ]  # fmt: skip
    agent.emit("batch", step=2, loss=0.125)
    assert run.stream("loss").values == [0.5, 0.25, 0.125]
    assert run.stream("val_loss").values == [0.75]
    assert [tuple(row) for row in run.stream("step, loss").values] == [(0, 0.5), (1, 0.25), (2, 0.125)]
    assert run.export("loss").values == 1  # it is there
    assert [one.name for one in run.streams] == ["loss", "val_loss", "step, loss"]
    with pytest.raises(QueryError, match=r"no declared stream 'val_los'.*there are: 'loss'.*Did you mean 'val_loss'"):
        run.export("val_los")
    run.export("val_loss", False)
    assert "val_loss" not in [one.name for one in run.streams]
    with pytest.raises(QueryError, match="no declared stream 'val_loss'"):
        run.export("val_loss", False)


def test_a_viewer_reads_a_number_that_was_exported_by_its_name(directory, tmp_path):
    with looptap.Agent("numbers") as agent, looptap.attach("numbers") as run:
        agent.emit("batch", step=0, loss=0.5)
        soon(lambda: "loss" in [one.name for one in run.scalars])
        share = run.share(streams="loss", path=tmp_path)
        with looptap.attach(share.path) as viewer:
            assert [one.name for one in viewer.streams] == ["loss"]
            seen = viewer.stream("loss")
            agent.emit("batch", step=1, loss=0.25)
            assert seen.wait(2, timeout=300) == [0.5, 0.25]


def test_a_stream_that_cannot_be_handed_over_says_so():
    agent, run = pair(limits=looptap.Limits(handed_streams=1))
    agent.stream("loss", "loss")
    with pytest.raises(QueryError, match="flight recorder"):
        run.export(run.stream("step", on="batch", when="loss > 1"))
    with pytest.raises(QueryError, match=r"another name.*\n.*name="):
        run.export(run.stream("step", on="batch"), name="loss")
    with pytest.raises(QueryError, match="neither exported nor kept"):
        run.keep(run.stream("step", on="batch"), False)
    with pytest.raises(QueryError, match=r"no declared stream 'los'.*Did you mean 'loss'"):
        run.export("los")
    with pytest.raises(QueryError, match="has no store"):
        run.keep("loss")
    with pytest.raises(QueryError, match="neither a live stream of this run nor the name of a declared one"):
        run.export(looptap.stream_of([1]))
    run.export(run.stream("step", on="batch"))
    with pytest.raises(looptap.LimitReached, match="handed_streams"):
        run.export(run.stream("2 * step", on="batch"))
    mine = run.stream("step")
    assert mine.declared == "step"  # by its name
    with pytest.raises(QueryError, match="handed over"):
        mine.grant(0.5)


def test_while_the_loop_is_long_inside_an_event_a_client_gets_an_explanation(directory):
    with looptap.Agent("stuck") as agent, looptap.attach("stuck") as run:
        stream = run.stream("step", on="batch")
        inside, go = threading.Event(), threading.Event()
        agent.expose(wait=lambda: inside.set() or go.wait(300))
        blocker = run.stream("wait() or step", on="batch", budget=float("inf"), unsafe=True)
        loop = threading.Thread(target=agent.emit, args=("batch",), kwargs={"step": 1})
        loop.start()
        assert inside.wait(300)
        with pytest.raises(looptap.LimitReached, match="inside an event"):
            run.export(stream, name="steps")
        assert "steps" not in [info.name for info in run.streams]
        go.set()
        loop.join()
        blocker.close()
        run.export(stream, name="steps")


def test_a_handed_over_stream_survives_a_lost_client_and_a_hidden_one_reattaches(directory, monkeypatch):
    monkeypatch.setattr("looptap.client.transport.zmq_client.TICK_INTERVAL_SECONDS", 0.1)
    with looptap.Agent("links", listen="tcp") as agent, looptap.attach("links") as run:
        stream = run.stream("step", on="batch")
        run.export(stream, name="steps")
        agent.emit("batch", step=1)
        stream.wait(1)
        for exported in (True, False):
            run.export("steps", exported)
            step = 2 if exported else 4
            (client,) = parts_of(agent).dispatcher.clients.values()
            parts_of(agent).connection.post(lambda client=client: parts_of(agent).dispatcher.on_disconnect(client.peer))
            soon(lambda: not parts_of(agent).dispatcher.clients)
            agent.emit("batch", step=step)
            soon(lambda: parts_of(agent).dispatcher.clients and parts_of(agent).dispatcher.exporter.streams)
            agent.emit("batch", step=step + 1)
            soon(lambda step=step: stream.latest == step + 1)
            assert (stream.declared is None) != exported  # the second time it is not used any more
        assert [(r.number, r.value) for r in stream.records] == [(1, 1), (2, 2), (3, 3), (5, 5)]
        assert [(gap.after, gap.missing) for gap in stream.gaps] == [(3, 1)]


# ---------------------------------------------------------------- keeping


def test_the_history_of_a_declared_stream_is_kept_and_a_pause_leaves_no_gap(directory, stored):
    with looptap.Agent("kept") as agent, looptap.attach("kept") as run:
        agent.stream("loss", "step, loss", on="batch", history=50)
        for step in range(80):
            agent.emit("batch", step=step, loss=0.5)
        assert run.keep("loss").kept
        agent.emit("batch", step=80, loss=0.5)
        assert not run.keep("loss", False).kept
        for step in range(81, 100):
            agent.emit("batch", step=step, loss=0.5)
        assert run.keep(run.stream("loss")).kept
        soon(lambda: agent.stats()["store"]["kept"] == 70)
        with stored() as file:
            assert file.state == "live"
            stream = file.stream("loss")
            agent.emit("batch", step=100, loss=0.25)
            soon(lambda: stream.latest == (100, 0.25))
            assert [(r.number, r.value.step) for r in stream.records] == [(n, n - 1) for n in range(31, 102)]
            assert (stream.gaps, stream.dropped) == ([], 0)
        run.keep("loss", False)
        for step in range(101, 161):  # more than the history holds
            agent.emit("batch", step=step, loss=0.5)
        run.keep("loss")
    gaps = stored().stream("loss").gaps
    assert [(gap.after, gap.missing) for gap in gaps] == [(101, 10)]


JOB = """
    import sys, time, looptap
    agent = looptap.Agent("killed")
    agent.stream("declared", "step", on="batch")
    print("ready", flush=True)
    step = 0
    while True:
        agent.emit("batch", step=step, loss=1 / (step + 1))
        step += 1
        time.sleep(0.0005)
"""


@pytest.mark.promise("runs")
@pytest.mark.usefixtures("processes")
def test_streams_kept_while_they_run_are_a_prefix_without_a_gap_after_kill_9(directory, stored):
    child = warm.Popen([sys.executable, "-c", textwrap.dedent(JOB)], stdout=subprocess.PIPE, text=True)
    with child:
        child.stdout.readline()
        with looptap.attach("killed") as run:
            mine = run.stream("step, loss", on="batch")
            mine.wait(50)
            run.keep(mine, name="mine")
            run.keep("declared")
            begun = next(one.values for one in run.streams if one.name == "mine")  # or a few earlier
        with looptap.attach("killed") as run:  # another client, or none
            assert {s.name: (s.kept, s.state) for s in run.streams} == {
                "declared": (True, "live"), "mine": (True, "live")
            }  # fmt: skip
            soon(lambda: min(s["kept"] for s in run.stats()["store"]["streams"]) >= 500)
            kept = {s["name"]: s["kept"] for s in run.stats()["store"]["streams"]}
        child.send_signal(signal.SIGKILL)
    file = stored()
    for name, count in kept.items():
        records = file.stream(name).records
        assert len(records) >= count
        assert [r.number for r in records] == list(range(records[0].number, records[0].number + len(records)))
        assert file.stream(name).gaps == []
    steps = file.stream("declared").values
    assert steps == list(range(len(steps)))
    assert 50 <= file.stream("mine").records[0].number <= begun + 1
    assert [value[0] for value in file.stream("mine").values] == [r.event - 1 for r in file.stream("mine").records]
