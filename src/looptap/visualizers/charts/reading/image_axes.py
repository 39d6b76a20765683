"""`axes_of`: the axes of arrays of pictures, such as channels, height and width.

Tensors are channels first. Arrays of numpy are channels last where their shape allows both and they are bytes or a
single picture; a batch of square floating-point pictures is channels first, as it comes from a tensor.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from looptap.streams.values.torch_interop import is_tensor
from looptap.visualizers.charts.reading.forms import is_numeric_array
from looptap.visualizers.data.numbers import as_array, floats

CHANNEL_COUNTS = (1, 3, 4)
"""Channels that a picture may have."""
MAX_CLASS_NUMBER = 127
"""Whole numbers up to it are classes, more are brightness."""


def axes_of(value: Any, many: bool = False) -> str:
    """Return the axes of an array of pictures, as in "nchw"; "" if it has none.

    ``many``: the first of three axes counts pictures.

    >>> import numpy as np
    >>> axes_of(np.zeros((32, 16, 3))), axes_of(np.zeros((64, 3, 3, 3))), axes_of(np.zeros((7, 32, 16, 3), "u1"))
    ('hwc', 'nchw', 'nhwc')
    """
    if not is_numeric_array(value) or not 2 <= len(value.shape) <= 4:
        return ""
    shape, tensor, packed = tuple(value.shape), is_tensor(value), "uint8" in str(value.dtype)
    if len(shape) == 2:
        return "hw"
    first, last = shape[-3] in CHANNEL_COUNTS, shape[-1] in CHANNEL_COUNTS
    if len(shape) == 3:
        if many or not (first or last):
            return "nhw"
        if first and (tensor or not last):
            return "chw" if shape[0] == 1 or _in_colours(value) else "nhw"
        return "nhw" if tensor and not packed else "hwc"
    if last and packed and not (tensor and first):
        return "nhwc"
    square = shape[2] == shape[3]
    if tensor or (first and square):
        return "nchw"
    return "nhwc" if last else "nchw" if first or square else ""


def _in_colours(value: Any) -> bool:
    """Return whether 3 or 4 planes can be the colours of one picture.

    They are not if they are masks, small whole numbers such as classes, or the maps of attention, whose rows sum to 1;
    and four are not if numbers are outside of 0 to 1, as in a latent image.
    """
    array = as_array(value)
    if array.dtype.kind == "b" or not array.size:
        return array.dtype.kind != "b"
    low, high = array.min(), array.max()
    if array.dtype.kind in "iu":
        return array.dtype == np.uint8 or bool(high > MAX_CLASS_NUMBER)
    if array.shape[-3] == CHANNEL_COUNTS[-1] and not (low >= 0 and high <= 1):
        return False
    sums = array.astype(np.float64, copy=False).sum(axis=-1)
    return not (array.shape[-1] == array.shape[-2] > 1 and low >= 0 and np.allclose(sums, 1.0, atol=1e-2))


def channels_last(value: Any, axes: str) -> Any:
    """Return pictures channels last; of many channels the mean."""
    array = as_array(value)
    if "c" not in axes:
        return array
    colours = axes.endswith("c") or array.shape[-3] < CHANNEL_COUNTS[-1] or _in_colours(array)
    array = array if axes.endswith("c") else np.moveaxis(array, -3, -1)
    if colours and array.shape[-1] in CHANNEL_COUNTS:
        return array
    return floats(array).mean(axis=-1) if array.size else floats(array).sum(axis=-1)


def stacked(value: Any) -> Any:
    """Return an array with the pictures of clips, or a batch of one, on one axis.

    >>> import numpy as np
    >>> stacked(np.zeros((2, 5, 3, 8, 8))).shape, stacked(np.zeros((1, 16, 8, 8))).shape
    ((10, 3, 8, 8), (16, 8, 8))
    """
    shape = tuple(value.shape)
    if len(shape) == 5 and {shape[2], shape[4]} & set(CHANNEL_COUNTS):
        return value.reshape((shape[0] * shape[1], *shape[2:]))
    if shape[:1] == (1,) and axes_of(value) == "nchw" and shape[1] not in CHANNEL_COUNTS:
        return value[0]
    return value
