"""Values as pixels: uint8 arrays (height, width, 3) or (height, width, 4)."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from looptap.streams.values.described import Image
from looptap.visualizers.charts.reading.forms import is_picture
from looptap.visualizers.charts.reading.image_axes import CHANNEL_COUNTS, axes_of, channels_last
from looptap.visualizers.charts.reading.sheets import sheet_of
from looptap.visualizers.data.numbers import describe, is_array

Pixels: TypeAlias = NDArray[np.uint8]
MAX_SIDE_PIXELS = 1024
"""Pixels of a side; of larger images every n-th is taken."""
_MAX_PNG_PIXELS = 40_000_000  # of a PNG, more are not unpacked
_MAX_SCALED_NUMBERS = 1_000_000  # numbers that the range of a scale is taken from
_ROBUST_QUANTILES = (0.01, 0.99)
_MIN_BRIGHT_SHARE = 0.5  # of 0..1 or 0..255 that the largest number reaches where they are taken as brightness
_GAP_PIXELS, _GAP_GRAY_PIXELS = 2, 128


class Shown(NamedTuple):
    """Pictures with captions, how many, what was done to them, what is missing."""

    images: list[tuple[Pixels, str]]
    total: int
    remark: str
    missing: str = ""


def pictures(value: Any, *, many: bool, most: int, names: Sequence[str] = ()) -> Shown:
    """Return up to ``most`` pictures with captions, those of a sample in one.

    ``many``: the first axis of an array counts images. Raises TypeError or ValueError for what is no image.
    """
    sheet = sheet_of(value, names, many)
    if sheet is None:
        raise TypeError(f"expected an image: height, width and 1, 3 or 4 channels, got {describe(value)}")
    shots = sheet.shots[:most]
    remarks = [f"each is the mean of {sheet.averaged} channels"] if sheet.averaged else []
    columns, bad = [], 0
    for place in range(max((len(shot.pictures) for shot in shots), default=0)):
        column = [_plain(shot.pictures[place]) for shot in shots]
        bad += sum(int((~np.isfinite(one)).sum()) for one in column if one.dtype.kind == "f")
        limits = _limits([one for one in column if isinstance(one, np.ndarray) and one.dtype != np.uint8])
        columns.append([one if one.dtype == np.uint8 else _bytes(one, limits) for one in column])
        if limits is not None:
            remarks.append(f"black is {limits[0]:.3g}, white is {limits[1]:.3g}")
    missing = f"{bad:,} number{'s are' if bad > 1 else ' is'} NaN or infinite" if bad else ""
    rows = zip(*columns, strict=True) if columns else ()
    images = [(_beside(list(map(_colored, row))), shot.caption) for row, shot in zip(rows, shots, strict=True)]
    return Shown(images, len(sheet.shots), "; ".join(dict.fromkeys(remarks)), missing)


def image_pixels(value: Any) -> tuple[Pixels, bool]:
    """Return the pixels of one image, and whether its numbers were scaled.

    Floats that fill 0..1 are taken as brightness, numbers that fill 0..255 too; others are scaled, so that 1% of them
    are black and 1% white. A matrix is gray; tensors are channels first.

    >>> image_pixels(np.array([[0.0, 1.0]]))[0].tolist()
    [[[0, 0, 0], [255, 255, 255]]]
    """
    (image, _), *_ = (found := pictures(value, many=False, most=1)).images
    return image, bool(found.remark)


def _plain(value: Any) -> NDArray[Any]:
    """Return one picture as bytes or numbers (height, width, channels)."""
    if is_picture(value):
        return _of_picture(value)
    array: NDArray[Any] = channels_last(value, axes_of(value)) if is_array(value) else np.empty((0, 0, 1))
    if array.ndim == 2:
        array = array[:, :, None]
    if array.ndim != 3 or array.shape[2] not in CHANNEL_COUNTS:
        raise TypeError(f"expected an image: height, width and 1, 3 or 4 channels, got {describe(value)}")
    if not array.size:
        return np.zeros((1, 1, 3), np.uint8)
    step = -(-max(array.shape[:2]) // MAX_SIDE_PIXELS)
    array = array[::step, ::step]
    if array.dtype.kind == "b":
        return array.astype(np.uint8) * np.uint8(255)
    return np.abs(array) if array.dtype.kind == "c" else array


def _limits(arrays: Sequence[NDArray[Any]]) -> tuple[float, float] | None:
    """Return the numbers that are black and white; None where they are brightness."""
    if not arrays:
        return None
    every = np.concatenate([one.ravel() for one in arrays])
    with np.errstate(all="ignore"):
        numbers = every[:: -(-len(every) // _MAX_SCALED_NUMBERS)].astype(np.float64)
    numbers = numbers[np.isfinite(numbers)]
    if not len(numbers):
        return None
    low, high = float(numbers.min()), float(numbers.max())
    if low >= 0 and _whole_range(high, every.dtype.kind) is not None:
        return None
    first, last = (float(one) for one in np.quantile(numbers, _ROBUST_QUANTILES))
    return (first, last) if last > first else (low, high)


def _whole_range(high: float, kind: str) -> float | None:
    """Return 1 or 255 if numbers up to ``high`` are brightness up to that."""
    if kind == "f" and _MIN_BRIGHT_SHARE <= high <= 1:
        return 1.0
    return 255.0 if 255 * _MIN_BRIGHT_SHARE <= high <= 255 or high == 0 else None


def _bytes(array: NDArray[Any], limits: tuple[float, float] | None) -> Pixels:
    with np.errstate(all="ignore"):
        numbers = array.astype(np.float64)
        if limits is None:
            finite = numbers[np.isfinite(numbers)]
            unit = array.dtype.kind == "f" and (not len(finite) or finite.max() <= 1)
            numbers = numbers * 255 if unit else numbers
        else:
            low, high = limits
            span = (high / 2 - low / 2) or 0.5
            numbers = (numbers / 2 - low / 2) / span * 255
        return np.clip(np.nan_to_num(numbers, posinf=255.0, neginf=0.0), 0, 255).round().astype(np.uint8)


def _colored(image: NDArray[Any]) -> Pixels:
    return np.repeat(image, 3, axis=2) if image.shape[2] == 1 else image


def _beside(images: Sequence[Pixels]) -> Pixels:
    """Return pictures side by side, small ones enlarged by a whole number."""
    if len(images) == 1:
        return images[0]
    tall = max(image.shape[0] for image in images)
    parts: list[Pixels] = []
    for image in images:
        zoom = max(1, tall // image.shape[0])
        large = image[..., :3].repeat(zoom, axis=0).repeat(zoom, axis=1)
        below = np.full((tall - large.shape[0], large.shape[1], 3), _GAP_GRAY_PIXELS, np.uint8)
        gap = np.full((tall, _GAP_PIXELS, 3), _GAP_GRAY_PIXELS, np.uint8)
        parts += [np.concatenate([large, below]), gap]
    return np.concatenate(parts[:-1], axis=1)


def _of_picture(value: Any) -> Pixels:
    if hasattr(value, "savefig"):
        buffer = io.BytesIO()
        value.savefig(buffer, format="png")
        value = Image(buffer.getvalue(), 0, 0)
    if isinstance(value, Image):
        from PIL import Image as PILImage

        try:
            value = PILImage.open(io.BytesIO(value.png), formats=["PNG"])
        except OSError as error:
            raise ValueError(f"this is no PNG: {error}") from None
        if value.width * value.height > _MAX_PNG_PIXELS:
            raise ValueError(f"an image of {value.width:,} × {value.height:,} pixels is not unpacked")
    image = value.convert("RGBA" if "A" in value.mode or value.mode == "P" else "RGB")
    if max(image.size) > MAX_SIDE_PIXELS:
        image.thumbnail((MAX_SIDE_PIXELS, MAX_SIDE_PIXELS))
    return np.asarray(image, np.uint8)
