"""The conversation of a `Run` with its agent, over a link that reconnects.

Everything that starts with ``on_`` or ``_on_`` runs on the transport's thread; the rest may be called from any.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from looptap.client.session.callback_thread import CallbackThread
from looptap.client.session.requests import PendingRequests
from looptap.client.session.stream_resumption import StreamResumption
from looptap.client.session.stream_table import StreamSink, StreamTable
from looptap.client.session.value_receiver import ValueReceiver
from looptap.client.session.vitals import Vitals
from looptap.client.session.weak_receiver import WeakReceiver
from looptap.client.transport.base import Transport
from looptap.client.transport.connect_errors import version_mismatch
from looptap.client.transport.timeouts import REPLY_SECONDS
from looptap.protocol import messages as m
from looptap.protocol.codec import decode_from_agent, encode, version_of
from looptap.protocol.errors import (
    RUN_ENDED,
    LimitReached,
    LinkError,
    MessageError,
    NoAnswer,
    RunEnded,
    WrongServer,
)
from looptap.protocol.keys import VIEWER
from looptap.protocol.process.identity import named_process
from looptap.streams.errors import QueryError
from looptap.streams.stream.state_and_cost import ENDED, FAILED, LIVE
from looptap.streams.waiting import wait_interruptibly

_HISTORY_TIMEOUT_SECONDS = 1.0  # seconds that reading a declared stream waits for what is held of it
_MAX_NAME_CHARACTERS = 1000  # characters of a run's id, name or host

log = logging.getLogger("looptap")

LOST = "lost"
"""The state of a run whose link is down, or that waits for the next of its name, in addition to those of a stream."""
SILENT = "silent"
"""The state of a run whose link is up, and whose agent has not answered for five seconds."""
OPEN = (LIVE, LOST, SILENT)
"""The states of a run that may continue."""


_open_sessions: weakref.WeakSet[Session] = weakref.WeakSet()


def disconnect_abandoned(run: str) -> bool:
    """Disconnect the sessions that nothing refers to; True if one was with this run.

    A session refers to itself, so that it stays connected until Python next looks for cycles.
    """
    before = sum(one.run_id == run for one in _open_sessions)
    gc.collect()
    return sum(one.run_id == run for one in _open_sessions) < before


class Session:
    """One client's conversation with one agent; a `Run` shows it to users.

    It receives the frames of its transport, and passes those about a stream to its `StreamSink`.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        run: m.RunInfo | None = None,
        timeout: float = REPLY_SECONDS,
        follow: bool = False,
    ) -> None:
        self._state, self._reason = LIVE, ""
        self.losses = 0
        """The number of times the link was lost."""
        self.role = ""
        self.info: m.RunInfo
        """The run's identity: id, name, host, pid, rank, versions."""
        self._expected, self._version, self.follow = run, m.VERSION, follow
        """``follow``: whether the session continues with the next run of the same name."""
        self.vitals = Vitals()
        self.transport = transport
        self.requests = PendingRequests(self._send, lambda: self.outlook(""), lambda: self.vitals.silence)
        self.callbacks = CallbackThread()
        self.streams = StreamTable()
        self.values = ValueReceiver(self.streams, transport)
        self._resumption = StreamResumption(self.streams, self.requests, self.detach, self.in_my_role)
        self.client, self._token = named_process(), os.urandom(16).hex()
        self._welcomed = threading.Event()
        self._greeted = False  # whether the newest hello was answered
        self._refusal: LinkError | None = None
        self._handlers: dict[type[Any], Callable[[Any], None]] = {
            m.Values: self.values.on_values,
            m.Bundle: self.values.on_bundle,
            m.Status: self.values.on_status,
            m.Done: self.requests.done,
            m.Failed: self.requests.failed,
            m.Beat: self._on_beat,
            m.Welcome: self._on_welcome,
            m.Refused: self._on_refused,
            m.Goodbye: self._on_goodbye,
        }
        deadline = time.monotonic() + timeout
        transport.start(WeakReceiver(self), timeout)
        self._finalizer = weakref.finalize(self, _disconnect, transport, self.callbacks)
        _open_sessions.add(self)
        try:
            self._greet(deadline, timeout)
        except BaseException:
            self.close()
            raise

    def _greet(self, deadline: float, timeout: float) -> None:
        self._say_hello()
        if not wait_interruptibly(self._welcomed.wait, deadline - time.monotonic()):
            raise NoAnswer(
                f"The agent accepted the connection but did not answer this client within {timeout:g} s; its "
                "process may be stopped. Try again with a longer timeout=."
            )
        if self._refusal is not None:
            raise self._refusal

    def _say_hello(self) -> None:
        streams = tuple(n for n, s in self.streams.living() if s.declared is None and not s.opening)
        self.transport.send(encode(m.Hello(m.VERSION, self.client, self.run_id, self._token, streams)))

    @property
    def run_id(self) -> str:
        """The id of the run, empty until it is known."""
        return self._expected.id if self._expected else ""

    @property
    def refused_messages(self) -> int:
        """Messages of the agent that were malformed, or belong to no stream."""
        return self.values.refused_messages

    @property
    def state(self) -> str:
        """The state: live, lost, silent, ended or failed."""
        return SILENT if self._state == LIVE and self.vitals.silent else self._state

    @property
    def reason(self) -> str:
        """The reason for the state; empty while it is live."""
        return self._no_answer() if self.state == SILENT else self._reason

    def close(self) -> None:
        """Detach all streams and disconnect; the job continues."""
        if self._finalizer.detach() is not None:
            _open_sessions.discard(self)
            _send_goodbye(self.transport)
            self.transport.close()
        self._end(ENDED, RunEnded("This run was closed on this side; attach again."), "closed", whole=True)

    # ------------------------------------------------------------ for the parts of its run

    def _send(self, frame: bytes) -> bool:
        """Send a frame; False while the link is lost: nothing may precede the next hello."""
        if self._state == LOST:
            return False
        self._sweep()
        self.transport.send(frame)
        return True

    def _sweep(self) -> None:
        """Detach the queries of streams that were dropped."""
        for number in self.streams.dropped():
            self.detach(number)

    def begin(self, stream: StreamSink, timeout: float) -> None:
        """Attach the query of a stream. Raises what `Run.stream` raises."""
        attach = stream.attach
        self.streams.add(stream)
        self.vitals.asked(stream.text)
        try:
            answer = self.requests.send(self.in_my_role(attach), lasting=True, first=stream.attached)
            self.requests.wait(answer, timeout, f"The query {stream.text[:60]!r}")
            stream.await_history(min(timeout, _HISTORY_TIMEOUT_SECONDS))
        except BaseException as error:
            self.streams.forget(attach.stream)
            if not isinstance(error, QueryError | LimitReached):
                self.detach(attach.stream)
            raise

    def ask(self, request: Callable[[int], m.Request[None]], timeout: float) -> None:
        """Send a request with an empty reply, and wait. Raises its error, NoAnswer."""
        answer = self.requests.send(request(self.requests.number()), again=False)
        self.requests.wait(answer, timeout, "The request")

    def inquire(self, question: Callable[[int], m.Request[m.R]], shown: str, timeout: float) -> m.R:
        """Send a ``question`` and return the reply. Raises NoAnswer, about ``shown``."""
        return self.requests.wait(self.requests.send(question(self.requests.number())), timeout, shown)

    def detach(self, stream: int) -> None:
        """Detach the stream with this number."""
        if self._state == LIVE:
            self.transport.send(encode(m.Detach(self.requests.number(), stream)))

    def in_my_role(self, attach: m.Attach) -> m.Attach | m.Read:
        """Return ``attach``, or for a viewer its form without code.

        Raises QueryError for an unsafe one that the agent, an older one, would not know as such.
        """
        if attach.unsafe and self._version < m.UNSAFE_SINCE:
            theirs, needed = (".".join(map(str, version)) for version in (self._version, m.UNSAFE_SINCE))
            raise QueryError(
                f"this job's agent speaks protocol {theirs} and knows no unsafe=True, which came with {needed}: it "
                "would treat the query like any other.",
                hint="Leave unsafe=True out, or update looptap in the job.",
            )
        if self.role != VIEWER:
            return attach
        return m.Read(attach.request, attach.stream, attach.code.text, attach.above, attach.latency, attach.count)

    def outlook(self, on: str) -> str:
        """Return reasons why a query on the event ``on`` yields no value, if known."""
        if self._state == LOST:
            return f" {self._reason}"
        if self.state == SILENT:
            return f" {self._no_answer()}"
        return f" {quiet}" if (quiet := self.vitals.quiet()) else self.vitals.outlook(on)

    def _no_answer(self) -> str:
        own = sorted(
            (s for _, s in self.streams.living() if s.declared is None), key=lambda s: s.cost.share, reverse=True
        )
        return self.vitals.no_answer([stream.text for stream in own])

    # ------------------------------------------------------------ on the transport's thread

    def on_tick(self) -> None:
        """Send a heartbeat and check the agent's, once a second."""
        if self._state == LIVE and self._greeted:
            self.values.beat()
            self._sweep()
            if self.vitals.tick():
                log.warning("looptap: %s: %s", self.info.id, self.reason)

    def on_frame(self, frame: bytes | memoryview) -> None:
        """Handle a frame of the agent."""
        message = None
        try:
            message = decode_from_agent(frame)
            self._handlers[type(message)](message)
            self.vitals.hear()
        except MessageError:
            self.values.refused_messages += 1
            if not self._greeted and (version := version_of(frame)) and version[0] != m.VERSION[0]:
                self._refuse(version_mismatch(version))
        if type(message) in (m.Values, m.Bundle):
            self.values.count(len(frame))

    def _on_beat(self, message: m.Beat) -> None:
        self.vitals.beat(message)
        self._resumption.retry()
        if message.confirm:
            self.values.confirm()

    def _on_welcome(self, message: m.Welcome) -> None:
        if message.version[0] != m.VERSION[0]:
            self._refuse(version_mismatch(message.version))
            return
        if max(map(len, (message.run.id, message.run.name, message.run.host))) > _MAX_NAME_CHARACTERS:
            raise MessageError("A run with a name too long to be one.")
        expected = self._expected
        if expected is not None and (message.run.id, message.run.rank) != (expected.id, expected.rank):
            self._refuse(
                WrongServer(f"The agent says that it is {message.run.id}, rank {message.run.rank}, not {expected.id}.")
            )
            return
        before = self.info if self._welcomed.is_set() else None
        if before is None and self._state == LOST:  # the link was lost before the first welcome
            self._reason, self._state = "", LIVE
        self.info, self.role, self._version, self._greeted = message.run, message.role, message.version, True
        self._expected = message.run
        self.vitals.beat(m.Beat(message.events, message.idle, ages=message.ages))
        self._welcomed.set()
        if before is not None:
            if before.id != message.run.id:
                self.vitals.process = None
            self._resume(message.streams, None if before.id == message.run.id else (before.id, message.run.id))

    def _on_refused(self, message: m.Refused) -> None:
        if message.version[0] != m.VERSION[0]:
            self._refuse(version_mismatch(message.version))
        elif not message.stranger:
            self._refuse(LimitReached(f"The agent accepts no further client: {message.reason[:1000]}"))
        elif self._greeted:  # it has forgotten us; further refusals of messages sent before the hello say nothing new
            self.on_lost(NoAnswer("The agent no longer knows this client; reconnecting."))
            self.on_back()

    def _refuse(self, error: LinkError) -> None:
        if self._welcomed.is_set():
            self._end(FAILED, error)
            return
        self._refusal = error
        self._welcomed.set()

    def _resume(self, served: tuple[int, ...], moved: tuple[str, str] | None) -> None:
        """Resume over a new link: attach lost streams again, and repeat the requests.

        ``served`` are the streams that the agent still serves; ``moved`` the ids of two runs, if this is another one.
        """
        self._reason, self._state = "", LIVE
        self._resumption.resume(served, moved)
        self.requests.repeat()

    def on_lost(self, error: LinkError) -> None:
        """Mark the link as lost."""
        if self._state in (LIVE, LOST):
            self.losses += self._state == LIVE
            over = isinstance(error, RunEnded)  # the next run must not do what this one was asked
            quiet = "" if over else self.vitals.quiet()
            self._reason, self._state = f"{quiet} {error}".lstrip(), LOST
            self.values.restart()
            self.requests.interrupt(error, everything=over)

    def on_back(self) -> None:
        """Say hello over a new link."""
        self._greeted = False
        self.values.restart()
        self._say_hello()

    def on_end(self, error: LinkError) -> None:
        """Fail: there will be no further link."""
        self._end(FAILED, error)

    def on_next(self, run: m.RunInfo) -> None:
        """Continue with the next run."""
        self._expected = run
        self.on_back()

    def _on_goodbye(self, goodbye: m.Goodbye) -> None:
        if goodbye.dismissed or not self.follow:  # else the transport sees the end, and looks for the next run
            self._end(ENDED, RunEnded(goodbye.reason[:1000] or RUN_ENDED), whole=goodbye.dismissed)

    def _end(self, state: str, error: LinkError, reason: str = "", *, whole: bool = False) -> None:
        """End the streams and all waits: nothing more will come.

        Without ``whole``, streams lack what the agent had still to send.
        """
        if self._state not in (LIVE, LOST):
            return
        self._reason, self._state = reason or str(error), state
        for number, stream in self.streams.living():
            stream.end(state, self._reason, cut=not whole)
            self.streams.forget(number)
        if not self._welcomed.is_set():
            self._refuse(error)
        self.requests.close(error)
        self.transport.close(0.0)
        self.callbacks.close()


def _disconnect(transport: Transport, callbacks: CallbackThread) -> None:
    """Send a goodbye and end the threads. Any thread; also a finalizer."""
    _send_goodbye(transport)
    transport.close()
    callbacks.close()


def _send_goodbye(transport: Transport) -> None:
    with contextlib.suppress(LinkError):  # in a forked child, or too much waits
        transport.send(encode(m.Leave()))
