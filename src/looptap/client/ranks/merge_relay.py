"""`looptap relay`: attaches to the ranks of one machine and merges their states.

To a client it is like the agent of the lowest of these ranks, and sends one message for all of them: partial results
are merged on the way, and again where they arrive. Frames go over the relay's stdin and stdout, each on a line of its
own, which every command that starts another one (`ssh`, `srun`) passes on at once; a shell may add lines of its own.
"""

from __future__ import annotations

import contextlib
import shlex
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from looptap.client.rank_numbers import numbered
from looptap.client.ranks.over_ranks import joined_by_relay
from looptap.client.ranks.ranks import RankHandle
from looptap.client.transport.base import Receiver
from looptap.client.transport.tunnel.framing import LINE_BUFFER_BYTES, read_frame, write_frame
from looptap.client.transport.tunnel.running_command import RunningCommand
from looptap.protocol import messages as m
from looptap.protocol.codec import decode_from_client, encode
from looptap.protocol.errors import LinkError, MessageError, NoAnswer
from looptap.protocol.replies import SubscriptionInfo
from looptap.protocol.values.packing import pack, pack_values
from looptap.streams.errors import LooptapError, QueryError
from looptap.streams.stream.buffer import Batch

_HEARTBEAT_SECONDS = 1.0


class MergeRelay:
    """A server that answers a client for the agents of ``ranks``."""

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
                    self._send_message(m.Welcome(m.VERSION, info, self._run.role, self._run.events()))
                case m.Attach():
                    self._reply(message, self._attach(message))
                case m.Detach():
                    stream = self._streams.pop(message.stream, None)
                    if stream is not None:
                        stream.close()
                    self._reply(message, None)
                case m.GetClock():
                    self._reply(message, time.monotonic())
                case m.Leave():
                    return False
                case m.Beat() | m.Got():
                    pass
                case _:
                    raise QueryError("a relay carries merged values; ask the rank itself, run.ranks[n].")
        except QueryError as error:
            fields = {"reason": error.reason, "source": error.source, "column": error.column, "hint": error.hint}
            text = msgspec.json.encode(fields).decode()
            self._send_message(m.Failed(getattr(message, "request", 0), "query", str(error), text))
        except LooptapError as error:
            self._send_message(m.Failed(getattr(message, "request", 0), type(error).__name__, str(error)))
        return True

    def beat(self) -> None:
        """Send a heartbeat and the status of each stream."""
        self._send_message(m.Beat(self._run.events(), self._run.idle, ages=self._run.ages()))
        for number, stream in list(self._streams.items()):
            lacks = [f"event or window {a.event} lacks {numbered(a.ranks)}" for a in stream.absent[-1:]]
            self._send_message(
                m.Status(
                    number,
                    stream.state,
                    stream.reason,
                    dropped=stream.dropped,
                    errors=stream.error_count,
                    traceback=stream.traceback,
                    notes=(*stream.notes, *lacks),
                    nanoseconds=stream.cost.nanoseconds,
                    share=stream.cost.share,
                    withheld=stream.withheld,
                    filtered=stream.filtered,
                )
            )

    def _attach(self, attach: m.Attach) -> SubscriptionInfo:
        if attach.align != m.STATES:
            raise QueryError("a relay merges: combine='merge'.")
        number = attach.stream
        stream, info = joined_by_relay(self._run, attach, self._ranks, lambda batch: self._pass_on(number, batch))
        self._streams[number] = stream
        stream.gathering.start()
        return info

    def _pass_on(self, number: int, batch: Batch) -> None:
        form, raw = pack_values(batch.values, columns=False)  # states, which are few
        self._send_message(
            m.Values(
                number,
                batch.first,
                batch.events.tobytes(),
                batch.times.tobytes(),
                batch.clock,
                form,
                msgspec.Raw(raw),
                batch.flags,
                min(self._ranks),
                b"" if batch.windows is None else batch.windows.tobytes(),
            )
        )

    def _reply(self, request: m.Request[m.R], reply: m.R) -> None:
        self._send_message(m.Done(request.request, msgspec.Raw(pack(reply))))

    def _send_message(self, message: m.Message) -> None:
        self._send(encode(message))


def relay(run: RankHandle, ranks: Sequence[int]) -> int:
    """Serve a client on stdin and stdout for ``ranks``; return the exit code."""
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
    """A transport over the stdin and stdout of ``command``, a `looptap relay`."""

    def __init__(self, command: Sequence[str]) -> None:
        self.command = list(command)
        self._running: RunningCommand | None = None
        self._writing = threading.Lock()
        self._closed = False

    def start(self, receiver: Receiver, timeout: float) -> None:
        """Start the relay. Raises NoAnswer if it cannot be started."""
        self._running = RunningCommand(self.command, "looptap-relay")
        for work in (self._read, self._tick):
            threading.Thread(target=work, args=(self._running, receiver), name="looptap-relay", daemon=True).start()

    @property
    def running(self) -> RunningCommand:
        """The command, once it has been started."""
        assert self._running is not None, "the transport was not started"
        return self._running

    def send(self, frame: bytes) -> None:
        """Send one frame. Raises NoAnswer if the relay is gone."""
        try:
            with self._writing:
                write_frame(self.running.stdin, frame)
        except (OSError, ValueError):
            raise NoAnswer(self._ended()) from None

    def close(self, timeout: float = 1.0) -> None:
        """End the relay by closing its stdin, else by a signal."""
        self._closed = True
        if self._running is not None:
            with self._writing:
                self._running.close_stdin()
            self._running.end(timeout)

    def _read(self, running: RunningCommand, receiver: Receiver) -> None:
        with running.stdout as stdout, contextlib.suppress(LinkError, MessageError, OSError, ValueError):
            while (frame := read_frame(stdout)) is not None:
                receiver.on_frame(frame)
        if not self._closed:
            receiver.on_end(NoAnswer(self._ended()))

    def _ended(self) -> str:
        """Report that the relay has ended, in the words of the command."""
        code = self.running.exit_code()
        with_code = "" if code is None else f" with exit code {code}"
        return f"The relay `{shlex.join(self.command)}` has ended{with_code}.{self.running.quoted_stderr()}"

    def _tick(self, running: RunningCommand, receiver: Receiver) -> None:
        with contextlib.suppress(LinkError):  # it has just ended, which `_read` reports
            while running.process.poll() is None and not self._closed:
                receiver.on_tick()
                time.sleep(_HEARTBEAT_SECONDS)
