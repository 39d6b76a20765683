"""Pairs requests with their replies, and turns failures into exceptions."""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Callable
from concurrent import futures
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Generic

import msgspec

from looptap.client.transport.timeouts import Silence
from looptap.protocol.codec import decode_from_client, encode
from looptap.protocol.errors import (
    BadEndpoint,
    EndpointBusy,
    LimitReached,
    LinkError,
    MessageError,
    NoAnswer,
    NotAllowed,
    RemoteError,
)
from looptap.protocol.limits import Limits
from looptap.protocol.messages import REPLIES, Done, Failed, R, Request
from looptap.protocol.replies import checked_reply
from looptap.protocol.types.built_types import built
from looptap.protocol.values.unpacking import unpack
from looptap.streams.errors import (
    CommandCancelled,
    ControlConflict,
    ControlError,
    EventPassed,
    InDoubt,
    LooptapError,
    NotAgreed,
    QueryError,
    SnapshotError,
)
from looptap.streams.waiting import wait_interruptibly

_MAX_DETAIL_CHARACTERS = 100_000  # characters of a traceback that are believed


@dataclass
class _PendingRequest(Generic[R]):
    answer: Future[R]
    kind: Any
    """The type of its reply."""
    frame: bytes
    again: bool
    lasting: bool
    first: Callable[[R], None] | None = None
    sent: bool = False
    """True if it was sent over the present link."""
    ever: bool = False
    """True if it was ever sent: then it may have been executed."""


class PendingRequests:
    """The pending requests of a session; ``outlook`` says why a reply may not come.

    ``silence`` returns the seconds since the agent's last sign of life.
    ``send`` returns False while there is no link: then the request waits for the next one, as long as its caller does.
    """

    def __init__(
        self,
        send: Callable[[bytes], bool],
        outlook: Callable[[], str] = str,
        silence: Callable[[], float] = lambda: math.inf,
    ) -> None:
        self._send, self._outlook, self._silence = send, outlook, silence
        self._numbers = itertools.count(1)
        self._waiting: dict[int, _PendingRequest[Any]] = {}
        self._lock = threading.RLock()  # over a link within the process the answer is here before `send` returns
        self._closed: LinkError | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def number(self) -> int:
        """Return a number for a new request."""
        return next(self._numbers)

    def send(
        self,
        request: Request[R],
        *,
        again: bool = True,
        lasting: bool = False,
        first: Callable[[R], None] | None = None,
    ) -> Future[R]:
        """Send a request; return a future of its reply.

        With ``again`` it is sent once more over a new link; one that is ``lasting`` also to the next run, if this one
        ends before it answers. ``first`` is called with the reply before later messages are handled. Raises
        LimitReached for a message larger than an agent lets in, RunEnded and the like if there will be no link.
        """
        frame = bounded(request)
        kind = REPLIES[type(request)]
        pending: _PendingRequest[R] = _PendingRequest(Future(), kind, frame, again or lasting, lasting, first)
        with self._lock:
            if self._closed is not None:
                raise type(self._closed)(*self._closed.args)
            self._waiting[request.request] = pending
            try:
                self._transmit(pending)
            except LinkError:
                self._pop(request.request)
                raise
        return pending.answer

    def _transmit(self, pending: _PendingRequest[Any]) -> None:
        pending.sent = pending.ever = True  # before: the answer may be here when `send` returns
        if not self._send(pending.frame):
            pending.sent = pending.ever = False

    def wait(self, answer: Future[R], timeout: float, what: str) -> R:
        """Wait for the reply. Raises the request's error, NoAnswer after ``timeout`` s.

        If ``timeout`` is a `Silence`, it is as long as the agent says nothing.
        """
        began, left = time.monotonic(), timeout
        try:
            while not wait_interruptibly(lambda seconds: futures.wait((answer,), seconds).done, left):
                waited = time.monotonic() - began
                left = timeout.left(waited, self._silence()) if isinstance(timeout, Silence) else 0.0
                if not left:
                    raise self._late(answer, timeout if waited < timeout + 1 else round(waited), what)
            return answer.result(0.0)
        except BaseException:
            self.forget(answer)
            raise

    def _late(self, answer: Future[Any], timeout: float, what: str) -> NoAnswer:
        with self._lock:
            kept = any(pending.answer is answer and not pending.ever for pending in self._waiting.values())
        became = "sent within {:g} s, and will not be" if kept else "answered within {:g} s"
        error = NoAnswer(f"{what} was not {became.format(timeout)}.{self._outlook()}")
        error.unsent = kept
        return error

    def forget(self, answer: Future[Any]) -> None:
        """Stop waiting for this reply."""
        with self._lock:
            for number in [n for n, pending in self._waiting.items() if pending.answer is answer]:
                del self._waiting[number]

    def done(self, message: Done) -> None:
        """Handle a reply; one that is not awaited is ignored."""
        pending = self._pop(message.request)
        if pending is None:
            return
        try:
            reply = checked_reply(pending.kind, unpack(message.value))
            if pending.first is not None:
                pending.first(reply)
            pending.answer.set_result(reply)
        except LooptapError as error:
            pending.answer.set_exception(error)

    def failed(self, message: Failed) -> None:
        """Handle the failure of a request."""
        pending = self._pop(message.request)
        if pending is not None:
            pending.answer.set_exception(error_of(message))

    def repeat(self) -> None:
        """Send the waiting requests over a new link."""
        with self._lock:
            for pending in list(self._waiting.values()):
                if not pending.sent:
                    self._transmit(pending)

    def interrupt(self, error: LinkError, *, everything: bool = False) -> None:
        """Fail the sent requests that are not repeated with ``error``: the link is down.

        With ``everything`` the run has ended: only lasting requests are kept for the next one.
        """
        with self._lock:
            lost = [
                number
                for number, pending in self._waiting.items()
                if not pending.lasting and (everything or (pending.sent and not pending.again))
            ]
            gone = [self._waiting.pop(number) for number in lost]
            for pending in self._waiting.values():
                pending.sent = False
        for pending in gone:
            pending.answer.set_exception(error)

    def close(self, error: LinkError) -> None:
        """Fail every request, waiting or to come, with ``error``."""
        with self._lock:
            self._closed = error
            waiting, self._waiting = list(self._waiting.values()), {}
        for pending in waiting:
            pending.answer.set_exception(error)

    def _pop(self, number: int) -> _PendingRequest[Any] | None:
        with self._lock:
            return self._waiting.pop(number, None)


def bounded(message: Request[Any]) -> bytes:
    """Encode ``message`` and check that an agent will accept it.

    Raises LimitReached if it is too large, and QueryError if a field is of the wrong type.
    """
    try:
        frame = encode(message)
        decode_from_client(frame)
    except (MessageError, OverflowError, TypeError) as error:
        raise QueryError(f"this cannot be asked for: {str(error).rpartition('no message: ')[2]}") from None
    limit = Limits().inbound_frame
    if len(frame) > limit:
        raise LimitReached(
            f"This request takes {len(frame):,} bytes, over the {limit:,} that an agent lets in "
            "(Limits.inbound_frame). A function is sent with everything it refers to: refer to less, or "
            "write it as text."
        )
    return frame


class _QueryDetail(msgspec.Struct):
    reason: str
    source: str = ""
    column: int | None = None
    hint: str = ""


def error_of(failed: Failed) -> LooptapError:
    """Return the exception that a failed request raises."""
    text, detail = failed.text[:_MAX_DETAIL_CHARACTERS], failed.detail[:_MAX_DETAIL_CHARACTERS]
    if failed.kind == "query":
        try:
            query = msgspec.json.decode(detail, type=built(_QueryDetail))
        except (ValueError, RecursionError):
            return QueryError(text)
        return QueryError(query.reason, query.source, query.column, query.hint)
    if failed.kind == LimitReached.__name__:
        return LimitReached(text)
    if failed.kind == "role":
        return NotAllowed(text)
    plain = (
        SnapshotError,
        ControlError,
        ControlConflict,
        CommandCancelled,
        NotAgreed,
        EventPassed,
        InDoubt,
        BadEndpoint,
        EndpointBusy,
    )
    for kind in plain:
        if failed.kind == kind.__name__:
            return kind(text)
    if failed.kind == "call":  # "ValueError: why", as Python prints it
        name, separator, why = text.partition(": ")
        if separator and name.isidentifier():
            return RemoteError(why, name, detail)
    return RemoteError(text, "" if failed.kind == "call" else failed.kind[:100], detail)
