"""Encode messages as msgpack frames, and decode them; hostile bytes are refused."""

from __future__ import annotations

from typing import Any

import msgspec

from looptap.protocol.errors import malformed
from looptap.protocol.messages import FromAgent, FromClient, Message
from looptap.protocol.types.built_types import built

_encode = msgspec.msgpack.Encoder().encode
_decode_from_client = msgspec.msgpack.Decoder(built(FromClient)).decode
_decode_from_agent = msgspec.msgpack.Decoder(built(FromAgent)).decode


def encode(message: Message) -> bytes:
    """Encode ``message`` as a frame; escape characters that UTF-8 lacks."""
    try:
        return _encode(message)
    except UnicodeEncodeError:
        return _encode(_escaped(message))


def _escaped(part: Any) -> Any:
    """Return a message or part of one with all text valid UTF-8."""
    if isinstance(part, str):
        return part.encode("utf-8", "backslashreplace").decode()
    if isinstance(part, tuple):
        return tuple(map(_escaped, part))
    if isinstance(part, dict):
        return {_escaped(key): _escaped(value) for key, value in part.items()}
    if isinstance(part, msgspec.Struct):
        return type(part)(**{name: _escaped(getattr(part, name)) for name in part.__struct_fields__})
    return part


def decode_from_client(frame: bytes) -> FromClient:
    """Decode a client's frame. Raises MessageError, and nothing else."""
    try:
        return _decode_from_client(frame)  # type: ignore[no-any-return]  # msgspec cannot type a union
    except Exception as error:
        raise malformed(f"A client sent {len(frame)} bytes that are no message", error) from None


def decode_from_agent(frame: bytes | memoryview) -> FromAgent:
    """Decode an agent's frame. Raises MessageError, and nothing else."""
    try:
        return _decode_from_agent(frame)  # type: ignore[no-any-return]
    except Exception as error:
        raise malformed(f"The agent sent {len(frame)} bytes that are no message", error) from None


class Versioned(msgspec.Struct):
    """The version that a message or a connection file names."""

    version: tuple[int, int]


def version_of(frame: bytes | memoryview) -> tuple[int, int] | None:
    """Return the (major, minor) version in a frame that does not decode otherwise."""
    try:
        return msgspec.msgpack.decode(frame, type=built(Versioned)).version
    except Exception:
        return None
