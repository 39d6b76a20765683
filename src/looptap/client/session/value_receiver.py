"""The values that an agent sends: passed to their streams, and acknowledged."""

from __future__ import annotations

import contextlib

from looptap.client.session.stream_table import StreamTable
from looptap.client.transport.base import Transport
from looptap.protocol import messages as m
from looptap.protocol.codec import decode_from_agent, encode
from looptap.protocol.errors import LinkError, MessageError
from looptap.streams.stream.attention import PROMPT_SECONDS, UNSEEN_SECONDS

_ACKNOWLEDGE_EVERY_BYTES = 262_144  # bytes of values after which they are acknowledged to the agent


class ValueReceiver:
    """Receives the values and states of a session's streams. Transport thread."""

    def __init__(self, streams: StreamTable, transport: Transport) -> None:
        self._streams, self._transport = streams, transport
        self._received_bytes = self._acknowledged_bytes = 0  # of values, over this link
        self._patience = PROMPT_SECONDS  # what the agent knows
        self._unseen: frozenset[int] = frozenset()  # and at which streams nothing looks
        self.refused_messages = 0
        """Messages of the agent that were malformed, or belong to no stream."""

    def on_values(self, message: m.Values) -> None:
        """Pass values to their stream. Raises MessageError."""
        stream = self._streams.get(message.stream)
        if stream is None:
            self.refused_messages += 1  # most likely of a stream that was just closed
        else:
            stream.receive(message)

    def on_bundle(self, bundle: m.Bundle) -> None:
        """Pass the values of several streams to these; refuse malformed ones."""
        for raw in bundle.messages:
            try:
                message = decode_from_agent(memoryview(raw))
                if type(message) is not m.Values:
                    raise MessageError("A bundle of the agent holds something other than values.")
                self.on_values(message)
            except MessageError:  # the other messages of the bundle are valid
                self.refused_messages += 1

    def on_status(self, message: m.Status) -> None:
        """Pass the state of a stream to it."""
        stream = self._streams.get(message.stream)
        if stream is not None:
            stream.receive_status(message)

    def count(self, size: int) -> None:
        """Count the bytes of a frame of values, and confirm them now and then."""
        self._received_bytes += size
        if self._received_bytes - self._acknowledged_bytes >= _ACKNOWLEDGE_EVERY_BYTES:
            self.confirm()

    def confirm(self) -> None:
        """Confirm the received bytes of values to the agent."""
        self._acknowledged_bytes = self._received_bytes
        self._transport.send(encode(m.Got(self._received_bytes)))

    def beat(self) -> None:
        """Send a heartbeat, which says how long values may gather."""
        patience = {number: stream.patience for number, stream in self._streams.living()}
        self._patience = min(patience.values(), default=UNSEEN_SECONDS)
        self._unseen = frozenset(number for number, seconds in patience.items() if seconds >= UNSEEN_SECONDS)
        self._transport.send(self._beat())

    def hurry(self, number: int, seconds: float) -> None:
        """Send a heartbeat at once if values may not gather for so long. Any thread."""
        if seconds < self._patience or number in self._unseen:
            self._patience, self._unseen = min(seconds, self._patience), self._unseen - {number}
            with contextlib.suppress(LinkError):  # the agent begins the next link with the shortest
                self._transport.send(self._beat())

    def _beat(self) -> bytes:
        return encode(m.Beat(patience=self._patience, unseen=tuple(self._unseen)))

    def restart(self) -> None:
        """Count from 0, as the agent does over a new link."""
        self._patience, self._unseen = PROMPT_SECONDS, frozenset()
        self._received_bytes = self._acknowledged_bytes = 0
