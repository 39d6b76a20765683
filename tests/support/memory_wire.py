"""An agent in memory with peers that have room or not."""

from __future__ import annotations

import time
from collections import Counter

import looptap
from looptap.agent.io.server_socket import SendResult
from looptap.protocol import messages as m
from looptap.protocol.codec import decode_from_agent, encode
from looptap.protocol.keys import OPERATOR
from looptap.protocol.values.unpacking import unpack_values
from looptap.testing import pair


class Wire:
    """An agent in memory whose peers have room or not; only `flush` sends."""

    def __init__(self, clock=time.monotonic, **limits):
        patient = {"heartbeat_timeout": 600.0} | limits  # who is away is waited for, on however busy a machine
        self.job = pair(manual=True, clock=clock, limits=looptap.Limits(**patient))
        self.job.run.close()
        self.agent, self.parts = self.job.agent, self.job.parts
        self.dispatcher, self.exporter = self.parts.dispatcher, self.parts.dispatcher.exporter
        self.full, self.gone, self.tries, self.frames = set(), set(), Counter(), []
        self.dispatcher.send = self.send

    def send(self, peer, frame):
        self.tries[peer] += 1
        if peer in self.gone:
            return SendResult.GONE
        if peer in self.full:
            return SendResult.FULL
        self.frames.append((peer, frame))
        return SendResult.OK

    def tell(self, peer, message, role=OPERATOR):
        self.dispatcher.receive(peer, role, encode(message))

    def client(self, peer, role=OPERATOR, version=m.VERSION, **more):
        self.tell(peer, m.Hello(version, peer.decode(), **more), role)
        return self.dispatcher.clients[peer]

    def attach(self, peer, number=1, code="step", **more):
        self.tell(peer, m.Attach(number, number, m.Code(code), "batch", **more))

    def emit(self, *steps, **more):
        for step in steps:
            self.agent.emit("batch", step=step, **more)

    def deliver(self):
        """Flush until nothing more is sent; return whether something still waits."""
        while True:
            before, more = len(self.frames), self.dispatcher.flush()
            if len(self.frames) == before:
                return more

    def said(self, *kinds, to=None):
        """Return the messages that were sent, those in bundles one by one."""
        found = []
        for peer, frame in self.frames:
            message = decode_from_agent(frame)
            parts = message.messages if isinstance(message, m.Bundle) else [frame]
            found += [decode_from_agent(bytes(one)) for one in parts if to in (None, peer)]
        return [one for one in found if isinstance(one, kinds or m.FromAgent)]

    def values(self, peer, number=1):
        """Return a peer's values of one stream, after checking that they have no gap."""
        found, after = [], 0
        for message in self.said(m.Values, to=peer):
            if message.stream == number:
                assert not found or message.first == after + 1
                found += unpack_values(message.form, message.values)
                after = message.first + len(message.events) // 8 - 1
        return found

    def counts(self):
        """Return the number of values in each frame."""
        return [[len(one.events) // 8 for one in Wire.unpacked(frame)] for _, frame in self.frames]

    @staticmethod
    def unpacked(frame):
        message = decode_from_agent(frame)
        return (
            [decode_from_agent(bytes(one)) for one in message.messages] if isinstance(message, m.Bundle) else [message]
        )
