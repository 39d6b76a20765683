"""The agent's I/O thread, which owns its sockets and touches nothing of the job.

Guarantees
- `ServerThread.wake` costs the training thread a few microseconds; it never waits and never raises.
- No message is accepted without a proven key, and the role is looked up for every message.
- Where code of the job closes the sockets' descriptors, they are left alone, and others listen at the same endpoints.
- An exception of the request handler restarts the loop after a pause; the fourth one without a quiet minute in between
  closes the link for good and is logged once. None reaches the training thread.
- A forked child neither uses nor closes what its parent owns.
Assumes that the request handler calls `ServerThread.send` on this thread only. looptap.agent.io.reactor says how the
thread shares the interpreter with the training thread.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import logging
import math
import os
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from pathlib import Path

import zmq

# What frees uncopied frames has an exit hook, and hooks run last one first: it must be there before ours.
import zmq.utils.garbage

from looptap.agent.io import after_fork
from looptap.agent.io.authenticator import Authenticator
from looptap.agent.io.reactor import Reactor
from looptap.agent.io.request_handler import RequestHandler
from looptap.agent.io.server_socket import SOCKET_MARK_BYTES, SendResult, ServerSocket, stop_lending
from looptap.protocol.errors import LinkError
from looptap.protocol.keys import KeyPair, RoleKeys, require_curve
from looptap.protocol.limits import Limits
from looptap.protocol.process.headroom import ACCEPT_DESCRIPTOR_COUNT, free_descriptors, require_headroom
from looptap.protocol.process.own_descriptors import Sentinel, keep_for_ever
from looptap.protocol.process.parking import claim_thread, count_parked, unclaim_thread, watched_context
from looptap.protocol.process.wakeup import Wakeup

log = logging.getLogger("looptap")

RESTART_DELAYS_SECONDS = (0.05, 0.2, 0.8)
"""Seconds of pause after the first, second and third fault."""
FAULT_MEMORY_SECONDS = 60.0
"""Seconds without a fault after which earlier ones no longer count."""
LINGER_SECONDS = 0.5
"""Seconds that last messages may take to leave."""


class ServerThread:
    """An agent's sockets, their authenticator, and the thread "looptap-io".

    There is one socket, for operators, until `open_viewer_socket` makes another. ``endpoint`` is what
    `looptap.agent.io.endpoints` understands; sockets are made in ``directory``, by default the user's private one.
    ``on_failure`` is called once, on the I/O thread, with the traceback that ended the link.
    """

    def __init__(
        self,
        handler: RequestHandler,
        *,
        endpoint: str | None = None,
        keys: RoleKeys,
        limits: Limits,
        directory: Path | None = None,
        on_failure: Callable[[str], None] | None = None,
    ) -> None:
        self.authenticator = Authenticator()
        self.authenticator.admit(keys.client.public, keys.role)
        self.failure = ""
        self.frames_in = self.frames_out = self.full = self.denied = self.faults = self.wakes = 0
        self.sender = ""
        """The public key of the peer whose message is being handled."""
        self.alarm = math.inf
        """The time for `RequestHandler.on_alarm`, in monotonic seconds."""
        self._handler, self._wanted, self._directory = handler, endpoint, directory
        self.limits, self._keys, self._on_failure = limits, keys, on_failure
        self.wakeup, self.urgent = Wakeup(), Wakeup()
        self._wake, self._wake_urgently = self.wakeup.set, self.urgent.set
        self._posted: deque[Callable[[], object]] = deque()
        self._kept: tuple[tuple[Path, Callable[[], object]], ...] = ()
        self._said: set[str] = set()  # what was logged, and is not again
        self._hidden = False
        self._lost: tuple[tuple[ServerSocket, str], ...] = ()  # to be opened again, and where
        self._numbers = itertools.count()
        self._operators = ServerSocket(next(self._numbers), keys.role, keys.server, limits)
        self.sockets: tuple[ServerSocket, ...] = ()
        self._stopping = False
        self._deadline = 0.0
        self._thread: threading.Thread | None = None
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None

    # ------------------------------------------------------------ from any thread

    def start(self) -> None:
        """Bind and start the thread. Raises EndpointBusy or BadEndpoint.

        On an error nothing is left behind.
        """
        require_curve()
        try:
            self._sentinel = Sentinel()
            self._listen(((self._operators, self._wanted),))
            after_fork.remember(self)
            self._start_thread(Reactor(self, self._handler))
        except BaseException:
            self._thread = None
            self._close(0.0)
            raise

    def wake(self) -> None:
        """Wake the thread to flush, once more values have gathered. Any thread."""
        self._wake()

    def post(self, call: Callable[[], object]) -> None:
        """Run ``call`` on the I/O thread at once; its exceptions count as faults."""
        self._posted.append(call)
        self._wake_urgently()

    def watch_file(self, path: Path, renew: Callable[[], object]) -> None:
        """Touch ``path`` at intervals; call ``renew`` (I/O thread) if it has vanished.

        Cleaners of temporary directories remove what is ten days old; a logout removes all of /run/user/<uid>.
        """
        self._kept += ((path, renew),)

    def stop(self, timeout: float = 2.0) -> bool:
        """Flush, say goodbye and end the thread; False if ``timeout`` was too short."""
        thread = self._thread
        if thread is None:
            return True
        self._deadline = time.monotonic() + timeout
        self._stopping = True
        self._wake_urgently()
        if thread is not threading.current_thread():
            thread.join(timeout)
            if thread.is_alive():  # what frees its frames must outlive it, to the end of the process
                atexit.unregister(zmq.utils.garbage.gc._atexit)
        return not thread.is_alive()

    def abandon(self) -> None:
        """Become inert in a forked child; the parent's sockets stay untouched."""
        if self._thread is None:
            return
        for socket in self.sockets:
            after_fork.release(socket.bound.endpoints)
        after_fork.forget((self._context, self.sockets, self.authenticator, self.wakeup, self.urgent, self._thread))
        self._wake = self._wake_urgently = _nothing
        self._thread = self._context = None
        self.sockets = ()
        self.authenticator = Authenticator()

    @property
    def endpoints(self) -> tuple[str, ...]:
        """Endpoints that clients can connect to; empty before `start`."""
        return self._operators.bound.endpoints

    @property
    def alive(self) -> bool:
        """True while the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def stats(self) -> dict[str, int | float]:
        """Return counters: frames in, out and refused, handshakes, wakeups, faults."""
        return {
            "frames_in": self.frames_in,
            "frames_out": self.frames_out,
            "full": self.full,
            "denied": self.denied,
            "admitted": self.authenticator.admitted,
            "refused": self.authenticator.refused,
            "wakes": self.wakes,
            "faults": self.faults,
        }

    # ------------------------------------------------------------ from the I/O thread

    def send(self, peer: bytes, frame: bytes) -> SendResult:
        """Send ``frame`` to ``peer``; return the result. Does not block. Never raises."""
        mark = peer[:SOCKET_MARK_BYTES]
        for socket in self.sockets:
            if socket.mark == mark:
                sent = socket.send(peer[SOCKET_MARK_BYTES:], frame)
                self.frames_out += sent is SendResult.OK
                self.full += sent is SendResult.FULL
                return sent
        return SendResult.GONE

    def open_viewer_socket(self, server: KeyPair, role: str, wanted: str | None) -> ServerSocket:
        """Listen at another endpoint for ``role``. Raises LinkError."""
        require_headroom()
        socket = ServerSocket(next(self._numbers), role, server, self.limits)
        self._open(socket, wanted)
        return socket

    def close_viewer_socket(self, socket: ServerSocket) -> None:
        """Close ``socket`` and the connections of its clients."""
        self.sockets = tuple(other for other in self.sockets if other is not socket)
        self._lost = tuple(lost for lost in self._lost if lost[0] is not socket)
        self._kept = tuple(kept for kept in self._kept if kept[0] != socket.bound.path)
        socket.close(LINGER_SECONDS)

    def _listen(self, sockets: tuple[tuple[ServerSocket, str | None], ...]) -> None:
        self._context, self._parked = watched_context(), count_parked()
        self.authenticator.open(self._context)  # before any client can connect
        for socket, wanted in sockets:
            self._open(socket, wanted)

    def is_intact(self) -> bool:
        """Return True while the sockets may be used."""
        return self._sentinel.is_there() and self._parked == count_parked()

    def let_go(self) -> None:
        """Leave all sockets open for ever: closing them would touch their descriptors.

        `mind_descriptors` opens others.
        """
        sockets, self.sockets = self.sockets, ()
        context, self._context = self._context, None
        self._parked = count_parked()
        keep_for_ever(context, self.authenticator.let_go())
        self._hidden = False
        self._lost += tuple((socket, socket.let_go()) for socket in sockets)
        paths = [socket.bound.path for socket in sockets]
        self._kept = tuple(kept for kept in self._kept if kept[0] not in paths)
        stop_lending()
        if not self._sentinel.is_there():
            self._sentinel, self.wakeup, self.urgent = Sentinel(), Wakeup(), Wakeup()
            self._wake, self._wake_urgently = self.wakeup.set, self.urgent.set
        self._say_once(
            "looptap: this process has closed the file descriptors of its agent, as os.closerange does, or had none "
            "left for a client. The training is not affected; clients are reconnected as soon as possible."
        )

    def _listen_again(self) -> None:
        """Reopen the sockets after `let_go`; on an error try again a heartbeat later."""
        lost, self._lost = self._lost, ()
        try:
            require_headroom()
            self._listen(lost)
        except (OSError, LinkError, zmq.ZMQError) as error:
            self._close(0.0)
            self._lost = lost
            self._say_once("looptap: no client can attach at present; looptap tries again every second: %s", error)

    def _open(self, socket: ServerSocket, wanted: str | None) -> None:
        assert self._context is not None
        try:
            socket.open(self._context, wanted, self._directory)
        except BaseException:
            socket.close()
            raise
        self.sockets = (*self.sockets, socket)
        if socket.bound.path is not None:
            self.watch_file(socket.bound.path, socket.renew)

    def _run(self, loop: Reactor) -> None:
        claim_thread(self._replace_thread)
        try:
            self._serve(loop)
        finally:
            unclaim_thread()

    def _replace_thread(self) -> None:
        """Continue on another thread: this one never returns from libzmq."""
        loop = Reactor(self, self._handler)
        loop.recover()
        self._start_thread(loop)

    def _start_thread(self, loop: Reactor) -> None:
        self._thread = threading.Thread(target=self._run, args=(loop,), name="looptap-io", daemon=True)
        self._thread.start()

    def _serve(self, loop: Reactor) -> None:
        last = 0.0
        strikes = 0
        while not self._stopping:
            try:
                loop.run_once()
            except BaseException:
                self.faults += 1
                now = time.monotonic()
                strikes = 1 if now - last > FAULT_MEMORY_SECONDS else strikes + 1
                last = now
                if strikes > len(RESTART_DELAYS_SECONDS):
                    self._fail(traceback.format_exc())
                    return
                time.sleep(RESTART_DELAYS_SECONDS[strikes - 1])
                loop.recover()
        self._send_goodbye()

    def _send_goodbye(self) -> None:
        for last in (self.work_posted, self._handler.goodbye):
            try:
                last()
            except BaseException:
                self.faults += 1
        self._close(min(LINGER_SECONDS, self._deadline - time.monotonic()))

    def _fail(self, reason: str) -> None:
        self.failure = reason
        self._wake = self._wake_urgently = _nothing
        self._close(0.0)
        if self._on_failure is not None:
            with contextlib.suppress(Exception):
                self._on_failure(reason)

    def _close(self, linger: float) -> None:
        """Close the sockets, the authenticator last, after ``linger`` seconds at most."""
        sockets, self.sockets = self.sockets, ()
        context, self._context = self._context, None
        for socket in sockets:
            socket.close(linger)
        self.authenticator.close()
        if context is not None:
            context.term()

    def work_posted(self) -> None:
        """Run the calls posted so far."""
        for _ in range(len(self._posted)):
            self._posted.popleft()()

    def mind_descriptors(self) -> None:
        """Hide the sockets while the process has hardly a descriptor left.

        libzmq ends the process if it cannot accept a client at a path (an assertion in its listener). Clients that are
        attached stay.
        """
        if self._lost:
            self._listen_again()
        short = free_descriptors(ACCEPT_DESCRIPTOR_COUNT) < ACCEPT_DESCRIPTOR_COUNT
        if short is self._hidden:
            return
        self._hidden = short
        for socket in self.sockets:
            socket.bound.hide(short)
        if short:
            self._say_once(
                "looptap: this process has fewer than %d free file descriptors: until it has more, no other client "
                "can attach. Allow more: ulimit -n 4096.",
                ACCEPT_DESCRIPTOR_COUNT,
            )

    def check_files(self, touch: bool) -> None:
        """Recreate vanished files; with ``touch`` update the times of all."""
        for path, renew in () if self._hidden else self._kept:
            try:
                if not os.path.lexists(path):
                    renew()
                elif touch:
                    os.utime(path)
            except (OSError, LinkError) as error:
                self._say_once(
                    "looptap: %s has disappeared and cannot be recreated (%s). Attached clients stay attached; new "
                    "ones will not find this run until the directory exists. For a safer place: export LOOPTAP_DIR=…",
                    path,
                    error,
                )

    def _say_once(self, words: str, *facts: object) -> None:
        if words not in self._said:
            self._said.add(words)
            log.warning(words, *facts)


def _nothing() -> None:
    """Do nothing."""
