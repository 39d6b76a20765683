"""Streams after a lost link: those that the agent no longer serves attach again."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from looptap.client.session.requests import PendingRequests
from looptap.client.session.stream_table import StreamSink, StreamTable
from looptap.protocol import messages as m
from looptap.protocol.errors import LinkError
from looptap.streams.errors import QueryError
from looptap.streams.stream.state_and_cost import FAILED


class StreamResumption:
    """Attaches the streams of a session again. Transport thread.

    ``detach`` detaches a stream by its number; ``in_role`` turns a request into the one that the client's role allows.
    """

    def __init__(
        self,
        streams: StreamTable,
        requests: PendingRequests,
        detach: Callable[[int], None],
        in_role: Callable[[m.Attach], m.Attach | m.Read],
    ) -> None:
        self._streams, self._requests, self._detach, self._in_role = streams, requests, detach, in_role
        self._undeclared: list[weakref.ref[StreamSink]] = []  # those that the next run has not declared yet

    def resume(self, served: tuple[int, ...], moved: tuple[str, str] | None) -> None:
        """Attach lost streams again over a new link.

        ``served`` are the streams that the agent still serves; ``moved`` the ids of two runs, if this is another one.
        """
        self._undeclared.clear()
        living = {number: stream for number, stream in self._streams.living() if not stream.opening}  # those ask again
        for number in served:
            if number not in living:
                self._detach(number)
        for number, stream in living.items():
            if number not in served:
                self._attach(stream, moved)

    def retry(self) -> None:
        """Attach the streams again that the run had not declared when they last tried."""
        undeclared, self._undeclared = self._undeclared, []
        for reference in undeclared:
            if (stream := reference()) is not None:
                self._attach(stream)

    def _attach(self, stream: StreamSink, moved: tuple[str, str] | None = None) -> None:
        try:
            again = self._in_role(stream.reattach(self._requests.number(), moved))
        except QueryError as error:
            stream.end(FAILED, str(error))
            return
        answer = self._requests.send(again, again=False)
        answer.add_done_callback(functools.partial(self._on_attached, weakref.ref(stream)))

    def _on_attached(self, reference: weakref.ref[StreamSink], answer: Future[Any]) -> None:
        """Pass the reply to its stream, unless that was dropped."""
        stream, error = reference(), answer.exception()
        if stream is None or isinstance(error, LinkError):  # lost once more
            return
        if error is None:
            stream.reattached(answer.result())
        elif (stream.declared is None and not stream.attach.of) or not isinstance(error, QueryError):
            stream.end(FAILED, str(error))
        elif stream.take_back():  # the job does not declare it any more, and it was this client's own
            self._attach(stream)
        else:
            self._undeclared.append(reference)
