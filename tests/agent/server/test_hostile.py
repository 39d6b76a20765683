"""Hostile clients with a valid key, floods without one, readers that never read."""

from __future__ import annotations

import contextlib
import copy
import math
import os
import random
import socket
import subprocess
import sys
import textwrap
import time
from array import array

import msgspec
import pytest
import warm
import zmq
from waiting import soon

import looptap
from looptap.agent.agent import on_end
from looptap.agent.io import server_thread as link_module
from looptap.client.transport.zmq_client import ZmqTransport
from looptap.protocol import messages as m
from looptap.protocol.codec import decode_from_agent, decode_from_client, encode, version_of
from looptap.protocol.errors import LimitReached, LinkError, MessageError, NoAnswer, RemoteError, RunEnded
from looptap.protocol.files.connection import read_connection_file
from looptap.protocol.roles import ALLOWED
from looptap.protocol.values.unpacking import unpack_values
from looptap.streams.errors import QueryError
from looptap.testing import pair, parts_of

LONG = [pytest.mark.soak, pytest.mark.timeout(7200)]


@pytest.fixture
def dial(directory):
    """Return a function that opens a bare encrypted socket with the operator's key."""
    context, made = zmq.Context(), []

    def connect(name="*", hello=True):
        path = max(directory.glob(f"{name}-*.json"), key=lambda path: path.stat().st_mtime)  # os._exit leaves its own
        file = read_connection_file(path)
        dealer = context.socket(zmq.DEALER)
        made.append(dealer)
        dealer.linger, dealer.rcvtimeo, dealer.sndtimeo = 0, 20_000, 20_000
        dealer.curve_serverkey = file.server_public.encode()
        dealer.curve_publickey, dealer.curve_secretkey = file.client.public, file.client.secret
        dealer.connect(file.endpoints[0])
        if hello:
            dealer.send(encode(m.Hello(m.VERSION, "bare")))
            assert isinstance(decode_from_agent(dealer.recv()), m.Welcome)
        return dealer

    yield connect
    for dealer in made:
        dealer.close()
    context.term()


def is_served(name, agent):
    """Check that a good client can attach and gets values."""
    with looptap.attach(name, timeout=300) as run:
        stream = run.stream("step", on="batch", budget=math.inf)
        agent.emit("batch", step=7, loss=1.0)
        assert stream.wait(1, timeout=300) == [7]


# ---------------------------------------------------------------- S17: bytes


@pytest.fixture
def transcript(directory, monkeypatch):
    """Return the frames that a real client sends."""
    frames = []
    send = ZmqTransport.send
    monkeypatch.setattr(ZmqTransport, "send", lambda link, frame: (frames.append(frame), send(link, frame))[1])
    with looptap.Agent("recorded", budget=math.inf) as agent, looptap.attach("recorded") as run:
        agent.emit("batch", step=0, loss=0.5)
        streams = [
            run.stream("step, loss", on="batch", every=2, throttle=0.01, name="rows"),
            run.stream("mean(e.loss for e in events)", on="batch", window=10),
            run.stream("max(e.loss for e in events)", on="batch", window=looptap.seconds(1)),
            run.stream("sum(e.loss for e in events)", on="batch", window=looptap.sliding(9), latency="low"),
            run.stream("step", on="batch", when="loss > 1", before=3, after=2, max_bytes=1000, budget=0.5),
            run.stream(lambda e: e.step + 1, on="epoch"),
        ]
        streams[0].grant(0.1)
        streams[1].close_window()
        run.stats()
        run.stacks()
        with contextlib.suppress(LinkError):
            run.call("step", timeout=0.01)
        for stream in streams:
            stream.close()
        agent.emit("batch", step=1, loss=0.5)
    soon(lambda: encode(m.Leave()) in frames)
    frames += [encode(m.Got(10_000)), encode(m.Beat({"batch": 3}, 0.5))]
    monkeypatch.undo()
    monkeypatch.setenv("LOOPTAP_DIR", str(directory))
    return frames


NASTY = [
    None, True, -1, 0, 1, 2**31, 2**63 - 1, -(2**63), 2**64 - 1, 0.0, -1.5, math.nan, math.inf, -math.inf, 1e308, "",
    "x" * 5000, "\0", "__import__", "loss\n", "9 ** 9", "(" * 300, b"", b"\x80\x04N.", b"\xff" * 40, [], [[]] * 50,
    {}, {"t": "hello"}, [1, 0], (3, 11),
]  # fmt: skip


def mutated(frames, dice):
    """Return one frame of the transcript, changed in its bytes or in a field."""
    frame = dice.choice(frames)
    if dice.random() < 0.7 or b"cloudpickle" in frame:  # in bytes that are unpickled, a change is another program
        message = msgspec.msgpack.decode(frame)
        for _ in range(dice.randint(1, 2)):
            place = message
            while isinstance(below := place[dice.choice(list(place))], dict) and below:
                place = below
            name = dice.choice(list(place))
            alike = [x for x in NASTY if type(x) is type(place[name])] * (dice.random() < 0.8)
            place[name] = copy.deepcopy(dice.choice(alike or NASTY))
        return msgspec.msgpack.encode(message)
    data = bytearray(frame)
    for _ in range(dice.randint(1, 3)):
        kind, at = dice.random(), dice.randrange(len(data) + 1)
        if kind < 0.5 and at < len(data):
            data[at] = dice.randrange(256)
        elif kind < 0.65:
            del data[at:]
        elif kind < 0.8:
            data[at:at] = dice.randbytes(dice.randint(1, 9))
        else:
            other = dice.choice(frames)
            data[at:] = other[dice.randrange(len(other)) :]
    return bytes(data)


class Owed:
    """A model of what the agent owes to one peer: replies, and counts of refusals."""

    def __init__(self):
        self.answers = self.counts = 0
        self.greeted = False

    def note(self, frame):
        try:
            message = decode_from_client(frame)
        except MessageError:
            self.counts += 1
            version = version_of(frame)
            self.answers += version is not None and version[0] != m.VERSION[0]  # the refusal says why
            return
        hello = isinstance(message, m.Hello)
        if not hello and not self.greeted:
            self.counts += 1
            self.answers += 1
        elif not isinstance(message, m.Call | m.Command | m.Got | m.Beat | m.Leave):  # commands: at their event
            self.answers += 1
        if hello and message.version[0] == m.VERSION[0]:
            self.greeted = True
        elif isinstance(message, m.Leave):
            self.greeted = False


FENCE, COMMANDS = 987_654, 10**6


def numbered(frame, number):
    """Return a command with a unique request number."""
    with contextlib.suppress(MessageError):
        message = decode_from_client(frame)
        if isinstance(message, m.Call):
            return encode(msgspec.structs.replace(message, request=COMMANDS + number))
    return frame


def test_each_message_that_a_client_may_send_has_a_handler():
    agent, _ = pair("handled")
    assert {*parts_of(agent).dispatcher.handlers, m.Hello} == set(ALLOWED)


@pytest.mark.promise("S17")
@pytest.mark.parametrize("count", [10_000, pytest.param(100_000, marks=LONG)])
def test_hostile_messages_with_a_valid_key_are_each_answered_or_counted(count, transcript, dial, caplog, progress):
    dice, batch, sent, answers = random.Random(count), 40, 0, 0
    commands = range(COMMANDS, COMMANDS + batch)
    limits = looptap.Limits(commands_per_second=5)
    with looptap.Agent("hostile", budget=math.inf, limits=limits) as agent:
        foe, owed = dial(hello=False), Owed()
        for _ in range(count // batch):
            frames = [numbered(mutated(transcript, dice), n) for n in range(batch)]
            hello = encode(m.Hello(m.VERSION))
            for frame in [hello, *frames, hello, encode(m.GetClock(FENCE)), encode(m.Leave())]:
                owed.note(frame)
                foe.send(frame)
                sent += 1
            reply = None
            while getattr(reply, "request", 0) != FENCE:
                reply = decode_from_agent(foe.recv())
                answers += isinstance(reply, m.Welcome | m.Refused)
                answers += isinstance(reply, m.Done | m.Failed) and reply.request not in commands
            agent.emit("batch", step=1, loss=2.0)
            progress(sent, "messages sent")
        assert parts_of(agent).connection.link.faults == 0
        soon(lambda: parts_of(agent).connection.link.frames_in == sent)
        assert (parts_of(agent).dispatcher.statistics.refused_messages, answers) == (owed.counts, owed.answers)
        assert count / 10 < owed.counts < 0.9 * count
        is_served("hostile", agent)
        assert caplog.records == []


# ---------------------------------------------------------------- S13, S12: readers that do not read


class Bare:
    """The values of a stream on a bare socket."""

    def __init__(self, dealer, query):
        self.dealer, self.numbers, self.bytes, self.status = dealer, [], 0, m.Status(1, "live")
        dealer.send(encode(m.Attach(1, 1, m.Code(query), "batch", budget=math.inf)))
        while isinstance(reply := decode_from_agent(dealer.recv()), m.Beat):
            pass  # on a busy machine one comes before the reply
        assert isinstance(reply, m.Done)

    def read(self):
        """Read one message, and acknowledge it."""
        frame = self.dealer.recv()
        message = decode_from_agent(frame)
        if isinstance(message, m.Values):
            self.numbers += range(message.first, message.first + len(unpack_values(message.form, message.values)))
            assert len(array("q", message.events)) == len(message.events) // 8
            self.bytes += len(frame)
            self.dealer.send(encode(m.Got(self.bytes)))
        elif isinstance(message, m.Status):
            self.status = message


@pytest.mark.promise("S13")
def test_sent_and_dropped_values_of_a_client_that_never_reads_add_up(dial):
    events, blob = 20_000, b"x" * 10_000
    with looptap.Agent("uneven", budget=math.inf) as agent, looptap.attach("uneven") as run:
        deaf = Bare(dial(), "step, blob")
        healthy = run.stream("step, blob", on="batch", buffer_bytes=1 << 20, budget=math.inf)
        for step in range(1, events + 1):
            agent.emit("batch", step=step, blob=blob)
            if step % 250 == 0:  # as fast as a client can follow: 5 MB wait, of the 7.4 that the deaf one leaves it
                soon(lambda step=step: healthy.arrived >= step - 250)
        soon(lambda: healthy.arrived == events, detail=lambda: (healthy, healthy.arrived, healthy.gaps, agent.stats()))
        assert (healthy.dropped, healthy.gaps) == (0, [])
        (stats,) = [q for q in agent.stats()["queries"] if q["client"] == "bare"]
        assert stats["sent"] < events / 2
        deaf.dealer.send(encode(m.Detach(2, 1)))
        while deaf.status.state == "live":  # now it reads after all
            deaf.read()
        assert deaf.status.last == events
        assert deaf.numbers == sorted(set(deaf.numbers))
        assert len(deaf.numbers) + deaf.status.dropped == events
        assert deaf.status.dropped > events / 2


CROWDED = """
    import math, os, signal, sys, looptap
    signal.alarm(300)
    def rss():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")
    with looptap.Agent("crowded", budget=math.inf) as agent:
        for step in range(1000):
            agent.emit("batch", step=step, text="x" * 10_000)
        print("ready", flush=True)
        sys.stdin.readline()
        before = peak = rss()
        step = 0
        while step < 15_000 or not agent.stats()["dropped"]:  # however busy the machine is
            for step in range(step, step + 100):
                agent.emit("batch", step=step, text="x" * 10_000)
            peak = max(peak, rss())
        print(peak - before, len(agent.stats()["clients"]), agent.stats()["dropped"], flush=True)
        sys.stdin.readline()
"""


@pytest.mark.promise("S12")
@pytest.mark.usefixtures("processes")
@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="memory is read from /proc")
def test_sixteen_clients_that_never_read_cost_less_than_64_mib(directory, dial):
    command = [sys.executable, "-c", textwrap.dedent(CROWDED)]
    with warm.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout.readline() == "ready\n"
        clients = [Bare(dial(), "step, text") for _ in range(16)]
        child.stdin.write("go\n")
        child.stdin.flush()
        grown, attached, dropped = map(int, child.stdout.readline().split())
        child.stdin.write("end\n")
        child.stdin.close()
        assert child.wait(300) == 0
    assert attached == len(clients) == 16
    assert dropped > 0
    assert grown < 64 << 20


def pending(run, seconds):
    with contextlib.suppress(NoAnswer):
        run.call("1", on="batch", timeout=seconds)


BOUNDS = {
    "streams_per_client": lambda run: [run.stream("step", on="batch") for _ in range(3)],
    "streams": lambda run: [run.stream("step", on="batch") for _ in range(3)],
    "commands_per_second": lambda run: [pending(run, seconds) for seconds in [0.001, 0.001, 0.5] * 20],
    "inbound_frame": lambda run: run.stream("step + " * 700_000 + "1", on="batch"),
    "collected_items": lambda run: run.stream("list(e.step for e in events)", on="batch", window=3),
    "collected_bytes": lambda run: run.stream("list(e.text for e in events)", on="batch", window=3),
    "keys": lambda run: run.stream("group_by(((e.step, 1) for e in events), sum)", on="batch", window=3),
}
SMALL = {"collected_bytes": 25_000, "inbound_frame": 65_536}


@pytest.mark.parametrize("bound", BOUNDS)
def test_an_exceeded_bound_is_named_and_the_agent_continues(bound, directory):
    limits = looptap.Limits(**{bound: SMALL.get(bound, 2)})
    with looptap.Agent("bounded", budget=math.inf, limits=limits) as agent:
        with looptap.attach("bounded") as run:
            try:
                held = BOUNDS[bound](run)
                for step in range(3):
                    agent.emit("batch", step=step, text="x" * 10_000)
                soon(lambda: held.errors)
                said = held.errors[0].value if not held.traceback else held.traceback
            except (LimitReached, RemoteError) as error:
                said = str(error)
            assert bound in said or "65,536" in said or f"Limits.{bound}" in said
        is_served("bounded", agent)


def test_one_client_too_many_is_refused_and_the_others_continue(directory):
    with looptap.Agent("full", limits=looptap.Limits(clients=2)) as agent:
        first, second = looptap.attach("full"), looptap.attach("full")
        with pytest.raises(LimitReached, match=r"Limits\.clients"):
            looptap.attach("full")
        first.close()
        soon(lambda: len(agent.stats()["clients"]) == 1)
        is_served("full", agent)
        second.close()


def test_event_types_that_clients_make_up_are_bounded_and_the_refusal_is_a_sentence(directory):
    with looptap.Agent("types", limits=looptap.Limits(streams_per_client=2000, streams=2000)) as agent:
        with looptap.attach("types") as run:
            kept = [run.stream("step", on=f"type{n}") for n in range(998)]
            with pytest.raises(QueryError, match="1000 types of events"):
                run.stream("step", on="one more")
            assert len(kept) == 998
        assert parts_of(agent).connection.link.faults == 0
        is_served("types", agent)


# ---------------------------------------------------------------- S16: clients without a key


def garbage(dice):
    """Return random bytes, of another protocol or of half of this one."""
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"CURVE".ljust(20, b"\0") + bytes(32)
    return dice.choice([
        b"", dice.randbytes(dice.randint(1, 300)), greeting[: dice.randint(1, 64)], greeting + dice.randbytes(200),
        greeting + b"\x04\xff" + b"\xff" * 8 + b"x" * 100, b"GET / HTTP/1.1\r\n\r\n",
    ])  # fmt: skip


@pytest.mark.promise("S16")
@pytest.mark.skipif(sys.platform != "linux", reason="all of 127.0.0.0/8 is this machine on Linux only")
@pytest.mark.parametrize("count", [2_000, pytest.param(100_000, marks=LONG)])
def test_a_flood_without_keys_leaves_nothing_behind_and_shuts_no_client_out(count, directory, progress):
    dice = random.Random(count)
    with looptap.Agent("flooded", listen="tcp", limits=looptap.Limits(handshake=0.3)) as agent:
        port = int(parts_of(agent).connection.link.endpoints[0].rpartition(":")[2])
        before, open_at_once, heard = len(os.listdir("/proc/self/fd")), [], 0
        for n in range(count):
            outsider = socket.socket()
            outsider.bind((f"127.0.{n % 200 + 1}.1", 0))  # else ports run out
            with contextlib.suppress(OSError):
                outsider.settimeout(5)
                outsider.connect(("127.0.0.1", port))
                outsider.send(garbage(dice))
                heard += 1
            open_at_once.append(outsider)
            if len(open_at_once) > 100:
                open_at_once.pop(dice.randrange(100)).close()
            progress(n, f"of {count:,} connections without a key")
        is_served("flooded", agent)
        for outsider in open_at_once:
            outsider.close()
        soon(lambda: len(os.listdir("/proc/self/fd")) <= before, 60)
        assert heard == count
        assert parts_of(agent).connection.link.frames_in < 20
        assert parts_of(agent).connection.link.faults == 0


# ---------------------------------------------------------------- S29: clocks


@pytest.mark.promise("S29")
def test_a_wall_clock_that_jumps_by_an_hour_changes_no_duration(directory, monkeypatch):
    truth, dice = time.time, random.Random(29)
    monkeypatch.setattr(time, "time", lambda: truth() + dice.choice([-3600.0, 0.0, 3600.0]))
    limits = looptap.Limits(heartbeat=0.1)
    with looptap.Agent("jumpy", budget=math.inf, limits=limits) as agent, looptap.attach("jumpy") as run:
        steps = run.stream("step", on="batch")
        windows = run.stream("len(events)", on="batch", window=looptap.seconds(0.1))
        throttled = run.stream("step", on="batch", throttle=0.2)
        started, step = time.monotonic(), 0
        while windows.arrived < 5 or throttled.arrived < 3:
            step += 1
            agent.emit("batch", step=step)
            time.sleep(0.001)
        soon(lambda: steps.arrived == step)
        passed = time.monotonic() - started
        assert windows.arrived <= passed / 0.1
        assert throttled.arrived <= passed / 0.2 + 1
        times = [record.time for record in steps.records]
        assert times == sorted(times)
        assert times[-1] - times[0] < passed
        assert run.alive
        assert run.idle < 3000


# ---------------------------------------------------------------- S21: faults of the I/O thread


@pytest.mark.promise("S21")
@pytest.mark.parametrize("point", ["flush", "on_heartbeat_timer", "linger", "posted"])
def test_after_three_restarts_the_agent_is_inert_with_one_warning_and_the_loop_continues(
    point, directory, monkeypatch, caplog
):
    monkeypatch.setattr(link_module, "RESTART_DELAYS_SECONDS", (0.001, 0.001, 0.001))
    agent = looptap.Agent("faulty", limits=looptap.Limits(heartbeat=0.01))
    run = looptap.attach("faulty")
    stream = run.stream("step", on="batch")
    link, ended = parts_of(agent).connection.link, []
    on_end(agent, lambda: ended.append("now"))

    def fail(*_, **__):
        raise MemoryError("a fault")

    if point != "posted":
        monkeypatch.setattr(parts_of(agent).dispatcher, point, fail)
    for _ in range(4):
        before = link.faults
        if point == "posted":
            link.post(fail)
        while link.faults == before and not link.failure:
            agent.emit("batch", step=1)
            time.sleep(0.0005)  # in a flood of values the thread never lingers
    soon(lambda: not link.alive)
    for _ in range(1000):
        agent.emit("batch", step=2)
    assert link.faults == 4
    assert len([r for r in caplog.records if "failed for good" in r.message]) == 1
    assert "inert" in repr(agent)
    assert ended == ["now"]
    soon(lambda: stream.state == "failed")
    with pytest.raises(RunEnded):
        run.call("1", timeout=1)
    run.close()
    agent.close()


def test_a_message_that_makes_the_handler_fail_is_counted_and_others_are_served(directory, monkeypatch):
    with looptap.Agent("fragile") as agent, looptap.attach("fragile") as run:

        def fragile():
            raise MemoryError("a fault")

        monkeypatch.setattr(parts_of(agent).dispatcher.statistics, "stats", fragile)
        for _ in range(10):
            with contextlib.suppress(LinkError):
                run.stats(timeout=0.01)
        soon(lambda: parts_of(agent).connection.link.faults > 0)
        is_served("fragile", agent)


# ---------------------------------------------------------------- S25: the end

EXITS = {
    "normal": ("pass", 0),
    "close": ("agent.close()", 0),
    "exception": ("1 / 0", 1),
    "sys.exit": ("sys.exit(3)", 3),
    "interrupt": ("signal.raise_signal(signal.SIGINT)", -2),
    "os._exit": ("os._exit(4)", 4),
    "stuck": ("parts_of(agent).connection.post(lambda: time.sleep(500))", 0),
}
LEAVING = """
    import math, os, signal, sys, time, looptap
    from looptap.agent.server import request_dispatcher as service
    from looptap.testing import pair, parts_of
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.alarm(300)
    if {patient}:  # a client that reads gets all, on however busy a machine
        service.LAST_VALUES_TIMEOUT_SECONDS = service.LAST_STATUS_TIMEOUT_SECONDS = 60.0
    agent = looptap.Agent({name!r}, budget=math.inf)
    print("ready", flush=True)
    sys.stdin.readline()
    large = bytes(300_000)  # sent without a copy
    for step in range(2000):
        agent.emit("batch", step=step, text="x" * 10_000)
        if step % 400 == 399:
            agent.emit("large", large=large)
    print("going", flush=True)
    {how}
"""


@pytest.mark.promise("S25")
@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("peer", ["reading", "deaf"])
@pytest.mark.parametrize("times", [1, pytest.param(15, marks=LONG, id="200 runs")])
def test_every_way_to_end_ends_in_time(times, peer, directory, dial):
    for _ in range(times):
        end_in_every_way(peer, dial)


def end_in_every_way(peer, dial):
    children = {}
    for name, (how, code) in EXITS.items():
        program = textwrap.dedent(LEAVING).format(name=name, how=how, patient=peer == "reading")
        places = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        children[name] = warm.Popen([sys.executable, "-c", program], text=True, **places), code
    for name, (child, code) in children.items():
        with child:
            assert child.stdout.readline() == "ready\n"
            if peer == "reading":
                run = looptap.attach(name)
                stream = run.stream("step, text", on="batch", budget=math.inf)
                arrays = run.stream("large", on="large", budget=math.inf, buffer=1)
            else:
                Bare(dial(name), "step, text")
            child.stdin.write("go\n")
            child.stdin.flush()
            assert child.stdout.readline() == "going\n"
            assert child.wait(200) == code
            if peer == "reading":
                soon(lambda stream=stream: stream.state != "live")
                if name not in ("os._exit", "stuck"):
                    assert stream.latest.step == 1999, (name, stream.reason)
                    assert arrays.arrived + arrays.dropped == 5, (name, arrays)
                run.close()
