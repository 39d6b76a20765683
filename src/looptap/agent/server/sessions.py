"""Client sessions: connected, disconnected, and resume positions of expired ones.

A client whose link breaks keeps its queries until it has been silent for the heartbeat's limit: if it reconnects by
then, it misses only what was in flight. After that they are removed, and of each stream the number of its last value is
kept, for the newest 64 such clients, so that the numbers continue if it reconnects later. Where each event yields a
value, they also count those that were lost meanwhile.
"""

from __future__ import annotations

import time

from looptap.agent.server.subscription import ClientSession, Reached, Subscription
from looptap.protocol import messages as m
from looptap.protocol.errors import LimitReached
from looptap.protocol.keys import OPERATOR
from looptap.protocol.limits import Limits
from looptap.protocol.statistics import ClientStats

_MAX_EXPIRED_SESSIONS = 64  # clients of which the numbers of their streams are kept
_MAX_TOKEN_CHARACTERS = 100  # characters of a token that is one
_MAX_NAME_CHARACTERS = 200  # characters of what a client calls itself
_MAX_VALUE_NUMBER = 1 << 62  # number that a client may have reached


class SessionTable:
    """The clients of an agent, by their newest link."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.clients: dict[bytes, ClientSession] = {}
        self.operators = 0
        """The number of operators."""
        self.reached: dict[str, dict[int, Reached]] = {}  # by token, the oldest first

    def admit(self, peer: bytes, role: str, hello: m.Hello, key: str = "") -> ClientSession:
        """Open a session, or resume one with its streams. Raises LimitReached."""
        known = self.clients.get(peer) or self._known(role, hello, key)
        if known is None:
            held, bound, which = self._occupancy(role)
            if held >= bound:
                raise LimitReached(f"{held} {which} are attached, the bound (Limits.{which}); close one.")
            token = hello.token if len(hello.token) <= _MAX_TOKEN_CHARACTERS else ""
            name = "".join(
                c for c in hello.client[:_MAX_NAME_CHARACTERS] if c.isprintable()
            )  # it may be shown on a terminal
            known = ClientSession(peer, role, name, key, token)
            self.operators += not known.viewer
        elif known.peer != peer:
            del self.clients[known.peer]
            known.peer, known.disconnected, known.full_until = peer, False, 0.0
            known.sent_bytes = known.got_bytes = 0
            known.unsent_replies.clear()  # what is still wanted is asked for again
            for stream in known.streams.values():  # who knows what of it has arrived
                stream.touch()
        known.last_heard, known.version = time.monotonic(), hello.version
        self.clients[peer] = known
        return known

    def conflicting_session(self, peer: bytes, role: str, hello: m.Hello, key: str = "") -> bytes | None:
        """Return the session to drop if all places are taken: the longest disconnected."""
        held, bound, _ = self._occupancy(role)
        if held < bound or peer in self.clients or self._known(role, hello, key) is not None:
            return None
        away = [client for client in self.clients.values() if client.disconnected and client.role == role]
        return min(away, key=lambda client: client.last_heard).peer if away else None

    def _occupancy(self, role: str) -> tuple[int, int, str]:
        """Return the count of a role's clients, their bound, and its name."""
        held = sum(client.role == role for client in self.clients.values())
        return (held, self.limits.clients, "clients") if role == OPERATOR else (held, self.limits.viewers, "viewers")

    def _known(self, role: str, hello: m.Hello, key: str) -> ClientSession | None:
        mine = hello.token, role, key
        return next((c for c in self.clients.values() if c.token and (c.token, c.role, c.key) == mine), None)

    def of(self, key: str) -> list[ClientSession]:
        """Return the clients that use a key."""
        return [client for client in self.clients.values() if client.key == key]

    def on_unreachable(self, peer: bytes) -> bool:
        """Note that a peer cannot be reached; True if it should be forgotten now."""
        client = self.clients.get(peer)
        if client is None:
            return False
        client.disconnected = True
        return self.is_expired(client)

    def is_expired(self, client: ClientSession) -> bool:
        """Return True if a disconnected client has run out of time to reconnect."""
        return not client.token or time.monotonic() - client.last_heard >= self.limits.heartbeat_timeout

    def forget(self, peer: bytes, *, exact: bool) -> list[Subscription]:
        """Remove a client; return its streams, for the caller to remove.

        ``exact``: nothing is evaluated meanwhile.
        """
        client = self.clients.pop(peer, None)
        if client is None:
            return []
        self.operators -= not client.viewer
        streams = list(client.streams.values())
        if client.token and streams and not client.viewer:
            reached = self.reached.pop(client.token, {})
            self.reached[client.token] = reached | {stream.number: stream.reach(exact=exact) for stream in streams}
            if len(self.reached) > _MAX_EXPIRED_SESSIONS:
                del self.reached[next(iter(self.reached))]
        return streams

    def before(self, client: ClientSession, attach: m.Attach) -> Reached:
        """Return where a client's stream was before it is attached. Raises LimitReached."""
        if not 0 <= attach.above <= _MAX_VALUE_NUMBER:
            raise LimitReached(f"above={attach.above}: no stream has reached that number.")
        known = self.reached.get(client.token, {}).get(attach.stream, Reached())
        return known if known.number >= attach.above else Reached(attach.above)

    def stats(self) -> list[ClientStats]:
        """Return for each client its name, role, streams, bytes sent and link state."""
        return [
            ClientStats(name=c.name, role=c.role, streams=len(c.streams), sent_bytes=c.sent_bytes, away=c.disconnected)
            for c in self.clients.values()
        ]
