"""Bare pyzmq with CURVE over ipc: the limit of the wire itself.

Run as a script it is the reader's process. ROUTER to DEALER, key pairs on both ends, one msgpack frame a message, as
looptap does it, but without events, queries, snapshots, numbers, counters or bounds.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec
import numpy as np
import zmq
from harness import ask, helper

END = b"end"


@dataclass
class Wire:
    """The sender's end."""

    socket: zmq.Socket
    peer: bytes
    process: object

    def send(self, frame: bytes, copy: bool = True) -> None:
        """Send a frame. Blocks while the reader's queue is full."""
        self.socket.send(self.peer, zmq.SNDMORE)
        self.socket.send(frame, copy=copy)

    def finish(self) -> dict:
        """End a round; return the time of the reader's last message, and its count."""
        self.send(END)
        return ask(self.process)


@contextmanager
def wire(kind: str) -> Iterator[Wire]:
    """Connect a reader of ``kind`` (values or arrays) in another process."""
    public, secret = zmq.curve_keypair()
    with tempfile.TemporaryDirectory() as folder, zmq.Context() as context:
        socket = context.socket(zmq.ROUTER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.CURVE_SECRETKEY, secret)
        endpoint = f"ipc://{folder}/wire"
        socket.bind(endpoint)
        with helper("raw_curve.py", kind, endpoint, public.decode()) as process:
            peer, _ = socket.recv_multipart()
            yield Wire(socket, peer, process)
        socket.close()


def read(kind: str, endpoint: str, server: str) -> None:
    public, secret = zmq.curve_keypair()
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.CURVE_SERVERKEY, server.encode())
        socket.setsockopt(zmq.CURVE_PUBLICKEY, public)
        socket.setsockopt(zmq.CURVE_SECRETKEY, secret)
        socket.connect(endpoint)
        socket.send(b"here")
        decode = msgspec.msgpack.Decoder(list[tuple[int, float]]).decode
        count, last, values = 0, 0.0, []
        poller = zmq.Poller()
        poller.register(socket, zmq.POLLIN)
        poller.register(sys.stdin.fileno(), zmq.POLLIN)
        while True:
            if not any(ready == socket for ready, _ in poller.poll()):
                return  # the sender closed stdin
            frame = socket.recv(copy=False)
            if frame.buffer.nbytes == len(END) and frame.bytes == END:
                print(json.dumps({"count": count, "last": last}), flush=True)
                count, values = 0, []
                continue
            if kind == "values":
                values.extend(decode(frame.buffer))
                count = len(values)
            else:
                values = [np.frombuffer(frame.buffer, dtype=np.float32)]
                count += 1
            last = time.monotonic()


def values_per_second(link: Wire, batch: int, total: int = 400_000) -> float:
    """Return the rate of (step, loss) pairs, ``batch`` a message, up to the reader."""
    encode = msgspec.msgpack.Encoder().encode
    values: list[tuple[int, float]] = []
    start = time.monotonic()
    for step in range(total):
        values.append((step, 0.5))
        if len(values) == batch:
            link.send(encode(values))
            values = []
    if values:
        link.send(encode(values))
    answer = link.finish()
    assert answer["count"] == total, answer
    return total / (answer["last"] - start)


def arrays_per_second(link: Wire, array: np.ndarray, count: int = 32) -> float:
    """Return the rate of the same array sent again and again, without a copy."""
    start = time.monotonic()
    for _ in range(count):
        link.send(memoryview(array).cast("B"), copy=False)
    answer = link.finish()
    assert answer["count"] == count, answer
    return count / (answer["last"] - start)


if __name__ == "__main__":
    read(*sys.argv[1:])
