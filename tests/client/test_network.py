"""Network faults: links cut, silent or half open, stopped processes, next runs."""

from __future__ import annotations

import contextlib
import gc
import math
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
import warm
import zmq
from relays import Proxy
from waiting import freeze, soon

import looptap
from looptap.client.run import Run
from looptap.client.transport import zmq_client as link
from looptap.client.transport.zmq_client import ZmqTransport
from looptap.protocol import messages as m
from looptap.protocol.codec import decode_from_agent, encode
from looptap.protocol.errors import NoAnswer, RunEnded
from looptap.protocol.files.connection import read_connection_file
from looptap.protocol.keys import OPERATOR, VIEWER
from looptap.protocol.limits import Limits
from looptap.testing import pair, parts_of

QUICK = Limits(heartbeat=0.1, heartbeat_timeout=0.5)


class Job:
    """A training loop on a thread of its own, with epochs of ten batches."""

    def __init__(self, limits):
        self.agent = looptap.Agent("job", listen="tcp", budget=math.inf, limits=limits)
        self.going, self.resting = threading.Event(), threading.Event()
        self.going.set()
        self._over = False
        self._thread = threading.Thread(target=self._loop, daemon=True)
        self._thread.start()

    def _loop(self):
        step = 0
        while not self._over:
            if self.going.wait(0.01):
                step += 1
                self.agent.emit("batch", step=step, text="x" * 5000)
                if step % 10 == 0:
                    self.agent.emit("epoch", epoch=step // 10)
            else:
                self.resting.set()
            time.sleep(0.0003)

    def rest(self):
        self.resting.clear()
        self.going.clear()
        soon(self.resting.is_set)

    def end(self):
        self._over = True
        self._thread.join(300)
        self.agent.close()


@contextlib.contextmanager
def far_away(directory, limits):
    """Yield a job, and a run that is attached to it through a proxy."""
    job = Job(limits)
    (path,) = directory.glob("*.json")
    file = read_connection_file(path)
    with Proxy(file.endpoints[0]) as proxy:
        link = ZmqTransport([proxy.endpoint], file.server_public.encode(), file.client, limits=limits)
        with Run(link, run=file.run) as run:
            yield job, run, proxy
    job.end()


def made(job, stream):
    """Return how many values a stream's query has yielded since it was last attached."""
    (found,) = [query["values"] for query in job.agent.stats()["queries"] if query["name"] == stream.name]
    return found


# ---------------------------------------------------------------- lost links


def test_over_twenty_cuts_what_was_made_is_what_arrived_and_what_is_missing(directory):
    with far_away(directory, Limits()) as (job, run, proxy):
        streams = [
            run.stream("step", on="batch", name="mapped"),
            run.stream("text * 40", on="batch", name="large"),
            run.stream("step", on="batch", every=3, name="every third"),
            run.stream("len(events)", on="batch", name="group"),
            run.stream("first(e.step for e in events)", on="batch", window=7, name="window"),
            run.stream("max(e.step for e in events)", on="batch", window=looptap.sliding(5), name="sliding"),
            run.stream("step", on="batch", when="step % 50 == 0", before=3, name="recorder"),
        ]
        for _ in range(20):
            before = [stream.arrived for stream in streams]
            proxy.cut()
            soon(lambda before=before: all(s.arrived > n for s, n in zip(streams, before, strict=True)))
        job.rest()
        soon(lambda: all(made(job, s) == s.arrived + s.dropped for s in streams[:-1]))
        assert [gap.missing for s in streams for gap in s.gaps if gap.missing is None] == []
        for stream in streams:
            assert (len(stream.records), sum(g.missing for g in stream.gaps)) == (stream.arrived, stream.dropped)
        assert streams[1].dropped > 0
        mapped, _, _, group, window, _, _ = (stream.records for stream in streams)
        assert all(b.event - a.event == b.number - a.number for a, b in pairwise(mapped))
        assert {r.value for r in group[1:]} == {10}  # no window was cut
        assert all(b.value - a.value == 7 * (b.number - a.number) for a, b in pairwise(window))


def test_a_link_that_breaks_while_it_is_restored_is_restored_again(directory, monkeypatch):
    with far_away(directory, Limits()) as (_, run, proxy):
        stream = run.stream("step")
        stream.wait(1)
        seen, cuts = link._Connection.seen, []

        def together(connection):
            """Return the monitor's events; once, the ends of handshake and link together."""
            new = seen(connection)
            if not cuts and any(event == zmq.EVENT_HANDSHAKE_SUCCEEDED for event, _ in new):
                cuts.append(proxy.cut())
                while not any(event == zmq.EVENT_DISCONNECTED for event, _ in new):
                    assert connection.monitor.poll(60_000)
                    new += seen(connection)
            return new

        monkeypatch.setattr(link._Connection, "seen", together)
        proxy.cut()
        soon(lambda: cuts, 60)
        before = stream.arrived
        soon(lambda: run.state == "live" and stream.arrived > before, 60)


def test_a_link_that_breaks_before_the_first_welcome_is_restored(directory, monkeypatch):
    send, cuts = ZmqTransport.send, []

    def cut_off(transport, frame):
        """Send a frame; the first one, a hello, is lost with its link."""
        if not cuts:
            proxy.swallow()
        send(transport, frame)
        if not cuts:
            cuts.append(proxy.cut())

    monkeypatch.setattr(ZmqTransport, "send", cut_off)
    job = Job(Limits())
    (path,) = directory.glob("*.json")
    file = read_connection_file(path)
    with Proxy(file.endpoints[0]) as proxy:
        link = ZmqTransport([proxy.endpoint], file.server_public.encode(), file.client)
        with Run(link, run=file.run, timeout=300) as run:
            assert run.state == "live"
            assert run.stream("step").wait(2, 60)
    job.end()


def test_losses_of_an_outage_are_known_at_the_reconnect(directory):
    with far_away(directory, QUICK) as (job, run, proxy):
        plain, third = run.stream("step", on="batch"), run.stream("step", every=3)
        windows, kept = run.stream("len(events)", window=7), run.stream("step")  # which begins with its history
        for _ in range(3):
            before = plain.arrived
            soon(lambda before=before: min(plain.arrived, 3 * third.arrived) > before + 50 and windows.arrived)
            proxy.shut = True
            proxy.cut()
            soon(lambda: run.state == "lost" and not parts_of(job.agent).dispatcher.sessions.clients)
            at = job.agent.stats()["events"]["batch"]
            soon(lambda at=at: job.agent.stats()["events"]["batch"] > at + 20)
            job.rest()
            proxy.shut = False
            events = job.agent.stats()["events"]["batch"]
            for stream, every in ((plain, 1), (third, 3)):
                first = stream.records[0].event
                soon(lambda s=stream, n=(events - first) // every + 1: s.arrived + s.dropped == n)
                assert [gap.missing for gap in stream.gaps if gap.missing is None] == []
            soon(lambda: windows.gaps and windows.gaps[-1].missing is None)
            job.going.set()
        soon(lambda: run.state == "live" and plain.latest > events + 50)
        assert all(b.event - a.event == b.number - a.number for a, b in pairwise(plain.records))
        assert all(b.event - a.event == 3 * (b.number - a.number) for a, b in pairwise(third.records))
        live = [record for record in kept.records if not record.history]
        assert [record.number for record in kept.records if record.history] == list(range(1, kept.history.last + 1))
        assert live[0].number == kept.history.last + 1
        assert all(b.event - a.event == b.number - a.number for a, b in pairwise(live))


def test_while_a_link_is_being_restored_every_request_waits_for_it_within_its_timeout(directory):
    with far_away(directory, Limits()) as (job, run, proxy):
        job.agent.stream("declared", "step")
        job.agent.control("scale", lambda: 1.0, lambda value: None)
        stream = run.stream("len(events)", name="before")
        asked = {
            "stream": lambda timeout: run.stream("step", timeout=timeout).wait(2, 60),
            "history": lambda timeout: run.stream("declared", timeout=timeout).wait(2, 60),
            "call": lambda timeout: run.call("step", timeout=timeout),
            "set": lambda timeout: run.set("scale", 2.0, timeout=timeout),
            "stats": lambda timeout: run.stats(timeout),
            "stacks": lambda timeout: run.stacks(timeout),
            "window": lambda timeout: stream.close_window(timeout),
            "grant": lambda timeout: stream.grant(0.5, timeout),
            "export": lambda timeout: run.export(stream, timeout=timeout),
        }
        proxy.shut = True
        proxy.cut()
        soon(lambda: run.state == "lost")
        for ask in asked.values():
            with pytest.raises(NoAnswer, match=r"was not sent within 0\.05 s, and will not be"):
                ask(0.05)
        with ThreadPoolExecutor(len(asked)) as pool:
            waiting = [pool.submit(ask, 60.0) for ask in asked.values()]
            soon(lambda: len(run.session.requests) == len(asked))
            assert not any(answer.done() for answer in waiting)
            proxy.shut = False
            for answer in waiting:
                answer.result(60)
        assert run.losses == 1


@pytest.mark.parametrize("away", [False, True])
def test_a_lost_link_costs_a_declared_stream_only_values_beyond_its_history(directory, away):
    with far_away(directory, QUICK) as (job, run, proxy):
        job.rest()  # both begin at the same event, and so number their values alike
        job.agent.stream("all", "step", history=100_000)
        job.agent.stream("little", "step", history=20)
        job.going.set()
        whole, little = run.stream("all"), run.stream("little")
        for _ in range(3):
            before = whole.arrived
            proxy.shut = away
            proxy.cut()
            if away:  # until the agent has forgotten the client, and the small history has moved on
                soon(lambda: run.state == "lost" and not parts_of(job.agent).dispatcher.sessions.clients)
                proxy.shut = False
            soon(lambda before=before: whole.arrived > before + 50)
        job.rest()
        parts_of(job.agent).sources.drain()
        count = parts_of(job.agent).dispatcher.declared_streams.by_name["all"].ring.number
        soon(
            lambda: whole.arrived == count and little.records[-1].number == whole.records[-1].number,
            detail=lambda: (count, run.state, run.losses, run.reason, whole, little, job.agent.stats()),
        )
        records = whole.records
        assert [r.number for r in records] == [r.event - records[0].event + 1 for r in records]
        assert (whole.dropped, whole.gaps) == (0, [])
        assert all(gap.missing is not None for gap in little.gaps)
        begun = min([gap.after for gap in little.gaps] + [little.records[0].number - 1])
        assert little.arrived + little.dropped == little.records[-1].number - begun
        assert sum(gap.missing for gap in little.gaps) == little.dropped
        assert little.dropped > 0 or not away
        assert {r.number: r.value for r in little.records}.items() <= {r.number: r.value for r in whole.records}.items()


def test_after_a_long_absence_the_numbers_continue_and_the_gap_is_reported(directory):
    with far_away(directory, QUICK) as (job, run, proxy):
        mapped, window = run.stream("step", on="batch"), run.stream("len(events)", on="batch", window=7)
        soon(lambda: mapped.arrived > 20 and window.arrived > 3)
        sessions = parts_of(job.agent).dispatcher.sessions
        for absence in range(1, 4):
            proxy.shut = True
            proxy.cut()
            soon(lambda: run.state == "lost" and not sessions.clients)
            (reached,) = sessions.reached.values()
            last = reached[window.attach.stream].number
            assert job.agent.stats()["queries"] == []  # an absent client costs nothing
            proxy.shut = False
            before = window.arrived, mapped.arrived
            soon(lambda before=before: window.arrived > before[0] + 3 and mapped.arrived > before[1] + 20)
            assert [gap.missing for gap in window.gaps].count(None) == absence
            assert [gap.after for gap in window.gaps if gap.missing is None][-1] == last
        job.rest()
        soon(lambda: last + made(job, window) == window.arrived + window.dropped)
        assert all(b.event - a.event == b.number - a.number for a, b in pairwise(mapped.records))
        assert None not in [gap.missing for gap in mapped.gaps]


def test_a_peer_that_vanishes_silently_times_out_on_both_sides_and_reconnects(directory):
    with far_away(directory, QUICK) as (job, run, proxy):
        stream = run.stream("step", on="batch")
        stream.wait(10)
        links = parts_of(job.agent).connection.link.stats()["admitted"]
        proxy.swallow()
        # That it was lost is over so soon that a look may miss it; that it came in again stays.
        soon(lambda: parts_of(job.agent).connection.link.stats()["admitted"] > links)
        soon(lambda: run.state == "live")
        before = stream.arrived
        soon(lambda: stream.arrived > before + 10)
        soon(lambda: len(job.agent.stats()["clients"]) == 1)
        job.rest()
        soon(lambda: stream.records[-1].event == job.agent.stats()["events"]["batch"])
        assert all(b.event - a.event == b.number - a.number for a, b in pairwise(stream.records))


def test_a_disconnected_client_gives_up_its_place_if_all_are_taken(directory):
    limits = Limits(clients=2)
    with far_away(directory, limits) as (job, run, proxy), looptap.attach("job") as other:
        run.stream("step", on="batch").wait(3)
        proxy.shut = True
        proxy.cut()
        soon(lambda: [c["away"] for c in job.agent.stats()["clients"]] == [True, False])
        with looptap.attach("job") as third:
            assert third.stream("step", on="batch").wait(1)
            assert other.alive
            assert [c["away"] for c in job.agent.stats()["clients"]] == [False, False]


def test_a_stalled_loop_is_distinguished_from_a_silent_agent(directory, monkeypatch):
    for name, seconds in (
        ("session.vitals.STILL_SECONDS", 0.8),
        ("session.vitals.QUIET_SECONDS", 0.6),
        ("run.QUIET_SECONDS", 0.6),
    ):
        monkeypatch.setattr(f"looptap.client.{name}", seconds)
    with far_away(directory, Limits(heartbeat=0.1, heartbeat_timeout=2.0)) as (job, run, proxy):
        stream = run.stream("step", on="batch")
        stream.wait(3)
        job.rest()
        soon(lambda: run.idle > 1)
        soon(lambda: run.silence < 0.5)
        assert run.state == "live"
        with pytest.raises(TimeoutError, match="The agent answers, but the loop is not moving"):
            stream.wait(10**9, timeout=0.01)
        proxy.swallow()
        soon(lambda: run.silence > 0.7)
        with pytest.raises(TimeoutError, match=r"No sign of life for \d s"):
            stream.wait(10**9, timeout=0.01)
        soon(lambda: run.state == "lost")
        assert run.reason.startswith("No sign of life for ")
        proxy.shut = True
        assert "no sign of life for" in repr(run)


# ---------------------------------------------------------------- who comes back


class Memory:
    """Peers of an agent without sockets; ``tell`` sends and returns the replies."""

    def __init__(self):
        self.agent, run = pair()
        run.close()
        self.said = []

    def on_frame(self, frame):
        self.said.append(decode_from_agent(frame))

    def tell(self, peer, message, role=OPERATOR):
        parts_of(self.agent).connection.receivers[peer] = self
        self.said.clear()
        parts_of(self.agent).connection.dispatcher.receive(peer, role, encode(message))
        return list(self.said)

    def attach(self, peer, token, stream=1, **more):
        self.tell(peer, m.Hello(m.VERSION, token=token))
        return self.tell(peer, m.Attach(1, stream, m.Code("step"), "batch", **more))

    def vanish(self, peer):
        """Cut the link of a peer that has been silent for long."""
        del parts_of(self.agent).connection.receivers[peer]
        parts_of(self.agent).dispatcher.clients[peer].last_heard -= 60
        parts_of(self.agent).dispatcher.on_heartbeat_timer()

    def numbered(self, step):
        """Return the number of the value of an event."""
        self.said.clear()
        self.agent.emit("batch", step=step)
        parts_of(self.agent).connection.wake()
        return [message.first for message in self.said if isinstance(message, m.Values)]


def test_the_numbers_continue_for_the_newest_64_forgotten_clients():
    memory = Memory()
    for n in range(65):
        memory.attach(b"%d" % n, f"client {n}")
        assert memory.numbered(n) == [1]
        memory.vanish(b"%d" % n)
    assert memory.agent.stats()["clients"] == []
    assert len(parts_of(memory.agent).dispatcher.sessions.reached) == 64
    for n, number in ((0, 1), (64, 3), (1, 67)):  # also counting what it would have had meanwhile
        peer = b"again %d" % n
        memory.attach(peer, f"client {n}")
        assert memory.numbered(n) == [number]
        memory.tell(peer, m.Leave())
    memory.attach(b"knows more", "client 2", above=10)
    assert memory.numbered(0) == [11]


def test_only_the_same_role_resumes_the_streams_of_a_token():
    memory = Memory()
    memory.attach(b"link 1", "secret")
    (welcome,) = memory.tell(b"other", m.Hello(m.VERSION, token="secret", streams=(1,)), VIEWER)[:1]
    assert (welcome.streams, parts_of(memory.agent).dispatcher.clients[b"link 1"].peer) == ((), b"link 1")
    (welcome,) = memory.tell(b"link 2", m.Hello(m.VERSION, token="secret", streams=(1,)))[:1]
    assert (welcome.streams, b"link 1" in parts_of(memory.agent).dispatcher.clients) == ((1,), False)
    (welcome,) = memory.tell(b"link 3", m.Hello(m.VERSION, token="secret"))[:1]  # it wants none of them any more
    assert (welcome.streams, memory.agent.stats()["queries"]) == ((), [])


@pytest.mark.parametrize("above", [-1, 1 << 63])
def test_a_number_that_no_stream_has_reached_is_refused(above):
    (failed,) = Memory().attach(b"peer", "token", above=above)
    assert (failed.kind, str(above) in failed.text) == ("LimitReached", True)


# ---------------------------------------------------------------- stopped processes

CLIENT = """
import sys, time, looptap
from looptap.client.transport.zmq_client import ZmqTransport
from looptap.client.run import Run
from looptap.protocol.files.connection import read_connection_file
from looptap.protocol.limits import Limits
file = read_connection_file(next(iter(__import__("pathlib").Path(sys.argv[1]).glob("*.json"))))
limits = Limits(heartbeat=0.1, heartbeat_timeout=0.5)
run = Run(ZmqTransport(file.endpoints, file.server_public.encode(), file.client, limits=limits), run=file.run)
streams = [run.stream(q, on="batch") for q in ("step", "mean(e.step for e in events)")]
print("attached", flush=True)
for line in sys.stdin:
    arrived = streams[0].arrived
    while streams[0].arrived <= arrived + 5:
        time.sleep(0.01)
    records = streams[0].records
    print(all(b.event - a.event == b.number - a.number for a, b in zip(records, records[1:])), flush=True)
"""


@pytest.mark.usefixtures("processes")
@pytest.mark.skipif(sys.platform == "win32", reason="stops a process")
def test_a_stopped_client_is_forgotten_with_its_queries_and_resumes_when_continued(directory):
    job = Job(QUICK)
    command = [sys.executable, "-c", CLIENT, str(directory)]
    with warm.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client:
        try:
            assert client.stdout.readline() == "attached\n"
            assert len(job.agent.stats()["queries"]) == 2
            freeze(client.pid)
            soon(lambda: not job.agent.stats()["clients"])
            assert job.agent.stats()["queries"] == []
            client.send_signal(signal.SIGCONT)
            soon(lambda: len(job.agent.stats()["queries"]) == 2)
            client.stdin.write("go on\n")
            client.stdin.flush()
            assert client.stdout.readline() == "True\n"
        finally:
            client.kill()
            job.end()


# ---------------------------------------------------------------- one run after the other

JOB = """
import sys, threading, time, looptap
agent = looptap.Agent("again", budget=float("inf"))
threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
over, step = threading.Event(), 0
print(agent.run.id, flush=True)
while not over.wait(0.001):
    step += 1
    agent.emit("batch", step=step)
    if step % 10 == 0:
        agent.emit("epoch")
agent.close("the job is done")
"""
LATER = JOB.replace("    step += 1", "    step += 1\n    if step == 50: agent.stream('all', 'step')")
DECLARED = JOB.replace("over, step =", "agent.stream('all', 'step', history=100_000)\nover, step =")


@contextlib.contextmanager
def child(code=JOB):
    """Run a job in a process of its own; yield it and the id of its run."""
    command = [sys.executable, "-c", code]
    with warm.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as job:
        try:
            yield job, job.stdout.readline().strip()
        finally:
            job.kill()


@pytest.mark.promise("S33")
@pytest.mark.usefixtures("processes")
def test_a_declared_stream_continues_in_the_next_run_with_its_history(directory):
    with child(DECLARED) as (job, first):
        run = looptap.attach("again", follow=True)
        steps = run.stream("all")
        steps.wait(50)
        job.stdin.close()
        soon(lambda: run.state == "lost")
        total = steps.arrived
        assert (steps.dropped, steps.values) == (0, list(range(1, total + 1)))
    with child(DECLARED) as (_, second):
        soon(lambda: steps.arrived > total + 50)
        (seam,) = steps.seams
        assert (seam.old, seam.new, seam.after) == (first, second, total)
        after = [r for r in steps.records if r.number > total]
        assert [r.number - total for r in after] == [r.value for r in after] == list(range(1, len(after) + 1))
        assert (steps.dropped, steps.gaps) == (0, [])
        total = steps.arrived
    with child(LATER):  # it declares the stream when the client is there already
        soon(lambda: len(steps.seams) == 2 and steps.arrived > total + 50)
        assert [r.number - steps.seams[1].after for r in steps.records][-1] == steps.latest - 49
        run.close()


@pytest.mark.promise("runs")
@pytest.mark.usefixtures("processes")
def test_streams_move_on_to_the_next_run_of_the_name_with_a_seam_for_each(directory):
    seen = []
    with child() as (job, first):
        run = looptap.attach("again", follow=True)
        steps, groups = run.stream("step", on="batch"), run.stream("len(events)", on="batch")
        steps.on_value(seen.append, replay=True)
        groups.wait(3)
        os.kill(job.pid, signal.SIGKILL)
        job.wait()
        soon(lambda: "Waiting for the next run named 'again'" in run.reason)
        with pytest.raises(NoAnswer, match=r"was not sent .*process is gone"):
            run.stream("step", timeout=0.1)
    killed = steps.arrived
    with ThreadPoolExecutor(1) as pool, child() as (job, second):
        late = pool.submit(run.stream, "step + 1", timeout=300)  # asked of the next run, if this comes in time
        assert late.result().wait(1)
        run.attached[-1].close()
        del late
        soon(lambda: groups.arrived > 10 and steps.arrived > killed + 50)
        assert (run.id, run.state, run.reason, len(run.attached)) == (second, "live", "", 2)
        (seam,) = steps.seams
        assert (seam.old, seam.new) == (first, second)
        before, after = (
            [r for r in steps.records if r.number <= seam.after], [r for r in steps.records if r.number > seam.after]
        )  # fmt: skip
        assert len(before) == seam.after == killed
        assert after[0].time > before[-1].time
        assert [r.value for r in after] == [r.event for r in after]  # the numbers of the new run's events
        assert (seam.after, None) in steps.gaps  # it is unknown whether the killed one had more values
        assert [r.number for r in steps.records] == list(range(1, len(before) + len(after) + 1))
        assert "2 runs, the last from number" in repr(steps)
        job.stdin.close()  # a proper end: all that was made has arrived, or is counted
        soon(lambda: run.state == "lost")
        total = steps.arrived + steps.dropped
    with child() as (_, third):
        soon(lambda: steps.arrived > total + 50)
        assert [(s.old, s.new) for s in steps.seams] == [(first, second), (second, third)]
        assert steps.seams[1].after == total
        assert [gap for gap in steps.gaps if gap.missing is None] == [(killed, None)]
        soon(lambda: len(seen) > total)
        assert seen == steps.values[: len(seen)]
        run.close()
        assert (run.state, steps.state, steps.reason) == ("ended", "ended", "closed")
    assert not [t for t in threading.enumerate() if t.name == "looptap-follow"]


@pytest.mark.usefixtures("processes")
def test_a_command_is_not_carried_over_to_the_next_run(directory):
    with child() as (job, _):
        run = looptap.attach("again", follow=True)
        failures = []

        def ask():
            try:
                run.call("step", on="never")
            except RunEnded as error:
                failures.append(error)

        asking = threading.Thread(target=ask)
        asking.start()
        soon(lambda: run.session.requests)
        job.kill()
        asking.join(300)
    assert len(failures) == 1
    run.close()
    soon(lambda: not [t for t in threading.enumerate() if t.name == "looptap-follow"])


@pytest.mark.usefixtures("processes")
def test_a_dropped_run_that_waits_for_the_next_is_released(directory):
    with child() as (job, _):
        run = looptap.attach("again", follow=True)
        job.kill()
        while run.state != "lost":
            time.sleep(0.01)
    del run
    gc.collect()
    soon(lambda: not [t for t in threading.enumerate() if t.name in ("looptap-follow", "looptap-client")])


@pytest.mark.usefixtures("processes")
def test_without_follow_a_run_ends_with_its_job(directory):
    with child() as (job, _), looptap.attach("again") as run:
        stream = run.stream("step", on="batch")
        stream.wait(1)
        job.stdin.close()
        soon(lambda: run.state == "ended")
        assert (stream.state, stream.reason, stream.seams) == ("ended", "the job is done", [])
