"""The I/O thread: cheap to wake, fair to clients, safe from its handler's faults."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from waiting import soon

from looptap.agent.io import reactor
from looptap.agent.io import server_thread as link_module
from looptap.agent.io.server_socket import SendResult
from looptap.protocol.keys import RoleKeys
from looptap.protocol.limits import Limits


def attach(wire, **options):
    """Return a client whose first frame has been handled."""
    client = wire.dial(**options)
    client.send(b"hello")
    assert client.recv() == b"hello"
    return client


def test_values_that_come_within_the_linger_leave_in_one_flush(wire):
    wire.handler.pause = 1.0
    wire.open()
    client = attach(wire)

    def came() -> tuple[int, int]:
        flushes, wakes = wire.handler.flushes, wire.link.wakes
        for i in range(10):
            wire.handler.values.append(b"%d" % i)
            wire.link.wake()
        assert [client.recv() for _ in range(10)] == [b"%d" % i for i in range(10)]
        return wire.handler.flushes - flushes, wire.link.wakes - wakes

    soon(lambda: came() == (1, 1))  # where this thread has to wait for a processor, they come later


def test_while_values_keep_coming_the_thread_is_not_woken_again(wire):
    wire.open()
    client = attach(wire)

    def woken() -> int:
        wakes = wire.link.wakes
        for i in range(20):
            wire.handler.values.append(b"%d" % i)
            wire.link.wake()
            assert client.recv() == b"%d" % i
        return wire.link.wakes - wakes

    soon(lambda: woken() <= 5)  # where this thread has to wait for a processor, they do not keep coming


def test_when_no_more_values_come_the_thread_sleeps_on(wire):
    wire.handler.pause = 0.002
    wire.open(limits=Limits(heartbeat=60.0))
    client = attach(wire)
    for _ in range(20):
        wire.handler.values.append(b"x")
        wire.link.wake()
        client.recv()

    (io,) = (thread for thread in threading.enumerate() if thread.name == "looptap-io")

    def wake_ups() -> str:
        status = Path(f"/proc/self/task/{io.native_id}/status").read_text()
        return next(line for line in status.splitlines() if line.startswith("voluntary"))

    def is_asleep() -> bool:
        before = wake_ups()
        time.sleep(0.05)  # many lingers long
        return wake_ups() == before

    soon(is_asleep)


def test_values_beyond_one_flush_follow_at_once(wire):
    wire.handler.pause = 0.001
    wire.open(limits=Limits(high_water_mark=200))
    client = attach(wire)
    wire.handler.values = [b"%d" % i for i in range(60)]
    wire.link.wake()
    assert [client.recv() for _ in range(60)] == [b"%d" % i for i in range(60)]
    assert wire.handler.flushes in (6, 7)  # one of them without a value, where the hello was heard late


def test_the_thread_sleeps_until_the_next_beat_whether_or_not_anybody_is_attached(wire):
    wire.open(limits=Limits(heartbeat=0.02))
    idle = reactor.Reactor(wire.link, wire.handler)
    assert idle.poll_timeout() <= 21
    soon(lambda: wire.handler.beats >= 3)
    attach(wire)
    assert idle.poll_timeout() <= 21
    soon(lambda: wire.handler.beats >= 6)


def test_the_gil_is_given_away_unless_it_takes_long_to_get_back_time_after_time(wire, monkeypatch):
    wire.open()
    reactor.Reactor(wire.link, wire.handler)
    found = LongSleeps()
    monkeypatch.setattr(reactor, "time", found)

    def gives_way(seconds: float) -> bool:
        """Return whether the GIL is given away, had back after ``seconds``."""
        found.seconds, before = seconds, found.count
        worked = time.thread_time()
        while time.thread_time() < worked + 2 * reactor.MAX_HOLD_SECONDS:
            pass
        wire.handler.give_way()
        return found.count > before

    assert [gives_way(seconds) for seconds in (0.005, 0.0, 0.005, 0.005, 0.0, 0.005)] == [True] * 6
    assert [gives_way(0.005) for _ in range(6)] == [True, True, False, False, False, False]
    found.later += 2 * reactor.HURRY_SECONDS
    assert [gives_way(0.005) for _ in range(3)] == [True, False, False]
    found.later += 2 * reactor.HURRY_SECONDS
    assert [gives_way(0.0) for _ in range(3)] == [True, True, True]


class LongSleeps:
    """The module `time`; in this thread sleeps are counted, and alone take time."""

    def __init__(self) -> None:
        self.seconds, self.later, self.count = 0.0, 0.0, 0
        self.here, self.began = threading.get_ident(), time.monotonic()
        self.thread_time = time.thread_time

    def monotonic(self) -> float:
        return (self.began if threading.get_ident() == self.here else time.monotonic()) + self.later

    def sleep(self, seconds: float) -> None:
        if threading.get_ident() != self.here:
            time.sleep(seconds)
        else:
            self.later += self.seconds
            self.count += 1


def test_waking_is_cheap_and_never_waits_for_a_thread_that_is_stuck(wire):
    wire.open()
    attach(wire)
    stuck, go = threading.Event(), threading.Event()
    wire.link.post(lambda: (stuck.set(), go.wait()))
    assert stuck.wait(60)
    times = []
    for _ in range(5000):
        began = time.thread_time()
        wire.link.wake()
        times.append(time.thread_time() - began)
    go.set()
    times.sort()
    assert times[2500] < 10e-6
    assert times[4950] < 200e-6
    soon(lambda: wire.handler.flushes >= 1)


def test_a_posted_call_runs_on_the_io_thread(wire):
    wire.open()
    ran = []
    wire.link.post(lambda: ran.append(threading.current_thread()))
    soon(lambda: ran)
    assert ran[0].name == "looptap-io"
    assert ran[0].daemon


def test_no_signal_handler_is_installed(wire):
    before = [signal.getsignal(number) for number in signal.valid_signals()]
    wire.open()
    assert [signal.getsignal(number) for number in signal.valid_signals()] == before


# ---------------------------------------------------------------- fairness


def test_a_client_that_never_reads_is_reported_as_full_and_the_others_lose_nothing(wire):
    wire.handler.echoes = False
    wire.handler.pause = 0.001
    wire.open(limits=Limits(high_water_mark=4))
    deaf, healthy = wire.dial(rcvhwm=1), wire.dial()
    got = []
    for client in (deaf, healthy):
        client.send(b"hello")
    frame = b"x" * 100_000
    while len(got) < 200:
        if len(wire.handler.peers) == 2:
            wire.handler.values.append(frame)
            wire.link.wake()
        if healthy.poll(1):
            got.append(healthy.recv())
    assert wire.handler.sent[SendResult.FULL] > 100
    assert wire.link.full == wire.handler.sent[SendResult.FULL]
    assert all(one == frame for one in got)


def test_values_do_not_wait_for_a_client_that_never_reads(wire):
    wire.handler.echoes = False
    wire.handler.pause = 0.001
    wire.open(limits=Limits(high_water_mark=4, heartbeat=600.0, heartbeat_timeout=1200.0))
    deaf, healthy = wire.dial(rcvhwm=1), wire.dial(rcvhwm=100_000)
    for client in (deaf, healthy):
        client.send(b"hello")
    soon(lambda: len(wire.handler.peers) == 2)

    def is_stuck() -> bool:  # so often in a row that the link has become patient
        wire.handler.values += [b"x" * 100_000] * 5
        wire.link.wake()
        return wire.handler.sent[SendResult.FULL] > 300

    soon(is_stuck)
    soon(lambda: not healthy.poll(50) or not healthy.recv())
    for i in range(5):
        wire.handler.values.append(b"%d" % i)
        wire.link.wake()
        assert healthy.recv() == b"%d" % i
        time.sleep(0.05)  # longer than a linger, so that every value finds the thread at rest


def test_values_for_a_slow_client_follow_without_another_wakeup(wire):
    wire.handler.pause = 0.001
    wire.open(limits=Limits(high_water_mark=4, heartbeat=0.05))
    slow = attach(wire, rcvhwm=1)
    (peer,) = wire.handler.peers
    left = [b"%d" % i * 100_000 for i in range(50)]

    def flush(*_: object) -> bool:
        if left and wire.link.send(peer, left[0]) is SendResult.OK:
            del left[0]
            return bool(left)
        return False

    wire.handler.flush = flush
    wire.link.wake()
    soon(lambda: wire.link.full > 0)  # it does not read before
    assert [slow.recv()[:2] for _ in range(50)] == [(b"%d" % i * 2)[:2] for i in range(50)]


def test_a_client_that_disconnected_is_reported_as_gone(wire):
    wire.open()
    attach(wire).close()

    def is_gone() -> bool:
        wire.handler.values.append(b"anybody?")
        wire.link.wake()
        return wire.handler.sent[SendResult.GONE] > 0

    soon(is_gone)
    assert wire.handler.peers == {}


def test_a_flood_of_requests_does_not_keep_values_from_leaving(wire):
    wire.handler.pause = 0.001
    wire.open()
    reader, flooder = attach(wire), attach(wire)
    peer = next(iter(wire.handler.peers))
    wire.handler.peers = {peer: "operator"}
    wire.handler.echoes = False
    stop = threading.Event()

    def flood() -> None:
        while not stop.is_set():
            flooder.send(b"x" * 100)

    thread = threading.Thread(target=flood)
    thread.start()
    try:
        before = len(wire.handler.heard)
        for i in range(50):
            wire.handler.values.append(b"%d" % i)
            wire.link.wake()
            assert reader.recv() == b"%d" % i
        assert len(wire.handler.heard) > before + 50
    finally:
        stop.set()
        thread.join()


def test_a_flood_of_values_does_not_keep_a_request_waiting(wire):
    wire.open()
    client = attach(wire)
    wire.handler.peers = {b"unknown": "operator"}
    flood = iter(range(10**9))

    def flush(*_: object) -> bool:
        wire.link.frames_out += 1
        return next(flood) >= 0

    wire.handler.flush = flush
    wire.link.wake()
    for _ in range(20):
        client.send(b"still there?")
        assert client.recv() == b"still there?"
    wire.handler.flush = lambda *_: False


# ---------------------------------------------------------------- faults


@pytest.mark.parametrize("where", ["flush", "linger", "on_heartbeat_timer", "posted"])
def test_an_exception_restarts_the_loop_three_times_and_then_ends_the_link(wire, monkeypatch, where):
    monkeypatch.setattr(link_module, "RESTART_DELAYS_SECONDS", (0.001, 0.001, 0.001))
    failures = []
    wire.open(limits=Limits(heartbeat=0.01), on_failure=failures.append)
    client = attach(wire)

    def fail(*_: object, **__: object) -> None:
        raise SystemExit("a bug in the handler")

    for i in range(4):
        if where == "posted":
            wire.link.post(fail)
        else:
            setattr(wire.handler, where, fail)
            wire.link.wake()
        soon(lambda i=i: wire.link.faults > i)
        if i < 3 and where == "posted":
            client.send(b"still there?")
            assert client.recv() == b"still there?"
    soon(lambda: not wire.link.alive)
    assert wire.link.faults == 4
    assert len(failures) == 1
    assert "a bug in the handler" in failures[0]
    wire.link.wake()
    assert wire.link.send(b"peer", b"frame") is SendResult.GONE
    assert list(wire.directory.iterdir()) == []


def test_a_message_that_makes_the_handler_fail_harms_its_sender_only(wire):
    wire.open()
    friend, foe = attach(wire), attach(wire)
    receive = wire.handler.receive

    def fragile(peer: bytes, role: str, frame: bytes) -> None:
        if frame == b"poison":
            raise ValueError("a bug in the handler")
        receive(peer, role, frame)

    wire.handler.receive = fragile
    for _ in range(20):
        foe.send(b"poison")
    soon(lambda: wire.link.faults == 20)
    assert len(wire.handler.peers) == 1
    friend.send(b"still there?")
    assert friend.recv() == b"still there?"
    assert wire.link.alive


def test_faults_with_quiet_time_between_them_never_end_the_link(wire, monkeypatch):
    monkeypatch.setattr(link_module, "RESTART_DELAYS_SECONDS", (0.001, 0.001, 0.001))
    monkeypatch.setattr(link_module, "FAULT_MEMORY_SECONDS", 0.0)
    wire.open()
    for i in range(8):
        wire.link.post(lambda: 1 / 0)
        soon(lambda i=i: wire.link.faults == i + 1)
    assert wire.link.alive


# ---------------------------------------------------------------- the end


def test_stopping_sends_what_waits_and_says_goodbye(wire):
    wire.handler.pause = 10.0
    wire.open()
    client = attach(wire)
    wire.handler.values = [b"%d" % i * 500_000 for i in range(10)]
    wire.link.wake()
    assert wire.link.stop()
    assert [client.recv()[:7] for _ in range(11)] == [*(b"%d" % i * 7 for i in range(10)), b"goodbye"]


def test_stopping_a_stuck_link_gives_up_in_time(wire):
    wire.open()
    attach(wire)
    go = threading.Event()
    wire.link.post(go.wait)
    assert not wire.link.stop(timeout=0.2)
    go.set()
    assert wire.link.stop()


def test_stopping_does_not_wait_for_a_client_that_never_reads(wire):
    wire.handler.echoes = False
    wire.open()
    deaf = wire.dial(rcvhwm=1)
    deaf.send(b"hello")
    while not wire.handler.sent[SendResult.FULL]:
        wire.handler.values.append(b"x" * 100_000)
        wire.link.wake()
        time.sleep(0.001)
    wire.handler.values.clear()
    assert wire.link.stop(timeout=60.0)


def test_the_files_of_a_link_are_kept_fresh(wire, monkeypatch):
    monkeypatch.setattr(reactor, "TOUCH_INTERVAL_SECONDS", 0.01)
    monkeypatch.setattr(reactor, "FILE_CHECK_INTERVAL_SECONDS", 0.01)
    path = wire.directory / "connection.json"
    path.touch()
    wire.open()
    wire.link.watch_file(path, path.touch)
    for one in (path, Path(wire.link.endpoints[0].removeprefix("ipc://"))):
        os.utime(one, (1.0, 1.0))
        soon(lambda one=one: one.stat().st_mtime > 1.0)


# ---------------------------------------------------------------- nothing is executed

WATCHED = """
import random, sys, threading
sys.path.insert(0, sys.argv[2])
from pathlib import Path
import zmq
from looptap.agent.io.server_thread import ServerThread
from looptap.protocol.codec import decode_from_client, encode
from looptap.protocol.values.unpacking import unpack
from looptap.protocol.errors import MessageError
from looptap.protocol.keys import KeyPair, RoleKeys
from looptap.protocol.limits import Limits
from looptap.protocol.messages import Attach, Call, Code, Hello

class Handler:
    heard, understood = 0, 0
    def receive(self, peer, role, frame):
        self.heard += 1
        if frame == b"end": link.send(peer, b"end")
        try: decode_from_client(frame); self.understood += 1
        except MessageError: pass
    on_disconnect = lambda self, peer: None
    flush = lambda self, *_: False
    is_idle = lambda self: True
    on_heartbeat_timer = goodbye = lambda self: None
    linger = lambda self, **_: 0.001
    mark_scalars = lambda self, now: float("inf")

handler, keys = Handler(), RoleKeys.fresh("operator")
link = ServerThread(handler, keys=keys, limits=Limits(), directory=Path(sys.argv[1]))
link.start()

def dial(client):
    socket = context.socket(zmq.DEALER)
    socket.linger, socket.rcvtimeo = 0, 20000
    socket.curve_serverkey = keys.server.public
    socket.curve_publickey, socket.curve_secretkey = client.public, client.secret
    socket.connect(link.endpoints[0])
    return socket

context = zmq.Context()
outsider, friend = dial(KeyPair.fresh()), dial(keys.client)
friend.send(b"end"); friend.recv()
rng = random.Random(5)
evil = b"cposix\\nsystem\\n(S'true'\\ntR."  # a pickle that runs a program
attach = Attach(1, 1, Code("loss", evil, (3, 11)), "batch")
samples = [encode(m) for m in (Hello((1, 0)), attach, Call(1, "x", Code("", evil), "batch"))] + [evil]
frames = []
for i in range(10_000):
    data = bytearray(samples[i % 4])
    for _ in range(rng.randrange(4)): data[rng.randrange(len(data))] = rng.randrange(256)
    frames.append(bytes(data))
seen = []
def watch(event, arguments):
    if threading.current_thread().name == "looptap-io" and not event.startswith(("object.", "sys.", "time.")):
        seen.append((event, str(arguments)[:80]))
sys.addaudithook(watch)
for frame in frames:
    friend.send(frame)
    try: outsider.send(frame, zmq.NOBLOCK)
    except zmq.Again: pass
friend.send(b"end"); friend.recv()
print(handler.heard, handler.understood > 1000, seen)
for socket in (outsider, friend): socket.close()
link.stop()
"""


@pytest.mark.usefixtures("processes")
@pytest.mark.promise("S8")
def test_ten_thousand_hostile_frames_make_the_io_thread_execute_import_and_open_nothing(directory):
    command = [sys.executable, "-c", WATCHED, str(directory), "."]
    out = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (out.stdout, out.stderr) == ("10002 True []\n", "")


def test_links_of_one_process_do_not_share_their_keys(wire):
    wire.open()
    first = wire.link
    other = RoleKeys.fresh("operator")
    wire.open(keys=other)
    assert wire.is_refused(
        first.endpoints[0],
        curve_serverkey=wire.keys.server.public,
        curve_publickey=other.client.public,
        curve_secretkey=other.client.secret,
    )
    assert wire.handler.heard == []
