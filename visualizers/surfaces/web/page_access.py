"""`PageAccess`: who may load the page, and from where.

A browser sends requests for any site that is open in it, and a name may lead to loopback without belonging to us. So
the host of each request has to be ours, the origin of a connection the page itself, and both need the token or a
cookie.
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


class PageAccess:
    """The token of a server and the names under which it may be reached.

    Besides ``names`` these are localhost and the addresses of loopback, at any port: `ssh -L` leads from another one.
    """

    def __init__(self, names: Collection[str] = ()) -> None:
        self.token = secrets.token_urlsafe(_TOKEN_BYTES)
        self._cookie = secrets.token_urlsafe(_TOKEN_BYTES)
        self._names = {name.lower() for name in names}

    @property
    def cookie(self) -> str:
        """The value of the cookie, another secret than the token."""
        return self._cookie

    def has_token(self, given: str) -> bool:
        """Return whether ``given`` is the token, in constant time."""
        return hmac.compare_digest(given.encode(), self.token.encode())

    def has_cookie(self, given: str | None) -> bool:
        """Return whether ``given`` is the value of our cookie, in constant time."""
        return hmac.compare_digest((given or "").encode(), self._cookie.encode())

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
        return bool(re.fullmatch(r"[\w.:\[\]-]+", host)) and (name in self._names or is_loopback(name))

    def is_our_origin(self, origin: str, host: str) -> bool:
        """Return whether the ``Origin`` of a connection is the page at ``host``.

        >>> access = PageAccess()
        >>> access.is_our_origin("http://localhost:8765", "localhost:8765")
        True
        >>> access.is_our_origin("http://localhost:3000", "localhost:8765")
        False
        """
        try:
            found = urlsplit(origin)
            name = found.hostname or ""
        except ValueError:
            return False
        if found.scheme not in ("http", "https"):
            return False
        return found.netloc.lower() == host.lower() or name in self._names


def is_loopback(name: str) -> bool:
    """Return whether a host name is this machine, without asking a name server.

    >>> is_loopback("localhost"), is_loopback("127.0.0.2"), is_loopback("::1"), is_loopback("localhost.evil.test")
    (True, True, True, False)
    """
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name.lower() == "localhost"


def cookie_name(host: str) -> str:
    """Return the name of the cookie, which all ports of a host would share.

    >>> cookie_name("localhost:8765")
    'looptap-localhost-8765'
    """
    return "looptap-" + re.sub(r"[^a-zA-Z0-9]+", "-", host).strip("-").lower()


def content_policy(host: str) -> str:
    """Return the content security policy of a page at ``host``, a name of ours."""
    if "[" in host:  # a policy cannot name an address of IPv6, and browsers take self for sockets, too
        return CONTENT_POLICY.format(sockets="'self'")
    return CONTENT_POLICY.format(sockets=f"'self' ws://{host} wss://{host}")
