"""`sheet_of`: the pictures in a value with their captions, several side by side.

Tensors are channels first. Arrays of numpy are channels last where their shape allows both and they are bytes or a
single picture; a batch of square floating-point pictures is channels first, as it comes from a tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from looptap.streams.values.described import Image
from looptap.streams.values.torch_interop import is_tensor
from looptap.visualizers.charts.reading.points import LABELS
from looptap.visualizers.data.numbers import as_array, floats, has_numbers, is_array, is_number
from looptap.visualizers.data.words import shown

CHANNEL_COUNTS = (1, 3, 4)
"""Channels that a picture may have."""
PREDICTIONS = ("prediction", "predicted", "pred", "preds", "output", "outputs", "guess", "argmax", "logits", "scores")
"""Names of what a model made of a sample: in captions they come right after the label."""
_MAX_CAPTION_CHARACTERS, _MAX_CLASSES = 200, 1000
_MAX_CLASS_NUMBER = 127  # whole numbers up to it are classes, more are brightness


class Shot(NamedTuple):
    """The pictures of one sample, side by side, and what stands below them."""

    pictures: tuple[Any, ...]
    caption: str


class Sheet(NamedTuple):
    """Samples with as many pictures each; how many channels were averaged away."""

    shots: list[Shot]
    averaged: int = 0


def is_picture(value: Any) -> bool:
    """Return whether a value is an image: from a job, of PIL, or a matplotlib figure."""
    if isinstance(value, Image):
        return True
    names = {f"{base.__module__}.{base.__qualname__}" for base in type(value).__mro__}
    return bool(names & {"PIL.Image.Image", "matplotlib.figure.Figure"})


def axes_of(value: Any, many: bool = False) -> str:
    """Return the axes of an array of pictures, as in "nchw"; "" if it has none.

    ``many``: the first of three axes counts pictures.

    >>> import numpy as np
    >>> axes_of(np.zeros((32, 16, 3))), axes_of(np.zeros((64, 3, 3, 3))), axes_of(np.zeros((7, 32, 16, 3), "u1"))
    ('hwc', 'nchw', 'nhwc')
    """
    shape = tuple(value.shape)
    if len(shape) < 3 or len(shape) > 4:
        return "hw" if len(shape) == 2 else ""
    first, last = shape[-3] in CHANNEL_COUNTS, shape[-1] in CHANNEL_COUNTS
    tensor, packed = is_tensor(value), "uint8" in str(value.dtype)
    if len(shape) == 3:
        if many or not (first or last) or (tensor and last and not (first or packed)):
            return "nhw"
        if first and shape[0] > 1 and (tensor or not last) and not _in_colours(value):
            return "nhw"
        return "chw" if first and (tensor or not last) else "hwc"
    square = shape[2] == shape[3]
    if tensor:
        return "nhwc" if packed and last and not first else "nchw"
    if last and (packed or not first or not square):
        return "nhwc"
    return "nchw" if first or square else ""


def _in_colours(value: Any) -> bool:
    """Return whether 3 or 4 planes can be the colours of one picture.

    They are not if they are masks, small whole numbers such as classes, or the maps of attention, whose rows sum to 1;
    and four are not if numbers are outside of 0 to 1, as in a latent image.
    """
    array = as_array(value)
    if array.dtype.kind == "b" or not array.size:
        return array.dtype.kind != "b"
    if array.dtype.kind in "iu":
        return array.dtype == np.uint8 or bool(array.max() > _MAX_CLASS_NUMBER)
    if array.shape[-3] == CHANNEL_COUNTS[-1] and not (array.min() >= 0 and array.max() <= 1):
        return False
    sums = array.astype(np.float64, copy=False).sum(axis=-1)
    return not (array.shape[-1] == array.shape[-2] > 1 and array.min() >= 0 and np.allclose(sums, 1.0, atol=1e-2))


def channels_last(value: Any, axes: str) -> Any:
    """Return pictures channels last; of many channels the mean."""
    array = as_array(value)
    if "c" not in axes:
        return array
    if not axes.endswith("c"):
        colours = array.shape[-3] < CHANNEL_COUNTS[-1] or _in_colours(array)
        array = array.swapaxes(-3, -2).swapaxes(-2, -1)
        if not colours:
            return mean_over_channels(array)
    return array if array.shape[-1] in CHANNEL_COUNTS else mean_over_channels(array)


def mean_over_channels(array: Any) -> Any:
    """Return the mean over the last axis, where complex numbers count as magnitudes."""
    return floats(array).mean(axis=-1) if array.size else floats(array).sum(axis=-1)


def captioned(value: Any) -> bool:
    """Return whether a value is (image, caption)."""
    if not isinstance(value, tuple) or len(value) != 2 or not isinstance(value[1], str | int | float):
        return False
    return is_image(value[0])


def is_image(value: Any) -> bool:
    """Return whether a value is one picture: an array, PIL, or matplotlib."""
    if not is_array(value) or not has_numbers(value):
        return is_picture(value)
    return axes_of(value) in ("hw", "chw", "hwc")


def sheet_of(value: Any, names: Sequence[str] = (), many: bool = True) -> Sheet | None:
    """Return the pictures in a value, or None: an array, rows, a dict, or a batch.

    ``names`` are those of a tuple's parts. ``many``: an array of three axes is a batch of gray pictures.
    """
    if is_picture(value) or captioned(value):
        one, text = value if captioned(value) else (value, "")
        return Sheet([Shot((one,), str(text)[:_MAX_CAPTION_CHARACTERS])])
    if is_array(value):
        return _of_array(value, many)
    if isinstance(value, list):
        return _of_list(value)
    if isinstance(value, Mapping):
        return _of_dict({str(name): part for name, part in value.items()})
    if isinstance(value, tuple) and value:
        own = list(getattr(value, "_fields", ()) or names)
        keys = own if len(own) == len(value) else [""] * len(value)
        return _of_parts(list(zip(keys, value, strict=True)))
    return None


def stacked(value: Any) -> Any:
    """Return an array with the pictures of clips, or a batch of one, on one axis.

    >>> import numpy as np
    >>> stacked(np.zeros((2, 5, 3, 8, 8))).shape, stacked(np.zeros((1, 16, 8, 8))).shape
    ((10, 3, 8, 8), (16, 8, 8))
    """
    shape = tuple(value.shape)
    if len(shape) == 5 and (shape[2] in CHANNEL_COUNTS or shape[4] in CHANNEL_COUNTS):
        return value.reshape((shape[0] * shape[1], *shape[2:]))
    if len(shape) == 4 and shape[0] == 1 and axes_of(value) == "nchw" and shape[1] not in CHANNEL_COUNTS:
        return value[0]
    return value


def _of_array(value: Any, many: bool) -> Sheet | None:
    value = stacked(value)
    axes = axes_of(value, many)
    if not has_numbers(value) or not axes:
        return None
    array = channels_last(value, axes)
    channels = tuple(value.shape)[1] if axes == "nchw" and array.ndim == 3 else 0
    return Sheet([Shot((one,), "") for one in array] if axes[0] == "n" else [Shot((array,), "")], channels)


def _of_list(value: list[Any]) -> Sheet | None:
    if value and all(captioned(one) or is_image(one) for one in value):
        pairs = [one if captioned(one) else (one, "") for one in value]
        return Sheet([Shot((one,), str(text)[:_MAX_CAPTION_CHARACTERS]) for one, text in pairs])
    rows = [_row(one) for one in value]
    keys = [tuple(name for name, _ in row) for row in rows]
    if not rows or not keys[0] or len(set(keys)) > 1:
        return None
    found = [place for place in range(len(keys[0])) if all(is_image(row[place][1]) for row in rows)]
    shots = [_shot(row, found) for row in rows] if found else []
    return Sheet(shots) if shots else None


def _row(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return [(str(name), part) for name, part in value.items()]
    names = getattr(value, "_fields", ()) if isinstance(value, tuple) else ()
    if names:
        return list(zip(names, value, strict=True))
    return [(f"{place}", part) for place, part in enumerate(value)] if isinstance(value, tuple) else []


def _of_dict(value: Mapping[str, Any]) -> Sheet | None:
    parts = list(value.items())
    if parts and all(captioned(part) for _, part in parts):
        return Sheet([Shot((part[0],), f"{name}, {part[1]}"[:_MAX_CAPTION_CHARACTERS]) for name, part in parts])
    if parts and all(is_picture(part) or (is_array(part) and _alike(part, parts[0][1])) for _, part in parts):
        return Sheet([Shot((part,), name) for name, part in parts])
    mixed = any(not is_array(part) for _, part in parts) or any(name in LABELS for name in value)
    return _of_parts(parts) if mixed else None  # else arrays by layer


def _of_parts(parts: list[tuple[str, Any]]) -> Sheet | None:
    """Return the pictures of a row, or of a batch with a number for each sample."""
    images = [place for place, (_, part) in enumerate(parts) if is_image(part)]
    if images and all(is_image(part) or _brief(part) is not None for _, part in parts):
        if len(images) == len(parts):
            return Sheet([Shot((part,), name) for name, part in parts])
        return Sheet([_shot(parts, images)])
    batches = [(name, part) for name, part in parts if is_array(part) and axes_of(part).startswith("n")]
    rest = [(name, part) for name, part in parts if not any(part is one for _, one in batches)]
    if not rest and len(batches) > 1 and all(map(_like(batches[0][1]), [part for _, part in batches])):
        names = " | ".join(name for name, _ in batches)  # such as x and its reconstruction
        pairs = zip(*(channels_last(part, axes_of(part)) for _, part in batches), strict=True)
        return Sheet([Shot(pictures, names) for pictures in pairs])
    if not batches or not rest or not all(has_numbers(part) for _, part in batches):
        return None
    size = len(batches[0][1])
    lengths = {len(part) for _, part in rest if _counts_samples(part)}
    if lengths != {size} or any(not _counts_samples(part) for _, part in rest):
        return None
    pictures = [channels_last(part, axes_of(part)) for _, part in batches]
    columns = [(name, as_array(part).tolist() if is_array(part) else list(part)) for name, part in rest]
    return Sheet([
        Shot(tuple(one[place] for one in pictures), _caption([(name, part[place]) for name, part in columns]))
        for place in range(size)
    ])  # fmt: skip


def _like(first: Any) -> Callable[[Any], bool]:
    """Return a function: whether a batch has as many pictures, gray or in colours."""

    def like(part: Any) -> bool:
        axes, shape = axes_of(part), tuple(part.shape)
        count = shape[-1] if axes.endswith("c") else shape[1]
        return axes in ("nchw", "nhwc") and count in CHANNEL_COUNTS and shape[0] == first.shape[0] and has_numbers(part)

    return like


def _counts_samples(part: Any) -> bool:
    """Return whether a part has a number or text for each of several samples."""
    if is_array(part):
        return len(part.shape) == 1 and has_numbers(part)
    return isinstance(part, list) and bool(part) and all(isinstance(one, str) or is_number(one) for one in part)


def _alike(part: Any, other: Any) -> bool:
    shape = tuple(getattr(other, "shape", ()))
    return tuple(part.shape) == shape and len(shape) == 3 and is_image(part)


def _shot(row: list[tuple[str, Any]], images: Sequence[int]) -> Shot:
    """Return the pictures of a row, which are at the places ``images``, and the rest."""
    caption = _caption([part for place, part in enumerate(row) if place not in images])
    if len(images) > 1:
        caption = ", ".join(filter(None, [caption, " | ".join(row[place][0] for place in images)]))
    return Shot(tuple(row[place][1] for place in images), caption)


def _caption(parts: Sequence[tuple[str, Any]]) -> str:
    """Return what is known of a sample: its label and its prediction come first."""
    ranked = sorted(parts, key=lambda part: 0 if part[0] in LABELS else 1 if part[0] in PREDICTIONS else 2)
    words = [f"{'' if name.isdigit() else name} {_brief(part) or shown(part, 24)}".strip() for name, part in ranked]
    return ", ".join(words)[:_MAX_CAPTION_CHARACTERS]


def _brief(value: Any) -> str | None:
    """Return a value in few characters, of scores the largest class; or None."""
    if isinstance(value, float):
        return f"{value:.3g}"
    if value is None or isinstance(value, str | int):
        return shown(value, 24)
    if is_number(value):
        return shown(value, 24)
    if is_array(value) and len(value.shape) == 1 and has_numbers(value) and 1 < value.shape[0] <= _MAX_CLASSES:
        return f"{int(floats(value).argmax())}"
    return None
