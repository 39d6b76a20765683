"""Rows that show instances of a data set: the image, its label, and statistics."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from numbers import Number
from typing import Any

import numpy as np

from looptap.streams.control import Reader
from looptap.streams.preserving.random_state import RandomState, generator_state
from looptap.training.instances import WithIndex
from looptap.training.sampling.permutation_walk import Ints

MAX_SAMPLES = 64
"""The most instances that are read for one value."""
_MAX_TEXT_CHARACTERS = 80  # of a label or a text of an instance
_MAX_SHOWN_NUMBERS = 6  # of an instance that is no image
_MAX_SIDE_PIXELS = 64  # of an image that is shown
_MAX_VISITED_ITEMS = 300  # objects of a data set among which random number generators are looked for


def read_samples(data: Any, indices: Ints) -> list[dict[str, Any]]:
    """Return a row for each of the instances ``indices`` of ``data``.

    Changes no random numbers: those of torch, numpy, random and of generators that the data set owns are restored. An
    instance is read from a shallow copy of the data set, so that what it counts or opens at a read stays with the copy.
    """
    data = copy.copy(_bare(data))
    with _kept_random_numbers(data):
        return [_parts(data[int(index)]) for index in indices]


def read_proven_samples(data: Any, indices: Ints, read: Reader) -> list[dict[str, Any]]:
    """Return the rows of `read_samples` by a checked reader.

    An instance that only code of the data set gives that is not proven harmless is not read: its row says so.
    """
    found = [read(_item_of, _bare(data), int(index)) for index in indices]
    return [
        {"sample": f"not read: {why}; with samples= the data set is read as it is"} if why else _parts(item)
        for item, why in found
    ]


def _item_of(data: Any, index: int) -> Any:
    return data[index]  # followed, as all code of the job's


def _bare(data: Any) -> Any:
    return data.dataset if type(data) is WithIndex else data


def _parts(item: Any) -> dict[str, Any]:
    """Return the image of an item as ``image``, and its other parts as short values.

    >>> _parts((np.array([1.0, 2.0]), 3))
    {'input': '1, 2', 'label': 3}
    """
    if isinstance(item, Mapping):
        parts = {str(name): part for name, part in item.items()}
    elif isinstance(item, tuple | list) and len(item) > 1:
        names = ["input", "label", *(f"part {place}" for place in range(3, len(item) + 1))]
        parts = dict(zip(names, item, strict=True))
    else:
        parts = {"input": item}
    image = next((name for name, part in parts.items() if _is_image(part)), None)
    found = {} if image is None else {"image": _thumbnail(parts.pop(image))}
    return found | {name: _short(part) for name, part in parts.items()}


def _is_image(part: Any) -> bool:
    shape = tuple(getattr(part, "shape", ()))
    channels = len(shape) == 3 and (shape[0] in (1, 3, 4) or shape[2] in (1, 3, 4))
    return hasattr(part, "thumbnail") or ((len(shape) == 2 or channels) and min(shape) > 0)


def _thumbnail(image: Any) -> Any:
    """Return an image of at most 64 pixels a side: every n-th of a tensor or array."""
    if hasattr(image, "thumbnail"):
        small = image.copy()
        small.thumbnail((_MAX_SIDE_PIXELS, _MAX_SIDE_PIXELS))
        return small
    first = len(image.shape) == 3 and image.shape[0] in (1, 3, 4) and image.shape[2] not in (1, 3, 4)
    step = -(-max(image.shape[first : first + 2]) // _MAX_SIDE_PIXELS)
    return image[:, ::step, ::step] if first else image[::step, ::step]


def _short(part: Any) -> Any:
    """Return a number or text as it is, numbers of an array as text, else the type."""
    if hasattr(part, "detach"):
        part = part.detach().cpu().float().numpy() if part.is_floating_point() else part.detach().cpu().numpy()
    if isinstance(part, np.ndarray | np.generic):
        if part.ndim == 0:
            return part.item()
        numbers = ", ".join(f"{number:.3g}" for number in part.ravel()[:_MAX_SHOWN_NUMBERS].tolist())
        return numbers if part.size <= _MAX_SHOWN_NUMBERS else f"{numbers}, … ({'×'.join(map(str, part.shape))})"
    if isinstance(part, Number):
        return part
    return (part if isinstance(part, str) else repr(part))[:_MAX_TEXT_CHARACTERS]


@contextmanager
def _kept_random_numbers(data: Any) -> Iterator[None]:
    """Restore the global random numbers, and generators in attributes of ``data``."""
    put_backs = [RandomState().put_back, *(generator_state(generator) for generator in _generators(data))]
    try:
        yield
    finally:
        for put_back in put_backs:
            put_back()


def _generators(data: Any) -> list[Any]:
    import torch

    found: list[Any] = []
    waiting, seen = [data], set[int]()
    while waiting and len(seen) < _MAX_VISITED_ITEMS:
        thing = waiting.pop(0)
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, np.random.Generator):
            found.append(thing.bit_generator)
        elif isinstance(thing, torch.Generator | np.random.RandomState | random.Random):
            found.append(thing)
        elif isinstance(thing, list | tuple):
            waiting += thing[:_MAX_SHOWN_NUMBERS]
        elif isinstance(thing, dict):
            waiting += list(thing.values())[:_MAX_VISITED_ITEMS]
        elif not isinstance(thing, torch.Tensor | np.ndarray) and hasattr(thing, "__dict__"):
            waiting += vars(thing).values()
    return found
