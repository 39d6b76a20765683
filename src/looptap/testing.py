"""An agent and a client in one process, without sockets or threads: to test one's own queries and hooks.

>>> from looptap.testing import pair
>>> agent, run = pair("doctest")
>>> loss = run.stream("mean(e.loss for e in events)", on="batch")
>>> for x in (1.0, 2.0):
...     agent.emit("batch", loss=x)
>>> agent.emit("epoch")
>>> loss.values
[1.5]
>>> agent.close()
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from looptap.agent.agent import Agent
from looptap.agent.io.server_socket import SendResult
from looptap.agent.server.recording import RunRecorder
from looptap.agent.server.request_dispatcher import RequestDispatcher
from looptap.client.run import Run
from looptap.client.transport.base import Receiver
from looptap.protocol.errors import RunEnded
from looptap.protocol.keys import OPERATOR

__all__ = ["pair"]

_TRIES = 10
"""In a row in which nothing went out: the client has no room."""


def pair(name: str = "test", **how: Any) -> tuple[Agent, Run]:
    """An agent, and a run attached to it; a value is there when the `emit` that made it returns.

    ``how`` are the arguments of `looptap.Agent`; there is no budget unless they name one, so that a slow machine
    changes no result. Everything but the sockets is the real thing: the wire's messages, the bounds, the errors. Only
    callbacks and streams derived by `Stream.query` run on a thread of their own, as ever: `wait` for what they yield.
    """
    agent = _Agent(name, **{"budget": math.inf, **how})  # here a query also pays for what others do with its values
    return agent, Run(_Transport(agent.memory), run=agent.run)


class _Link:
    """In place of the I/O thread: what it would do, it does at once, on the caller's thread."""

    endpoints = ()

    def __init__(self, service: RequestDispatcher) -> None:
        self.service = service
        self.receivers: dict[bytes, Receiver] = {}

    def send(self, peer: bytes, frame: bytes) -> SendResult:
        receiver = self.receivers.get(peer)
        if receiver is None:
            return SendResult.GONE
        receiver.on_frame(frame)
        return SendResult.OK

    def wake(self) -> None:
        before, tries = -1, 0
        while self.service.flush() or not self.service.is_idle():
            sent = self.service.exporter.sent_bytes
            tries = 0 if sent != before else tries + 1
            before = sent
            if tries == _TRIES:  # the next value rings once more
                self.service.queues.wakeup_pending = False
                return

    def post(self, call: Callable[[], object]) -> None:
        call()

    def stop(self, timeout: float = 0.0) -> bool:
        self.service.goodbye()
        self.receivers.clear()
        return True

    def abandon(self) -> None:
        self.receivers.clear()


class _Transport:
    """The client's end of the memory link."""

    def __init__(self, link: _Link) -> None:
        self.link = link
        self.peer = b"peer%d" % len(link.receivers)

    def start(self, receiver: Receiver, timeout: float) -> None:
        self.link.receivers[self.peer] = receiver

    def send(self, frame: bytes) -> None:
        if self.peer not in self.link.receivers:
            raise RunEnded("the run has ended.")
        self.link.service.receive(self.peer, OPERATOR, frame)
        self.link.wake()

    def close(self, timeout: float = 1.0) -> None:
        self.link.receivers.pop(self.peer, None)


class _Agent(Agent):
    """An agent whose link is memory."""

    memory: _Link

    def _allowed(self) -> bool:
        return True  # a test means it, wherever it runs

    def _aside(self, do: Callable[[], None]) -> None:
        do()

    def _kept(self, store: Any) -> RunRecorder | None:
        return None if store is None else super()._kept(store)  # a test leaves no file behind that it did not name

    def _listen(self, listen: str | None) -> None:
        self._taps.backlog.max_pending = self._taps.unobserved.max_pending = 1
        self.memory = _Link(self._service)
        self._service.send = self.memory.send
        self._link = self.memory
