"""A relay on a node: `looptap relay` reaches the ranks of one machine and passes on what they come to together.

To a client it is like the agent of the lowest of these ranks, and sends one message for all of them: partial results
are merged on the way, and again where they arrive. Frames go over the relay's stdin and stdout, each behind its
length, as whoever may start the command (`ssh`) may see them.
"""

from __future__ import annotations

import contextlib
import os
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import IO, TYPE_CHECKING, Any

import msgspec

from looptap.client.jobs import numbered
from looptap.client.remote import _SSH
from looptap.client.transport import Receiver
from looptap.protocol import messages as m
from looptap.protocol.codec import decode_from_client, encode, pack, pack_values
from looptap.protocol.errors import LinkError, MessageError, NoAnswer, RunEnded
from looptap.streams.buffers import Batch
from looptap.streams.errors import LooptapError, QueryError

if TYPE_CHECKING:
    from looptap.client.run import Run

MOST = 1 << 28
"""Bytes of a frame that is believed."""
_BEAT = 1.0


def read_frame(source: IO[bytes]) -> bytes | None:
    """The next frame; None at the end. Raises MessageError for one that is too long."""
    head = source.read(4)
    if len(head) < 4:
        return None
    (size,) = struct.unpack(">I", head)
    if size > MOST:
        raise MessageError(f"A frame of {size:,} bytes.")
    frame = source.read(size)
    return frame if len(frame) == size else None


class NodeRelay:
    """Answers a client in the place of the agents of ``ranks``; ``send`` takes its frames."""

    def __init__(self, run: Run, ranks: Sequence[int], send: Callable[[bytes], None]) -> None:
        self._run, self._ranks, self._send = run, tuple(ranks), send
        self._streams: dict[int, Any] = {}

    def receive(self, frame: bytes) -> bool:
        """Handle one frame of the client; False when it leaves. Raises MessageError."""
        message = decode_from_client(frame)
        try:
            match message:
                case m.Hello():
                    info = self._run.ranks.reach(min(self._ranks)).info
                    self._tell(m.Welcome(m.VERSION, info, self._run.role, self._run.events()))
                case m.Attach():
                    self._done(message.request, self._attach(message))
                case m.Detach():
                    stream = self._streams.pop(message.stream, None)
                    if stream is not None:
                        stream.close()
                    self._done(message.request)
                case m.Ask(what="clock"):
                    self._done(message.request, time.monotonic())
                case m.Leave():
                    return False
                case m.Beat() | m.Got():
                    pass
                case _:
                    raise QueryError("a relay carries merged values; ask the rank itself, run.ranks[n].")
        except QueryError as error:
            fields = {"reason": error.reason, "source": error.source, "column": error.column, "hint": error.hint}
            text = msgspec.json.encode(fields).decode()
            self._tell(m.Failed(getattr(message, "request", 0), "query", str(error), text))
        except LooptapError as error:
            self._tell(m.Failed(getattr(message, "request", 0), type(error).__name__, str(error)))
        return True

    def beat(self) -> None:
        """A sign of life, and how the streams are."""
        self._tell(m.Beat(self._run.events(), self._run.idle))
        for number, stream in list(self._streams.items()):
            lacks = [f"event or window {a.event} lacks {numbered(a.ranks)}" for a in stream.absent[-1:]]
            self._tell(m.Status(
                number, stream.state, stream.reason, dropped=stream.dropped, errors=stream.error_count,
                traceback=stream.traceback, notes=(*stream.notes, *lacks),
                nanoseconds=stream.cost.nanoseconds, share=stream.cost.share,
            ))  # fmt: skip

    def _attach(self, attach: m.Attach) -> dict[str, Any]:
        from looptap.client.overranks import joined  # which imports this module

        if attach.align != m.STATES:
            raise QueryError("a relay merges: combine='merge'.")
        number = attach.stream
        stream, told = joined(self._run, attach, self._ranks, lambda batch: self._pass_on(number, batch))
        self._streams[number] = stream
        stream._gathering.start()
        return told

    def _pass_on(self, number: int, batch: Batch) -> None:
        form, raw = pack_values(batch.values)
        self._tell(m.Values(
            number, batch.first, batch.events.tobytes(), batch.times.tobytes(), batch.clock, form, msgspec.Raw(raw),
            batch.flags, min(self._ranks), b"" if batch.windows is None else batch.windows.tobytes(),
        ))  # fmt: skip

    def _done(self, request: int, value: Any = None) -> None:
        self._tell(m.Done(request, msgspec.Raw(pack(value))))

    def _tell(self, message: m.Message) -> None:
        self._send(encode(message))


def relay(run: Run, ranks: Sequence[int]) -> int:
    """Carry what a client on stdin and stdout asks of ``ranks``, until it leaves; returns the exit code."""
    source = open(0, "rb", closefd=False)  # noqa: SIM115
    sink = open(1, "wb", closefd=False)  # noqa: SIM115
    writing, over = threading.Lock(), threading.Event()

    def send(frame: bytes) -> None:
        with writing, contextlib.suppress(BrokenPipeError):
            sink.write(struct.pack(">I", len(frame)) + frame)
            sink.flush()

    node = NodeRelay(run, ranks, send)

    def beats() -> None:
        while not over.wait(_BEAT):
            node.beat()

    threading.Thread(target=beats, name="looptap-relay", daemon=True).start()
    while (frame := read_frame(source)) is not None and node.receive(frame):
        pass
    over.set()
    return 0


class NodeLink:
    """The client's end: a transport over the stdin and stdout of `looptap relay`, on this host or another."""

    def __init__(self, run_id: str, ranks: Sequence[int], host: str | None) -> None:
        words = ["relay", run_id, "--ranks", ",".join(map(str, ranks))]
        self._command = [sys.executable, "-m", "looptap.cli", *words] if host is None else [
            *_SSH, host, "looptap", *words
        ]  # fmt: skip
        self._writing = threading.Lock()
        self._closed = False

    def start(self, receiver: Receiver, timeout: float) -> None:
        """Start the relay. Raises NoAnswer if it cannot be started."""
        try:
            self._child = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, env=os.environ
            )
        except OSError as error:
            raise NoAnswer(f"{self._command[0]!r} cannot be started: {error.strerror}.") from None
        for work in (self._read, self._tick):
            threading.Thread(target=work, args=(receiver,), name="looptap-relay", daemon=True).start()

    def send(self, frame: bytes) -> None:
        """Send one frame. Raises RunEnded if the relay is gone."""
        assert self._child.stdin is not None
        try:
            with self._writing:
                self._child.stdin.write(struct.pack(">I", len(frame)) + frame)
                self._child.stdin.flush()
        except (OSError, ValueError):
            raise RunEnded("The relay has ended.") from None

    def close(self, timeout: float = 1.0) -> None:
        """End the relay: by itself, since its stdin ends, else by a signal."""
        self._closed = True
        with contextlib.suppress(OSError), self._writing:
            if self._child.stdin is not None:
                self._child.stdin.close()
        try:
            self._child.wait(timeout)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()

    def _read(self, receiver: Receiver) -> None:
        assert self._child.stdout is not None
        with self._child.stdout as stdout, contextlib.suppress(LinkError, MessageError, OSError, ValueError):
            while (frame := read_frame(stdout)) is not None:
                receiver.on_frame(frame)
        if not self._closed:
            receiver.on_end(NoAnswer("The relay has ended."))

    def _tick(self, receiver: Receiver) -> None:
        while self._child.poll() is None and not self._closed:
            receiver.on_tick()
            time.sleep(_BEAT)
