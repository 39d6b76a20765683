"""The I/O thread's poll loop, which shares the GIL with the training thread.

Guarantees
- Without clients or pending messages it wakes once a heartbeat, to check whether the loop moves, and for the history of
  scalars: 4 times a second at first, less and less often as the run grows long.
- It holds the GIL for one small piece of work, and sleeps as long as that took before the next one.
- Receiving and sending take turns: a flood of messages or values cannot block the other direction.

When cold, it sleeps until a wakeup. Then it is warm: it serves its sockets while values gather for the linger, and
flushes, until a linger passes without values. Meanwhile no wakeups are sent, unless more gathers than is safe: waking a
sleeping thread costs the training thread up to 100 µs, and each call here that releases the GIL may make the training
thread wait to get it back.
"""

from __future__ import annotations

import enum
import sys
import time
from typing import Any, Protocol

import zmq

from looptap.agent.io.authenticator import Authenticator
from looptap.agent.io.careful_poller import CarefulPoller, DescriptorsLost
from looptap.agent.io.request_handler import RequestHandler
from looptap.agent.io.server_socket import ServerSocket
from looptap.protocol.keys import OPERATOR
from looptap.protocol.limits import Limits
from looptap.protocol.process.wakeup import Wakeup
from looptap.streams.stream.attention import PROMPT_SECONDS

MAX_FRAMES_PER_TURN = 64
"""Frames received before values are sent."""
MAX_RECEIVE_SECONDS = 0.0005
"""Seconds after which receiving stops, even if frames are pending."""
MAX_FLUSH_SECONDS = 0.0002
"""Seconds of flushing after which the GIL is given away, if there is more."""
MAX_HOLD_SECONDS = 0.0002
"""Seconds of other work after which the GIL is given away, at the next opportunity."""
MAX_WAIT_SECONDS, MAX_LONG_WAITS, HURRY_SECONDS = 0.001, 3, 1.0
"""Seconds until it is had back; after so many longer waits in a row it is not given away within a piece of work, for so
many seconds. One alone may be the machine's."""
MIN_GAP_SECONDS = 0.0002
"""Minimum sleep between two pieces of work: less would not let another thread take the GIL."""
TOUCH_INTERVAL_SECONDS = 6 * 3600.0
"""Seconds between updates of the mtime of a link's files, against cleaners of temporary directories."""
MIN_VIEWER_REST_SECONDS, VIEWER_REST_FACTOR = 0.05, 30
"""Viewers are ignored after a flood: minimum seconds, and the multiple of the seconds that the flood took."""
FILE_CHECK_INTERVAL_SECONDS = 60.0
"""Seconds between two checks whether these files still exist."""

# Waiting for the GIL is not holding it; the clock of Windows' threads is too coarse.
_spent = time.monotonic if sys.platform == "win32" else time.thread_time


class WakeReason(enum.Enum):
    """The reason why a flush is due."""

    WAKEUP = enum.auto()
    BUSY = enum.auto()
    MORE = enum.auto()
    RETRY = enum.auto()


class ServedThread(Protocol):
    """The part of a `ServerThread` that its reactor uses."""

    limits: Limits
    sockets: tuple[ServerSocket, ...]
    """Replaced as a whole when one is opened or closed."""
    wakeup: Wakeup
    """Set when values wait, which may gather first."""
    urgent: Wakeup
    """Set when work was posted."""
    authenticator: Authenticator
    alarm: float
    sender: str
    frames_in: int
    frames_out: int
    full: int
    denied: int
    faults: int
    wakes: int

    def is_intact(self) -> bool:
        """Return True while the sockets may be used."""

    def let_go(self) -> None:
        """Leave the sockets as they are, for ever."""

    def work_posted(self) -> None:
        """Run the calls posted so far."""

    def mind_descriptors(self) -> None:
        """Accept clients only while there are descriptors for them."""

    def check_files(self, touch: bool) -> None:
        """Recreate vanished files; with ``touch`` update the times of all."""


class Reactor:
    """The poll loop of one server; each `run_once` sleeps, then does a piece of work."""

    def __init__(self, link: ServedThread, handler: RequestHandler) -> None:
        self._server, self._handler = link, handler
        self._viewers_ignored_until: float | None = None  # when viewers are heard again; None while they are
        handler.give_way = self._give_way
        self._held_since, self._hurried_until, self._long_waits = _spent(), 0.0, 0
        self._register_sockets()
        self._due: float | None = None  # when to flush; None while cold
        self._gathers_for_long = False
        self._wake_reasons = WakeReason.WAKEUP
        self._retry = self._round_began = self._gathers_since = 0.0
        self._next_beat = time.monotonic() + link.limits.heartbeat
        self._next_mark = 0.0
        self._next_file_check = time.monotonic() + FILE_CHECK_INTERVAL_SECONDS
        self._next_touch = time.monotonic() + TOUCH_INTERVAL_SECONDS

    def _register_sockets(self) -> None:
        """Poll the present sockets; those of viewers only if they are not resting."""
        self._sockets = self._server.sockets
        self._authenticator = self._server.authenticator.socket
        heard = (one for one in self._sockets if one.role == OPERATOR or not self._viewers_ignored_until)
        sockets = [one for one in (self._authenticator, *(one.router for one in heard)) if one is not None]
        self._busy_poller = CarefulPoller(sockets, [self._server.urgent.fd])
        self._sleeping_poller = CarefulPoller(sockets, [self._server.urgent.fd, self._server.wakeup.fd])

    def run_once(self) -> None:
        """Sleep until there is work, and do a bounded piece of each kind."""
        if self._viewers_ignored_until is not None and time.monotonic() >= self._viewers_ignored_until:
            self._viewers_ignored_until = None
            self._register_sockets()
        elif self._sockets is not self._server.sockets:
            self._register_sockets()
        if self._wake_reasons is WakeReason.BUSY:
            self._gather(self._gathers_since)  # a reader may have become less patient
        gathers_for_long = self._wake_reasons is WakeReason.BUSY and self._gathers_for_long
        listens = self._due is None or self._wake_reasons is WakeReason.RETRY or gathers_for_long
        poller = self._sleeping_poller if listens else self._busy_poller
        try:
            ready = poller.poll(self.poll_timeout(), self._server.is_intact)
        except DescriptorsLost:
            self._server.let_go()
            self._register_sockets()
            return
        self._held_since = _spent()
        if self._authenticator in ready:
            self._server.authenticator.answer()
        for socket in self._sockets:
            if socket.router in ready:
                self._receive(socket)
        if self._server.urgent.fd in ready:
            self._server.urgent.clear()
            self._server.work_posted()
        now = time.monotonic()
        if now >= self._next_beat:
            self._next_beat = now + self._server.limits.heartbeat
            self._server.mind_descriptors()
            if not self._handler.on_heartbeat_timer() and self._wake_reasons is WakeReason.BUSY:
                self._gather(now)
            self._next_mark = 0.0
        if listens and self._server.wakeup.fd in ready:
            self._on_wakeup(now)
        elif self._due is not None and now >= self._due:
            self._flush()
        if now >= self._next_mark:
            self._next_mark = self._handler.mark_scalars(now)
        if now >= self._server.alarm:
            self._handler.on_alarm()
        if now >= self._next_file_check:
            self._next_file_check = now + FILE_CHECK_INTERVAL_SECONDS
            touch = now >= self._next_touch
            if touch:
                self._next_touch = now + TOUCH_INTERVAL_SECONDS
            self._server.check_files(touch)

    def recover(self) -> None:
        """Check everything again after a fault: pending work sends no second wakeup."""
        self._due, self._wake_reasons = time.monotonic(), WakeReason.WAKEUP

    def poll_timeout(self) -> int:
        """Return the milliseconds to sleep, rounded up so as not to wake twice."""
        times = [t for t in (self._due, self._next_beat, self._next_mark, self._viewers_ignored_until) if t is not None]
        return max(0, int((min([*times, self._server.alarm, self._next_file_check]) - time.monotonic()) * 1000 + 0.999))

    def _give_way(self) -> None:
        """Let another thread have the GIL, if this one has held it for long.

        A loop that never releases it by itself keeps it for 5 ms each time: then values come first, for a while.
        """
        if _spent() - self._held_since > MAX_HOLD_SECONDS and (began := time.monotonic()) > self._hurried_until:
            time.sleep(MIN_GAP_SECONDS)
            now = time.monotonic()
            self._long_waits = self._long_waits + 1 if now - began > MAX_WAIT_SECONDS else 0
            if self._long_waits >= MAX_LONG_WAITS:
                self._hurried_until = now + HURRY_SECONDS
            self._held_since = _spent()

    # ------------------------------------------------------------ values

    def _on_wakeup(self, now: float) -> None:
        self._server.wakes += 1
        self._server.wakeup.clear()
        if self._wake_reasons is not WakeReason.BUSY:  # else the linger has become shorter
            self._due, self._wake_reasons = now + self._handler.linger(), WakeReason.WAKEUP

    def _gather(self, since: float) -> None:
        """Let values gather, ``since`` a flush."""
        self._gathers_since, self._wake_reasons = since, WakeReason.BUSY
        seconds = self._handler.linger(steady=True)
        self._due, self._gathers_for_long = since + seconds, seconds > PROMPT_SECONDS

    def _flush(self) -> None:
        """Flush a piece, and decide when to flush again."""
        full, out = self._server.full, self._server.frames_out
        began, linger = time.monotonic(), self._handler.linger()
        worked = time.thread_time()
        fresh = self._wake_reasons is not WakeReason.MORE or began >= self._round_began + linger
        if fresh:
            self._round_began = began
        more = self._handler.flush(MAX_FLUSH_SECONDS, fresh)
        now = time.monotonic()
        sent = self._server.frames_out > out
        if more and sent:
            worked = time.thread_time() - worked
            if now - began < 2 * worked + MIN_GAP_SECONDS:  # else this thread has waited for the GIL as long already
                time.sleep(max(MIN_GAP_SECONDS, worked))
            self._due, self._wake_reasons = now, WakeReason.MORE
        elif more or self._server.full > full:  # a client reads too slowly: retry, with growing delays
            self._retry = min(2 * self._retry or self._handler.linger(), self._server.limits.heartbeat)
            self._handler.is_idle()
            self._due, self._wake_reasons = now + self._retry, WakeReason.RETRY
        else:
            self._retry = 0.0
            if sent or not self._handler.is_idle():
                self._gather(now)
            else:
                self._due, self._wake_reasons = None, WakeReason.WAKEUP

    # ------------------------------------------------------------ messages

    def _receive(self, socket: ServerSocket) -> None:
        """Pass on a bounded number of one-frame messages; drop peers that send more."""
        router = socket.router
        begun = time.monotonic()
        end = begun + MAX_RECEIVE_SECONDS
        for _ in range(MAX_FRAMES_PER_TURN):
            if router is None or router.closed:  # what was said has ended the last share
                return
            try:
                frame: Any = router.recv(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            self._take(socket, frame)
            if time.monotonic() > end:
                break
        if socket.role == OPERATOR:
            time.sleep(MAX_RECEIVE_SECONDS)  # a flood: the training thread has its turn before the rest
        else:
            now = time.monotonic()
            self._viewers_ignored_until = now + max(MIN_VIEWER_REST_SECONDS, VIEWER_REST_FACTOR * (now - begun))
            self._register_sockets()

    def _take(self, socket: ServerSocket, frame: Any) -> None:
        """Read the next frame of a message: the peer, the content, or an excess one."""
        socket.frames += 1
        if socket.frames == 1:
            socket.peer = socket.mark + frame.bytes
            return
        if frame.more:
            return
        alone, socket.frames = socket.frames == 2, 0
        role = self._role(frame) if alone else None
        if role is None:
            self._server.denied += 1
            self._handler.on_disconnect(socket.peer)
            return
        self._server.frames_in += 1
        try:
            self._handler.receive(socket.peer, role, frame.bytes)
        except Exception:  # one client's message must not end the link of the others
            self._server.faults += 1
            self._handler.on_disconnect(socket.peer)

    def _role(self, frame: Any) -> str | None:
        try:
            self._server.sender = key = str(frame.get("User-Id"))
        except zmq.ZMQError:  # no message gets here without one; if one did, it is refused
            return None
        return self._server.authenticator.role(key)
