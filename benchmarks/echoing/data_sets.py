"""Data sets: a server's files, files or tensors in memory, augmented tensors."""

from __future__ import annotations

import http.client
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset


class Fetched(Dataset[tuple[Any, int]]):
    """Files of the server as items, decoded, with classes; a connection per process."""

    def __init__(self, port: int, decode: Callable[[bytes], Any], targets: Sequence[int]) -> None:
        self.port, self.decode, self.targets = port, decode, targets
        self._link: http.client.HTTPConnection | None = None

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        """Request one file. Raises OSError if the server is gone."""
        if self._link is None:
            self._link = http.client.HTTPConnection("127.0.0.1", self.port)
        self._link.request("GET", f"/{index}")
        return self.decode(self._link.getresponse().read()), self.targets[index]

    def close(self) -> None:
        """Close the connection of this process; the next item opens another one."""
        if self._link is not None:
            self._link.close()
            self._link = None


class Listed(Dataset[Any]):
    """Columns as items; the first one may have to be decoded."""

    def __init__(self, *columns: Sequence[Any], decode: Callable[[Any], Any] | None = None) -> None:
        self.columns, self.decode = columns, decode

    def __len__(self) -> int:
        return len(self.columns[0])

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        first, *rest = (column[index] for column in self.columns)
        return (first if self.decode is None else self.decode(first)), *rest


class Distorted(Dataset[Any]):
    """A data set that augments what it reads, a batch at a time."""

    def __init__(self, data: Listed, distort: Callable[[Tensor], Tensor]) -> None:
        self.data, self.distort = data, distort

    def __len__(self) -> int:
        return len(self.data)

    def __getitems__(self, indices: list[int]) -> list[tuple[Tensor, Any]]:
        images, targets = self.data.columns
        return list(zip(self.distort(images[indices]), targets[indices], strict=True))


class Cached(Dataset[tuple[Any, int]]):
    """Pictures that are kept once they were read, in memory that all workers share.

    ``share`` of the data set fits: the rest is read each time.
    """

    def __init__(self, data: Dataset[tuple[Any, int]], side: int, share: float) -> None:
        self.data, self.kept = data, int(len(data) * share)  # type: ignore[arg-type]
        self.pictures = torch.zeros(self.kept, 1, side, side).share_memory_()
        self.targets = torch.full((self.kept,), -1).share_memory_()

    def __len__(self) -> int:
        return len(self.data)  # type: ignore[arg-type]

    def __getitem__(self, index: int) -> tuple[Any, int]:
        if index < self.kept and (target := int(self.targets[index])) >= 0:
            return self.pictures[index], target
        picture, target = self.data[index]
        if index < self.kept:
            self.pictures[index] = picture
            self.targets[index] = target
        return picture, target
