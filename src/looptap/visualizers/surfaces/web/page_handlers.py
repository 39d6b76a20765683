"""The requests that the server of the page answers; all others find nothing."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tornado.web import RequestHandler
from tornado.websocket import WebSocketHandler

from looptap.visualizers.surfaces.pages.script import script, style
from looptap.visualizers.surfaces.web.page_access import HEADERS, PageAccess, content_policy, from_elsewhere
from looptap.visualizers.surfaces.web.page_connection import MAX_VIEWERS, PageConnection, Viewers

_STATIC = Path(__file__).parent / "static"
_SCRIPTS = ("kept", "link", "cards", "words", "controls", "tables", "web")  # the script of the page, in this order
_VIEWER_NAME = re.compile(r"[\w-]{8,64}")
WRONG_TOKEN_NUMBER = 4403
"""The code with which a connection without the token is closed."""
GREETING_SECONDS = 20.0
"""Seconds that a connection has to prove itself."""
_MAX_WHOLE_DIGITS = 18  # of an integer in a message; a longer one becomes a float
_SENTENCES = {
    "host": "This name does not lead to looptap: open the page as localhost, or start looptap web --allow-host NAME.",
    "token": "This is not the token of this server: open the whole address that looptap web has printed.",
    "site": "Another site led here, and looptap opens from its own address only.",
    "origin": "Only the page itself may connect.",
    "busy": f"{MAX_VIEWERS} pages are open, the most that looptap web serves.",
}


@dataclass(frozen=True)
class PageFile:
    """A file of the page: its content, type and fingerprint."""

    content: bytes
    kind: str

    @cached_property
    def version(self) -> str:
        """A name of this content."""
        return hashlib.sha256(self.content).hexdigest()[:16]


def page_files() -> dict[str, PageFile]:
    """Return the files of the page by name, the charts' script and style included."""
    parts = "\n".join((_STATIC / f"{name}.js").read_text() for name in _SCRIPTS)
    files = {
        "page.js": PageFile(f"{script(styled=False)}\n{{\n{parts}}}\n".encode(), "text/javascript"),
        "page.css": PageFile(f"{style()}\n{(_STATIC / 'web.css').read_text()}".encode(), "text/css"),
    }
    return {**files, "": PageFile(_with_versions("web.html", files).encode(), "text/html")}


def _with_versions(page: str, files: Mapping[str, PageFile]) -> str:
    text = (_STATIC / page).read_text()
    for name, file in files.items():
        text = text.replace(f"{name}?", f"{name}?{file.version}")
    return text


@dataclass(frozen=True)
class Site:
    """State shared by all request handlers."""

    access: PageAccess
    viewers: Viewers
    base: str
    """The path of the page; it begins and ends with a slash."""
    files: Mapping[str, PageFile]

    @cached_property
    def doorstep(self) -> str:
        """The page where another site led here; ``{address}`` is where to go on."""
        return _with_versions("doorstep.html", self.files)

    def handlers(self) -> list[Any]:
        """Return the handlers by their paths."""
        base, site = re.escape(self.base), {"site": self}
        pages = [
            (base + "socket", PageSocket, site),
            (base + "open", TicketHandler, site),
            (base + r"(page\.js|page\.css|)", PageHandler, site),
        ]
        return pages if self.base == "/" else [*pages, (base.removesuffix("/"), SlashHandler, site)]


class GuardedHandler(RequestHandler):
    """Refuses requests by another name, and those to which another site led."""

    site: Site
    sites_may_lead_here = False

    def initialize(self, site: Site) -> None:
        """Take the state shared by all requests."""
        self.site = site

    def set_default_headers(self) -> None:
        """Set the headers of every reply."""
        for name, value in HEADERS.items():
            self.set_header(name, value)
        self.set_header("Content-Security-Policy", content_policy("localhost"))

    def prepare(self) -> None:
        """Let the request in, or answer it."""
        host = self.request.host
        if not self.site.access.is_our_host(host):
            self.refuse("host")
            return
        self.set_header("Content-Security-Policy", content_policy(host))
        if not self.sites_may_lead_here and from_elsewhere(self.request.headers.get("Sec-Fetch-Site", "")):
            self.refuse("site")

    def refuse(self, why: str) -> None:
        """Answer with a sentence."""
        self.set_status(403)
        self.finish_text(_SENTENCES[why])

    def finish_text(self, text: str) -> None:
        """End the reply with a plain text."""
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.finish(f"looptap: {text}\n")

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Answer an error without details."""
        self.finish_text(
            {404: "There is nothing here.", 405: "This request is not allowed."}.get(status_code, "It failed.")
        )


class NothingHandler(GuardedHandler):
    """Answers requests for unknown paths."""

    def prepare(self) -> None:
        """Let the request in, and find nothing."""
        super().prepare()
        if not self._finished:
            self.set_status(404)
            self.write_error(404)


class TicketHandler(GuardedHandler):
    """Leads from the file that `looptap web` opens to the page, once."""

    sites_may_lead_here = True

    def get(self) -> None:
        """Exchange the ticket for the token."""
        if not self.site.access.take_ticket(self.get_query_argument("ticket", "")):
            self.refuse("token")
            return
        self.set_header("Content-Type", "text/html; charset=utf-8")
        self.finish(f'<!doctype html><meta http-equiv="refresh" content="0; url=./?token={self.site.access.token}">\n')


class SlashHandler(GuardedHandler):
    """Sends a browser from `/prefix` to `/prefix/`, so that relative addresses work."""

    def get(self) -> None:
        """Redirect."""
        query = f"?{self.request.query}" if self.request.query else ""
        self.redirect(f"{self.site.base.rstrip('/').rpartition('/')[2]}/{query}")


class PageHandler(GuardedHandler):
    """Sends the page and its files, which are the same for everyone."""

    def refuse(self, why: str) -> None:
        """Answer with a sentence, or with a way on if another site led here."""
        if why != "site" or self.path_args[0]:
            super().refuse(why)
            return
        given = self.get_query_argument("token", "")
        address = f"./?token={given}" if self.site.access.has_token(given) else "./"
        self.set_status(403)
        self.set_header("Content-Type", "text/html; charset=utf-8")
        self.finish(self.site.doorstep.replace("{address}", address))

    def get(self, name: str) -> None:
        """Send a file."""
        given = self.get_query_argument("token", "")
        if given and not self.site.access.has_token(given):
            self.refuse("token")
            return
        file = self.site.files[name]
        self.set_header("Content-Type", f"{file.kind}; charset=utf-8")
        self.finish(file.content)

    def compute_etag(self) -> None:
        """Set no tag: nothing is cached."""


class PageSocket(GuardedHandler, WebSocketHandler):
    """The connection of a page."""

    connection: PageConnection | None = None
    _end: asyncio.TimerHandle | None = None

    def prepare(self) -> None:
        """Let a connection in from the page itself."""
        super().prepare()
        if self._finished:
            return
        origin, scheme = (self.request.headers.get(name, "") for name in ("Origin", "X-Forwarded-Proto"))
        scheme = (scheme or "http").replace("ws", "http", 1)  # some proxies name the protocol of the connection
        if not self.site.access.is_our_origin(origin, scheme, self.request.host):
            self.refuse("origin")

    def check_origin(self, origin: str) -> bool:
        """Return True: `prepare` has checked it."""
        return True

    def get_compression_options(self) -> None:
        """Return no options: compressing columns of numbers costs more than it saves."""

    def open(self, *args: str, **kwargs: str) -> None:
        """Wait for the greeting."""
        self.set_nodelay(True)
        self._end = asyncio.get_running_loop().call_later(GREETING_SECONDS, self.close, 1002, "say hello")

    def on_message(self, message: str | bytes) -> None:
        """Take a message of the page."""
        try:
            found = json.loads(message, parse_int=_whole)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            self.close(1003, "messages are JSON objects")
            return
        if self.connection is not None:
            self.connection.take(found)
        elif found.get("t") == "hello" and _VIEWER_NAME.fullmatch(name := str(found.get("viewer"))):
            self._greet(name, str(found.get("token")))
        else:
            self.close(1002, "say hello first")

    def on_close(self) -> None:
        """Keep the viewer for a while: the page may come back."""
        if self._end is not None:
            self._end.cancel()
        if self.connection is not None:
            self.connection.lost(self)

    def _greet(self, name: str, token: str) -> None:
        if not self.site.access.has_token(token):
            self.close(WRONG_TOKEN_NUMBER, _SENTENCES["token"])
            return
        if self._end is not None:
            self._end.cancel()
        self.connection = self.site.viewers.connect(name, self)
        if self.connection is None:
            self.close(1013, _SENTENCES["busy"])


def _whole(digits: str) -> int | float:
    """Return an integer of a message, a float if it is large."""
    return int(digits) if len(digits) <= _MAX_WHOLE_DIGITS else float(digits)
