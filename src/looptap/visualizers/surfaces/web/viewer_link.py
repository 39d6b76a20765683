"""`ViewerLink`: the way to one viewer, with a bounded slot for unsent bytes.

One that never reads fills the slot, and then gets nothing more; after a while its connection is closed. What the
sockets' own buffers hold is bounded by the system.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import struct
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

SLOT_BYTES = 256 * 1024
"""Bytes on their way to a viewer, from which on no further frame is made for it."""
MAX_UNSENT_BYTES = 4 * 1024 * 1024
"""Bytes of replies, beyond a frame, for which a viewer is given up."""
STALLED_AFTER_SECONDS = 20.0
"""Seconds without progress after which a viewer is given up."""


class ViewerSocket(Protocol):
    """The part of a WebSocket connection that a link uses, on the thread of its loop."""

    def write_message(self, message: bytes | str, binary: bool = False) -> asyncio.Future[None]:
        """Send a message; the future is done when the system has taken it."""

    def close(self, code: int | None = None, reason: str | None = None) -> None:
        """Close the connection."""


class ViewerLink:
    """The connection of a viewer, if there is one, for any thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._guard = threading.Lock()
        self._socket: ViewerSocket | None = None
        self._unsent, self._moved = 0, 0.0

    @property
    def connected(self) -> bool:
        """True while the viewer is connected."""
        return self._socket is not None

    @property
    def unsent(self) -> int:
        """Bytes that the system has not taken yet."""
        return self._unsent

    def ready(self) -> bool:
        """Return whether the viewer can take another frame."""
        with self._guard:
            return self._socket is not None and self._unsent < SLOT_BYTES

    def connect(self, socket: ViewerSocket) -> None:
        """Send to ``socket`` from now on."""
        with self._guard:
            self._socket, self._unsent, self._moved = socket, 0, time.monotonic()

    def disconnect(self, socket: ViewerSocket) -> bool:
        """Stop sending to ``socket``; return False if another has taken its place."""
        with self._guard:
            if self._socket is not socket:
                return False
            self._socket = None
            return True

    def send_frame(self, canvas: str, message: dict[str, Any], buffers: Sequence[memoryview]) -> None:
        """Send a frame for ``canvas``: the length of a header, the header, the columns."""
        header = as_json({"canvas": canvas, "message": message, "sizes": [len(part) for part in buffers]}).encode()
        self._send(b"".join([struct.pack("<I", len(header)), header, *buffers]), is_frame=True)

    def post(self, message: dict[str, Any]) -> None:
        """Send a message; give the viewer up if megabytes are unread."""
        self._send(as_json(message), is_frame=False)

    def stalled(self, now: float) -> bool:
        """Return whether bytes have waited for the viewer for too long."""
        with self._guard:
            return self._socket is not None and self._unsent > 0 and now - self._moved > STALLED_AFTER_SECONDS

    def _send(self, content: bytes | str, *, is_frame: bool) -> None:
        size = len(content)
        with self._guard:
            socket = self._socket
            if socket is None or (is_frame and self._unsent >= SLOT_BYTES):
                return
            full = not is_frame and self._unsent + size > MAX_UNSENT_BYTES and self._unsent > 0
            if not full:
                if not self._unsent:
                    self._moved = time.monotonic()
                self._unsent += size
        work: Callable[[], None] = (
            (lambda: socket.close(1008, "too slow")) if full else (lambda: self._write(socket, content, size))
        )
        with contextlib.suppress(RuntimeError):  # the server has ended
            self._loop.call_soon_threadsafe(work)

    def _write(self, socket: ViewerSocket, content: bytes | str, size: int) -> None:
        if socket is not self._socket:
            return
        try:
            sent = socket.write_message(content, isinstance(content, bytes))
        except Exception:  # it is closing: the connection says so by itself
            return
        asyncio.ensure_future(sent).add_done_callback(lambda done: self._sent(socket, size, done))

    def _sent(self, socket: ViewerSocket, size: int, done: asyncio.Future[None]) -> None:
        if not done.cancelled():
            done.exception()  # a connection that broke is reported by its closing
        with self._guard:
            if socket is self._socket:
                self._unsent = max(0, self._unsent - size)
                self._moved = time.monotonic()


def as_json(message: Any) -> str:
    """Return a message as JSON, with None in the place of NaN and infinities.

    >>> as_json({"low": float("nan"), "high": [1.5]})
    '{"low": null, "high": [1.5]}'
    """
    try:
        return json.dumps(message, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(message))


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    return [_finite(one) for one in value] if isinstance(value, list | tuple) else value
