"""Values as pixels: uint8 arrays (height, width, 3) or (height, width, 4)."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from looptap.streams.values.snapshots import Image
from looptap.visualizers.charts.choice import captioned, image_field, is_picture
from looptap.visualizers.data.numbers import as_array, describe, is_array
from looptap.visualizers.data.words import shown

Pixels: TypeAlias = NDArray[np.uint8]
MAX_SIDE_PIXELS = 1024
"""Pixels of a side; of larger images every n-th is taken."""
_CHANNEL_COUNTS = (1, 3, 4)
_MAX_PNG_PIXELS = 40_000_000  # of a PNG, more are not unpacked


def pictures(value: Any, *, many: bool, most: int) -> tuple[list[tuple[Pixels, str]], int, bool]:
    """Return up to ``most`` images (pixels, caption), how many there are, if scaled.

    ``many``: the first axis of an array counts images. Raises TypeError or ValueError for what is no image.
    """
    pairs = _pairs(value, many)
    made = [(pixels(one), caption) for one, caption in pairs[:most]]
    return [(found, caption) for (found, _), caption in made], len(pairs), any(scaled for (_, scaled), _ in made)


def _pairs(value: Any, many: bool) -> list[tuple[Any, str]]:
    if captioned(value):
        return [(value[0], str(value[1])[:200])]
    if isinstance(value, Mapping):
        return [(one, str(name)[:200]) for name, one in value.items()]
    if isinstance(value, list) and value and (key := image_field(value)) is not None:
        return [(row[key], ", ".join(f"{name} {_brief(row[name])}" for name in row if name != key)) for row in value]
    if isinstance(value, list):
        return [(one[0], str(one[1])[:200]) if captioned(one) else (one, "") for one in value]
    if many and is_array(value) and value.ndim > 2:
        return [(one, "") for one in as_array(value)]
    return [(value, "")]


def _brief(value: Any) -> str:
    """Return a value in few characters: there is little room below an image."""
    return f"{value:.3g}" if isinstance(value, float) else shown(value, 24)


def pixels(value: Any) -> tuple[Pixels, bool]:
    """Return the pixels of one image, and whether its numbers were scaled.

    Floats within 0..1 are taken as such, numbers within 0..255 too; others are scaled from the smallest to the largest.
    A matrix is gray; of three axes the last or the first is channels.

    >>> pixels(np.array([[0.0, 1.0]]))[0].tolist()
    [[[0, 0, 0], [255, 255, 255]]]
    """
    if is_picture(value):
        return _of_picture(value), False
    array = as_array(value)
    if array.dtype.kind == "c":
        array = np.abs(array)
    if array.ndim == 3 and array.shape[2] not in _CHANNEL_COUNTS and array.shape[0] in _CHANNEL_COUNTS:
        array = array.transpose(1, 2, 0)
    if array.ndim == 2:
        array = array[:, :, None]
    if array.ndim != 3 or array.shape[2] not in _CHANNEL_COUNTS:
        raise TypeError(f"expected an image: height, width and 1, 3 or 4 channels, got {describe(value)}")
    if not array.size:
        return np.zeros((1, 1, 3), np.uint8), False
    step = -(-max(array.shape[:2]) // MAX_SIDE_PIXELS)
    found, scaled = _bytes(array[::step, ::step])
    return (np.repeat(found, 3, axis=2) if found.shape[2] == 1 else found), scaled


def _bytes(array: NDArray[Any]) -> tuple[Pixels, bool]:
    if array.dtype == np.uint8:
        return array.copy(), False
    if array.dtype.kind == "b":
        return array.astype(np.uint8) * np.uint8(255), False
    with np.errstate(all="ignore"):
        numbers = array.astype(np.float64)
        finite = numbers[np.isfinite(numbers)]
        low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 0.0)
        if low >= 0 and high <= 1 and array.dtype.kind == "f":
            numbers, scaled = numbers * 255, False
        elif low >= 0 and high <= 255:
            scaled = False
        else:
            span = (high / 2 - low / 2) or 0.5
            numbers, scaled = (numbers / 2 - low / 2) / span * 255, True
        return np.clip(np.nan_to_num(numbers, posinf=255.0, neginf=0.0), 0, 255).round().astype(np.uint8), scaled


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
