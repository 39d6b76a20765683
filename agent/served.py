"""The agent's view of its clients and of the streams that it serves them."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from looptap.agent.outbox import Item
from looptap.agent.queries import AttachedQuery
from looptap.protocol import messages as m
from looptap.streams.snapshots import Pending
from looptap.streams.syntax import format_error


@dataclass
class Client:
    """One attached client. ``blocked``: its queue was full at the last try."""

    peer: bytes
    role: str
    name: str
    streams: dict[int, ServedStream] = field(default_factory=dict)
    blocked: bool = False


class ServedStream:
    """One stream of one client: a query, and what of its values is ready to go."""

    def __init__(self, number: int, client: Client, query: AttachedQuery) -> None:
        self.number, self.client, self.query = number, client, query
        self.ready: deque[Item] = deque()  # of a flight recorder: what it let go
        self.sent = 0
        self._released = 0

    def next(self, count: int, size: int) -> list[Item]:
        """The next values to send; they stay until `take`."""
        outbox = self.query.outbox
        if self.query.recorder is not None:
            self._record(count, size)
            items = [self.ready[i] for i in range(min(count, len(self.ready)))]
        else:
            items = outbox.peek(count, size)
        for i, item in enumerate(items):
            if type(item.value) is Pending:
                items[i] = self._resolved(item)
        return items

    def take(self, items: list[Item]) -> None:
        """The client has been sent these."""
        self.sent += len(items)
        if self.query.recorder is None:
            self.query.outbox.take(items)
        else:
            for _ in items:
                self.ready.popleft()

    def status(self) -> m.Status:
        """The stream's state and counters."""
        query = self.query
        elapsed = time.monotonic() - query.started if query.started else 0.0
        last = self._released if query.recorder is not None else query.outbox.number
        limitation = query.limitation()
        return m.Status(
            self.number, query.state, query.reason, last, query.outbox.dropped, query.pipeline.skipped,
            query.errors, query.traceback, (limitation,) if limitation else (),
            1e9 * query.seconds / query.events if query.events else 0.0,
            query.seconds / elapsed if elapsed > 0 else 0.0,
        )  # fmt: skip

    def stats(self) -> dict[str, Any]:
        """The same as plain data, with the query's name and text."""
        s = self.status()
        return {
            "name": self.query.name, "on": self.query.on, "client": self.client.name, "state": s.state,
            "values": s.last, "sent": self.sent, "dropped": s.dropped, "skipped": s.skipped, "errors": s.errors,
            "nanoseconds_per_event": s.nanoseconds, "share_of_time": s.share,
            "limitation": self.query.limitation(),
        }  # fmt: skip

    def _record(self, count: int, size: int) -> None:
        """Show the recorder what has come."""
        recorder = self.query.recorder
        assert recorder is not None
        items = self.query.outbox.peek(count, size)
        self.query.outbox.take(items)
        for item in items:
            if type(item.value) is Pending:
                item = self._resolved(item)
            kept = {n: v.resolve() if type(v) is Pending else v for n, v in (item.kept or {}).items()}
            try:
                released = recorder.post(item, item.size, kept, item.event, item.time)
            except Exception as error:
                self.query.errors += 1
                if not self.query.traceback:
                    self.query.traceback = format_error(error, recorder.condition.text)
                    self.query.changed = True
                continue
            for fired, record in released:
                self._released += 1
                flags = record.flags | (m.TRIGGER if fired else 0)
                self.ready.append(record._replace(number=self._released, flags=flags, kept=None))

    def _resolved(self, item: Item) -> Item:
        try:
            return item._replace(value=item.value.resolve())
        except Exception as error:
            return item._replace(value=format_error(error), flags=item.flags | m.ERROR)
