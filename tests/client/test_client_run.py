"""A `Run` with a real agent: streams, commands, endings, lost links, bad replies."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import os
import pickle
import random
import re
import signal
import subprocess
import sys
import threading
import time
import weakref
from array import array
from itertools import pairwise

import msgspec
import numpy as np
import pytest
import warm
from relays import Proxy
from waiting import freeze, soon

import looptap
from looptap.client.control.pending import CommandPending
from looptap.client.run import Run
from looptap.client.transport.timeouts import REPLY_SECONDS, Silence
from looptap.client.transport.zmq_client import ZmqTransport
from looptap.protocol import messages as m
from looptap.protocol.codec import decode_from_client, encode
from looptap.protocol.errors import (
    LimitReached,
    NoAnswer,
    RemoteError,
    RunEnded,
    VersionMismatch,
    WrongServer,
)
from looptap.protocol.files.connection import read_connection_file
from looptap.protocol.values.packing import pack, pack_values
from looptap.streams.errors import QueryError, StreamEnded
from looptap.streams.stream.buffer import Gap


class Job:
    """A training loop on a thread of its own, with epochs of ten batches."""

    def __init__(self, name="job", **options):
        options.setdefault("budget", math.inf)  # else a busy machine may have events skipped
        options.setdefault("limits", looptap.Limits(heartbeat=0.1))
        self.agent = looptap.Agent(name, **options)
        self.going = threading.Event()
        self.going.set()
        self._over = False
        self._thread = threading.Thread(target=self._loop, daemon=True)
        self._thread.start()

    def _loop(self):
        step = 0
        while not self._over:
            if self.going.wait(0.01):
                step += 1
                self.agent.emit("batch", step=step, loss=1 / step)
                if step % 10 == 0:
                    self.agent.emit("epoch", epoch=step // 10)
            time.sleep(0.0005)

    def end(self):
        self._over = True
        self._thread.join(300)
        self.agent.close()


@pytest.fixture
def job(directory):
    job = Job()
    yield job
    job.end()


@pytest.fixture
def run(job):
    with looptap.attach("job") as run:
        yield run


# ---------------------------------------------------------------- streams


def test_a_mapped_query_yields_a_named_row_at_each_event(run):
    stream = run.stream("step, loss", on="batch")
    rows = stream.wait(20)
    assert all(row.loss == 1 / row.step for row in rows)
    assert [b.step - a.step for a, b in pairwise(rows)] == [1] * (len(rows) - 1)


def test_a_record_has_the_event_and_its_time(run):
    stream = run.stream("step", on="batch")
    stream.wait(3)
    record = stream.records[1]
    assert record.event == record.value
    assert record.number == 2
    assert abs(record.wall - time.time()) < 60
    assert abs(record.time - time.monotonic()) < 60


def test_a_reduction_yields_a_value_when_the_host_ends_a_group(run):
    stream = run.stream("len(events)", on="batch")
    stream.wait(3)
    assert [(r.value, r.partial) for r in stream.records[1:3]] == [(10, False)] * 2


@pytest.mark.parametrize("more", [{}, {"latency": "low"}, {"every": 3}, {"when": "step % 7 == 0", "before": 2}])
def test_a_stream_ends_after_as_many_values_as_it_was_to_have_and_its_query_with_it(run, more):
    stream = run.stream("step", on="batch", count=5, **more)
    assert len(stream.wait(5)) == 5
    soon(lambda: stream.state == "ended", detail=lambda: repr(stream))
    assert (stream.arrived, stream.dropped, stream.reason) == (5, 0, "all 5 values that it was to have")
    assert not run.agent_stats().queries
    assert not run.attached


def test_of_two_streams_of_one_query_the_one_that_ends_takes_nothing_from_the_other(run):
    whole, part = run.stream("step, loss", on="batch"), run.stream("step, loss", on="batch", count=3)
    part.wait(3)
    soon(lambda: part.state == "ended")
    assert whole.wait(whole.arrived + 50)
    assert (whole.dropped, part.dropped) == (0, 0)
    numbers = [record.number for record in whole.records]
    assert numbers == list(range(1, len(numbers) + 1))


def test_a_question_that_is_asked_once_returns_values_from_now_on_and_leaves_nothing(job, run, directory):
    before = sorted(directory.rglob("*"))
    first = run.ask("step")
    assert run.ask("step") > first
    assert [step % 10 for step in run.ask("step", 3, every=10)] == [0, 0, 0]
    job.agent.stream("kept", "step")
    newest = run.stream("kept").wait(5)[-1]
    assert run.ask("kept") > newest  # not the first of its history
    live = run.stream("kept", history=False)
    assert live.wait(2)[0] > newest
    assert live.dropped == 0
    live.close()
    assert not run.agent_stats().queries
    assert not run.command_records()
    assert sorted(directory.rglob("*")) == before
    with pytest.raises(QueryError, match="count=0 must be a whole number of values, 1 or more"):
        run.ask("step", 0)
    with pytest.raises(TypeError, match="unexpected keyword argument 'history'"):
        run.ask("step", history=True)
    with pytest.raises(looptap.StreamTimeout, match="0 of 1 values of the stream 'step > 1e9'"):
        run.ask("(e.step for e in events if e.step > 1e9)", name="step > 1e9", timeout=0.2)


def test_a_stream_in_a_with_statement_is_closed_at_its_end(run):
    with run.stream("step", on="batch") as stream:
        assert stream.wait(2)
    assert stream.state == "ended"
    assert not run.attached


def test_a_function_is_sent_with_what_it_refers_to(run):
    scale = 1000
    assert run.stream(lambda e: e.step * scale, on="batch").wait(1)[0] % 1000 == 0


def test_arrays_arrive_as_arrays(run):
    value = run.stream("np.arange(6.0).reshape(2, 3) * 0 + step", on="batch").wait(1)[0]
    assert isinstance(value, np.ndarray)
    assert value.shape == (2, 3)


def test_the_attach_says_how_the_query_is_understood(run):
    stream = run.stream("mean(e.loss for e in events)", on="batch")
    assert "one value when the window closes" in stream.explain()
    assert not stream.mapped
    assert "no 'nothing' event" in run.stream("1", on="nothing").notes[0]


def test_a_query_that_cannot_be_compiled_is_refused_with_a_caret(run):
    with pytest.raises(QueryError, match=r"\^") as caught:
        run.stream("mean(e.loss for e in events) + step")
    assert caught.value.column is not None
    assert caught.value.hint
    assert run.attached == []


@pytest.mark.parametrize("options", [{"window": -1}, {"every": 0}, {"throttle": -1.0}, {"latency": "fast"}])
def test_an_option_that_makes_no_sense_is_refused(run, options):
    with pytest.raises(QueryError, match=next(iter(options))):
        run.stream("step", **options)


@pytest.mark.parametrize(
    "options", [{"every": "3"}, {"on": 3}, {"throttle": None}, {"before": 1.5}, {"max_bytes": 1 << 70}, {"name": b"x"}]
)
def test_an_option_of_the_wrong_type_is_refused_here(run, options):
    with pytest.raises(QueryError, match="cannot be asked for"):
        run.stream("step", **options)
    assert run.attached == []


def test_a_query_that_fails_at_each_event_says_so_and_ends(run):
    stream = run.stream("no_such_thing.at_all", on="batch")
    with pytest.raises(StreamEnded, match="failed"):
        stream.wait(1)
    assert "no_such_thing" in stream.traceback
    assert stream.error_count >= 100


def test_the_cost_of_a_query_is_shown(run):
    stream = run.stream("step", on="batch")
    soon(lambda: stream.cost.nanoseconds > 0)
    assert "µs an event" in str(stream.cost)


def test_a_query_that_is_limited_can_be_granted_more(directory):
    job = Job(budget=0.03)
    with looptap.attach("job") as run:
        stream = run.stream("sum(range(200_000)) and step", on="batch")
        soon(lambda: any("evaluated at every" in note for note in stream.notes))
        stream.grant(math.inf)
        soon(lambda: [b.event - a.event for a, b in pairwise(stream.records[-5:])] == [1] * 4)
        with pytest.raises(QueryError, match="budget=-1"):
            stream.grant(-1.0)
        granted = run.stream("sum(range(200_000)) and step", on="batch", budget=math.inf)
        steps = granted.wait(10)
        assert steps[:10] == list(range(steps[0], steps[0] + 10))
    job.end()


def test_closing_a_stream_delivers_its_last_values(run, job):
    stream = run.stream("sum(1 for e in events)", on="batch", window=1_000_000)
    soon(lambda: run.events().get("batch", 0) > 100)
    stream.close()
    assert [r.partial for r in stream.records] == [True]
    assert (stream.state, run.attached) == ("ended", [])
    assert run.stats()["queries"] == []


def test_a_dropped_stream_is_detached(run):
    run.stream("step", on="batch").wait(1)
    gc.collect()
    soon(lambda: run.stats()["queries"] == [])
    assert run.attached == []


def test_no_part_keeps_a_dropped_run_alive(job):
    run = looptap.attach("job")
    dropped, parts = weakref.ref(run), (run.controls, run.ranks, run.shares, run.session)
    list(parts[0])
    del run
    assert dropped() is None
    parts[-1].close()


def test_a_stream_with_a_callback_lives_on_its_own(run):
    seen = []
    stop = run.stream("step", on="batch").on_value(seen.append)
    gc.collect()
    soon(lambda: len(seen) > 20)
    stop()
    del stop
    gc.collect()
    soon(lambda: run.stats()["queries"] == [])


def test_a_derived_stream_with_a_callback_lives_on_its_own_and_one_without_does_not(run):
    seen = []
    stop = run.stream("step", on="batch").query("lambda v: v").on_value(seen.append)
    gc.collect()
    soon(lambda: len(seen) > 20)
    stop()
    del stop
    gc.collect()
    soon(lambda: run.stats()["queries"] == [])
    streams = [run.stream("step", on="batch").query("lambda v: v")]
    soon(lambda: streams[0].arrived > 20)
    feed = weakref.ref(streams.pop().source.feed)
    soon(lambda: gc.collect() is not None and feed() is None)
    soon(lambda: run.stats()["queries"] == [])


def test_a_callback_may_take_its_time_and_ask_the_run(run):
    answers = []
    stream = run.stream("step", on="batch")
    stream.on_value(lambda step: answers.append(run.call("step")))
    soon(lambda: len(answers) >= 3)
    assert stream.callback_error is None
    assert all(isinstance(answer, int) for answer in answers)


def test_many_streams_run_at_the_same_time(run):
    streams = [run.stream(f"step * {n}", on="batch") for n in range(20)]
    assert [stream.wait(5)[0] % max(n, 1) for n, stream in enumerate(streams)] == [0] * 20


def test_more_streams_than_the_bound_are_refused(run):
    streams = [run.stream("step", on="batch") for _ in range(64)]
    with pytest.raises(LimitReached, match="streams_per_client"):
        run.stream("step", on="batch")
    assert len(run.attached) == len(streams)


def test_a_slow_reader_sees_every_loss_as_a_gap(job):
    with looptap.attach("job") as run:
        stream = run.stream("step", on="batch", buffer=50)
        stream.wait(200)
        stream.close()
        assert stream.forgotten == stream.arrived - 50
        assert stream.dropped == 0


def test_asyncio_reads_a_live_stream(run):
    async def read():
        stream = run.stream("step", on="batch")
        found = []
        async for value in stream.follow(timeout=300):
            found.append(value)
            if len(found) == 5:
                return found

    steps = asyncio.run(read())
    assert steps == list(range(steps[0], steps[0] + 5))


def test_a_query_over_a_live_stream_goes_along_with_it(run):
    stream = run.stream("step, loss", on="batch")
    worst = stream.query("max(v.loss for v in values)", window=10)
    first, second = worst.wait(2)[:2]
    assert first > second


@pytest.mark.parametrize("ask", ["stream", "call"])
def test_arguments_that_must_be_named_say_how(run, ask):
    with pytest.raises(TypeError, match=rf"Name it: run\.{ask}\(\w+, on='epoch'\)\."):
        getattr(run, ask)("step", "epoch")


# ---------------------------------------------------------------- commands


def test_a_command_runs_at_the_next_event_and_its_result_comes_back(run):
    assert isinstance(run.call(lambda e: e.step), int)
    assert run.call("epoch", on="epoch") > 0


def test_an_error_in_a_command_comes_back_with_its_traceback(run):
    with pytest.raises(RemoteError, match="ZeroDivisionError: division by zero") as caught:
        run.call("1 / 0")
    assert caught.value.kind == "ZeroDivisionError"
    assert "1/0" in caught.value.traceback.replace(" ", "")


def test_a_command_that_is_not_answered_may_still_run_and_never_runs_twice(job, run):
    job.going.clear()
    counted = run.call
    job.agent.expose(counter=[])
    with pytest.raises(CommandPending, match="may still run") as caught:
        counted("counter.append(1) or len(counter)", timeout=0.05)
    job.going.set()
    for _ in range(3):
        assert counted("counter.append(1) or len(counter)", id=caught.value.id) == 1
    assert caught.value.id in str(caught.value)


def test_a_command_of_many_kilobytes_is_refused_before_it_is_sent(run):
    load = np.random.default_rng(0).bytes(100_000)
    with pytest.raises(LimitReached, match="over the 65,536"):
        run.call(lambda e: len(load))
    assert run.call("1") == 1


def test_a_run_cannot_be_sent_along_with_a_function(run):
    with pytest.raises(QueryError, match="cannot travel"):
        run.call(lambda e: run.name)
    with pytest.raises(TypeError, match="connection of this process"):
        pickle.dumps(run)


# ---------------------------------------------------------------- what is known of a run


def test_a_run_shows_its_events_and_how_long_ago_the_last_one_was(job, run):
    soon(lambda: run.events().get("epoch", 0) > 0)
    assert f"pid {os.getpid()}" in repr(run)
    job.going.clear()
    soon(lambda: run.idle > 1.2)
    assert run.alive


def test_a_wait_that_times_out_says_what_the_loop_does(job, run):
    stream = run.stream("1", on="nothing")
    with pytest.raises(TimeoutError, match="has raised no 'nothing' event yet; event types so far"):
        stream.wait(1, timeout=0.05)


def test_a_wait_for_the_end_of_a_group_says_that_a_window_is_the_way_out(job, run):
    with pytest.raises(TimeoutError, match=r"waits for a group such as an epoch to end; window=100 ends one"):
        run.stream("mean(e.step for e in events)", on="nothing").wait(1, timeout=0.05)
    mapped, windowed = run.stream("1", on="nothing"), run.stream("len(events)", on="nothing", window=3)
    assert not mapped.awaits_group
    assert not windowed.awaits_group


def test_stats_returns_the_counters_of_the_agent(run):
    stats = run.stats()
    assert stats["run"] == run.id
    assert [client["role"] for client in stats["clients"]] == ["operator"]


# ---------------------------------------------------------------- endings


def test_the_end_of_the_run_ends_its_streams_after_their_last_value(job, run):
    stream = run.stream("step", on="batch")
    stream.wait(5)
    job.end()
    soon(lambda: run.state == "ended")
    assert (stream.state, run.reason) == ("ended", "the run ended")
    assert stream.dropped == 0
    with pytest.raises(RunEnded, match="the run ended"):
        run.stream("step")


def test_closing_a_run_ends_its_streams_and_its_threads(job):
    run = looptap.attach("job")
    stream = run.stream("step", on="batch")
    stream.wait(1)
    run.close()
    run.close()
    assert (run.state, stream.state) == ("ended", "ended")
    soon(lambda: "looptap-client" not in {thread.name for thread in threading.enumerate()})
    with pytest.raises(RunEnded, match="closed on this side"):
        run.call("1")
    soon(lambda: not job.agent.stats()["clients"])


def test_a_dropped_run_disconnects(job):
    looptap.attach("job")
    gc.collect()
    soon(lambda: not job.agent.stats()["clients"])
    soon(lambda: not [t for t in threading.enumerate() if t.name == "looptap-client"])


def test_a_stream_keeps_its_run(job):
    stream = looptap.attach("job").stream("step", on="batch")
    gc.collect()
    before = stream.arrived
    soon(lambda: stream.arrived > before + 5)
    stream.run.close()


def test_threads_may_do_everything_at_once(run):
    failures = []

    def use():
        try:
            for _ in range(5):
                stream = run.stream("step, loss", on="batch")
                stream.wait(2)
                run.call("step")
                stream.close()
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=use) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert failures == []
    assert run.stats()["queries"] == []


LEAVES = """
import looptap
stream = looptap.attach("job").stream("step", on="batch")
stream.wait(3)
print("done")
"""


@pytest.mark.usefixtures("processes")
def test_a_script_that_ends_says_goodbye_and_does_not_hang(job):
    done = warm.run([sys.executable, "-c", LEAVES], capture_output=True, text=True, timeout=300)
    assert (done.stdout, done.stderr) == ("done\n", "")
    soon(lambda: not job.agent.stats()["clients"])


KILLED = """
import os, time, looptap
agent = looptap.Agent("victim")
print("ready", flush=True)
while True:
    agent.emit("batch", step=1)
    time.sleep(0.001)
"""


@pytest.mark.usefixtures("processes")
def test_a_run_whose_process_is_killed_fails_with_the_reason(directory):
    with warm.Popen([sys.executable, "-c", KILLED], stdout=subprocess.PIPE, text=True) as victim:
        assert victim.stdout.readline() == "ready\n"
        try:
            run = looptap.attach("victim")
            stream = run.stream("step", on="batch")
            stream.wait(5)
        finally:
            victim.kill()
        victim.wait()
        soon(lambda: run.state == "failed")
    assert "process is gone" in stream.reason
    with pytest.raises(StreamEnded, match="process is gone"):
        list(stream)
    run.close()


@pytest.mark.promise("S34")
@pytest.mark.usefixtures("processes")
@pytest.mark.skipif(sys.platform == "win32", reason="stops a process")
def test_a_stopped_process_is_distinguished_from_a_stalled_loop_and_resumes(directory):
    with warm.Popen([sys.executable, "-c", KILLED], stdout=subprocess.PIPE, text=True) as victim:
        assert victim.stdout.readline() == "ready\n"
        try:
            (path,) = directory.glob("*.json")
            file, limits = read_connection_file(path), looptap.Limits(heartbeat=0.1, heartbeat_timeout=0.5)
            link = ZmqTransport(file.endpoints, file.server_public.encode(), file.client, limits=limits)
            run = Run(link, run=file.run)
            stream = run.stream("step", on="batch")
            stream.wait(5)
            freeze(victim.pid)
            soon(lambda: run.state == "lost")
            assert "lost" in run.reason
            victim.send_signal(signal.SIGCONT)
            soon(lambda: run.state == "live")
            stream.wait(stream.arrived + 5)
        finally:
            victim.kill()
    run.close()


# ---------------------------------------------------------------- a lost link


@pytest.fixture
def far_job(directory):
    """Yield a job behind a proxy, and a run attached through it."""
    job = Job(listen="tcp")
    (path,) = directory.glob("*.json")
    file = read_connection_file(path)
    with Proxy(file.endpoints[0]) as proxy:
        link = ZmqTransport([proxy.endpoint], file.server_public.encode(), file.client)
        with Run(link, run=file.run) as run:
            yield job, run, proxy
    job.end()


def test_streams_continue_after_a_cut_and_the_gap_is_exact(far_job):
    _, run, proxy = far_job
    stream = run.stream("step", on="batch")
    for _ in range(5):
        arrived = stream.arrived
        stream.wait(arrived + 20)
        before = stream.arrived
        proxy.cut()
        soon(lambda before=before: stream.arrived > before + 20)
    stream.close()
    records = stream.records
    assert all(b.event - a.event == b.number - a.number for a, b in pairwise(records))
    assert len(stream.gaps) <= 5
    assert stream.dropped == records[-1].number - len(records)


def test_a_reduction_continues_over_a_cut(far_job):
    _, run, proxy = far_job
    stream = run.stream("len(events)", on="batch")
    stream.wait(3)
    proxy.cut()
    stream.wait(stream.arrived + 5)
    assert {(r.value, r.partial) for r in stream.records[1:]} == {(10, False)}
    assert None not in [gap.missing for gap in stream.gaps]


def test_while_the_link_is_down_the_run_says_so_and_a_command_waits_for_it(far_job):
    job, run, proxy = far_job
    job.going.clear()
    results = []
    asking = threading.Thread(target=lambda: results.append(run.call("step")))
    asking.start()
    soon(lambda: run.session.requests)
    proxy.shut = True
    proxy.cut()
    soon(lambda: run.state == "lost")
    assert not run.alive
    with pytest.raises(NoAnswer, match=r"'step' was not sent within 0\.1 s, and will not be\. .* is lost"):
        run.stream("step", timeout=0.1)
    proxy.shut = False
    soon(lambda: run.state == "live")
    job.going.set()
    asking.join(300)
    assert len(results) == 1


# ---------------------------------------------------------------- a hostile agent


class Scripted:
    """A transport whose agent is the test: scripted answers and injected frames."""

    def __init__(self, welcome=None):
        self.welcome = welcome or m.Welcome(m.VERSION, m.RunInfo("id", "name", "host", 1, 0.0), "operator")
        self.sent, self.answering = [], True

    def start(self, receiver, timeout):
        self.receiver = receiver

    def send(self, frame):
        message = decode_from_client(frame)
        self.sent.append(message)
        if isinstance(message, m.Hello) and self.welcome is not ...:
            self.put(self.welcome)
        elif isinstance(message, m.Attach) and self.answering:
            point = {"event": 4, "base": message.above + 2, "exact": True} if message.above else None
            self.put(m.Done(message.request, msgspec.Raw(pack({"mapped": True, "point": point}))))

    def put(self, message):
        self.receiver.on_frame(encode(message))

    def close(self, timeout=1.0):
        pass


def values(stream, first, items, **more):
    form, raw = pack_values(items)
    numbers = range(first, first + len(items))
    events, times = array("q", numbers).tobytes(), array("d", [0.0] * len(items)).tobytes()
    columns = {"events": events, "times": times} | more
    return m.Values(stream, first, clock=0.0, form=form, values=msgspec.Raw(raw), **columns)


def test_an_agent_of_another_version_is_named():
    ours = re.escape(".".join(map(str, m.VERSION)))
    with pytest.raises(VersionMismatch, match=rf"protocol 9\.4 and this client {ours}"):
        Run(Scripted(m.Refused("too old", (9, 4))))


def test_an_agent_of_a_newer_minor_version_is_fine():
    info = m.RunInfo("id", "name", "host", 1, 0.0)
    assert Run(Scripted(m.Welcome((2, 99), info, "operator"))).name == "name"


def test_an_agent_that_takes_no_more_clients_says_why():
    with pytest.raises(LimitReached, match="16 clients"):
        Run(Scripted(m.Refused("16 clients are attached.", m.VERSION)))


def test_an_agent_that_is_of_another_run_is_a_wrong_server():
    with pytest.raises(WrongServer, match="not mine"):
        Run(Scripted(), run=m.RunInfo("mine", "name", "host", 1, 0.0))


def test_an_agent_that_accepts_and_sends_nothing_is_no_answer():
    with pytest.raises(NoAnswer, match="did not answer this client"):
        Run(Scripted(...), timeout=0.05)


@pytest.mark.parametrize(
    "more",
    [
        {"events": b""},
        {"times": b"12345678"},
        {"flags": b"123"},
        {"events": array("q", [-1, 2]).tobytes()},
        {"events": array("q", [1, 1 << 62 | 1]).tobytes()},
        {"rank": -1},
        {"rank": 1 << 63},
    ],
)
def test_values_whose_columns_do_not_fit_are_counted_and_not_taken(more):
    agent = Scripted()
    run = Run(agent)
    stream = run.stream("step")
    agent.put(values(1, 1, [1, 2], **more))
    agent.put(values(1, 1, [7]))
    assert (run.refused_messages, stream.values) == (1, [7])


def test_a_malformed_message_loses_neither_its_bundle_nor_credit():
    agent = Scripted()
    run = Run(agent)
    first, second = run.stream("step"), run.stream("2 * step")
    bad = values(1, 1, ["x" * 100_000], events=b"")
    for number in range(1, 6):
        good = values(2, number, [number])
        agent.put(m.Bundle(tuple(msgspec.Raw(encode(message)) for message in (bad, good))))
    assert (first.values, second.values, run.refused_messages) == ([], [1, 2, 3, 4, 5], 5)
    assert [said.total // 100_000 for said in agent.sent if isinstance(said, m.Got)] == [3]


@pytest.mark.parametrize("first", [0, -5, (1 << 62) + 1, (1 << 63) - 1])
def test_values_with_numbers_that_cannot_be_are_counted_and_not_taken(first):
    agent = Scripted()
    run = Run(agent)
    stream = run.stream("step")
    agent.put(msgspec.structs.replace(values(1, 1, [1]), first=first))
    assert (run.refused_messages, stream.values) == (1, [])


def test_texts_from_an_agent_are_bounded():
    agent = Scripted()
    run = Run(agent)
    stream = run.stream("step")
    for n in range(50):
        notes = tuple(f"{n} {i} " + "x" * 20_000 for i in range(10))
        agent.put(m.Status(1, "live", notes=notes, traceback="y" * 10**6))
    assert 0 < len(stream.notes) <= 100
    assert max(map(len, [*stream.notes, stream.traceback])) <= 10_000
    assert len(repr(stream)) < 2000


def test_ticks_before_the_first_welcome_are_harmless():
    class Slow(Scripted):
        def put(self, message):
            for _ in range(10):  # seconds
                self.receiver.on_tick()
            super().put(message)

    agent = Slow()
    assert Run(agent).state == "live"
    assert [type(message) for message in agent.sent] == [m.Hello]


def test_a_client_that_was_forgotten_says_hello_again():
    agent = Scripted()
    run = Run(agent)
    stream = run.stream("step")
    agent.put(values(1, 1, [7, 8]))
    agent.put(m.Refused("say hello first.", m.VERSION, stranger=True))
    agent.put(values(1, 5, [11]))
    assert [type(message) for message in agent.sent] == [m.Hello, m.Attach] * 2
    assert (run.state, stream.values, stream.gaps) == ("live", [7, 8, 11], [Gap(2, 2)])


def test_an_agent_refuses_each_message_of_a_client_it_has_forgotten():
    agent = Scripted()
    run = Run(agent)
    welcome, agent.welcome = agent.welcome, ...  # the new hello has not arrived yet
    for _ in range(3):
        agent.put(m.Refused("say hello first.", m.VERSION, stranger=True))
    assert run.state == "lost"
    assert [type(message) for message in agent.sent] == [m.Hello] * 2
    agent.put(welcome)
    assert run.alive


@contextlib.contextmanager
def beating(agent):
    over = threading.Event()

    def beat():
        while not over.wait(0.01):
            agent.put(m.Beat({}, 0.0))

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_a_default_timeout_is_as_long_as_the_agent_says_nothing():
    agent = Scripted()
    run = Run(agent)
    agent.answering = False

    def answer():
        (attach,) = [one for one in agent.sent if isinstance(one, m.Attach)]
        agent.put(m.Done(attach.request, msgspec.Raw(pack({"mapped": True}))))

    late = threading.Timer(0.6, answer)
    with beating(agent):
        late.start()
        stream = run.stream("step", timeout=Silence(0.15))
        assert run.attached == [stream]
        for timeout in (0.15, Silence(0.15)):  # there is a limit
            with pytest.raises(NoAnswer, match="was not answered within"):
                run.stream("loss", timeout=timeout)
    with pytest.raises(NoAnswer, match="was not answered within"):
        run.stream("loss", timeout=Silence(0.15))
    assert isinstance(REPLY_SECONDS, Silence)


def test_an_attach_cut_by_a_broken_link_waits_for_the_next_within_its_timeout():
    agent = Scripted()
    run = Run(agent)
    agent.answering = False
    threading.Timer(0.05, agent.receiver.on_lost, [NoAnswer("The link is lost.")]).start()
    with pytest.raises(NoAnswer, match=r"not answered within 0\.2 s.*link is lost"):
        run.stream("step", timeout=0.2)
    assert (run.state, run.attached) == ("lost", [])

    def back():
        agent.answering = True
        agent.receiver.on_back()

    threading.Timer(0.1, back).start()
    stream = run.stream("step", timeout=300)
    assert run.attached == [stream]
    hello = next(message for message in reversed(agent.sent) if isinstance(message, m.Hello))
    assert hello.streams == ()  # the agent shall forget what it may have attached: it is asked once more


def test_an_agent_that_refuses_a_second_hello_is_believed():
    agent = Scripted()
    run = Run(agent)
    agent.welcome = m.Refused("16 clients are attached.", m.VERSION)
    agent.put(m.Refused("say hello first.", m.VERSION, stranger=True))
    assert (run.state, "16 clients" in run.reason) == ("failed", True)


def test_a_reply_to_no_request_is_ignored():
    agent = Scripted()
    run = Run(agent)
    agent.put(m.Done(999))
    agent.put(m.Failed(0, "query", "no"))
    assert run.alive


def test_ten_thousand_mutated_replies_are_harmless():
    dice, malformed = random.Random(7), 0
    info = m.RunInfo("id", "name", "host", 1, 0.0)
    templates = [
        encode(message)
        for message in (
            values(1, 1, [1, 2.5, None, "text"]),
            values(1, 5, [(1, 2.5), (2, 3.5)], flags=b"\0\2"),
            values(1, 9, [np.arange(4), {"a": [1, 2]}, {1, 2}]),
            m.Status(1, "live", "why", 5, 1, 2, 3, "traceback", ("note",), 4.0, 0.1),
            m.Done(1, msgspec.Raw(pack({"fields": ("a", "b"), "notes": ["n"]}))),
            m.Failed(1, "query", "text", '{"reason": "r", "column": 3}'),
            m.Beat({"batch": 3}, 0.5),
            m.Welcome(m.VERSION, info, "operator", {"batch": 1}),
        )
    ]
    for number in range(10_000):
        if number % 200 == 0:  # a reply may well end the run
            agent = Scripted()
            run = Run(agent)
            stream = run.stream("step")
        frame = bytearray(dice.choice(templates))
        for _ in range(dice.randint(1, 2)):
            kind = dice.random()
            if kind < 0.6:
                frame[dice.randrange(len(frame))] = dice.randrange(256)
            elif kind < 0.8:
                del frame[dice.randrange(len(frame)) :]
            else:
                place = dice.randrange(len(frame) + 1)
                frame[place:place] = dice.randbytes(dice.randint(1, 9))
            frame = frame or bytearray(b"\0")
        before = run.refused_messages
        agent.receiver.on_frame(bytes(frame))
        malformed += run.refused_messages - before
        if number % 20 == 0:
            assert len(stream.records) == len(stream.values) + len(stream.errors)
            assert len(stream.columns().values) == len(stream.to_numpy()) == len(stream)
            assert repr(stream)
            assert repr(run)
    assert 3000 < malformed < 9500


def test_nested_depths_do_not_end_the_client():
    agent = Scripted()
    run = Run(agent)
    run.stream("step")
    for depth in (100, 10_000, 100_000):
        raw = b"\x91" * depth + b"\xc0"
        for reply in (values(1, 1, [1]), m.Done(1)):
            field = "values" if isinstance(reply, m.Values) else "value"
            agent.put(msgspec.structs.replace(reply, **{field: msgspec.Raw(raw)}))
    assert run.alive
