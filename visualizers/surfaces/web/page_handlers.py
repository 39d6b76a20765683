"""The requests that the server of the page answers; all others find nothing."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tornado.web import RequestHandler
from tornado.websocket import WebSocketHandler

from looptap.visualizers.surfaces.pages.script import script, style
from looptap.visualizers.surfaces.web.page_access import HEADERS, PageAccess, content_policy, cookie_name
from looptap.visualizers.surfaces.web.page_connection import MAX_VIEWERS, PageConnection, Viewers

_STATIC = Path(__file__).parent / "static"
_SCRIPTS = ("link", "cards", "words", "controls", "tables", "web")  # the script of the page, in this order
_VIEWER_NAME = re.compile(r"[\w-]{8,64}")
_SENTENCES = {
    "host": "This name does not lead to looptap: open the page as localhost, or start looptap web --allow-host NAME.",
    "token": "This page needs the token of its server: open the whole address that looptap web has printed.",
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
    page = (_STATIC / "web.html").read_text()
    for name, file in files.items():
        page = page.replace(f"{name}?", f"{name}?{file.version}")
    return {**files, "": PageFile(page.encode(), "text/html")}


@dataclass(frozen=True)
class Site:
    """What all requests share."""

    access: PageAccess
    viewers: Viewers
    base: str
    """The path of the page; it begins and ends with a slash."""
    files: dict[str, PageFile]

    def handlers(self) -> list[Any]:
        """Return the handlers by their paths."""
        base, site = re.escape(self.base), {"site": self}
        pages = [(base + "socket", PageSocket, site), (base + r"(page\.js|page\.css|)", PageHandler, site)]
        return pages if self.base == "/" else [*pages, (base.removesuffix("/"), SlashHandler, site)]


class GuardedHandler(RequestHandler):
    """Refuses requests by another name, and those without the token or the cookie."""

    site: Site

    def initialize(self, site: Site) -> None:
        """Take what all requests share."""
        self.site = site

    def set_default_headers(self) -> None:
        """Set the headers of every reply."""
        for name, value in HEADERS.items():
            self.set_header(name, value)
        self.set_header("Content-Security-Policy", content_policy("localhost"))

    def prepare(self) -> None:
        """Let the request in, or answer it."""
        access, host = self.site.access, self.request.host
        if not access.is_our_host(host):
            self.refuse("host")
            return
        self.set_header("Content-Security-Policy", content_policy(host))
        if not self.let_in():
            self.refuse("token")

    def let_in(self) -> bool:
        """Return whether the request has our cookie."""
        return self.site.access.has_cookie(self.get_cookie(cookie_name(self.request.host)))

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
    """Answers what has no place here."""

    def prepare(self) -> None:
        """Let the request in, and find nothing."""
        super().prepare()
        if not self._finished:
            self.set_status(404)
            self.write_error(404)


class SlashHandler(GuardedHandler):
    """Sends a browser from `/prefix` to `/prefix/`, so that relative addresses work."""

    def let_in(self) -> bool:
        """Let any request in: it learns nothing."""
        return True

    def get(self) -> None:
        """Redirect."""
        query = f"?{self.request.query}" if self.request.query else ""
        self.redirect(f"{self.site.base.rstrip('/').rpartition('/')[2]}/{query}")


class PageHandler(GuardedHandler):
    """Sends the page and its files."""

    def let_in(self) -> bool:
        """Let a request in with the token or with the cookie."""
        given = self.get_query_arguments("token")
        if given:
            return self.site.access.has_token(given[0])
        return super().let_in()

    def get(self, name: str) -> None:
        """Send a file; turn a token in the address into a cookie."""
        if self.get_query_arguments("token"):
            cookie = cookie_name(self.request.host)
            secure = self.request.headers.get("X-Forwarded-Proto", "") == "https"
            self.set_cookie(
                cookie,
                self.site.access.cookie,
                path="/",
                httponly=True,
                samesite="Lax",
                secure=secure,
                expires_days=None,
            )
            self.redirect("./")
            return
        file = self.site.files[name]
        self.set_header("Content-Type", f"{file.kind}; charset=utf-8")
        self.finish(file.content)

    def compute_etag(self) -> None:
        """Set no tag: nothing is cached."""


class PageSocket(GuardedHandler, WebSocketHandler):
    """The connection of a page."""

    connection: PageConnection | None = None

    def prepare(self) -> None:
        """Let a connection in from the page itself."""
        super().prepare()
        if self._finished:
            return
        origin = self.request.headers.get("Origin", "")
        if not self.site.access.is_our_origin(origin, self.request.host):
            self.refuse("origin")

    def check_origin(self, origin: str) -> bool:
        """Return True: `prepare` has checked it."""
        return True

    def get_compression_options(self) -> None:
        """Return no options: compressing columns of numbers costs more than it saves."""

    def open(self, *args: str, **kwargs: str) -> None:
        """Wait for the greeting."""
        self.set_nodelay(True)

    def on_message(self, message: str | bytes) -> None:
        """Take a message of the page."""
        try:
            found = json.loads(message)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            self.close(1003, "messages are JSON objects")
            return
        if self.connection is not None:
            self.connection.take(found)
        elif found.get("t") == "hello" and _VIEWER_NAME.fullmatch(name := str(found.get("viewer"))):
            self._greet(name)
        else:
            self.close(1002, "say hello first")

    def on_close(self) -> None:
        """Keep the viewer for a while: the page may come back."""
        if self.connection is not None:
            self.connection.lost(self)

    def _greet(self, name: str) -> None:
        self.connection = self.site.viewers.connect(name, self)
        if self.connection is None:
            self.close(1013, _SENTENCES["busy"])
