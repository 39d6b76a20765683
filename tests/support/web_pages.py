"""The page of `looptap web`: its server, and what connects to it."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import http.client
import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import warm
from waiting import soon

from looptap.protocol.run_config import RunConfig
from looptap.visualizers.surfaces.web.run_shelf import RunShelf, ShelfEntry
from looptap.visualizers.surfaces.web.web_server import WebServer

PATIENCE_SECONDS = 300.0
VIEWER = "viewer-of-a-test"


@dataclass
class Shown:
    """What stands in for a stored run: streams by name."""

    streams: list[Any]
    name: str = "shown"
    id: str = "shown-1"
    state: str = "live"
    reason: str = ""
    started: float | None = None
    ended: float | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    commands: list[Any] = field(default_factory=list)
    scalars: list[Any] = field(default_factory=list)
    config: RunConfig = field(default_factory=RunConfig)

    def history(self, text, on=None):
        pass

    def stream(self, name):
        return next(one for one in self.streams if one.name == name)

    def close(self):
        pass


def shelf_of(*runs, **rights):
    """Return a shelf with these runs, by their names."""
    found = RunShelf(
        lambda: [ShelfEntry(run.name, run.name, "live", "live", lambda run=run: run) for run in runs], **rights
    )
    found.refresh()
    for run in runs:
        found.open(run.name)  # so that it is still open when no page shows it any more
    return found


@contextlib.contextmanager
def serving(*runs, operate=False, config=False, **how):
    """Serve a page for ``runs`` from a thread of this process; yield the server."""
    server = WebServer(shelf_of(*runs, operate=operate, config=config), **how)
    server.listen("127.0.0.1", 0)
    started = threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(server.run(started.set)), daemon=True)
    thread.start()
    try:
        assert started.wait(PATIENCE_SECONDS)
        yield server
    finally:
        server.stop()
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()


@dataclass
class Program:
    """A running `looptap web`."""

    url: str
    process: Any

    @property
    def port(self):
        return urlsplit(self.url).port

    @property
    def origin(self):
        return self.url.partition("/?")[0]


@contextlib.contextmanager
def program(*arguments, port=0):
    """Run `looptap web` until the end of the block."""
    command = [sys.executable, "-m", "looptap.cli", "web", "--no-open", "--port", str(port), *arguments]
    process = warm.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    try:
        line = process.stdout.readline()
        assert " at http" in line, line
        yield Program(line.split(" at ")[1].strip(), process)
    finally:
        process.terminate()
        process.wait(PATIENCE_SECONDS)
        process.stdout.close()


def request(port, path="/", method="GET", **headers):
    """Send a request; return status, headers and text."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_SECONDS)
    try:
        connection.putrequest(method, path, skip_host=True)
        for name, value in {"Host": f"localhost:{port}", **headers}.items():
            connection.putheader(name.replace("_", "-"), value)
        connection.endheaders()
        reply = connection.getresponse()
        return reply.status, dict(reply.getheaders()), reply.read().decode("utf-8", "replace")
    finally:
        connection.close()


class Peer:
    """A WebSocket client of a server or a `Program`; it reads only when asked to."""

    def __init__(self, server, viewer=VIEWER, *, hello=True, token=None, buffer=None, **headers):
        port = server.port
        found = urlsplit(server.url)
        self.socket = socket.socket()
        if buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        self.socket.settimeout(PATIENCE_SECONDS)
        self.socket.connect(("127.0.0.1", port))
        key = base64.b64encode(os.urandom(16)).decode()
        given = {
            "Host": f"localhost:{port}", "Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Key": key,
            "Sec-WebSocket-Version": "13", "Origin": f"http://localhost:{port}", **headers,
        }  # fmt: skip
        head = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in given.items() if value)
        self.socket.sendall(f"GET {found.path}socket HTTP/1.1\r\n{head}\r\n".encode())
        self.file = self.socket.makefile("rb")
        self.status = int(self.file.readline().split()[1])
        while self.file.readline().strip():
            pass
        self.frames, self.messages, self.count, self.code = [], [], 0, None
        if self.status == 101 and hello:
            token = found.query.removeprefix("token=") if token is None else token
            self.say({"t": "hello", "viewer": viewer, "token": token})

    def say(self, message):
        """Send a message."""
        body = json.dumps(message).encode()
        size = bytes([0x80 | len(body)]) if len(body) < 126 else bytes([0x80 | 126]) + struct.pack(">H", len(body))
        self.socket.sendall(bytes([0x81]) + size + bytes(4) + body)  # a mask of zeros changes nothing

    def read(self):
        """Read the next message: a dict, bytes of a frame, or None at the end."""
        while True:
            head = self.file.read(2)
            if len(head) < 2:
                return None
            size = head[1] & 127
            if size > 125:
                size = int.from_bytes(self.file.read(2 if size == 126 else 8), "big")
            body = self.file.read(size)
            if head[0] & 15 == 8:
                self.code = int.from_bytes(body[:2], "big")
                return None
            if head[0] & 15 == 9:
                self.socket.sendall(bytes([0x8A, 0x80 | len(body)]) + bytes(4) + body)
            if head[0] & 15 == 1:
                self.messages.append(json.loads(body))
                return self.messages[-1]
            if head[0] & 15 == 2:
                self.frames.append(body)
                return body

    def until(self, kind):
        """Read until a message of this kind; return it."""
        while (found := self.read()) is not None:
            if isinstance(found, dict) and found.get("t") == kind:
                return found
        raise AssertionError(f"the connection ended before {kind!r}")

    def ask(self, kind, **about):
        """Send a request and return its reply."""
        self.count += 1
        self.say({"t": kind, "id": self.count, **about})
        while (found := self.until("reply"))["id"] != self.count:
            pass
        return found

    def draw(self, query, *runs, chart="c1", **how):
        """Ask for a chart and say that it is ready for frames."""
        reply = self.ask("chart", chart=chart, q=query, runs=list(runs), **how)
        for canvas in reply.get("value", {}).get("canvases", ()):
            self.say({"t": "canvas", "canvas": canvas, "message": {"t": "ready", "page": "test"}})
        return reply

    def close(self):
        """Break the connection off."""
        self.file.close()
        self.socket.close()


def status_of(server, **headers):
    """Return the status that a connection with these headers gets."""
    peer = Peer(server, hello=False, **headers)
    peer.close()
    return peer.status


def parts_of(frame):
    """Return canvas, message and columns of a frame."""
    (length,) = struct.unpack("<I", frame[:4])
    header = json.loads(frame[4 : 4 + length])
    return header["canvas"], header["message"], frame[4 + length :]


@contextlib.contextmanager
def stripping_proxy(port, prefix):
    """Relay connections from another port; requests below ``prefix`` lose it."""
    door = socket.create_server(("127.0.0.1", 0))

    def pump(source, target):
        with contextlib.suppress(OSError):
            while part := source.recv(65536):
                target.sendall(part)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def relay(browser):
        with contextlib.suppress(OSError), browser, socket.create_connection(("127.0.0.1", port)) as server:
            head = b""
            while b"\r\n\r\n" not in head:
                if not (part := browser.recv(65536)):
                    return
                head += part
            line, rest = head.split(b"\r\n", 1)
            method, path, version = line.split(b" ")
            if not path.startswith(prefix.encode()):
                browser.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                return
            path = b"/" + path[len(prefix) :].lstrip(b"/")
            if b"upgrade: websocket" not in rest.lower():
                rest = b"Connection: close\r\n" + rest.replace(b"Connection: keep-alive\r\n", b"")
            server.sendall(b" ".join([method, path, version]) + b"\r\n" + rest)
            back = threading.Thread(target=pump, args=(server, browser), daemon=True)
            back.start()
            pump(browser, server)
            back.join()

    def accept():
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=relay, args=(door.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield door.getsockname()[1]
    finally:
        door.close()


def until(page, condition, arg=None, seconds=120.0):
    """Wait until a condition holds on a page that may not evaluate texts."""
    end = time.monotonic() + seconds
    while not (found := page.evaluate(condition, arg)):
        assert time.monotonic() < end, condition
        page.wait_for_timeout(50)
    return found


def gone(server):
    """Wait until the server has forgotten all viewers."""
    soon(lambda: not server.viewers.connections)
