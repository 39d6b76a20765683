"""The files of a checkpoint, one for each rank, replaced whole."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, NamedTuple

_NAME = re.compile(r"rank-(\d+)-of-(\d+)\.pt")


class SavedPart(NamedTuple):
    """What one rank saved last."""

    rank: int
    world: int
    step: int
    """The steps that were done."""
    state: Any
    """What was given to `save_part`."""


def part_path(folder: Path, rank: int, world: int) -> Path:
    """Return the file of a rank."""
    return folder / f"rank-{rank}-of-{world}.pt"


def save_part(folder: Path, part: SavedPart) -> Path:
    """Replace the file of a rank, whole or not at all. Return it.

    Once all ranks have a file of this number of ranks, those of another number are removed. Raises OSError.
    """
    import torch

    path = part_path(folder, part.rank, part.world)
    new = path.with_suffix(f".{os.getpid()}.new")
    try:
        with new.open("wb") as file:
            torch.save({"step": part.step, "state": part.state}, file)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)
    _sync(folder)
    if all(part_path(folder, rank, part.world).exists() for rank in range(part.world)):
        for old, _, world in _parts(folder):
            if world != part.world:
                old.unlink(missing_ok=True)
    return path


def load_parts(folder: str | Path) -> list[SavedPart]:
    """Return what each rank saved last, the part with the most steps first.

    The model is in the first part. That of a rank that died is of its last `save`, or missing. After a change of the
    number of ranks the parts from before it come last, until all ranks have saved. Raises FileNotFoundError for a
    folder without a part.
    """
    import torch

    found = []
    for path, rank, world in _parts(Path(folder)):
        kept = torch.load(path, map_location="cpu", weights_only=True)
        found.append(SavedPart(rank, world, kept["step"], kept["state"]))
    if not found:
        raise FileNotFoundError(f"{folder} has no file rank-0-of-1.pt or the like: no rank has saved a state there.")
    return sorted(found, key=lambda part: (-part.step, part.rank))


def _parts(folder: Path) -> list[tuple[Path, int, int]]:
    """Return the files of a folder with their rank and number of ranks."""
    matches = [(path, _NAME.fullmatch(path.name)) for path in sorted(folder.glob("rank-*-of-*.pt"))]
    return [(path, int(match[1]), int(match[2])) for path, match in matches if match]


def _sync(folder: Path) -> None:
    """Write the folder itself to the disk, where a file system can."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
