"""Frames a connection as lines of text, for any command's stdin and stdout.

Lines of base64, because what starts commands elsewhere (Slurm's srun, some terminals) holds bytes back until a line
ends. The far side first writes a heading, on a line of its own: the run that it leads to, or an error.
"""

from __future__ import annotations

import binascii
import contextlib
import socket
from collections import deque
from typing import IO

import msgspec

from looptap.protocol import errors
from looptap.protocol.errors import LinkError, MessageError, NotLooptap, VersionMismatch
from looptap.protocol.files.connection import ConnectionFile, parse
from looptap.protocol.limits import Limits
from looptap.protocol.types.built_types import built

LINE_BUFFER_BYTES = 131_072
"""Buffer size of a stream of lines: more than a line has."""
_CHUNK_BYTES = 49_152
_LINE = _CHUNK_BYTES // 3 * 4 + 2
MAX_FRAME_BYTES = (Limits().outbound_message + 65_536) * 4 // 3
"""Maximum bytes of a line: a frame of an agent in base64."""
_FRAME_MARK = b"looptap-relay:"
_MAX_GREETING_LINES = 1_000  # lines that a shell may greet with
_MARK, _VERSION = b"looptap-bridge/", b"1"


class Heading(msgspec.Struct, omit_defaults=True):
    """The far side's first line: a connection file and its path, or an error."""

    path: str = ""
    file: ConnectionFile | None = None
    error: str = ""
    text: str = ""


def write_heading(stream: IO[bytes], heading: Heading) -> None:
    """Write the heading of the far side."""
    _write_line(stream, _MARK + _VERSION + b" " + msgspec.json.encode(heading) + b"\n")


def read_heading(stream: IO[bytes]) -> bytes | None:
    """Return the heading's line, past a shell's greeting; None if the stream ends."""
    for _ in range(_MAX_GREETING_LINES):
        line = stream.readline(_LINE)
        if line.startswith(_MARK):
            return line
        if not line:
            break
    return None


def heading_of(line: bytes, source: str) -> Heading:
    """Parse the heading in ``line``.

    Raises the error that it reports, VersionMismatch, UnsafeFile or NotLooptap.
    """
    version, _, content = line.removeprefix(_MARK).partition(b" ")
    if version != _VERSION:
        raise VersionMismatch(
            f"The looptap behind {source} speaks version {_shown(version)} of the bridge and this one "
            f"{_shown(_VERSION)}; install the same looptap version on both sides."
        )
    try:
        said = msgspec.json.decode(content, type=built(_Raw))
    except (ValueError, RecursionError):
        raise NotLooptap(f"What {source} says about the run cannot be understood: {_shown(content)}") from None
    if said.error or not said.file:
        kind = getattr(errors, said.error, None)
        text = said.text
        if source.startswith("ssh://"):  # whatever it says how to reach from there, is reached from here by way of it
            text = text.replace("'ssh://", f"'{source.rpartition('/')[0]}/")
        known = isinstance(kind, type) and issubclass(kind, LinkError) and kind is not errors.RemoteError
        raise (kind if known else LinkError)(f"{source}: {_shown(text.encode())}")  # type: ignore[misc]
    return Heading(said.path[:1000], parse(bytes(said.file), source))


class _Raw(msgspec.Struct):
    path: str = ""
    file: msgspec.Raw = msgspec.Raw()
    error: str = ""
    text: str = ""


def copy_outward(peer: socket.socket, stream: IO[bytes]) -> None:
    """Copy what ``peer`` sends to ``stream``, as lines, until one of them ends."""
    with contextlib.suppress(OSError, ValueError):  # hung up; closed
        while data := peer.recv(_CHUNK_BYTES):
            _write_line(stream, binascii.b2a_base64(data))


def copy_inward(stream: IO[bytes], peer: socket.socket) -> None:
    """Copy the bytes in ``stream``'s lines to ``peer``, until an end or a bad line."""
    with contextlib.suppress(OSError, ValueError):
        while line := stream.readline(_LINE):
            peer.sendall(binascii.a2b_base64(line))


def read_frame(source: IO[bytes]) -> bytes | None:
    """Return the next frame; None at the end. Raises MessageError if it is too long."""
    while (line := source.readline(MAX_FRAME_BYTES)).endswith(b"\n"):
        if line.startswith(_FRAME_MARK):
            try:
                return binascii.a2b_base64(line[len(_FRAME_MARK) :])
            except ValueError:
                raise MessageError("A line that is no frame.") from None
    if len(line) >= MAX_FRAME_BYTES:
        raise MessageError(f"A frame of more than {MAX_FRAME_BYTES:,} bytes.")
    return None


def write_frame(sink: IO[bytes], frame: bytes) -> None:
    """Write ``frame`` as a line."""
    _write_line(sink, _FRAME_MARK + binascii.b2a_base64(frame))


def hear(stream: IO[bytes], said: deque[str]) -> None:
    """Keep the newest lines of a command's stderr, until it ends."""
    with stream, contextlib.suppress(OSError, ValueError):
        while line := stream.readline(1000):
            text = "".join(c for c in line.decode("utf-8", "replace").strip() if c.isprintable())
            if text:
                said.append(text)


def _write_line(stream: IO[bytes], line: bytes) -> None:
    stream.write(line)
    stream.flush()


def _shown(said: bytes) -> str:
    """Return another machine's text on one line, without control characters."""
    text = " ".join(said[:2000].decode("utf-8", "replace").split())
    return "".join(c for c in text if c.isprintable())
