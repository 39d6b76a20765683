"""A coverage-guided fuzz of the decoders of hostile bytes, for test_fuzz.py."""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["looptap.protocol"]):
    from looptap.protocol.codec import decode_from_agent, decode_from_client
    from looptap.protocol.values.unpacking import unpack, unpack_values
from looptap.protocol.errors import MessageError


def decode(data: bytes) -> None:
    """Pass the bytes to every decoder, which must return or raise MessageError."""
    which, raw = data[:1], data[1:]
    try:
        if which < b"\x20":
            decode_from_client(raw)
        elif which < b"\x40":
            decode_from_agent(raw)
        elif which < b"\xa0":
            unpack(raw)
        else:
            unpack_values(which[0] % 5, raw)
    except MessageError:
        pass


atheris.Setup(sys.argv, decode)
atheris.Fuzz()
