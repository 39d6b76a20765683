"""`Sending`: the numbers of one stream on their way into a sink.

A thread of its own follows the stream, so that neither the feed nor a callback waits for a sink. A sink that is slower
than its stream loses the values that the stream's buffer has no room for, and they are counted.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
import weakref
from typing import Any, Protocol

from looptap.client.sinks.shared_sink import SharedSink
from looptap.client.sinks.sink import Origin, step_and_numbers
from looptap.protocol.messages import RunInfo
from looptap.streams.stream.buffer import Record
from looptap.streams.stream.feed import Feed
from looptap.streams.stream.state_and_cost import LIVE

MAX_ITEMS_AT_ONCE = 256
"""Items that are taken from a stream at a time."""
POLL_INTERVAL_SECONDS = 0.1
"""Seconds after which a thread that waits for values looks whether it is to stop."""
EXIT_SECONDS = 5.0
"""Seconds that the end of the interpreter waits for all sinks together."""

log = logging.getLogger("looptap")


class _SentFrom(Protocol):
    """The run that a stream is of."""

    @property
    def info(self) -> RunInfo:
        """Its name, id, host and rank."""


class _Sent(Protocol):
    """A live stream as what sends it sees it."""

    feed: Feed
    name: str
    text: str

    @property
    def run(self) -> _SentFrom:
        """The run that it is of."""


class Sending:
    """Sends the numbers of a stream into a sink until the stream ends, or `stop`.

    ``sent`` counts the values that went in, ``lost`` those that the stream had forgotten before, ``failed`` those that
    the sink refused, and ``error`` is its first exception. The stream counts itself what never arrived (`dropped`).
    """

    def __init__(self, stream: _Sent, sink: SharedSink, to: str) -> None:
        self.to = to
        """The name of the sink, such as tensorboard."""
        self.sent = self.lost = self.failed = 0
        self.error: Exception | None = None
        self._stream, self._sink = stream, sink
        self._stopping = threading.Event()
        self._id = stream.run.info.id
        sink.begin(self._id)
        self._thread = threading.Thread(target=self._work, name="looptap-sink", daemon=True)
        self._thread.start()
        _living.add(self)

    @property
    def sink(self) -> Any:
        """The open sink, such as one that says at which ``port`` it serves."""
        return self._sink.sink

    @property
    def active(self) -> bool:
        """True until all is sent and the sink has been left."""
        return self._thread.is_alive()

    def stop(self, timeout: float = 5.0) -> bool:
        """Send what has arrived, and end; the stream continues. True if that is done.

        Args:
            timeout: Seconds to wait for that.
        """
        self._stopping.set()
        return self.wait(timeout)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the end of the stream, and until all is sent. True if that is done.

        Args:
            timeout: Seconds; None: no limit.
        """
        self._thread.join(timeout)
        return not self.active

    def __repr__(self) -> str:
        counts = [(self.sent, "sent"), (self.lost, "lost"), (self.failed, "failed")]
        words = ", ".join(f"{count:,} {word}" for count, word in counts if count or word == "sent")
        error = f"; {type(self.error).__name__}: {self.error!s:.80}" if self.error is not None else ""
        state = "live" if self.active else "ended"
        return f"<Sending of {self._stream.name!r:.80} to {self.to}: {state}, {words}{error}>"

    # ------------------------------------------------------------ its thread

    def _work(self) -> None:
        try:
            position = 0
            while not (self._over() and self._caught_up(position)):
                position = self._send_from(position)
        finally:
            try:
                self._sink.end(self._id)
            except Exception as error:
                self._note(error)
            try:
                self._sink.close()
            except Exception as error:
                self._note(error)

    def _over(self) -> bool:
        return self._stopping.is_set() or self._stream.feed.state != LIVE

    def _caught_up(self, position: int) -> bool:
        with self._stream.feed.changed:
            return position >= self._stream.feed.buffer.end

    def _send_from(self, position: int) -> int:
        """Send some items, or wait a moment for one; return the next position."""
        feed = self._stream.feed
        with feed.changed:
            forgotten = max(0, feed.buffer.start - position)
            batch, position = feed.buffer.part(position, MAX_ITEMS_AT_ONCE)
        self.lost += forgotten
        if batch is None:
            feed.await_item(position, POLL_INTERVAL_SECONDS)
            return position
        for record in batch.records():
            if record.error is None:
                self._put(record)
        return position

    def _put(self, record: Record) -> None:
        try:
            info = self._stream.run.info
            if info.id != self._id:  # the next run of the name
                self._sink.begin(info.id)
                self._sink.end(self._id)
                self._id = info.id
            name = self._stream.text or self._stream.name
            step, numbers = step_and_numbers(record.value, name, record.event)
            self._sink.put(Origin(info.name, info.id, info.host, record.rank, name), step, numbers)
        except Exception as error:
            self.failed += 1
            self._note(error)
        else:
            self.sent += 1

    def _note(self, error: Exception) -> None:
        if self.error is None:
            self.error = error
            log.warning(
                "looptap: %s refuses values of %.80r: %s: %s (said once; failed counts them)",
                self.to,
                self._stream.name,
                type(error).__name__,
                error,
            )


_living: weakref.WeakSet[Sending] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    """Have sinks write what they hold before the interpreter ends."""
    deadline = time.monotonic() + EXIT_SECONDS
    for sending in list(_living):
        sending.stop(0)
    for sending in list(_living):
        sending.wait(max(0.0, deadline - time.monotonic()))
