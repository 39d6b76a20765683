"""`WebServer`: the page, its files and its WebSocket, on one port of loopback."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable, Collection

from tornado.httpserver import HTTPServer
from tornado.web import Application

from looptap.visualizers.surfaces.web.page_access import PageAccess, names_this_machine
from looptap.visualizers.surfaces.web.page_connection import Viewers
from looptap.visualizers.surfaces.web.page_handlers import NothingHandler, Site, page_files
from looptap.visualizers.surfaces.web.run_shelf import RunShelf

MAX_MESSAGE_BYTES = 64 * 1024
"""Bytes of one message of a page."""
MAX_HEADER_BYTES = 32 * 1024
"""Bytes of the header of a request."""
PING_INTERVAL_SECONDS = 20.0
"""Seconds between two pings, and to wait for their answer."""
IDLE_TIMEOUT_SECONDS = 120.0
"""Seconds until a connection without a request is closed."""
_LOOPBACK = "127.0.0.1"


class WebServer:
    """Serves a page for the runs of a shelf; `run` serves until `stop`.

    Besides localhost it answers to ``names``: see `PageAccess`. ``base`` is the path of the page: behind a proxy that
    strips its prefix none is needed.
    """

    def __init__(self, shelf: RunShelf, *, base: str = "/", names: Collection[str] = (), title: str = "") -> None:
        self.viewers = Viewers(shelf, title=title)
        path = f"/{base.strip('/')}/" if base.strip("/") else "/"
        self.site = Site(PageAccess(names), self.viewers, path, page_files())
        self.address, self.port = "", 0
        self._sockets: list[socket.socket] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped = asyncio.Event()

    @property
    def url(self) -> str:
        """The address of the page, with its token."""
        return f"{self._root}?token={self.site.access.token}"

    @property
    def opening_url(self) -> str:
        """The address for a file that opens the page once.

        A browser takes a file for another site.
        """
        return f"{self._root}open?ticket={self.site.access.ticket}"

    @property
    def _root(self) -> str:
        host = "localhost" if self.address == _LOOPBACK else self.address
        host = f"[{host}]" if ":" in host else host
        return f"http://{host}:{self.port}{self.site.base}"

    @property
    def private(self) -> bool:
        """True if only this machine can reach it."""
        return names_this_machine(self.address)

    def listen(self, address: str, port: int, tries: int = 1) -> None:
        """Bind ``port``, 0 for any, or one of the next ``tries``. Raises OSError."""
        for place in range(tries):
            try:
                self._sockets = _all_bound(address, port + place if port else 0)
                break
            except OSError as error:
                if place == tries - 1 or not port:
                    hint = f"{error.strerror} (another one: --port)"
                    raise OSError(error.errno, hint, f"{address}:{port}") from None
        self.address, self.port = self._sockets[0].getsockname()[:2]

    async def run(self, started: Callable[[], object] = lambda: None) -> None:
        """Serve; ``started`` is called when the first request can come."""
        self._loop = asyncio.get_running_loop()
        application = Application(
            self.site.handlers(),
            default_handler_class=NothingHandler,
            default_handler_args={"site": self.site},
            websocket_ping_interval=PING_INTERVAL_SECONDS,
            websocket_ping_timeout=PING_INTERVAL_SECONDS,
            websocket_max_message_size=MAX_MESSAGE_BYTES,
            log_function=lambda handler: None,
        )
        http = HTTPServer(
            application,
            max_header_size=MAX_HEADER_BYTES,
            max_body_size=MAX_MESSAGE_BYTES,
            idle_connection_timeout=IDLE_TIMEOUT_SECONDS,
        )
        http.add_sockets(self._sockets)
        try:
            self.viewers.start(self.viewers.watch_shelf())
            started()
            await self._stopped.wait()
        finally:
            http.stop()
            self.viewers.close()
            await http.close_all_connections()

    def stop(self) -> None:
        """End `run`; may be called from any thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stopped.set)


def _all_bound(address: str, port: int) -> list[socket.socket]:
    """Return the sockets for an address: localhost has two.

    Another user could take the other one, and browsers try that of IPv6 first.
    """
    found = [_bound(address, port)]
    place, port = found[0].getsockname()[:2]
    if place == _LOOPBACK:
        try:
            found.append(_bound("::1", port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                found[0].close()
                raise
    return found


def _bound(address: str, port: int) -> socket.socket:
    found = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((address, port))
        found.listen(128)
        found.setblocking(False)
    except BaseException:
        found.close()
        raise
    return found
