"""Connection files: where a run listens, and a key that it admits.

One file per run, rank and role, mode 0600, complete or absent, in a directory that only its owner can change. It holds
the client's key pair of that role and the public half of the server's; never the server's secret. Readers reject files
that others could have read or written, with an error that says how to fix them.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
import time
from pathlib import Path
from typing import TypeAlias
from urllib.parse import quote

import msgspec

from looptap.protocol.codec import Versioned
from looptap.protocol.errors import NoDirectory, NoSuchRun, UnsafeFile, VersionMismatch
from looptap.protocol.file_names import fitting
from looptap.protocol.keys import OPERATOR, VIEWER, KeyPair, RoleKeys, is_key
from looptap.protocol.messages import VERSION, RunInfo
from looptap.protocol.process.identity import Process
from looptap.protocol.types.built_types import built

MAX_FILE_BYTES = 65_536
"""Maximum size of a connection file."""

IPC = "ipc://"
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class ConnectionFile(msgspec.Struct, frozen=True, kw_only=True):
    """Access to one rank of a run in one role, with Z85 keys; repr hides the secret."""

    version: tuple[int, int] = VERSION
    run: RunInfo
    process: Process
    role: str
    endpoints: tuple[str, ...]
    server_public: str
    public: str
    secret: str
    expires: float = 0.0
    """Seconds since the epoch after which the key is invalid; 0: valid as long as the run."""

    @classmethod
    def of(cls, run: RunInfo, keys: RoleKeys, endpoints: tuple[str, ...], expires: float = 0.0) -> ConnectionFile:
        """Return the file of this process for the role of ``keys``."""
        return cls(
            run=run,
            process=Process.this(),
            role=keys.role,
            endpoints=endpoints,
            server_public=keys.server.public.decode("ascii"),
            public=keys.client.public.decode("ascii"),
            secret=keys.client.secret.decode("ascii"),
            expires=expires,
        )

    @property
    def name(self) -> str:
        """The file's name: run, rank and role."""
        run = quote(self.run.id, safe="")
        visible = "%2E" + run[1:] if run.startswith(".") else run
        return f"{fitting(visible)}.{self.run.rank}.{quote(self.role, safe='')}.json"

    @property
    def client(self) -> KeyPair:
        """The client's key pair."""
        return KeyPair(self.public.encode("ascii"), self.secret.encode("ascii"))

    def __repr__(self) -> str:
        return f"ConnectionFile(run={self.run.id!r}, role={self.role!r}, endpoints={self.endpoints!r})"


class Found(msgspec.Struct, frozen=True):
    """A connection file in a directory: its content, or why it cannot be used.

    ``alive`` is None if unknown: the file is unreadable, or of another host or container.
    """

    path: Path
    file: ConnectionFile | None
    alive: bool | None
    problem: str = ""


Known: TypeAlias = "dict[Path, tuple[tuple[int, ...], ConnectionFile]]"
"""Connection files that were read, each with a stamp that differs once the file has changed."""


# ---------------------------------------------------------------- directories


def runtime_dir() -> Path:
    """Return the directory of connection files: ``LOOPTAP_DIR`` or `private_dir`.

    Raises NoDirectory if ``LOOPTAP_DIR`` does not exist, UnsafeFile if others could change its contents.
    """
    named = os.environ.get("LOOPTAP_DIR")
    if not named:
        return private_dir()
    directory = Path(named).expanduser().absolute()
    if not directory.is_dir():
        way_out = "Name another." if directory.exists() else f"Create it: mkdir -p -m 700 {directory}"
        raise NoDirectory(f"LOOPTAP_DIR names {directory}, which is not a directory. {way_out}")
    check_directory(directory)
    return directory


def private_dir() -> Path:
    """Return the user's own directory on this machine, mode 0700, made if missing.

    On Linux it is ``/tmp/looptap-<uid>``, which outlives a logout, is short enough for a socket's path and is
    never on a network file system. Raises UnsafeFile if another user owns that name.
    """
    if sys.platform.startswith("linux"):
        directory = Path(f"/tmp/looptap-{os.getuid()}")
    else:
        import platformdirs

        directory = platformdirs.user_runtime_path("looptap", appauthor=False)
        directory.parent.mkdir(parents=True, exist_ok=True)
    make_private(directory)
    return directory


def make_private(directory: Path) -> None:
    """Make ``directory``, mode 0700. Raises UnsafeFile if others can access it."""
    remake(directory)
    about = directory.lstat()
    if not stat.S_ISDIR(about.st_mode):
        raise UnsafeFile(f"{directory} is not a directory. Remove it: rm {directory}")
    if not is_of_this_user(about):
        raise UnsafeFile(
            f"{directory} belongs to user {about.st_uid}, not to you. Choose another one: "
            "export LOOPTAP_DIR=$HOME/.looptap && mkdir -m 700 $HOME/.looptap"
        )
    if sys.platform != "win32" and about.st_mode & 0o077:
        raise UnsafeFile(f"Other users can look into {directory}. Close it: chmod 700 {directory}")


def remake(directory: Path) -> None:
    """Make ``directory``, mode 0700, unless it exists."""
    try:
        directory.mkdir(mode=0o700)
        directory.chmod(0o700)  # whatever the umask took away
    except FileExistsError:
        pass


def check_directory(directory: Path) -> None:
    """Raise UnsafeFile if others can change the contents of ``directory``."""
    if sys.platform != "win32" and directory.stat().st_mode & _OTHERS_WRITE:
        raise UnsafeFile(
            f"Other users can change what is in {directory}, so nothing in it can be trusted. "
            f"Close it: chmod go-w {directory}"
        )


def is_of_this_user(about: os.stat_result) -> bool:
    """Return True if a file belongs to this process's user."""
    return sys.platform == "win32" or about.st_uid == os.geteuid()


# ---------------------------------------------------------------- writing


def publish(file: ConnectionFile, directory: Path) -> Path:
    """Write ``file`` into ``directory`` atomically, mode 0600; return its path.

    Raises UnsafeFile if anything is already at that path or if others could change the directory.
    """
    return write_connection_file(file, directory / file.name)


def write_connection_file(file: ConnectionFile, path: Path) -> Path:
    """Write ``file`` to ``path``, like `publish`."""
    directory = path.parent
    check_directory(directory)
    draft = directory / f".{os.urandom(8).hex()}.draft"
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0), 0o600)
    try:
        with open(descriptor, "wb") as stream:
            if sys.platform != "win32":
                os.fchmod(descriptor, 0o600)  # whatever the umask took away
            stream.write(msgspec.json.format(msgspec.json.encode(file)))
        _put_in_place(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    return path


def _put_in_place(draft: Path, path: Path) -> None:
    taken = UnsafeFile(f"There is already something at {path}. Remove it: rm {path}")
    try:
        os.link(draft, path)  # unlike a rename, never replaces a file
    except FileExistsError:
        raise taken from None
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EOPNOTSUPP, errno.EMLINK):
            raise
        if os.path.lexists(path):
            raise taken from None
        draft.replace(path)  # a file system without links


# ---------------------------------------------------------------- reading


def read_connection_file(path: Path) -> ConnectionFile:
    """Read the connection file at ``path``.

    Raises NoSuchRun if there is none, VersionMismatch if it is of another major version, and UnsafeFile, with
    the command that fixes it, if it cannot be trusted.
    """
    return parse(_read_private(path), str(path))


def parse(data: bytes, path: str) -> ConnectionFile:
    """Parse the connection file of ``path``. Raises VersionMismatch or UnsafeFile."""
    try:
        version = msgspec.json.decode(data, type=built(Versioned)).version
        if version[0] != VERSION[0]:
            raise VersionMismatch(
                f"{path} is of protocol version {version[0]}.{version[1]}, this looptap speaks "
                f"{VERSION[0]}.{VERSION[1]}. Install the looptap that the run uses: pip install -U looptap"
            )
        file = msgspec.json.decode(data, type=built(ConnectionFile))
    except (ValueError, RecursionError) as error:
        raise UnsafeFile(f"{path} is not a connection file: {error}. Remove it: rm {path}") from None
    keys = (file.server_public, file.public, file.secret)
    if not all(text.isascii() and is_key(text.encode("ascii")) for text in keys):
        raise UnsafeFile(f"{path} holds malformed keys. Remove it: rm {path}")
    if file.role not in (OPERATOR, VIEWER) or not all(e.startswith((IPC, "tcp://")) for e in file.endpoints):
        raise UnsafeFile(f"{path} names an unknown role or endpoint. Remove it: rm {path}")
    return file


def _read_private(path: Path) -> bytes:
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        check_directory(path.absolute().parent)
        descriptor = os.open(path, flags)
    except (FileNotFoundError, NotADirectoryError):
        raise NoSuchRun(f"There is no connection file {path}: the run has ended, or was never here.") from None
    except PermissionError:
        raise UnsafeFile(f"You may not read {path}: it is another user's. Ask for a file of your own.") from None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK):
            raise UnsafeFile(f"{path} is a symbolic link. Name the file itself: readlink -f {path}") from None
        if error.errno in (errno.ENXIO, errno.EOPNOTSUPP):  # a socket
            raise UnsafeFile(f"{path} is not a regular file. Remove it: rm {path}") from None
        raise
    about = os.fstat(descriptor)
    if not stat.S_ISREG(about.st_mode):
        os.close(descriptor)
        option = "-r " if stat.S_ISDIR(about.st_mode) else ""
        raise UnsafeFile(f"{path} is not a regular file. Remove it: rm {option}{path}")
    with open(descriptor, "rb") as stream:
        if not is_of_this_user(about):
            raise UnsafeFile(
                f"{path} belongs to user {about.st_uid}, not to you. If you trust its content, copy it: "
                f"install -m 600 {path} ."
            )
        if sys.platform != "win32" and about.st_mode & 0o077:
            if not stream.read(1) == b"{":
                raise UnsafeFile(f"{path} is not a connection file.")
            raise UnsafeFile(f"Other users can read the keys in {path}. Close it: chmod 600 {path}")
        data = stream.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise UnsafeFile(f"{path} is larger than {MAX_FILE_BYTES:,} bytes: no connection file. Remove it: rm {path}")
    return data


def listing(directory: Path, known: Known | None = None) -> list[Found]:
    """Read the connection files of ``directory``, newest run first, ranks in order.

    Repeated calls pass a dict ``known``: unchanged files are not read again.
    """
    found: list[Found] = []
    known = {} if known is None else known
    try:
        if known:
            check_directory(directory)
    except (UnsafeFile, OSError):
        known.clear()
    paths = _files(directory)
    for path in paths:
        try:
            stamp = _stamp(path)
            before, file = known.get(path, ((), None))
            if file is None or before != stamp:
                file = read_connection_file(path)
                known[path] = stamp, file
        except NoSuchRun:  # it ended while we looked
            continue
        except (UnsafeFile, VersionMismatch, OSError) as error:
            found.append(Found(path, None, None, str(error)))
        else:
            found.append(Found(path, file, file.process.alive()))
    for path in known.keys() - set(paths):
        del known[path]
    found.sort(key=lambda f: (-f.file.run.started, f.file.run.rank) if f.file else (0.0, 0))
    return found


# ---------------------------------------------------------------- removing


def remove(path: Path) -> bool:
    """Remove a connection file of this process, or of one that is proven dead.

    Returns True if it was removed. The sockets of a dead process are removed with its file.
    """
    return _remove(path, own=True)


def _remove(path: Path, own: bool) -> bool:
    try:
        file = read_connection_file(path)
    except (NoSuchRun, UnsafeFile, VersionMismatch, OSError):
        return False
    dead = file.process.alive() is False
    if not dead and not (own and file.process == Process.this()):
        return False
    if dead:
        for endpoint in file.endpoints:
            _remove_socket(endpoint)
    path.unlink(missing_ok=True)
    return True


def sweep(directory: Path, *, older: float = 0.0, at_most: int | None = None) -> int:
    """Remove files of dead processes from ``directory``; return how many.

    Checks up to ``at_most`` files that were not modified for ``older`` seconds.
    """
    before = time.time() - older
    old = [path for path in _files(directory) if _touched(path) <= before]
    return sum(_remove(path, own=False) for path in old[:at_most])


def _files(directory: Path) -> list[Path]:
    try:
        return sorted(p for p in directory.iterdir() if p.suffix == ".json" and not p.name.startswith("."))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _stamp(path: Path) -> tuple[int, ...]:
    """Return a value that changes with the file, its owner or its mode."""
    try:
        about = path.lstat()
    except FileNotFoundError:
        raise NoSuchRun(f"There is no connection file {path}: the run has ended.") from None
    return about.st_ino, about.st_ctime_ns, about.st_mtime_ns, about.st_size, about.st_mode, about.st_uid


def _touched(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except OSError:  # it ended while we looked
        return float("inf")


def _remove_socket(endpoint: str) -> None:
    path = Path(endpoint.removeprefix(IPC))
    if not endpoint.startswith(IPC) or not path.is_absolute():
        return
    try:
        about = path.lstat()
        if stat.S_ISSOCK(about.st_mode) and is_of_this_user(about):
            path.unlink()
    except OSError:  # gone, or not permitted
        pass
