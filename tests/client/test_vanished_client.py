"""A client that vanishes takes its queries with it, within the heartbeat's limit."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import warm

import looptap
from looptap.testing import parts_of

CLIENT = """
import sys, looptap
run = looptap.attach("vanishing")
streams = [run.stream(q, on="batch") for q in ("step", "len(events)", "mean(e.step for e in recent(9))")]
print("attached", flush=True)
sys.stdin.readline()
"""

FLOOD = """
import os, signal, sys, zmq
from pathlib import Path
from looptap.protocol.codec import encode
from looptap.protocol.files.connection import read_connection_file
from looptap.protocol.messages import VERSION, Hello, Revoke
(path,) = Path(os.environ["LOOPTAP_DIR"]).glob("*.json")
file = read_connection_file(path)
dealer = zmq.Context().socket(zmq.DEALER)
dealer.sndhwm = 0
dealer.curve_serverkey = file.server_public.encode()
dealer.curve_publickey, dealer.curve_secretkey = file.client.public, file.client.secret
dealer.connect(file.endpoints[0])
dealer.send(encode(Hello(VERSION)))
dealer.recv()
print("in", flush=True)
sys.stdin.readline()
for request in range(3000):
    dealer.send(encode(Revoke(request, "x" * 500)))
print("sent", flush=True)
sys.stdin.readline()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.usefixtures("processes")
@pytest.mark.promise("T7")
@pytest.mark.parametrize("listen", [None, "tcp"])
def test_a_client_that_dies_with_unread_frames_does_not_end_the_job(listen, directory):
    limits = looptap.Limits(heartbeat=0.05, heartbeat_timeout=60.0)
    with looptap.Agent("flooded", limits=limits, listen=listen) as agent:
        places = dict.fromkeys(("stdin", "stdout"), subprocess.PIPE)
        with warm.Popen([sys.executable, "-c", FLOOD], text=True, **places) as client:
            assert client.stdout.readline() == "in\n"
            busy, release = threading.Event(), threading.Event()
            parts_of(agent).connection.post(lambda: (busy.set(), release.wait(300)))  # as when the loop keeps the GIL
            assert busy.wait(300)
            client.stdin.write("go\n")
            client.stdin.flush()
            assert client.stdout.readline() == "sent\n"
            pause = 10 * limits.heartbeat  # nothing tells that a socket is full, nor that a timer of libzmq has run
            time.sleep(pause)
            client.stdin.write("die\n")
            client.stdin.close()
            client.wait(300)
        time.sleep(pause)
        release.set()
        with looptap.attach("flooded") as run:
            stream = run.stream("step", on="batch")
            agent.emit("batch", step=2)
            assert stream.wait(1, timeout=300) == [2]


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM], ids=lambda s: s.name)
def test_the_queries_of_a_client_that_vanishes_are_removed(how, directory):
    with looptap.Agent("vanishing", limits=looptap.Limits(heartbeat=0.2, heartbeat_timeout=1.0)) as agent:
        client = warm.Popen([sys.executable, "-c", CLIENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            assert client.stdout is not None
            assert client.stdout.readline() == "attached\n"
            assert len(agent.stats()["queries"]) == 3
            os.kill(client.pid, how)
            deadline = time.monotonic() + 60 * agent.limits.heartbeat_timeout
            while agent.stats()["queries"]:
                agent.emit("batch", step=1)
                assert time.monotonic() < deadline
                time.sleep(0.01)
            assert agent.stats()["clients"] == []
            with looptap.attach("vanishing") as run:  # and another client may attach
                stream = run.stream("step", on="batch")
                agent.emit("batch", step=2)
                assert stream.wait(1, timeout=300) == [2]
            if how == signal.SIGSTOP:  # a continued client resumes
                client.send_signal(signal.SIGCONT)
                while len(agent.stats()["queries"]) < 3:
                    agent.emit("batch", step=3)
                    assert time.monotonic() < deadline
                    time.sleep(0.01)
        finally:
            client.kill()
            with client:
                pass


def test_runs_that_were_not_closed_make_room_for_new_ones(directory):
    """Let a cell that attaches run again and again: nothing closes its runs."""
    gc.disable()
    try:
        with looptap.Agent("cell", limits=looptap.Limits(clients=3)):
            for _ in range(8):
                run = looptap.attach("cell")
                run.stream("step", on="batch")
            with looptap.attach("cell"), looptap.attach("cell"), pytest.raises(looptap.LimitReached, match="3 clients"):
                looptap.attach("cell")
            assert run.state == "live"
    finally:
        gc.enable()
