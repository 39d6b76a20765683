"""The path of a run's file, and whether its file system is local."""

from __future__ import annotations

import glob
import os
import re
from pathlib import Path

from looptap.protocol.file_names import as_text, fitting, on_disk
from looptap.store.errors import StoreError

SUFFIX = ".looptap"
"""The suffix of a stored run."""
FOLDER = "looptap-runs"
"""The default folder of stored runs, in the working directory."""
GONE = "the working directory has been removed"
"""The reason why there is no default folder."""

_LOCAL = {
    "apfs",
    "bcachefs",
    "btrfs",
    "devtmpfs",
    "exfat",
    "ext2",
    "ext3",
    "ext4",
    "f2fs",
    "hfs",
    "jfs",
    "msdos",
    "ntfs",
    "ntfs3",
    "overlay",
    "ramfs",
    "reiserfs",
    "rootfs",
    "squashfs",
    "tmpfs",
    "ufs",
    "vfat",
    "xfs",
    "zfs",
}


def store_path(run: str, where: str | os.PathLike[str] | None = None, rank: int = 0) -> Path:
    """Return the path of the file for the run id ``run``.

    It is in ``where``, else in LOOPTAP_STORE, else in looptap-runs. ``where`` is a folder, or a file if its name ends
    with .looptap. Each rank except 0 has its own file.

    >>> store_path("digits-1", "kept").as_posix(), store_path("digits-1", "kept", rank=2).as_posix()
    ('kept/digits-1.looptap', 'kept/digits-1-rank2.looptap')
    """
    wanted = Path(where or os.environ.get("LOOPTAP_STORE") or FOLDER).expanduser()
    folder, name = (wanted.parent, as_text(wanted.stem)) if wanted.suffix == SUFFIX else (wanted, run)
    return folder / f"{_stem(name)}{f'-rank{rank}' if rank else ''}{SUFFIX}"


def folder_of_runs() -> Path:
    """Return the folder of stored runs.

    Raises StoreError if it went with the working directory.
    """
    folder = store_path(".").parent
    if not absolute_path(folder).is_absolute():
        raise StoreError(f"No run can be found in {folder}: {GONE}. Go to another one, or name a folder.")
    return folder


def absolute_path(path: Path) -> Path:
    """Return an absolute path, or ``path`` itself if its directory is gone."""
    try:
        return path.absolute()
    except FileNotFoundError:
        return path


def kept(pattern: str = "*", folder: Path | None = None) -> list[Path]:
    """Return the files of stored runs whose stems match ``pattern``, newest first.

    They are in ``folder``, by default where `store_path` puts them.
    """
    try:
        place = store_path(".").parent if folder is None else folder
        found = [(_changed(one), one) for one in place.glob(f"{pattern}{SUFFIX}")]
    except OSError:
        return []
    return [one for _, one in sorted(found, reverse=True)]


def stored_path(name: str | os.PathLike[str]) -> Path:
    """Return the path ``name``, or the newest stored run of this name or id."""
    path = Path(name).expanduser()
    if len(path.parts) != 1 or path.is_dir() or (path.exists() and path.suffix == SUFFIX):
        return path
    safe = glob.escape(_stem(as_text(str(name))))
    day, time, tail = "[0-9]" * 8, "[0-9]" * 6, "[0-9a-f]" * 6
    return next(iter(kept(safe) or kept(f"{safe}-{day}-{time}-{tail}")), path)


def _stem(run: str) -> str:
    return on_disk(fitting(re.sub(r"[^\w.@+-]", "_", run)))


def _changed(path: Path) -> float:
    """Return a file's modification time in seconds since 1970; 0 if missing."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def is_on_local_disk(path: Path, mounts: str | None = None) -> bool:
    """Return True if ``path`` is on a local file system, where SQLite can use WAL.

    Unknown file systems count as remote. ``mounts`` is a text in the format of /proc/mounts.

    >>> is_on_local_disk(Path("/data/run"), "/dev/sda1 / ext4 rw 0 0" + chr(10) + "nas:/d /data nfs4 rw 0 0")
    False
    """
    if mounts is None:
        try:
            mounts = Path("/proc/self/mounts").read_text(errors="surrogateescape")
        except OSError:
            return True  # not Linux
    found, kind = -1, ""
    place = path.resolve()
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = Path(re.sub(r"\\(\d{3})", lambda match: chr(int(match[1], 8)), fields[1]))
        if place.is_relative_to(point) and len(point.parts) >= found:
            found, kind = len(point.parts), fields[2]
    return kind in _LOCAL
