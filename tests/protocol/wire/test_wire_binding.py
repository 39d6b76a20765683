"""Endpoints: no file is replaced; a fork, a stop and a kill leave nothing behind."""

from __future__ import annotations

import gc
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from waiting import soon

from looptap.agent.io import endpoints
from looptap.agent.io.server_thread import ServerThread
from looptap.protocol.errors import BadEndpoint, EndpointBusy
from looptap.protocol.limits import Limits


def path_of(link: ServerThread) -> Path:
    return Path(link.endpoints[0].removeprefix("ipc://"))


@pytest.mark.promise("S30")
def test_twenty_agents_start_at_once_and_all_answer(wire):
    barrier = threading.Barrier(20)

    def start(handler) -> None:
        handler.link = ServerThread(handler, keys=wire.keys, limits=Limits(), directory=wire.directory)
        barrier.wait()
        handler.link.start()
        wire.links.append(handler.link)

    threads = [threading.Thread(target=start, args=(type(wire.handler)(),)) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({link.endpoints for link in wire.links}) == 20
    for link in wire.links:
        client = wire.dial(endpoint=link.endpoints[0])
        client.send(b"hello")
        assert client.recv() == b"hello"


def occupy(path, what):
    """Create something at ``path``; return what must be kept open."""
    if what == "file":
        path.write_text("precious")
    elif what == "dangling link":
        path.symlink_to("nowhere")
    else:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
        listener.listen()
        if what == "living socket":
            return listener
        listener.close()
    return None


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("file", "something that is not a socket"),
        ("dangling link", "something that is not a socket"),
        ("living socket", "a socket that another process listens to"),
        ("deserted socket", r"a socket without a listener \(remove it: rm "),
    ],
)
def test_nothing_is_bound_over_an_existing_file(wire, what, said):
    path = wire.directory / "taken.sock"
    kept = occupy(path, what)
    before = path.lstat()
    with pytest.raises(EndpointBusy, match=said):
        wire.open(f"ipc://{path}")
    assert (path.lstat().st_ino, path.lstat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    if kept is not None:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.connect(str(path))
        kept.close()


def test_a_path_that_is_too_long_is_refused_before_anything_is_made(wire):
    deep = wire.directory / ("d" * 100)
    deep.mkdir()
    with pytest.raises(BadEndpoint, match=r"longer than the 107 bytes .* endpoint 'tcp'"):
        wire.open(directory=deep)
    assert list(deep.iterdir()) == []


def test_a_missing_directory_is_reported(wire):
    with pytest.raises(BadEndpoint, match="No such file or directory"):
        wire.open(directory=wire.directory / "missing")


def test_a_busy_port_is_named(wire):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(EndpointBusy, match=f"listens at tcp://127.0.0.1:{port}"):
            wire.open(f"tcp://127.0.0.1:{port}")
    wire.open(f"tcp://127.0.0.1:{port}")


def test_a_link_that_could_not_start_leaves_no_thread_no_file_no_descriptor(wire):
    gc.collect()  # what tests before it have left
    before = len(os.listdir("/proc/self/fd")), threading.active_count()
    for _ in range(20):
        with pytest.raises(BadEndpoint):
            ServerThread(wire.handler, endpoint="nonsense", keys=wire.keys, limits=Limits()).start()
    assert (len(os.listdir("/proc/self/fd")), threading.active_count()) == before


def test_stopping_removes_the_socket_but_not_what_took_its_name(wire):
    path = path_of(wire.open())
    assert wire.link.stop()
    assert not path.exists()
    other = path_of(wire.open())
    other.unlink()
    other.write_text("precious")
    assert wire.link.stop()
    assert other.read_text() == "precious"


def test_sockets_of_killed_agents_are_removed_after_a_while_and_living_ones_stay(wire):
    mark = endpoints.socket_mark()
    living, dead, fresh = (wire.directory / f"{mark}-{name}.sock" for name in ("living", "dead", "fresh"))
    listener = occupy(living, "living socket")
    occupy(dead, "deserted socket")
    occupy(fresh, "deserted socket")
    for path in (living, dead):
        os.utime(path, (1.0, 1.0))
    path = path_of(wire.open())
    assert set(wire.directory.iterdir()) == {living, fresh, path}
    listener.close()


def test_stopping_twice_or_never_started_is_no_error(wire):
    link = ServerThread(wire.handler, keys=wire.keys, limits=Limits(), directory=wire.directory)
    assert link.stop()
    link.start()
    assert link.stop()
    assert link.stop()
    link.wake()


# ---------------------------------------------------------------- fork

FORK = """
import os, signal, sys, time, warnings
from pathlib import Path
import zmq
from looptap.agent.io.server_socket import SendResult
from looptap.agent.io.server_thread import ServerThread
from looptap.protocol.keys import RoleKeys
from looptap.protocol.limits import Limits

class Handler:
    peers = set()
    flushes = 0
    def receive(self, peer, role, frame): self.peers.add(peer); link.send(peer, b"pid %d" % os.getpid())
    def on_disconnect(self, peer): pass
    def flush(self, seconds=0.0, fresh=True): self.flushes += 1; return False
    def is_idle(self): return True
    def on_heartbeat_timer(self): pass
    def linger(self, *, steady=False): return 0.001
    def mark_scalars(self, now): return float("inf")
    def goodbye(self):
        for peer in self.peers: link.send(peer, b"goodbye")

handler, keys = Handler(), RoleKeys.fresh("operator")
link = ServerThread(handler, endpoint=sys.argv[2] or None, keys=keys, limits=Limits(), directory=Path(sys.argv[1]))
link.start()
endpoint = link.endpoints[0]

def ask():
    with zmq.Context() as context, context.socket(zmq.DEALER) as client:
        client.linger, client.rcvtimeo = 0, 5000
        client.curve_serverkey = keys.server.public
        client.curve_publickey, client.curve_secretkey = keys.client.public, keys.client.secret
        client.connect(endpoint)
        client.send(b"who?")
        return client.recv()
"""

INERT = (
    FORK
    + """
assert ask() == b"pid %d" % os.getpid()
child = os.fork()
if child == 0:
    for _ in range(1000): link.wake()
    link.post(print)
    assert link.send(b"peer", b"frame") is SendResult.GONE
    assert not link.alive
    assert link.stop() and link.stats()
    del link
    import gc; gc.collect()
    sys.exit(7)  # the whole end of an interpreter, destructors and all
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert ask() == b"pid %d" % os.getpid()
assert link.alive and handler.flushes == 0
path = Path(endpoint.removeprefix("ipc://"))
assert path.exists() or endpoint.startswith("tcp")
assert link.stop()
print("fine")
"""
)


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("endpoint", ["", "tcp"], ids=["ipc", "tcp"])
def test_a_forked_child_is_inert_and_its_parent_continues(directory, endpoint):
    command = [sys.executable, "-W", "error", "-c", INERT, str(directory), endpoint]
    out = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (out.stdout, out.stderr, out.returncode) == ("fine\n", "", 0)


SURVIVOR = (
    FORK
    + """
with zmq.Context() as context, context.socket(zmq.DEALER) as client:
    client.curve_serverkey = keys.server.public
    client.curve_publickey, client.curve_secretkey = keys.client.public, keys.client.secret
    client.connect(endpoint)
    client.send(b"who?")
    client.recv()  # an open connection, inherited too
    child = os.fork()
    if child == 0:
        print(os.getpid(), endpoint, flush=True)
        sys.stdin.read()
        os._exit(0)
    signal.pause()
"""
)


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("endpoint", ["", "tcp"], ids=["ipc", "tcp"])
def test_a_child_that_outlives_its_killed_parent_does_not_keep_the_endpoint(directory, endpoint):
    command = [sys.executable, "-c", SURVIVOR, str(directory), endpoint]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        pid, address = parent.stdout.readline().split()
        parent.kill()
        parent.wait()
        assert Path(f"/proc/{pid}").exists()
        if endpoint:
            port = int(address.rpartition(":")[2])
            soon(lambda: can_listen(port))
        else:
            with socket.socket(socket.AF_UNIX) as probe, pytest.raises(ConnectionRefusedError):
                probe.connect(address.removeprefix("ipc://"))
        assert Path(f"/proc/{pid}").exists()
        parent.stdin.close()


def can_listen(port):
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


@pytest.mark.usefixtures("processes")
def test_a_forked_child_leaves_the_users_own_sockets_alone(wire):
    wire.open("tcp")
    port = int(wire.link.endpoints[0].rpartition(":")[2])
    mine = socket.create_connection(("127.0.0.1", port))
    server = socket.create_server(("127.0.0.1", 0))
    socket.setdefaulttimeout(5.0)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        kinds = [os.readlink(f"/proc/self/fd/{s.fileno()}")[:6] for s in (mine, server)]
        os.write(write, " ".join([*kinds, str(os.get_blocking(server.fileno()))]).encode())
        os._exit(0)
    socket.setdefaulttimeout(None)
    os.waitpid(child, 0)
    assert os.read(read, 100) == b"socket socket True"
    for opened in (mine, server):
        opened.close()
    os.close(read)
    os.close(write)


# ---------------------------------------------------------------- the end

UNSTOPPED = FORK + "ask(); print('over', flush=True)"


@pytest.mark.usefixtures("processes")
def test_a_process_that_forgets_to_stop_its_link_ends_at_once_and_silently(directory):
    command = [sys.executable, "-W", "error", "-c", UNSTOPPED, str(directory), ""]
    out = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (out.stdout, out.stderr, out.returncode) == ("over\n", "", 0)
