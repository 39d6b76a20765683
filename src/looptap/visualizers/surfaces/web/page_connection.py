"""`PageConnection`: an open page, on the thread of the server's loop."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from looptap.visualizers.surfaces.web.run_facts import REFRESH_INTERVAL_SECONDS
from looptap.visualizers.surfaces.web.run_rows import RunRows
from looptap.visualizers.surfaces.web.run_shelf import RunShelf
from looptap.visualizers.surfaces.web.viewer import READ_ONLY, Viewer
from looptap.visualizers.surfaces.web.viewer_link import ViewerLink, ViewerSocket

MAX_VIEWERS = 16
"""Pages at once."""
MAX_WAITING_REQUESTS_COUNT = 64
"""Requests of a page that wait for an answer; one more closes its connection."""
VIEWER_KEPT_SECONDS = 15.0
"""Seconds that the streams of a page are kept after its connection was lost."""
SHELF_INTERVAL_SECONDS = 2.0
"""Seconds between two looks for runs."""

log = logging.getLogger("looptap")


class Viewers:
    """The open pages, and the threads that answer them."""

    def __init__(self, shelf: RunShelf, *, title: str = "") -> None:
        self.shelf, self.title = shelf, title
        self.rows = RunRows(shelf)
        self.connections: dict[str, PageConnection] = {}
        self._pool = ThreadPoolExecutor(2 * MAX_VIEWERS + 2, thread_name_prefix="looptap-web")
        self._tasks: set[asyncio.Task[None]] = set()

    def connect(self, name: str, socket: ViewerSocket) -> PageConnection | None:
        """Return the connection of a page, new or resumed; None if there are too many."""
        if name not in self.connections:
            if len(self.connections) >= MAX_VIEWERS:
                return None
            self.connections[name] = PageConnection(self, name)
        self.connections[name].found(socket)
        return self.connections[name]

    def work(self, act: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:
        """Run blocking work on a thread of the pool."""
        return asyncio.get_running_loop().run_in_executor(self._pool, partial(act, *arguments))

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task that ends with the server."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def watch_shelf(self) -> None:
        """Look for runs while a page is open."""
        while True:
            if self.connections or not self.shelf.version:
                try:
                    await self.work(self.shelf.refresh)
                except Exception as error:
                    log.warning("looptap: the runs could not be listed: %s", error)
            await asyncio.sleep(SHELF_INTERVAL_SECONDS)

    def close(self) -> None:
        """Close the streams of all pages."""
        for task in list(self._tasks):
            task.cancel()
        for connection in list(self.connections.values()):
            connection.viewer.close()
        self.connections.clear()
        self._pool.shutdown(wait=False, cancel_futures=True)


class PageConnection:
    """A viewer and its requests, on the thread of the server's loop."""

    def __init__(self, viewers: Viewers, name: str) -> None:
        self._viewers, self.name = viewers, name
        self.link = ViewerLink(asyncio.get_running_loop())
        self.viewer = Viewer(viewers.shelf, viewers.rows, self.link)
        self._requests: asyncio.Queue[dict[str, Any]] = asyncio.Queue(MAX_WAITING_REQUESTS_COUNT)
        self._socket: ViewerSocket | None = None
        self._shelf_version = -1
        self._informed: dict[str, Any] | None = None
        self._tasks = [viewers.start(self._answer()), viewers.start(self._inform())]
        self._end: asyncio.TimerHandle | None = None

    def found(self, socket: ViewerSocket) -> None:
        """Continue with a connection, the first or a new one."""
        if self._end is not None:
            self._end.cancel()
            self._end = None
        before, self._socket = self._socket, socket
        if before is not None:
            before.close(1000, "another connection has replaced it")
        self.link.connect(socket)
        self._shelf_version, self._informed = -1, None
        operate = self._viewers.shelf.operate
        about = {"operate": operate, "note": "" if operate else READ_ONLY, "title": self._viewers.title}
        self.link.post({"t": "hello", **about, "charts": self.viewer.charts})
        self._list()

    def lost(self, socket: ViewerSocket) -> None:
        """Keep the streams for a while, then close them."""
        if self.link.disconnect(socket):
            self._socket = None
            self._end = asyncio.get_running_loop().call_later(VIEWER_KEPT_SECONDS, self.leave)

    def leave(self) -> None:
        """Close the viewer's streams and forget it."""
        if self._viewers.connections.pop(self.name, None) is None:
            return
        for task in self._tasks:
            task.cancel()
        self._viewers.work(self.viewer.close)

    def take(self, message: dict[str, Any]) -> None:
        """Take a message: one to a chart at once, requests one after another."""
        kind, about = message.get("t"), message.get("message")
        if kind == "canvas":
            if isinstance(about, dict):
                self.viewer.on_canvas(str(message.get("canvas")), about)
        elif kind == "bye":
            if self._socket is not None:
                self.link.disconnect(self._socket)
            self.leave()
        else:
            try:
                self._requests.put_nowait(message)
            except asyncio.QueueFull:
                if self._socket is not None:
                    self._socket.close(1008, "too many requests")

    async def _answer(self) -> None:
        while True:
            message = await self._requests.get()
            try:
                reply = await self._viewers.work(self.viewer.handle, message)
            except Exception as error:
                log.exception("looptap: a request of a page failed.")
                reply = {"t": "reply", "id": message.get("id"), "error": f"{type(error).__name__}: {error}"}
            self.link.post(reply)

    async def _inform(self) -> None:
        """Send the runs and the facts of the one in front, when they have changed."""
        while True:
            await asyncio.sleep(REFRESH_INTERVAL_SECONDS)
            if self.link.stalled(time.monotonic()) and self._socket is not None:
                self._socket.close(1008, "nothing was read")
            if not self.link.ready():
                continue
            self._list()
            try:
                facts = await self._viewers.work(self.viewer.facts)
            except Exception:
                log.exception("looptap: the facts of a run could not be read.")
                continue
            if facts is not None and facts != self._informed and self.link.ready():
                before, self._informed = self._informed or {}, facts
                if before.get("key") != facts["key"]:
                    before = {}
                news = {name: value for name, value in facts.items() if before.get(name) != value}
                gone = dict.fromkeys(before.keys() - facts.keys())
                self.link.post({"t": "facts", "facts": {**gone, **news, "key": facts["key"]}})

    def _list(self) -> None:
        shelf = self._viewers.shelf
        if self._shelf_version != shelf.version:
            self._shelf_version = shelf.version
            self.link.post({"t": "runs", "runs": [entry.plain() for entry in shelf.entries()]})
