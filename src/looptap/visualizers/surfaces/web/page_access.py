"""`PageAccess`: decides which requests may load the page.

A browser sends requests for any site that is open in it, and a name may lead to loopback without belonging to us. So
the host of each request has to be ours, no other site may have led to it, and the origin of a connection is the page
itself. The files of the page are the same for everyone and know of no run. All else needs the token, which the page
keeps in the storage of its tab: a cookie would go to every port of its host, to servers of other users too.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
import secrets
from collections.abc import Collection
from urllib.parse import urlsplit

CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src {sockets}; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Server": "looptap",
}
"""Headers of every reply."""
_TOKEN_BYTES = 32
_PORTS = {"http": 80, "https": 443}


class PageAccess:
    """The token of a server and the names under which it may be reached.

    Besides ``names`` these are localhost and the addresses of loopback, at any port: `ssh -L` leads from another one. A
    name of a proxy is an origin, such as https://hub.example; a name alone is one with https. Raises ValueError for
    anything else.
    """

    def __init__(self, names: Collection[str] = ()) -> None:
        self.token = secrets.token_urlsafe(_TOKEN_BYTES)
        self.ticket = secrets.token_urlsafe(_TOKEN_BYTES)
        """Opens the page once, from a file that only its user can read: see `take_ticket`."""
        self._origins = {_origin(name) for name in names}
        self._names = {urlsplit(origin).hostname for origin in self._origins}

    def has_token(self, given: str) -> bool:
        """Return whether ``given`` is the token, in constant time."""
        return hmac.compare_digest(given.encode(), self.token.encode())

    def take_ticket(self, given: str) -> bool:
        """Return whether ``given`` is the ticket, which is valid once."""
        taken = hmac.compare_digest(given.encode(), self.ticket.encode())
        if taken:
            self.ticket = secrets.token_urlsafe(_TOKEN_BYTES)
        return taken

    def is_our_host(self, host: str) -> bool:
        """Return whether the ``Host`` of a request is a name of ours.

        >>> access = PageAccess(["hub.example"])
        >>> [access.is_our_host(host) for host in ("localhost:8765", "[::1]:80", "hub.example", "evil.test")]
        [True, True, True, False]
        """
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        return bool(re.fullmatch(r"[\w.:\[\]-]+", host)) and (name in self._names or names_this_machine(name))

    def is_our_origin(self, origin: str, scheme: str, host: str) -> bool:
        """Return whether the ``Origin`` of a connection is the page at ``host``.

        Scheme and port count.

        >>> access = PageAccess(["hub.example"])
        >>> access.is_our_origin("http://localhost:8765", "http", "localhost:8765")
        True
        >>> access.is_our_origin("http://localhost:3000", "http", "localhost:8765")
        False
        >>> access.is_our_origin("https://hub.example", "http", "localhost:8765")
        True
        """
        return origin.lower() == f"{scheme}://{host.lower()}" or origin.lower() in self._origins


def from_elsewhere(fetch_site: str) -> bool:
    """Return whether another site led to a request, by its ``Sec-Fetch-Site``.

    What a person types or opens from a terminal has none; browsers without this header send "".

    >>> [from_elsewhere(one) for one in ("", "none", "same-origin", "same-site", "cross-site")]
    [False, False, False, True, True]
    """
    return fetch_site not in ("", "none", "same-origin")


def _origin(name: str) -> str:
    """Return the origin for a name of a proxy."""
    try:
        found = urlsplit(name if "://" in name else f"https://{name}")
        host, port = found.hostname or "", found.port
    except ValueError:
        host, port = "", None
    if not host or found.scheme not in _PORTS or found.path not in ("", "/") or found.query or found.fragment:
        raise ValueError(f"--allow-host {name!r:.80} is no host: write hub.example, or http://hub.example:8000.")
    host = f"[{host}]" if ":" in host else host
    return f"{found.scheme}://{host}{'' if port in (None, _PORTS[found.scheme]) else f':{port}'}"


def names_this_machine(name: str) -> bool:
    """Return whether a host name is this machine, without asking a name server.

    >>> [names_this_machine(name) for name in ("localhost", "127.0.0.2", "::1", "localhost.evil.test")]
    [True, True, True, False]
    """
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name.lower() == "localhost"


def content_policy(host: str) -> str:
    """Return the content security policy of a page at ``host``, a name of ours."""
    if "[" in host:  # a policy cannot name an address of IPv6, and browsers take self for sockets, too
        return CONTENT_POLICY.format(sockets="'self'")
    return CONTENT_POLICY.format(sockets=f"'self' ws://{host} wss://{host}")
