"""Features of images: few pixels, alone or with the class."""

from __future__ import annotations

from typing import Any

import numpy as np

from looptap.training.selection.features.features import DenseFeatures, feature_array

_MAX_IMAGES_PER_PART = 1024


def pixels(images: Any, side: int = 8) -> DenseFeatures:
    """Shrink images to ``side`` x ``side`` means in each channel, 4 bytes each.

    ``images`` is an array or tensor (n, h, w), (n, c, h, w) or (n, h, w, c). Whole numbers are divided by 255. 60,000
    images in 8 x 8 shades of grey take 15 MB, in colour 46 MB.

    >>> pixels(np.zeros((10, 3, 32, 32)), side=4)
    <DenseFeatures: 10 rows of 48 numbers, 1.9 KB>
    """
    return DenseFeatures(_shrunk(images, side))


def pixels_and_class(images: Any, labels: Any, side: int = 8, classes: int | None = None) -> DenseFeatures:
    """Shrink images as `pixels` does, and add the class, stored as one number."""
    return DenseFeatures(_shrunk(images, side), labels, classes)


def _shrunk(images: Any, side: int) -> Any:
    found = feature_array(images)
    if found.dtype.kind not in "fiub" or found.ndim not in (3, 4) or not found.size:
        raise ValueError(f"images of shape {found.shape} must be numbers (n, h, w), (n, c, h, w) or (n, h, w, c).")
    if found.ndim == 3:
        found = found[:, None]
    elif found.shape[1] not in (1, 3, 4) and found.shape[3] in (1, 3, 4):
        found = found.transpose(0, 3, 1, 2)
    height, width = found.shape[2:]
    if not 1 <= side <= min(height, width):
        raise ValueError(f"side={side!r} must be from 1 to {min(height, width)}, the size of the images.")
    rows, columns = (np.arange(side) * size // side for size in (height, width))
    counts = np.outer(np.diff(rows, append=height), np.diff(columns, append=width))
    scale = np.float32(1 / 255 if found.dtype.kind in "iu" else 1) / counts.astype(np.float32)
    small = np.empty((len(found), found.shape[1] * side * side), np.float32)
    for begin in range(0, len(found), _MAX_IMAGES_PER_PART):
        part = found[begin : begin + _MAX_IMAGES_PER_PART].astype(np.float32)
        part = np.add.reduceat(np.add.reduceat(part, rows, axis=2), columns, axis=3) * scale
        small[begin : begin + _MAX_IMAGES_PER_PART] = part.reshape(len(part), -1)
    return small
