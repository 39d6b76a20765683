"""An agent and a client in one process, without sockets or threads, for tests.

>>> from looptap.testing import pair
>>> agent, run = pair("doctest")
>>> loss = run.stream("mean(e.loss for e in events)", on="batch")
>>> for x in (1.0, 2.0):
...     agent.emit("batch", loss=x)
>>> agent.emit("epoch")
>>> loss.values
[1.5]
>>> agent.close()

Time and delivery can be stepped, too: with a `Clock`, windows in seconds depend on nothing else, and with
``manual=True`` values wait in the agent's queues until they are delivered.

>>> import looptap
>>> from looptap.testing import Clock
>>> clock = Clock()
>>> job = pair("doctest", clock=clock, manual=True)
>>> rate = job.run.stream("sum(1 for e in events)", on="batch", window=looptap.seconds(10))
>>> for _ in range(25):
...     job.agent.emit("batch")
...     clock.advance(1.0)
>>> rate.values, job.queues.pending_bytes() > 0
([], True)
>>> job.deliver() > 0
True
>>> rate.values
[10, 10]
>>> job.agent.close()
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from looptap.agent.agent import Agent, agent_of, parts_of
from looptap.agent.handoff.value_ring import RingSet
from looptap.agent.io.server_socket import SendResult
from looptap.agent.server.recording import RunRecorder
from looptap.agent.server.request_dispatcher import RequestDispatcher
from looptap.agent.wiring import Components, build
from looptap.client.run import Run
from looptap.client.transport.base import Receiver
from looptap.protocol.errors import RunEnded
from looptap.protocol.keys import OPERATOR
from looptap.streams.forwarding import check_options

__all__ = ["Clock", "Pair", "pair", "parts_of"]

_MAX_IDLE_FLUSHES = 10  # in a row in which nothing went out: the client has no room
_OF_THE_OPEN_AGENT = ("on_stop", "may_pause", "replay", "strict")


class Clock:
    """A clock that stands still until it is advanced; in seconds.

    >>> clock = Clock(5.0)
    >>> clock.advance(1.5)
    >>> clock()
    6.5
    """

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        """Return the time."""
        return self.now

    def advance(self, seconds: float) -> None:
        """Let ``seconds`` pass. Raises ValueError for a step back."""
        if seconds < 0:
            raise ValueError(f"advance({seconds!r}): a clock never goes back.")
        self.now += seconds


class _AgentAndRun(NamedTuple):
    agent: Agent
    run: Run


class Pair(_AgentAndRun):
    """An agent and a run attached to it; unpacks into these two."""

    _connection: MemoryConnection

    @property
    def queues(self) -> RingSet:
        """The values between loop and client; see `RingSet.pending_bytes`."""
        return self.parts.dispatcher.outbox

    @property
    def parts(self) -> Components:
        """The parts of the agent: see `parts_of`. They may change in any version."""
        return parts_of(self.agent)

    def attach(self) -> Run:
        """Attach another client."""
        return Run(MemoryTransport(self._connection), run=self.agent.run)

    def deliver(self) -> int:
        """Deliver all pending messages; return the number of frames. For ``manual=True``."""
        return self._connection.deliver()

    def beat(self) -> None:
        """Run the agent's heartbeat: send signs of life and costs, drop silent clients."""
        self._connection.beat()


def pair(name: str = "test", *, clock: Callable[[], float] = time.monotonic, manual: bool = False, **how: Any) -> Pair:
    """Return an agent and a run attached to it, which gets each value at its `emit`.

    ``clock`` returns the time of events. With ``manual``, values and outcomes wait until `Pair.deliver`; the answer to
    a request comes at once. ``how`` are the arguments of `looptap.Agent`; there is neither a budget nor a history of
    scalars unless they name one, so that a slow machine changes no result. Everything but the sockets is the real
    thing: the wire's messages, the bounds, the errors. Only callbacks and streams derived by `Stream.query` run on a
    thread of their own, as ever: `wait` for their results.
    """
    check_options("pair", how, Agent)
    connection = MemoryConnection(manual)
    opened = {name: how.pop(name) for name in _OF_THE_OPEN_AGENT if name in how}
    opened["sigterm"] = how.get("sigterm", False)
    store = how.pop("store", None)
    how.pop("listen", None)
    how.setdefault("history", False)  # its marks come by a timer, and would have a test depend on time
    how.setdefault("budget", math.inf)  # here a query also pays for what others do with its values
    parts = build(
        name,
        clock=clock,
        connect=lambda run, limits: connection,
        strict=opened.get("strict", False),
        record=lambda run: None if store is None else RunRecorder(run, store),  # no file that the test did not name
        **how,
    )
    parts.sources.evaluator.max_pending = parts.sources.unobserved.max_pending = 1
    agent = agent_of(parts, **opened)
    both = Pair(agent, Run(MemoryTransport(connection), run=agent.run))
    both._connection = connection
    return both


class MemoryConnection:
    """A connection without an I/O thread: the caller's thread does its work at once."""

    link = None
    endpoints = ()

    def __init__(self, manual: bool) -> None:
        self.files: list[Path] = []
        self.receivers: dict[bytes, Receiver] = {}
        self.dispatcher: RequestDispatcher | None = None
        self.is_open = False
        self.manual, self._frames, self._numbers = manual, 0, itertools.count()

    def locate(self) -> None:
        """Return None: clients do not find it."""

    def open(self, dispatcher: RequestDispatcher, on_failure: Callable[[str], None]) -> None:
        self.dispatcher, self.is_open = dispatcher, True

    def join(self, receiver: Receiver) -> bytes:
        """Add a client; return its peer name."""
        peer = b"peer%d" % next(self._numbers)
        self.receivers[peer] = receiver
        return peer

    def receive(self, peer: bytes, frame: bytes) -> None:
        """Handle a frame of a client. Raises RunEnded."""
        if self.dispatcher is None or peer not in self.receivers:
            raise RunEnded("the run has ended.")
        self.dispatcher.receive(peer, OPERATOR, frame)
        self.wake()

    def send(self, peer: bytes, frame: bytes) -> SendResult:
        receiver = self.receivers.get(peer)
        if receiver is None:
            return SendResult.GONE
        self._frames += 1
        receiver.on_frame(frame)
        return SendResult.OK

    def wake(self) -> None:
        if self.is_open and not self.manual:
            self.deliver()

    def flush_now(self) -> None:
        if self.is_open and not self.manual and self.dispatcher is not None:
            self.dispatcher.flush()

    def deliver(self) -> int:
        """Flush all that the client has room for; return the number of frames."""
        dispatcher, frames, sent, idle = self.dispatcher, self._frames, -1, 0
        if dispatcher is None:
            return 0
        while dispatcher.flush() or not dispatcher.is_idle():
            idle = 0 if dispatcher.exporter.sent_bytes != sent else idle + 1
            sent = dispatcher.exporter.sent_bytes
            if idle == _MAX_IDLE_FLUSHES:  # the next value wakes it once more
                dispatcher.ready_set.wakeup_pending = False
                break
        return self._frames - frames

    def beat(self) -> None:
        """Do what is due at a heartbeat."""
        if self.dispatcher is not None:
            self.dispatcher.on_heartbeat_timer()
            self.dispatcher.mark_scalars(time.monotonic())

    def post(self, call: Callable[[], object]) -> None:
        if self.is_open:
            call()

    def detach(self) -> None:
        self.is_open = False

    def stop(self, timeout: float) -> None:
        if self.dispatcher is not None:
            self.dispatcher.goodbye()
        self.receivers.clear()

    def drain(self, timeout: float) -> None:
        self.deliver()

    def undo(self) -> None:
        self.abandon()

    def abandon(self) -> None:
        self.is_open = False
        self.receivers.clear()


class MemoryTransport:
    """The client's end of a `MemoryConnection`."""

    def __init__(self, connection: MemoryConnection) -> None:
        self._connection, self._peer = connection, b""

    def start(self, receiver: Receiver, timeout: float) -> None:
        self._peer = self._connection.join(receiver)

    def send(self, frame: bytes) -> None:
        self._connection.receive(self._peer, frame)

    def close(self, timeout: float = 1.0) -> None:
        self._connection.receivers.pop(self._peer, None)
