"""CURVE key pairs: fresh for each run and role, never shown or pickled."""

from __future__ import annotations

import struct

import msgspec
import zmq
from zmq.utils import z85

from looptap.protocol.errors import LinkError

OPERATOR, VIEWER = "operator", "viewer"
"""The roles of a client."""

KEY_CHARACTERS = 40
"""Characters of a key in Z85, the form in which all keys are kept here."""


def require_curve() -> None:
    """Raise LinkError unless libzmq is 4.3.5 or newer, with CURVE encryption."""
    version = ".".join(map(str, zmq.zmq_version_info()))
    if zmq.zmq_version_info() < (4, 3, 5) or not zmq.has("curve"):
        raise LinkError(
            f"looptap needs libzmq 4.3.5 or newer with CURVE, and this is {version}"
            f"{'' if zmq.has('curve') else ' without CURVE'}. Install a pyzmq that brings its own: "
            "pip install --force-reinstall --only-binary :all: pyzmq"
        )


class KeyPair(msgspec.Struct, frozen=True):
    """A CURVE key pair in Z85 (40 ASCII bytes each); the repr hides the secret."""

    public: bytes
    secret: bytes

    @classmethod
    def fresh(cls) -> KeyPair:
        """Make a new key pair from the system's random source."""
        return cls(*zmq.curve_keypair())

    def __repr__(self) -> str:
        return f"KeyPair(public={self.public!r})"

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("A key pair is never pickled: its secret must not leave the process.")


class RoleKeys(msgspec.Struct, frozen=True):
    """The keys of one role of a run: the server's pair and the clients' pair.

    >>> keys = RoleKeys.fresh("operator")
    >>> keys.server.secret in repr(keys).encode()
    False
    """

    role: str
    server: KeyPair
    client: KeyPair

    @classmethod
    def fresh(cls, role: str) -> RoleKeys:
        """Make new key pairs for ``role``."""
        return cls(role, KeyPair.fresh(), KeyPair.fresh())


def is_key(text: bytes) -> bool:
    """Return True if ``text`` has the form of a CURVE key in Z85."""
    try:
        return len(text) == KEY_CHARACTERS and len(z85.decode(text)) == 32
    except (KeyError, struct.error):  # a foreign character; a group beyond 32 bits
        return False
