"""Query helpers: samples of a batch, confusion counts, thumbnails."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from looptap.streams.values.torch_interop import full, is_tensor, local_shard, no_grad

_CHOOSE = random.Random()  # does not affect the job's random numbers


def batch_topk(k: int, by: Any, **columns: Any) -> list[dict[str, Any]]:
    """Return a row for each of the k samples with the largest ``by``, largest first.

    ``by`` has a number per sample (a loss with ``reduction="none"``); each column has a sample per index of its first
    dimension, or one number or text for all. A row is ``{"by": number, column: sample, ...}``; samples are copies. NaN
    counts as the largest. Fewer than k samples give fewer rows.

    >>> batch_topk(1, np.array([0.1, 0.9]), label=["cat", "dog"])
    [{'by': 0.9, 'label': 'dog'}]
    """
    return _ranked(k, by, columns, largest=True)


def batch_bottomk(k: int, by: Any, **columns: Any) -> list[dict[str, Any]]:
    """Return a row for each of the k samples with the smallest ``by``.

    See ``batch_topk``.
    """
    return _ranked(k, by, columns, largest=False)


def batch_sample(k: int, **columns: Any) -> list[dict[str, Any]]:
    """Return a row for each of k random samples of the batch, in their order.

    The choice has its own generator and does not affect the job's random numbers.
    """
    size = next((len(column) for column in columns.values() if _per_sample(column)), None)
    if size is None:
        raise ValueError("batch_sample needs a column with a sample per place, as in batch_sample(4, x=e.x).")
    with no_grad():
        places = sorted(_CHOOSE.sample(range(size), min(k, size)))
        picked = {name: _pick(name, column, size, places, None) for name, column in columns.items()}
        return [{name: column[row] for name, column in picked.items()} for row in range(len(places))]


def _ranked(k: int, by: Any, columns: dict[str, Any], largest: bool) -> list[dict[str, Any]]:
    if not is_tensor(by):
        by = np.asarray(by)
    if by.ndim != 1:
        raise ValueError(
            f"by has shape {tuple(by.shape)}, and needs one number per sample. Compute the loss with "
            'reduction="none", and average what dimensions remain: .mean(dim=(1, 2)).'
        )
    size = len(by)
    k = min(k, size)
    with no_grad():
        device = None
        if is_tensor(by):
            values, order = local_shard(by).topk(k, largest=largest)
            if by.is_cpu:
                values, places = values.tolist(), order.tolist()
            else:
                device, places = order, None
        else:
            places = np.argsort(by, kind="stable")[:: -1 if largest else 1][:k].tolist()
            values = by[places].tolist()
        picked = {name: _pick(name, column, size, places, device) for name, column in columns.items()}
        return [{"by": values[row], **{name: column[row] for name, column in picked.items()}} for row in range(k)]


def _per_sample(column: Any) -> bool:
    return getattr(column, "ndim", 0) > 0 or isinstance(column, list | tuple)


def _pick(name: str, column: Any, size: int, places: list[int] | None, device: Any) -> Sequence[Any]:
    """Return the samples at ``places``, which may be known only on the device."""
    if not _per_sample(column):
        return [column] * size
    if len(column) != size:
        raise ValueError(f"The column {name!r} has {len(column)} samples, and the batch has {size}.")
    if is_tensor(column):
        column = local_shard(column)
        if device is not None:
            rows = column.index_select(0, device.to(column.device))
        else:
            rows = [column[place].clone() for place in places or ()]
        return [row.item() if row.ndim == 0 and row.is_cpu else row for row in rows]
    if places is None:
        places = device.tolist()  # host samples chosen on the device: waits for it
    return [value.copy() if isinstance(value := column[place], np.ndarray) else value for place in places]


def confusion(target: Any, output: Any, classes: int) -> Any:
    """Return int64 confusion counts: rows are targets, columns predictions.

    ``output`` holds class numbers like ``target``, or scores in one more dimension (the second): then the class with
    the highest score counts. Targets out of range (``ignore_index``) are left out.

    >>> confusion([0, 1, 1], [0, 1, 0], 2).tolist()
    [[1, 0], [1, 1]]
    """
    if not (is_tensor(target) or is_tensor(output)):
        target, output = np.asarray(target), np.asarray(output)
        chosen = (output.argmax(1) if output.ndim > target.ndim else output).ravel().astype(np.int64)
        wanted = target.ravel().astype(np.int64)
        valid = (wanted >= 0) & (wanted < classes) & (chosen >= 0) & (chosen < classes)
        cells = wanted[valid] * classes + chosen[valid]
        return np.bincount(cells, minlength=classes * classes).reshape(classes, classes)
    torch = sys.modules["torch"]
    with no_grad():
        target, output = (local_shard(torch.as_tensor(x)) for x in (target, output))
        chosen = (output.argmax(1) if output.ndim > target.ndim else output).flatten().long()
        wanted = target.flatten().to(chosen.device).long()
        valid = (wanted >= 0) & (wanted < classes) & (chosen >= 0) & (chosen < classes)
        cells = torch.where(valid, wanted * classes + chosen, 0)
        counts = torch.zeros(classes * classes, dtype=torch.int64, device=cells.device)
        matrix = counts.scatter_add(0, cells, valid.long()).view(classes, classes)
        return matrix.numpy() if matrix.is_cpu else matrix


def thumbnail(image: Any, size: int = 64) -> Any:
    """Return a uint8 copy of an image with no side over ``size``.

    It has the shape (height, width) or (height, width, 3 or 4). ``image`` is (height, width), (channels, height,
    width) or (height, width, channels), or a PIL image, which gives one. Floats in 0..1 keep their brightness, others
    are scaled from lowest to highest.
    """
    if hasattr(image, "thumbnail"):
        small = image.copy()
        small.thumbnail((size, size))
        return small
    tensor = is_tensor(image)
    if not tensor:
        image = np.asarray(image)
    if image.ndim == 3 and image.shape[0] not in (1, 3, 4) and image.shape[2] in (1, 3, 4):
        image = image.permute(2, 0, 1) if tensor else image.transpose(2, 0, 1)
    if image.ndim == 2:
        image = image[None]
    if image.ndim != 3 or image.shape[0] not in (1, 3, 4) or not min(image.shape):
        raise ValueError(
            f"thumbnail takes one image, and this has shape {tuple(image.shape)}. Choose one of a batch: "
            "thumbnail(e.x[0])."
        )
    scale = min(1.0, size / max(image.shape[1:]))
    height, width = (max(1, round(side * scale)) for side in image.shape[1:])
    if tensor:
        with no_grad():
            image = local_shard(image)
            if not image.is_cpu:
                return _shrink_on_device(image, height, width)
            image = full(image).numpy()
    return _shrink(image, height, width)


def _shrink(image: np.ndarray[Any, Any], height: int, width: int) -> np.ndarray[Any, Any]:
    bytes_ = image.dtype == np.uint8
    x = np.nan_to_num(image.astype(np.float64))
    for axis, side in ((1, height), (2, width)):
        starts = np.arange(side) * x.shape[axis] // side
        counts = np.diff(np.append(starts, x.shape[axis]))
        x = np.add.reduceat(x, starts, axis=axis) / (counts[:, None] if axis == 1 else counts)
    if not bytes_:
        lowest, highest = x.min(), x.max()
        if lowest < 0 or highest > 1:
            x = (x - lowest) / ((highest - lowest) or 1.0)
        x = x * 255
    x = x.round().astype(np.uint8)
    return x[0] if len(x) == 1 else np.ascontiguousarray(x.transpose(1, 2, 0))


def _shrink_on_device(image: Any, height: int, width: int) -> Any:
    torch = sys.modules["torch"]
    bytes_ = image.dtype == torch.uint8
    x = torch.nan_to_num(image.float())
    x = torch.nn.functional.adaptive_avg_pool2d(x[None], (height, width))[0]
    if not bytes_:
        lowest, highest = x.amin(), x.amax()
        inside = (lowest >= 0) & (highest <= 1)
        lowest, highest = torch.where(inside, 0.0, lowest), torch.where(inside, 1.0, highest)
        x = (x - lowest) / (highest - lowest).clamp(min=1e-30) * 255
    x = x.round().to(torch.uint8)
    return x[0] if len(x) == 1 else x.permute(1, 2, 0).contiguous()
