"""The client's transport: one thread, one encrypted DEALER socket, reconnects.

Guarantees: `ZmqTransport.send` may be called from any thread and never waits; frames leave in the order of the calls.
ZeroMQ is used on the thread "looptap-client" only. A lost link is tried again every 0.1 to 0.5 s until the
run is known to have ended: it is restored within 2 s once the network works. The agent is not trusted: frames are
bounded, and a receiver's exception is counted, not fatal. Assumes that the receiver's methods return soon.
"""

from __future__ import annotations

import itertools
import math
import os
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

import zmq

from looptap.client.transport.background import background_thread
from looptap.client.transport.base import Receiver, Route
from looptap.client.transport.connect_errors import UNANSWERED, no_answer, why_not_connected
from looptap.client.transport.zmq_context import Context, shared_context
from looptap.protocol.errors import LimitReached, LinkError, NoAnswer, RefusedKey, RunEnded, WrongServer
from looptap.protocol.keys import KeyPair, require_curve
from looptap.protocol.limits import Limits
from looptap.protocol.process.wakeup import SpentWakeup, Wakeup
from looptap.streams.native.surroundings import require_threads
from looptap.streams.waiting import wait_interruptibly

TICK_INTERVAL_SECONDS = 1.0
"""Seconds between two calls of ``on_tick``."""
_MAX_FRAMES_PER_TURN = 64  # frames handled before the other direction has its turn
_MAX_OUTGOING_FRAMES = 10_000
_RECONNECT_DELAY_SECONDS, _MAX_RECONNECT_DELAY_SECONDS = 0.1, 0.5
_CONNECT_TIMEOUT_SECONDS = 1.0  # seconds for a lost link to connect: the kernel would try again ever more rarely
_LINGER_SECONDS = 0.3  # seconds to send what waits when the link is closed
_MAX_FAILED_HANDSHAKES = 3  # in a row, which mean a wrong key: a stopped agent breaks one off
_NEVER_MILLISECONDS = 1_000_000_000
_MONITOR_EVENT = struct.Struct("=hi")  # of a socket: its type and value; zmq.utils.monitor loads all of asyncio
_ZERO_COPY_MIN_BYTES = 65_536
_ENVELOPE_BYTES = 1 << 20  # what a message may have around its values


class ZmqTransport:
    """A connection to the agent with key ``server``, at one of ``endpoints``.

    ``ended`` says how the run has ended, if that is known; a lost link is given up then.
    A ``route`` is asked for an endpoint each time; ``endpoints`` are then names to be shown.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        server: bytes,
        keys: KeyPair,
        *,
        limits: Limits | None = None,
        ended: Callable[[], str] = str,
        route: Route | None = None,
    ) -> None:
        self._endpoints, self._server, self._keys = tuple(endpoints), server, keys
        self._limits = limits or Limits()
        self._ended = ended
        self._route: Route = route or _Endpoints(endpoints)
        self._delay = _RECONNECT_DELAY_SECONDS  # until the next attempt, longer after each that fails
        self.failures = 0
        """The number of the receiver's exceptions, the newest of which is `last_failure`."""
        self.last_failure: Exception | None = None
        self.refused_messages = 0
        """Messages of more than one frame, which no agent sends."""
        self._outgoing: deque[bytes] = deque()
        self._stopping = False
        self._wakeup: Wakeup | SpentWakeup = Wakeup()
        self._connected = threading.Event()
        self._error: LinkError | None = None
        self._last_error: LinkError | None = None  # what the newest attempt to connect came to
        self._pid = os.getpid()
        self._thread: threading.Thread | None = None

    # ------------------------------------------------------------ from any thread

    def start(self, receiver: Receiver, timeout: float) -> None:
        """Connect; return when the handshake is done. Raises LinkError."""
        require_curve()
        require_threads()
        self._receiver = receiver
        self._thread = background_thread(self._run, "looptap-client", lambda: self.close(0.0))
        self._thread.start()
        try:
            if not wait_interruptibly(self._connected.wait, timeout):
                raise self._last_error or no_answer(self._endpoints[0], f"does not answer within {timeout:g} s")
            if self._error is not None:
                raise self._error
        except BaseException:
            self.close()
            raise

    def send(self, frame: bytes) -> None:
        """Send one frame. Raises LinkError in a fork, LimitReached if 10,000 wait."""
        if os.getpid() != self._pid:
            raise LinkError("This run was attached in another process; attach to it in this one.")
        if len(self._outgoing) >= _MAX_OUTGOING_FRAMES:
            raise LimitReached(f"{_MAX_OUTGOING_FRAMES:,} messages wait to be sent to the agent, the bound.")
        self._outgoing.append(frame)
        self._wakeup.set()

    def close(self, timeout: float = 1.0) -> None:
        """Send pending frames and disconnect."""
        if os.getpid() != self._pid:
            return
        self._stopping = True
        self._wakeup.set()
        self._route.cancel()
        thread = self._thread
        if thread is None:
            self._wakeup = SpentWakeup()
        elif thread is not threading.current_thread():
            thread.join(timeout)

    # ------------------------------------------------------------ the thread

    def _run(self) -> None:
        error: LinkError | None = None
        try:
            with shared_context() as context:
                error = self._reconnect_loop(context)
        except LinkError as known:
            error = known
        except Exception as unexpected:  # without this the user would wait for a dead thread
            error = LinkError(f"The connection failed: {type(unexpected).__name__}: {unexpected}")
        finally:
            self._route.close()
            self._error = error
            was_connected = self._connected.is_set()
            self._connected.set()
            if was_connected and error is not None and not self._stopping:
                self._dispatch(self._receiver.on_end, error)
            self._wakeup = SpentWakeup()  # a run that is kept after its end keeps no descriptor

    def _reconnect_loop(self, context: Context) -> LinkError | None:
        """Connect and reconnect; return the error that ends it, None when asked to stop."""
        attempt = hung_up = 0
        while not self._stopping:
            error = self._attempt(context, self._endpoints[attempt % len(self._endpoints)])
            if error is None:
                return None
            attempt += 1
            hung_up = hung_up + 1 if isinstance(error, WrongServer) else 0
            doubtful = isinstance(error, NoAnswer) or 0 < hung_up < _MAX_FAILED_HANDSHAKES
            if not self._connected.is_set():
                self._last_error = error
                if attempt >= len(self._endpoints) and not doubtful:
                    return error  # a silent one is asked again until `start` gives up
            elif end := self._ended():
                return RunEnded(end)
            elif isinstance(error, RefusedKey | WrongServer) and not doubtful:
                return error
            self._pause(self._delay)
            self._delay = min(2 * self._delay, self._route.longest)
        return None

    def _attempt(self, context: Context, shown: str) -> LinkError | None:
        """Connect once, and carry frames as long as that lasts.

        Return why it failed or ended, None when asked to stop. Messages call the endpoint ``shown``.
        """
        again = self._connected.is_set()
        try:
            endpoint = self._route.endpoint()
        except NoAnswer as unreachable:
            return unreachable
        with _Connection(context, endpoint, self._server, self._keys, self._limits) as connection:
            error = self._establish(connection, _CONNECT_TIMEOUT_SECONDS if again else math.inf)
            if self._stopping:
                return None
            if error is not None:
                return error if isinstance(error, RefusedKey) else self._route.broken(error)
            if again:
                self._outgoing.clear()
                self._dispatch(self._receiver.on_back)
            self._connected.set()
            self._delay = _RECONNECT_DELAY_SECONDS
            self._serve(connection)
            if self._stopping:
                return None
            lost = NoAnswer(f"The connection to {shown} is lost; trying to restore it.")
            self._dispatch(self._receiver.on_lost, lost)
            return lost

    def _establish(self, connection: _Connection, dial: float) -> LinkError | None:
        """Wait ``dial`` s for the connection, then for the handshake; return its error."""
        began, connected_at = time.monotonic(), math.inf
        end_of_handshake = began + self._limits.handshake + 1.0
        deadline = min(end_of_handshake, began + dial)
        poller = zmq.Poller()
        poller.register(connection.monitor, zmq.POLLIN)
        poller.register(self._wakeup.fd, zmq.POLLIN)
        while not self._stopping:
            left = deadline - time.monotonic()
            if left <= 0:
                return no_answer(connection.endpoint)
            ready = dict(poller.poll(int(left * 1000) + 1))
            if self._wakeup.fd in ready:
                self._wakeup.clear()
            seen = {event for event, _ in connection.seen()}
            if zmq.EVENT_HANDSHAKE_SUCCEEDED in seen:
                return None
            if zmq.EVENT_CONNECTED in seen:
                connected_at, deadline = time.monotonic(), end_of_handshake
            if (error := why_not_connected(connection.endpoint, connection.history)) is not None:
                # A wrong key is refused at once. Hung up on later than that, the agent has let the handshake expire.
                late = time.monotonic() - connected_at > self._limits.handshake / 2
                return no_answer(connection.endpoint, UNANSWERED) if late and isinstance(error, WrongServer) else error
        return None

    def _serve(self, connection: _Connection) -> None:
        """Carry frames both ways until the link is lost or closed."""
        poller = zmq.Poller()
        for source in (connection.socket, connection.monitor, self._wakeup.fd):
            poller.register(source, zmq.POLLIN)
        next_tick, give_up = time.monotonic() + TICK_INTERVAL_SECONDS, math.inf
        while True:
            if connection.lost:
                while self._receive_some(connection.socket):  # a goodbye may have come before the end
                    pass
                return
            waiting = self._send_some(connection.socket)
            if self._stopping:
                give_up = min(give_up, time.monotonic() + _LINGER_SECONDS)
                if not waiting or time.monotonic() >= give_up:
                    return
            poller.register(connection.socket, zmq.POLLIN | (zmq.POLLOUT if waiting else 0))
            ready = dict(poller.poll(_milliseconds(min(next_tick, give_up))))
            if self._wakeup.fd in ready:
                self._wakeup.clear()  # before the queue is read: an append from now on wakes this thread again
            if ready.get(connection.socket, 0) & zmq.POLLIN:
                self._receive_some(connection.socket)
            if connection.monitor in ready:
                connection.seen()
            if time.monotonic() >= next_tick:
                next_tick = time.monotonic() + TICK_INTERVAL_SECONDS
                self._dispatch(self._receiver.on_tick)

    def _send_some(self, dealer: zmq.Socket[bytes]) -> bool:
        """Send some of the pending frames; return True if some are left."""
        for _ in range(_MAX_FRAMES_PER_TURN):
            if not self._outgoing:
                return False
            try:
                dealer.send(self._outgoing[0], zmq.NOBLOCK)
            except zmq.Again:
                return True
            self._outgoing.popleft()
        return bool(self._outgoing)

    def _receive_some(self, dealer: zmq.Socket[bytes]) -> bool:
        """Handle some of the received frames; return True if there may be more."""
        for _ in range(_MAX_FRAMES_PER_TURN):
            try:
                frame = dealer.recv(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return False
            if not frame.more:
                large = len(frame) >= _ZERO_COPY_MIN_BYTES
                self._dispatch(self._receiver.on_frame, frame.buffer if large else frame.bytes)
                continue
            self.refused_messages += 1
            while dealer.getsockopt(zmq.RCVMORE):  # one by one: they are not held
                dealer.recv()
        return True

    def _dispatch(self, method: Callable[..., None], *arguments: object) -> None:
        try:
            method(*arguments)
        except Exception as error:  # a bug or a hostile message must not end the thread that users wait for
            self.failures += 1
            self.last_failure = error

    def _pause(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        poller = zmq.Poller()
        poller.register(self._wakeup.fd, zmq.POLLIN)
        while not self._stopping and (left := deadline - time.monotonic()) > 0:
            if poller.poll(int(left * 1000) + 1):
                self._wakeup.clear()


def _milliseconds(until: float) -> int:
    """Return the milliseconds until a time, rounded up so as not to wake twice."""
    return max(0, int(1000 * (until - time.monotonic())) + 1)


class _Endpoints:
    """The route to an agent that listens at ``endpoints``, each tried in turn."""

    longest = _MAX_RECONNECT_DELAY_SECONDS

    def __init__(self, endpoints: Sequence[str]) -> None:
        self._endpoints = itertools.cycle(endpoints)

    def endpoint(self) -> str:
        return next(self._endpoints)

    def broken(self, error: LinkError) -> LinkError:
        return error

    def cancel(self) -> None:
        pass

    def close(self) -> None:
        pass


class _Connection:
    """One attempt: a DEALER socket that connects once, and its monitor."""

    def __init__(self, context: Context, endpoint: str, server: bytes, keys: KeyPair, limits: Limits) -> None:
        self.endpoint = endpoint
        self.history: list[tuple[int, int]] = []
        self.socket = context.socket(zmq.DEALER)
        options: dict[int, int | bytes] = {
            zmq.LINGER: 200,
            zmq.CURVE_SERVERKEY: server,
            zmq.CURVE_PUBLICKEY: keys.public,
            zmq.CURVE_SECRETKEY: keys.secret,
            zmq.MAXMSGSIZE: limits.outbound_message + _ENVELOPE_BYTES,
            # Unbounded: what may be on its way is bounded by the bytes that were acknowledged, and a heartbeat after
            # the agent's death ends the process while libzmq holds back frames (an assertion in its engine).
            zmq.RCVHWM: 0,
            zmq.SNDHWM: _MAX_OUTGOING_FRAMES,
            zmq.HANDSHAKE_IVL: int(1000 * limits.handshake),
            zmq.HEARTBEAT_IVL: int(1000 * limits.heartbeat),
            zmq.HEARTBEAT_TIMEOUT: int(1000 * limits.heartbeat_timeout),
            zmq.HEARTBEAT_TTL: int(1000 * limits.heartbeat_timeout),
            # A new socket each time: frames of the old link must not reach the new one. Not -1: with it, libzmq
            # drops what it has received and not yet handed over, such as a goodbye.
            zmq.RECONNECT_IVL: _NEVER_MILLISECONDS,
            zmq.IPV6: 1,
        }
        for option, value in options.items():
            self.socket.setsockopt(option, value)
        self.monitor = self.socket.get_monitor_socket()

    def __enter__(self) -> _Connection:
        try:
            self.socket.connect(self.endpoint)
        except zmq.ZMQError as error:
            self.close()
            raise LinkError(f"{self.endpoint} is no endpoint: {error}.") from None
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.disable_monitor()
        self.monitor.close()
        self.socket.close()

    @property
    def lost(self) -> bool:
        """True once the other side has gone, perhaps together with the handshake's end."""
        return any(event == zmq.EVENT_DISCONNECTED for event, _ in self.history)

    def seen(self) -> list[tuple[int, int]]:
        """Return the monitor's events since the last call."""
        new = []
        while self.monitor.poll(0):
            content, _ = self.monitor.recv_multipart()
            new.append(_MONITOR_EVENT.unpack(content))
        self.history += new
        return new
