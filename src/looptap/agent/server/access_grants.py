"""Shares: keys for viewers that expire, and the socket that they open.

Runs on the I/O thread. A share shows streams of its own, or all that is exported, and has a key pair of its own; shares
of the same endpoint have a socket together, which is opened for the first and closed with the last.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from looptap.agent.io.server_socket import ServerSocket
from looptap.agent.server.declared_streams import DeclaredStream, DeclaredStreams, Sight
from looptap.agent.server.sessions import SessionTable
from looptap.agent.server.subscription import ClientSession
from looptap.protocol import messages as m
from looptap.protocol.errors import LimitReached, LinkError
from looptap.protocol.files.connection import ConnectionFile
from looptap.protocol.keys import VIEWER, KeyPair, RoleKeys
from looptap.protocol.limits import Limits
from looptap.protocol.replies import NewShare, ShareInfo
from looptap.streams.errors import QueryError

if TYPE_CHECKING:
    from looptap.agent.io.server_thread import ServerThread

MAX_GRANT_SECONDS = 366 * 86_400.0
"""Seconds that a share may last."""


class AccessGrant(msgspec.Struct):
    """One share: its key, its endpoint and its expiry."""

    id: str
    key: bytes
    wanted: str
    socket: ServerSocket
    until: float
    expires: float
    by: str
    only: bool = False
    """True if it shows only streams exported to it, not those exported to all."""
    config: bool = False
    """True if it shows the settings of the run."""


class AccessGrants:
    """The shares of a run; ``dismiss`` disconnects the clients of a key."""

    def __init__(
        self,
        run: m.RunInfo,
        limits: Limits,
        declared: DeclaredStreams,
        disconnect: Callable[[str, str], None],
        link: Callable[[], ServerThread | None],
    ) -> None:
        self._run, self._limits, self._declared, self._disconnect = run, limits, declared, disconnect
        self._link = link
        self.shares: dict[str, AccessGrant] = {}

    def sender_key(self) -> str:
        """Return the public key of the client whose message is being handled."""
        link = self._link()
        return "" if link is None else link.sender

    def share(self, ask: m.CreateShare, by: str) -> NewShare:
        """Make a key that admits viewers until it expires.

        Raises LimitReached, QueryError for a bad duration, BadEndpoint, EndpointBusy.
        """
        link = self._link()
        if link is None:
            raise LinkError("This agent has no sockets, so it cannot be shared.")
        if len(self.shares) >= self._limits.shares:
            raise LimitReached(f"{len(self.shares)} shares are open, the bound (Limits.shares); revoke one.")
        if not 0 < ask.expires <= MAX_GRANT_SECONDS:
            raise QueryError(
                f"expires={ask.expires!r}: a share lasts for more than 0 seconds, and at most "
                f"{MAX_GRANT_SECONDS:.0f} ({MAX_GRANT_SECONDS / 86_400:.0f} days)."
            )
        socket = next((s.socket for s in self.shares.values() if s.wanted == ask.endpoint), None)
        if socket is None:
            socket = link.open_viewer_socket(KeyPair.fresh(), VIEWER, ask.endpoint or None)
        keys = RoleKeys(VIEWER, socket.server, KeyPair.fresh())
        until, expires = time.monotonic() + ask.expires, time.time() + ask.expires
        shared = AccessGrant(
            os.urandom(4).hex(), keys.client.public, ask.endpoint, socket, until, expires, by, ask.only, ask.config
        )
        self.shares[shared.id] = shared
        link.authenticator.admit(shared.key, VIEWER, until)
        self._set_alarm(link)
        file = ConnectionFile.of(self._run, keys, socket.bound.endpoints, expires)
        return NewShare(info=self._info(shared), file=msgspec.json.encode(file).decode())

    def revoke(self, id: str) -> list[str]:
        """End a share at once, or all if ``id`` is empty; return their ids.

        Raises QueryError.
        """
        if id:
            self._share(id)
        over = [shared for shared in self.shares.values() if id in ("", shared.id)]
        self._end(over, "the operator of the run has ended this share")
        return [shared.id for shared in over]

    def expire(self) -> None:
        """End the expired shares."""
        now = time.monotonic()
        self._end([shared for shared in self.shares.values() if shared.until <= now], "this share has expired")

    def visibility(self, client: ClientSession) -> Sight | None:
        """Return a predicate for the streams that a client may read; None means all."""
        if not client.viewer:
            return None
        share = self._of(client)
        if share is None:
            return lambda declared: False
        if share.only:
            return lambda declared: share.id in declared.shares
        return lambda declared: declared.exported

    def shows_config(self, client: ClientSession) -> bool:
        """Return True if the share of a viewer shows the settings of the run."""
        share = self._of(client)
        return share is not None and share.config

    def _of(self, client: ClientSession) -> AccessGrant | None:
        return next((one for one in self.shares.values() if one.key.decode() == client.key), None)

    def limited(self, id: str) -> AccessGrant:
        """Return the share ``id``, which has streams of its own. Raises QueryError."""
        share = self._share(id)
        if not share.only:
            raise QueryError(f"the share {id} shows all exported streams: it was created without streams of its own.")
        return share

    def show(self, declared: DeclaredStream, share: str, shown: bool) -> None:
        """Show or hide a stream for one share, or for all if none is named.

        Raises QueryError.
        """
        if share:
            (declared.shares.add if shown else declared.shares.discard)(self.limited(share).id)
            return
        declared.exported = shown
        if not shown:
            declared.shares.clear()

    def _share(self, id: str) -> AccessGrant:
        if (share := self.shares.get(id)) is None:
            raise QueryError(f"there is no share {id!r:.80}; there are: {', '.join(self.shares) or 'none'}.")
        return share

    def describe(self, sessions: SessionTable) -> list[ShareInfo]:
        """Describe each share, with the names of its attached viewers."""
        return [
            self._info(s, tuple(c.name for c in sessions.of(s.key.decode()) if not c.disconnected))
            for s in self.shares.values()
        ]

    def _end(self, over: list[AccessGrant], reason: str) -> None:
        link = self._link()
        if link is None:
            return
        for shared in over:
            del self.shares[shared.id]
            for declared in self._declared.seen(None):
                declared.shares.discard(shared.id)
            link.authenticator.revoke(shared.key)
            self._disconnect(shared.key.decode(), reason)
            if all(other.socket is not shared.socket for other in self.shares.values()):
                link.close_viewer_socket(shared.socket)
        self._set_alarm(link)

    def _info(self, shared: AccessGrant, viewers: tuple[str, ...] = ()) -> ShareInfo:
        own = tuple(declared.name for declared in self._declared.seen(None) if shared.id in declared.shares)
        return ShareInfo(
            share=shared.id,
            expires=shared.expires,
            left=max(0.0, shared.until - time.monotonic()),
            endpoints=tuple(shared.socket.bound.endpoints),
            by=shared.by,
            streams=own if shared.only else None,
            viewers=viewers,
            config=shared.config,
        )

    def _set_alarm(self, link: ServerThread) -> None:
        link.alarm = min((shared.until for shared in self.shares.values()), default=math.inf)
