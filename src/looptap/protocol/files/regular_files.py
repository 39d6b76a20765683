"""Open files at paths that another user may control, without blocking.

Only regular files are read: a fifo without a peer blocks `open` forever, and a device may never end. Symbolic links
are followed; what they lead to must be regular, too.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import IO

_KINDS = {
    stat.S_IFIFO: "a fifo",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a directory",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
_NO_WAITING = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_CLOEXEC", 0)
_BINARY = getattr(os, "O_BINARY", 0)


def open_regular(path: str | os.PathLike[str]) -> IO[bytes]:
    """Open a regular file for reading; does not block. Raises OSError otherwise."""
    try:
        descriptor = os.open(path, os.O_RDONLY | _NO_WAITING | _BINARY)
    except OSError as error:
        if error.errno in (errno.ENXIO, errno.EOPNOTSUPP):
            raise _refusal(path, "a socket") from None
        raise
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise _refusal(path, _KINDS.get(stat.S_IFMT(mode), "no file"))
    return open(descriptor, "rb")


def read_regular(path: str | os.PathLike[str], limit: int) -> bytes:
    """Read a regular file; does not block. Raises OSError above ``limit`` bytes."""
    with open_regular(path) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"It is larger than {limit:,} bytes", os.fspath(path))
    return data


def is_regular(path: Path) -> bool:
    """Return True if ``path`` is a regular file or does not exist."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError:
        return not path.is_symlink()
    except OSError:
        return False


def open_for_writing(path: str | os.PathLike[str], *, append: bool = False, new: bool = False) -> IO[bytes]:
    """Open a file, terminal or fifo for writing; does not block. Raises OSError.

    ``append`` keeps the content; with ``new`` nothing may exist at ``path``, not even a link.
    """
    how = os.O_EXCL if new else os.O_APPEND if append else os.O_TRUNC
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | how | _NO_WAITING | _BINARY, 0o666)
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise OSError(errno.ENXIO, "It is a fifo that no process reads, or a socket", os.fspath(path)) from None
        raise
    if hasattr(os, "set_blocking"):
        os.set_blocking(descriptor, True)
    return open(descriptor, "wb")


def _refusal(path: str | os.PathLike[str], kind: str) -> OSError:
    return OSError(errno.EINVAL, f"It is {kind}, not a regular file", os.fspath(path))
