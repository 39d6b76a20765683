"""The connection of an agent: its I/O thread, sockets and connection file."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Protocol, TypeAlias

from looptap.agent.io.endpoints import place_for_sockets
from looptap.agent.io.server_socket import SendResult
from looptap.agent.io.server_thread import ServerThread
from looptap.agent.run.advertisement import announce
from looptap.agent.run.signal_free_thread import run_uninterrupted
from looptap.agent.server.request_dispatcher import RequestDispatcher
from looptap.protocol.files.connection import remove, runtime_dir
from looptap.protocol.keys import OPERATOR, RoleKeys
from looptap.protocol.limits import Limits
from looptap.protocol.process.headroom import require_headroom
from looptap.streams.errors import LooptapError
from looptap.streams.native.surroundings import one_in_process, require_threads

UNDO_SECONDS = 2.0
"""Timeout for taking back a connection to which no client is attached yet."""
_DRAIN_POLL_SECONDS = 0.005

Place: TypeAlias = tuple[Path, str, int]
"""The directory, name and rank by which clients find an agent."""


class Connection(Protocol):
    """The connection of an agent to its clients: by sockets, or in memory for tests."""

    files: list[Path]
    """Files to remove at the end."""

    @property
    def link(self) -> ServerThread | None:
        """The thread that owns the sockets, while it is open; None without sockets."""

    @property
    def is_open(self) -> bool:
        """True from `open` until `detach` or `abandon`."""

    def locate(self) -> Place | None:
        """Decide where clients find the agent; None if nowhere. Raises LinkError."""

    def open(self, dispatcher: RequestDispatcher, on_failure: Callable[[str], None]) -> None:
        """Open to clients, whom ``dispatcher`` answers.

        On an error, undoes everything and raises.
        """

    def undo(self) -> None:
        """Undo an `open`, also one in progress, after Ctrl-C."""

    def send(self, peer: bytes, frame: bytes) -> SendResult:
        """Send ``frame`` to ``peer``; return the result.

        I/O thread. Does not block. Never raises.
        """

    def wake(self) -> None:
        """Send pending values soon. Any thread. Does not block."""

    def flush_now(self) -> None:
        """Send pending values at once. Any thread. Does not block."""

    def post(self, call: Callable[[], object]) -> None:
        """Run ``call`` on the I/O thread, if open. Any thread. Does not block."""

    def detach(self) -> None:
        """Refuse further work from the loop; `stop` still sends pending values."""

    def stop(self, timeout: float) -> None:
        """Send pending values and say goodbye; a second call waits again.

        Blocks up to ``timeout`` seconds.
        """

    def drain(self, timeout: float) -> None:
        """Send pending values and stay open. Blocks up to ``timeout`` seconds."""

    def abandon(self) -> None:
        """Become inert in a forked child; leave the parent's sockets and files alone."""


class Replaceable(Protocol):
    """The part of an agent that its successor of the same name needs."""

    def replaced(self) -> bool:
        """End the run for its successor; return False if it had ended already."""


agents_by_place: dict[Place, Replaceable] = one_in_process("agents_by_place", dict)
"""The open agents of this process."""


def take_place(agent: Replaceable, place: Place) -> Replaceable | None:
    """Register ``agent`` at ``place`` in this process; return the one before it."""
    older = agents_by_place.get(place)
    agents_by_place[place] = agent
    return older


def give_up_place(agent: object) -> None:
    """Unregister ``agent``."""
    for place, there in list(agents_by_place.items()):
        if there is agent:
            agents_by_place.pop(place, None)


class ServerConnection:
    """An agent's `ServerThread` and its connection file: both exist, or neither."""

    def __init__(self, name: str, rank: int, endpoint: str | None, limits: Limits) -> None:
        self._name, self._rank, self._endpoint, self._limits = name, rank, endpoint, limits
        self._place: Place | None = None
        self.files: list[Path] = []
        self._dispatcher: RequestDispatcher | None = None
        self._server: ServerThread | None = None  # which sends, from its start to its end
        self._open = False
        self._opening: _Opening | None = None

    @property
    def link(self) -> ServerThread | None:
        """The thread that has the sockets, while it is open."""
        return self._server if self._open else None

    @property
    def is_open(self) -> bool:
        """See `Connection`."""
        return self._open

    def locate(self) -> Place:
        """Decide where clients find it. Raises LinkError for an unsafe directory."""
        self._place = runtime_dir(), self._name, self._rank
        return self._place

    def open(self, dispatcher: RequestDispatcher, on_failure: Callable[[str], None]) -> None:
        """See `Connection`. After KeyboardInterrupt, call `undo`."""
        assert self._place is not None
        require_threads()
        self._dispatcher = dispatcher
        self._opening = opening = _Opening(
            dispatcher, self._place[0], self._endpoint, self._limits, on_failure, self._serve
        )
        run_uninterrupted(opening.run, "looptap-open")
        self.files, self._open = opening.files, True

    def undo(self) -> None:
        """See `Connection`. An opening in progress is undone on its own thread."""
        self.files, self._open = [], False
        if self._opening is not None:
            self._opening.abandon()

    def _serve(self, server: ServerThread) -> None:
        self._server = server

    def send(self, peer: bytes, frame: bytes) -> SendResult:
        """See `Connection`."""
        return SendResult.GONE if self._server is None else self._server.send(peer, frame)

    def wake(self) -> None:
        """See `Connection`."""
        if self._open and self._server is not None:
            self._server.wake()

    def flush_now(self) -> None:
        """See `Connection`."""
        if self._dispatcher is not None:
            self.post(self._dispatcher.flush)

    def post(self, call: Callable[[], object]) -> None:
        """See `Connection`."""
        if self._open and self._server is not None:
            self._server.post(call)

    def detach(self) -> None:
        """See `Connection`."""
        self._open = False

    def stop(self, timeout: float) -> None:
        """See `Connection`."""
        if self._server is not None:
            self._server.stop(timeout)

    def drain(self, timeout: float) -> None:
        """See `Connection`. Also waits until clients confirm: libzmq drops data at exit."""
        dispatcher, deadline = self._dispatcher, time.monotonic() + timeout
        if dispatcher is None:
            return
        while dispatcher.outbox.pending_bytes() and time.monotonic() < deadline:
            self.flush_now()
            time.sleep(_DRAIN_POLL_SECONDS)
        if self._open and not dispatcher.heartbeat.confirmed():
            self.post(partial(dispatcher.heartbeat.send, confirm=True))
            while not dispatcher.heartbeat.confirmed() and time.monotonic() < deadline:
                time.sleep(_DRAIN_POLL_SECONDS)

    def abandon(self) -> None:
        """See `Connection`."""
        server, self._server, self._open, self.files = self._server, None, False, []
        if server is not None:
            server.abandon()


class _Opening:
    """A server and its connection file while they open, on a thread of their own."""

    def __init__(
        self,
        dispatcher: RequestDispatcher,
        directory: Path,
        endpoint: str | None,
        limits: Limits,
        on_failure: Callable[[str], None],
        serve: Callable[[ServerThread], None],
    ) -> None:
        self.files: list[Path] = []
        self._dispatcher, self._directory, self._endpoint, self._limits = dispatcher, directory, endpoint, limits
        self._on_failure, self._serve = on_failure, serve
        self._server: ServerThread | None = None
        self._decided: list[str] = []  # the first entry says who has to undo it, if anyone

    def run(self) -> None:
        """Listen, and publish the connection file. On an error, undoes both and raises."""
        require_headroom()
        keys = RoleKeys.fresh(OPERATOR)
        sockets = place_for_sockets(self._directory) if self._endpoint in (None, "ipc") else None
        server = ServerThread(
            self._dispatcher,
            endpoint=self._endpoint,
            keys=keys,
            limits=self._limits,
            directory=sockets,
            on_failure=self._on_failure,
        )
        self._serve(server)  # before it starts: the first client is answered by way of it
        server.start()
        self._server = server
        try:
            self.files.append(announce(self._dispatcher.run, keys, server, self._directory))
        except BaseException:
            self._undo()
            raise
        self._decided.append("open")
        if self._decided[0] == "abandoned":
            self._undo()

    def abandon(self) -> None:
        """Undo it, whether or not `run` has finished, after an interrupt of the host."""
        self._decided.append("abandoned")
        if self._decided[0] == "open":
            run_uninterrupted(self._undo, "looptap-close")

    def _undo(self) -> None:
        if self._server is not None:
            self._server.stop(UNDO_SECONDS)
        for path in self.files:
            remove(path)


def why_no_agent(error: Exception) -> str:
    """Return a sentence that says why there is no agent, and the likeliest way out."""
    if isinstance(error, LooptapError):
        return str(error)
    code = getattr(error, "errno", None)
    if code in (errno.EMFILE, errno.ENFILE):
        return f"No more files can be opened ({error}). Allow more: ulimit -n 4096"
    if isinstance(error, OSError):
        return f"The agent cannot be announced, or cannot listen ({error}). Try another directory: export LOOPTAP_DIR=…"
    return f"The agent cannot listen ({type(error).__name__}: {error})."
