"""A relay on a node: `looptap relay` reaches the ranks of one machine and passes on what they come to together.

To a client it is like the agent of the lowest of these ranks, and sends one message for all of them: partial results
are merged on the way, and again where they arrive. Frames go over the relay's stdin and stdout, each a line of its
own, which every command that starts another one (`ssh`, `srun`) passes on at once, and beside which a shell may greet.
"""

from __future__ import annotations

import binascii
import contextlib
import os
import shlex
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import IO, Any

import msgspec

from looptap.client.rank_numbers import numbered
from looptap.client.ranks.over_ranks import joined
from looptap.client.ranks.ranks import RankHandle
from looptap.client.transport.base import Receiver
from looptap.client.transport.tunnel.framing import LINE_BUFFER_BYTES, hear
from looptap.protocol import messages as m
from looptap.protocol.codec import decode_from_client, encode, pack, pack_values
from looptap.protocol.errors import LinkError, MessageError, NoAnswer
from looptap.protocol.limits import Limits
from looptap.protocol.replies import SubscriptionInfo
from looptap.streams.errors import LooptapError, QueryError
from looptap.streams.stream.buffer import Batch

MAX_FRAME_BYTES = (Limits().outbound_message + 65_536) * 4 // 3
"""Bytes of a line that is believed: as many as a frame of an agent has, in base64."""
_MARK = b"looptap-relay:"
_HEARTBEAT_SECONDS = 1.0
_EXIT_GRACE_SECONDS = 0.5  # seconds in which a relay that hung up may end


def read_frame(source: IO[bytes]) -> bytes | None:
    """The next frame, past whatever a shell says; None at the end. Raises MessageError for one that is too long."""
    while (line := source.readline(MAX_FRAME_BYTES)).endswith(b"\n"):
        if line.startswith(_MARK):
            try:
                return binascii.a2b_base64(line[len(_MARK) :])
            except ValueError:
                raise MessageError("A line that is no frame.") from None
    if len(line) >= MAX_FRAME_BYTES:
        raise MessageError(f"A frame of more than {MAX_FRAME_BYTES:,} bytes.")
    return None


def write_frame(sink: IO[bytes], frame: bytes) -> None:
    """Write ``frame`` as a line."""
    sink.write(_MARK + binascii.b2a_base64(frame))
    sink.flush()


class MergeRelay:
    """Answers a client in the place of the agents of ``ranks``; ``send`` takes its frames."""

    def __init__(self, run: RankHandle, ranks: Sequence[int], send: Callable[[bytes], None]) -> None:
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
                    self._done(message, self._attach(message))
                case m.Detach():
                    stream = self._streams.pop(message.stream, None)
                    if stream is not None:
                        stream.close()
                    self._done(message, None)
                case m.GetClock():
                    self._done(message, time.monotonic())
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
        self._tell(m.Beat(self._run.events(), self._run.idle, ages=self._run.ages()))
        for number, stream in list(self._streams.items()):
            lacks = [f"event or window {a.event} lacks {numbered(a.ranks)}" for a in stream.absent[-1:]]
            self._tell(m.Status(
                number, stream.state, stream.reason, dropped=stream.dropped, errors=stream.error_count,
                traceback=stream.traceback, notes=(*stream.notes, *lacks),
                nanoseconds=stream.cost.nanoseconds, share=stream.cost.share, withheld=stream.withheld,
                filtered=stream.filtered,
            ))  # fmt: skip

    def _attach(self, attach: m.Attach) -> SubscriptionInfo:
        if attach.align != m.STATES:
            raise QueryError("a relay merges: combine='merge'.")
        number = attach.stream
        stream, info = joined(self._run, attach, self._ranks, lambda batch: self._pass_on(number, batch))
        self._streams[number] = stream
        stream.gathering.start()
        return info

    def _pass_on(self, number: int, batch: Batch) -> None:
        form, raw = pack_values(batch.values)
        self._tell(m.Values(
            number, batch.first, batch.events.tobytes(), batch.times.tobytes(), batch.clock, form, msgspec.Raw(raw),
            batch.flags, min(self._ranks), b"" if batch.windows is None else batch.windows.tobytes(),
        ))  # fmt: skip

    def _done(self, request: m.Request[m.R], reply: m.R) -> None:
        self._tell(m.Done(request.request, msgspec.Raw(pack(reply))))

    def _tell(self, message: m.Message) -> None:
        self._send(encode(message))


def relay(run: RankHandle, ranks: Sequence[int]) -> int:
    """Carry what a client on stdin and stdout asks of ``ranks``, until it leaves; returns the exit code."""
    source = open(0, "rb", LINE_BUFFER_BYTES, closefd=False)  # noqa: SIM115 - not ours to close
    sink = open(1, "wb", LINE_BUFFER_BYTES, closefd=False)  # noqa: SIM115 - not ours to close
    writing, over = threading.Lock(), threading.Event()

    def send(frame: bytes) -> None:
        with writing, contextlib.suppress(BrokenPipeError):
            write_frame(sink, frame)

    node = MergeRelay(run, ranks, send)

    def beats() -> None:
        while not over.wait(_HEARTBEAT_SECONDS):
            node.beat()

    threading.Thread(target=beats, name="looptap-relay", daemon=True).start()
    while (frame := read_frame(source)) is not None and node.receive(frame):
        pass
    over.set()
    return 0


class MergeRelayTransport:
    """The client's end: a transport over the stdin and stdout of ``command``, which ends in `looptap relay`."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._said: deque[str] = deque(maxlen=10)
        self._writing = threading.Lock()
        self._closed = False

    def start(self, receiver: Receiver, timeout: float) -> None:
        """Start the relay. Raises NoAnswer if it cannot be started."""
        try:
            self._child = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                bufsize=LINE_BUFFER_BYTES,
                start_new_session=True, env=os.environ,
            )  # fmt: skip
        except OSError as error:
            raise NoAnswer(f"{self._command[0]!r} cannot be started: {error.strerror}.") from None
        assert self._child.stderr is not None
        self._complaints = threading.Thread(
            target=hear, args=(self._child.stderr, self._said), name="looptap-relay", daemon=True
        )
        self._complaints.start()
        for work in (self._read, self._tick):
            threading.Thread(target=work, args=(receiver,), name="looptap-relay", daemon=True).start()

    def send(self, frame: bytes) -> None:
        """Send one frame. Raises NoAnswer if the relay is gone."""
        assert self._child.stdin is not None
        try:
            with self._writing:
                write_frame(self._child.stdin, frame)
        except (OSError, ValueError):
            raise NoAnswer(self._ended()) from None

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
            receiver.on_end(NoAnswer(self._ended()))

    def _ended(self) -> str:
        """That the relay has ended, in the words of the command."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(_EXIT_GRACE_SECONDS)
        self._complaints.join(_EXIT_GRACE_SECONDS)
        said = " / ".join(self._said)[-1000:]
        code = self._child.poll()
        return (
            f"The relay `{shlex.join(self._command)}` has ended"
            + (f" with exit code {code}." if code is not None else ".")
            + (f" It said: {said}" if said else "")
        )

    def _tick(self, receiver: Receiver) -> None:
        while self._child.poll() is None and not self._closed:
            receiver.on_tick()
            time.sleep(_HEARTBEAT_SECONDS)
